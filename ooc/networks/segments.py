"""Some neighbouring calls as a network of their own: what crosses their border is its input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ooc.errors import UnsupportedError
from ooc.networks.calls import UPDATE, Call, LayerNode, Network
from ooc.networks.tensors import Mode, Role, Slot, Weights


@dataclass
class Border:
    """What a network needs of a graph, where there is none: names and sizes of what is given and wanted, see `Wired`."""

    name: str
    inputs: dict[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    parameters: dict[str, Weights]
    values: dict[str, Any] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    nodes: list[LayerNode] = field(default_factory=list)

    def to_json(self) -> str:
        """Raises UnsupportedError: the graph that it is of has a text."""
        raise UnsupportedError(f"{self.name}: a part of a network is not written; write the whole")


def crossing(net: Network, begin: int, end: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tensors of the batch that the calls from `begin` to before `end` read of others, and make for others."""
    calls = net.calls[begin:end]
    inner = {t for call in calls for t in call.makes}
    reads = dict.fromkeys(t for call in calls for t in call.reads if t not in inner and net.tensors[t].per_sample)
    later = {t for call in net.calls[end:] for t in call.reads} | {*net.outputs}
    return tuple(reads), tuple(dict.fromkeys(t for call in calls for t in call.makes if t in later))


def segment(net: Network, begin: int, end: int, as_operands: bool = False) -> Network:
    """The calls from `begin` to before `end` of an inference. as_operands: of one call, whose tensors have the axes that it sees;
    of the same bytes. Raises UnsupportedError where what crosses the border does not begin with the batch."""
    reads, makes = crossing(net, begin, end)
    calls = tuple(replace(call, index=i) for i, call in enumerate(net.calls[begin:end]))
    names = dict.fromkeys(t for call in calls for t in call.tensors)
    tensors = {t: replace(net.tensors[t], role=Role.INPUT) if t in reads else net.tensors[t] for t in names}
    if as_operands:
        tensors |= _seen(calls[0], tensors)
    for t in (*reads, *makes):
        if tensors[t].shape[0] != net.batch:
            raise UnsupportedError(
                f"{net.graph.name}: {t} is {tensors[t].shape}: it does not begin with the batch of {net.batch}"
            )
    return bordered(net, f"{begin}:{end}", tensors, calls, reads, makes)


def bordered(
    net: Network, name: str, tensors: Mapping[str, Slot], calls: tuple[Call, ...], reads: Sequence[str], makes: tuple[str, ...]
) -> Network:  # fmt: skip
    """Some calls of a network, which pass as an inference does. name: what tells them from others. reads, makes: tensors of the
    batch that cross their border."""
    shapes = {t: tensors[t].shape[1:] for t in (*reads, *makes)}
    dtypes = {t: tensors[t].dtype for t in (*reads, *makes)}
    weights = {name: w for name, w in net.graph.parameters.items() if name in tensors}
    values = {name: v for name, v in net.graph.values.items() if name in tensors}
    border = Border(f"{net.graph.name} {name}", {t: shapes[t] for t in reads}, makes, shapes, dtypes, weights, values)
    return Network(border, net.batch, Mode.INFER, tensors, calls, {}, makes)


def _seen(call: Call, tensors: dict[str, Slot]) -> dict[str, Slot]:
    """The tensors of the batch as a call sees them."""
    named = zip(call.op.operands, (*call.reads, *call.makes), strict=True)
    return {t: replace(tensors[t], shape=operand.shape) for operand, t in named if tensors[t].per_sample}


def updates(net: Network) -> Network:
    """What is done at the end of a step, as a network of its own: gradients are there, parameters move; so do running statistics,
    by those of the batch, which are inputs."""
    calls = tuple(replace(call, index=i) for i, call in enumerate(c for c in net.calls if c.phase == UPDATE))
    names = dict.fromkeys(t for call in calls for t in call.tensors)
    weights = {name: w for name, w in net.graph.parameters.items() if name in names}
    border = Border(f"updates of {net.graph.name}", {}, (), {}, {}, weights)
    makes = {t for call in calls for t in call.makes}
    tensors = {t: net.tensors[t] for t in names}
    of_batch = (t for t in tensors.values() if t.role is Role.ACTIVATION and t.name not in makes)
    tensors |= {t.name: replace(t, role=Role.INPUT) for t in of_batch}
    return Network(border, net.batch, net.mode, tensors, calls, {}, (), net.optimizer)
