"""Runs of calls as one: a fused op, whose tiles pass all of them while they are resident."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ooc.errors import ArgumentError, ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused, joined
from ooc.networks.calls import Call, Network

FusedRun = tuple[int, int]  # the index of the first call, and how many calls


def fused(net: Network, runs: Sequence[FusedRun]) -> Network:
    """A network with some runs of calls as one call each. What they alone touch is no tensor of it. Raises ArgumentError for runs
    that overlap, reach beyond the calls, or cannot be one."""
    if not runs:
        return net
    calls, at = list[Call](), 0
    for begin, count in sorted(runs):
        if begin < at or count < 1 or begin + count > len(net.calls):
            raise ArgumentError(f"{net.graph.name}: no {count} calls from {begin} on to be one: there are {len(net.calls)}")
        calls += [*net.calls[at:begin], _joined(net, net.calls[begin : begin + count])]
        at = begin + count
    calls = [replace(call, index=i) for i, call in enumerate((*calls, *net.calls[at:]))]
    touched = {name for call in calls for name in call.tensors}
    computed = {name for call in net.calls for name in call.makes}
    tensors = {name: slot for name, slot in net.tensors.items() if name in touched or name not in computed}
    return replace(net, tensors=tensors, calls=tuple(calls))


def gradient_runs(net: Network) -> Iterator[FusedRun]:
    """The gradients of every convolution as one, with those of its activation and a pooling behind it: from one pass over dy."""
    pooling = tuple[Call, ...]()  # which comes before them
    for _, group in itertools.groupby((c for c in net.backward if c.layer), key=lambda call: call.layer):
        calls = tuple(group)
        run = (*pooling, *calls)
        if calls[0].kind == "conv" and len(run) > 1 and _fusable(net, run):
            yield run[0].index, len(run)
        pooling = calls if calls[0].op.kind.startswith("pool_backward") else ()


def _fusable(net: Network, calls: Sequence[Call]) -> bool:
    """Whether calls are neighbours that a part of the batch passes as a fused op."""
    neighbours = [call.index for call in calls] == list(range(calls[0].index, calls[-1].index + 1))
    if not neighbours or any(call.along != ("n", 1) for call in calls):
        return False
    try:
        _joined(net, calls)
    except ShapeError:  # two calls see a tensor with other axes
        return False
    return True


def _joined(net: Network, calls: Sequence[Call]) -> Call:
    """Neighbouring calls as one."""
    last = calls[-1]
    after = {tensor for call in net.calls[last.index + 1 :] for tensor in call.reads} | set(net.outputs)
    after |= {tensor.name for tensor in net.lasting}
    op, reads, makes = joined([node for call in calls for node in _nodes(call)], after)
    return Call(last.index, last.phase, f"{calls[0].layer} to {last.layer}", op.kind, op, reads, makes, last.along)


def _nodes(call: Call) -> list[Node]:
    """A call as nodes; of one that is several ops those."""
    if not isinstance(call.op, Fused):
        return [Node(call.op, call.reads, call.makes)]
    operands = zip(call.op.operands, (*call.reads, *call.makes), strict=True)
    tensor_of = {operand.name: tensor for operand, tensor in operands}

    def tensors(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(tensor_of.get(name, f"{call.index}:{name}") for name in names)

    return [Node(node.op, tensors(node.reads), tensors(node.makes)) for node in call.op.nodes]
