"""Graphs of backward passes: which stages, reading what, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from ooc.errors import ArgumentError
from ooc.ir.bounds import Node
from ooc.ir.fused import needed
from ooc.ir.op import Op
from ooc.ops import ActivationBackward, ConvDgrad, ConvFprop, Convolution, ConvWgrad, Pointwise, PoolBackward, PoolForward, Reduce
from ooc.ops.resize import Resize
from ooc.ops.resize_backward import ResizeBackward


@dataclass(frozen=True)
class WantedGradients:
    """Which gradients are asked for, and where they go."""

    dx: bool
    dw: bool
    db: bool
    outs: Mapping[str, Any]

    @classmethod
    def of(cls, want: Sequence[str], outs: Mapping[str, Any]) -> WantedGradients:
        """Raises ArgumentError for a name that is no gradient, for none at all, and for an output that is not wanted."""
        if not isinstance(outs, Mapping) or not all(isinstance(name, str) for name in outs):
            raise ArgumentError(f"outs: expected a dict of arrays by the names of gradients, got {outs!r}")
        if not isinstance(want, (str, list, tuple)) or not all(isinstance(w, str) for w in want):
            raise ArgumentError(f"want: expected names of gradients, got {want!r}")
        names = (want,) if isinstance(want, str) else tuple(want)
        unknown = sorted(set(names) - {"dx", "dw", "db"})
        targets = {name: out for name, out in outs.items() if out is not None}
        idle = sorted(name for name in targets if name.partition(".")[0] not in names)
        if unknown or not names or idle:
            raise ArgumentError(f"want: expected some of dx, dw, db, and outputs among them; got {want!r}, outputs {idle}")
        return cls("dx" in names, "dw" in names, "db" in names, targets)


def backward_graph(stages: Sequence[Op], request: WantedGradients, forward: bool) -> tuple[Op, tuple[str, ...]]:
    """The gradients of a chain of convolutions, activations and pooling, as one op, and the names of its results.

    Tensors: x, dy, the filters w, w.1, ... and biases b, b.1, ...; results dx, dw, db, dw.1, ... `forward`: recompute
    the stages' results from x; otherwise the chain is one convolution whose result (before pooling) is the tensor y, with a
    border in front perhaps, which is put around x again.
    """
    return _graph(tuple(stages), request.dx, request.dw, request.db, forward)


@lru_cache(1024)
def _graph(stages: tuple[Op, ...], dx: bool, dw: bool, db: bool, forward: bool) -> tuple[Op, tuple[str, ...]]:
    first = min((i for i, s in enumerate(stages) if isinstance(s, ConvFprop)), default=0)
    ys = [f"y:{i}" if forward or i < first else "y" for i in range(len(stages))]
    suffixes = [f".{i}" if i else "" for i in range(len(stages))]
    before = ["x", *ys[:-1]]
    backward: list[Node] = []
    results: list[str] = []
    gradient = "dy"
    node: Op
    for i in reversed(range(0 if dx else first, len(stages))):
        op = stages[i]
        last = i == 0 or (i == first and not dx)
        if isinstance(op, (ConvFprop, Pointwise)) and op.act != "identity":
            n, k, *extent = op.outputs[0].shape
            node = ActivationBackward(
                n, k, tuple(extent), op.act, op.coef, groups=op.groups, dtype=op.dtype, layout=op.layout
            )  # fmt: skip
            gradient = _add(backward, node, (ys[i], gradient), "dx" if last and not isinstance(op, ConvFprop) else f"dz:{i}")
        if isinstance(op, ConvFprop):
            n, k, *extent = op.outputs[0].shape
            if db:
                node = Reduce("bias", n, k, tuple(extent), groups=op.groups, dtype=op.dtype, layout=op.layout)
                results.append(_add(backward, node, (gradient,), f"db{suffixes[i]}"))
            if dw:
                results.append(_add(backward, _passing(ConvWgrad, op), (before[i], gradient), f"dw{suffixes[i]}"))
            if not last or dx:
                gradient = _add(backward, _passing(ConvDgrad, op), (gradient, "w" + suffixes[i]), "dx" if i == 0 else f"dx:{i}")
        elif isinstance(op, PoolForward):
            node = PoolBackward(**{f.name: getattr(op, f.name) for f in fields(op)})
            reads = (before[i], gradient) if op.how == "max" else (gradient,)
            gradient = _add(backward, node, reads, "dx" if i == 0 else f"dx:{i}")
        elif isinstance(op, Resize):
            node = ResizeBackward(**{f.name: getattr(op, f.name) for f in fields(op)})
            gradient = _add(backward, node, (gradient,), "dx" if i == 0 else f"dx:{i}")
    results += ["dx"] if dx else []
    if "dx" in results and not any("dx" in node.makes for node in backward):
        raise ArgumentError("backward: an identity has the gradient dy itself")
    ahead = _forward(stages if forward else stages[:first], before, ys, suffixes)
    return needed((*ahead, *backward), results), tuple(results)


def _add(nodes: list[Node], op: Op, reads: tuple[str, ...], makes: str) -> str:
    nodes.append(Node(op, reads, (makes,)))
    return makes


def _passing(kind: Any, op: ConvFprop) -> Op:
    """Another pass of the same convolution, without its epilogue."""
    left_out = ("bias", "act", "coef")
    other: Op = kind(**{f.name: getattr(op, f.name) for f in fields(Convolution) if f.name not in left_out})
    return other


def _forward(stages: Sequence[Op], before: Sequence[str], ys: Sequence[str], suffixes: Sequence[str]) -> list[Node]:
    nodes = []
    for i, op in enumerate(stages):
        parameters = [o.name + suffixes[i] for o in op.inputs[1:]]
        nodes.append(Node(op, (before[i], *parameters), (ys[i],)))
    return nodes
