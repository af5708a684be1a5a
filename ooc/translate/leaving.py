"""What exports of graphs to other libraries share: which layers leave, with which values, and what some are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc.errors import ArgumentError, UnsupportedError
from ooc.ir.op import compute_dtype
from ooc.networks.calls import LayerNode
from ooc.networks.lasting import checked
from ooc.networks.layer_graph import LayerGraph
from ooc.ops.resize import table
from ooc.runtime.context import current_device
from ooc.translate.building import Shape

Table = tuple[Any, Any, Any]  # along an axis: both sources of each result, and the weight of the second
NEAR = 2e-7  # of the positions of an axis that is resized: those of other libraries are f32


class Leaving(NamedTuple):
    """What an export is made of.

    Fields:
        nodes: the layers that the outputs need, in order; no losses.
        inputs: names of the inputs that these read.
        outputs: names of the graph's outputs; where it has none, of what its losses read.
        values: parameters and statistics of these layers, by name.
        fixed: those of them that no step moves.
    """

    nodes: tuple[LayerNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Any]
    fixed: frozenset[str] = frozenset()


def leaving(graph: LayerGraph, parameters: Mapping[str, Any] | None) -> Leaving:
    """What is exported of a graph; parameters: values that override the graph's. Raises ArgumentError, ShapeError."""
    losses = {node.name: node.reads[0] for node in graph.nodes if node.layer.is_loss}
    outputs = tuple(x for x in graph.outputs if x not in losses) or tuple(dict.fromkeys(losses.values()))
    if not outputs or not graph.inputs.keys().isdisjoint(outputs):
        raise ArgumentError(f"graph {graph.name}: it has no outputs to export; name some with g.output(...)")
    needed, nodes = set(outputs), list[LayerNode]()
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(node.reads)
            nodes.append(node)
    values = {**graph.values, **checked(graph, {} if parameters is None else parameters, current_device().backend)}
    weights = {name: one for node in nodes for name, one in node.parameters.items()}
    each = {name: values[name] if name in values else one.initial(name, 0) for name, one in weights.items()}
    return Leaving(tuple(nodes[::-1]), tuple(x for x in graph.inputs if x in needed), outputs, each, frozenset(graph.fixed))


def refusal(node: LayerNode, library: str, why: str) -> UnsupportedError:
    """The error for a layer that a library has not."""
    return UnsupportedError(f"layer {node.name} ({node.layer.kind}): {why}; it cannot be exported to {library}")


def wide(shape: Sequence[int], rank: int) -> Shape:
    """A shape per sample with so many axes: one value per channel has no others."""
    return (*shape, *(1,) * (rank - len(shape)))


def arithmetic(store: str, dtype: str) -> str:
    """In which dtype integers and floating numbers become each other: f32 does not hold all values of 32 bits."""
    return "f64" if store == "i32" else compute_dtype(dtype)


# ---- channels spread over blocks of positions


class Move(NamedTuple):
    """One step of values that move: they are seen as `view`, per sample, then its axes are exchanged."""

    view: Shape
    order: Shape


def spreading(channels: int, extent: Shape, block: int, how: str) -> Iterator[Move]:
    """The moves of depth to space in any number of axes, the reverse of `ooc.translate.parts.positions_of_blocks`; what they end
    with is then seen as the result. channels: of the result."""
    rank = len(extent)
    if how == "dcr":
        yield Move((block**rank, channels, math.prod(extent)), (1, 0, 2))
    for axis in reversed(range(rank)):
        before, behind = math.prod(extent[:axis]), math.prod(e * block for e in extent[axis + 1 :])
        yield Move((channels * block**axis, block, before * extent[axis], behind), (0, 2, 1, 3))


# ---- tables


def tables_of(layer: Any, extent: Shape) -> list[Table]:
    """Of a layer that resizes by tables: one per axis."""
    lines = np.asarray(layer.lines).reshape(len(extent), 4).tolist()
    return [table(layer.how, e, s, tuple(line)) for e, s, line in zip(extent, layer.size, lines, strict=True)]


def alike(a: Table, b: Table) -> bool:
    """Whether two tables pick the same sources, or mix them at positions that other libraries cannot tell apart."""
    if not a[2].any() and not b[2].any():
        return np.array_equal(a[0], b[0])
    one, other = (first + share * (second - first) for first, second, share in (a, b))
    return bool(np.abs(one - other).max() < NEAR * max(1, int(a[1].max())))


def plain(axis: Table, extent: int) -> bool:
    """Whether a table takes an axis as it is."""
    return len(axis[0]) == extent and not axis[2].any() and np.array_equal(axis[0], np.arange(extent))


class Steps(NamedTuple):
    """A slice along an axis."""

    begin: int
    end: int
    step: int


def steps_of(axis: Table) -> Steps | None:
    """The slice that picks what a table does, going forward; None: it is none."""
    first, _, share = axis
    step = int(first[1] - first[0]) if len(first) > 1 else 1
    if share.any() or step < 1 or not np.array_equal(first, first[0] + step * np.arange(len(first))):
        return None
    return Steps(int(first[0]), int(first[-1]) + 1, step)


def borders(layer: Any, extent: Shape) -> list[tuple[int, int]]:
    """Of a layer that mirrors or repeats what lies at a border: what is put before and behind each axis; negative: cut off."""
    before = [-int(a) for a in layer.lines[::4]]
    return [(b, s - e - b) for b, e, s in zip(before, extent, layer.size, strict=True)]


def reaches_beyond(layer: Any, extent: Shape) -> bool:
    """Whether there is less than is mirrored, or taken from the other end."""
    kept = {"reflect": 1, "wrap": 0}.get(layer.how)
    return kept is not None and any(max(pair) > e - kept for pair, e in zip(borders(layer, extent), extent, strict=True))
