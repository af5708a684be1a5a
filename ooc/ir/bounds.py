"""Following the stages of a fused op from the last to the first: what each one's dims are over the loop dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ooc.ir.axis_maps import Composed, compose, hull, owned
from ooc.ir.op import Op, StageMaps
from ooc.ir.region import Along, AxisMap, Grouped, Whole


class Node(NamedTuple):
    """An op in a graph: the tensor behind each of its inputs and outputs."""

    op: Op
    reads: tuple[str, ...]
    makes: tuple[str, ...]


def trace_stages(
    nodes: Sequence[Node], results: Sequence[str], loops: Mapping[str, int], head: Mapping[str, str], at: int = 0
) -> tuple[StageMaps, ...]:
    """For each stage, each of its dims as a map over the loop dims. head: the reduced dims of the stage `at`, where they are
    loop dims, with their names there."""
    return _Tracer(nodes, results, loops, head, at).maps


class _Tracer:
    """Follows the stages of a fused op from the last to the first: what each one's dims are over the loop dims."""

    def __init__(
        self, nodes: Sequence[Node], results: Sequence[str], loops: Mapping[str, int], head: Mapping[str, str], at: int
    ) -> None:
        self.nodes, self.results, self.loops, self.head = nodes, results, loops, head
        self.uses: dict[str, list[tuple[AxisMap, ...]]] = {}
        maps: list[StageMaps] = [{} for _ in self.nodes]
        for i in reversed(range(len(self.nodes))):
            stage = self.nodes[i].op
            known = self._anchor() if i == len(self.nodes) - 1 else self._follow(i)
            split = {d: Along(loop) for d, loop in head.items()} if i == at else {}
            maps[i] = {d: (split.get(d) or known.get(d, Whole(e)), e) for d, e in stage.dims.items()}
            for operand, tensor in zip(stage.inputs, self.nodes[i].reads, strict=True):
                self.uses.setdefault(tensor, []).append(tuple(compose(a, maps[i]) for a in operand.axes))
        self.maps = tuple(maps)

    def _anchor(self) -> dict[str, AxisMap]:
        last = self.nodes[-1].op
        held = last.reduce if self.head else ()
        return {d: Along(d) for d in last.dims if d not in held}

    def _follow(self, i: int) -> dict[str, AxisMap]:
        node = self.nodes[i]
        used = [t for t in node.makes if t in self.uses]
        dims = self._demanded(node) if used else self._beside(node)
        # Several groups at once need all their channels.
        split = "g" not in node.op.dims or ("g" in dims and dims["g"].dims)
        held = node.op.whole if split else node.op.whole | {"k", "c"}
        return {d: m for d, m in dims.items() if d not in held}

    def _demanded(self, node: Node) -> dict[str, AxisMap]:
        """The dims of a stage whose outputs are used: around what is used, and what is stored of it."""
        dims: dict[str, AxisMap] = {}
        for operand, tensor in zip(node.op.outputs, node.makes, strict=True):
            uses = zip(*self.uses.get(tensor, []), strict=True)
            for axis, size, maps in zip(operand.axes, operand.shape, uses):
                if isinstance(axis, Along):
                    bounds = hull(maps, self.loops, size)
                    if tensor in self.results:
                        bounds = hull((bounds, owned(bounds, self.loops, size)), self.loops, size)
                    dims[axis.dim] = bounds
                elif isinstance(axis, Grouped):
                    dims |= _grouped(axis, maps, node.op)
        return dims

    def _beside(self, node: Node) -> dict[str, AxisMap]:
        """The dims of a stage that only results come from: disjoint parts that follow another use of a tensor it reads,
        or a loop dim of the same name and extent. Any disjoint parts would do; these need the least beyond the tile."""
        dims: dict[str, AxisMap] = {}
        for operand, tensor in zip(node.op.inputs, node.reads, strict=True):
            for axis, size, maps in zip(operand.axes, operand.shape, zip(*self.uses.get(tensor, []), strict=True)):
                if isinstance(axis, Along):
                    dims.setdefault(axis.dim, owned(hull(maps, self.loops, size), self.loops, size))
                elif isinstance(axis, Grouped):
                    dims |= _grouped(axis, maps, node.op)
        taken = {loop for m in dims.values() for loop in m.dims}
        alike = (d for d, e in node.op.dims.items() if d not in dims and d not in taken and self.loops.get(d) == e)
        return dims | {d: Along(d) for d in alike}


def _grouped(axis: Grouped, maps: Sequence[AxisMap], producer: Op) -> dict[str, AxisMap]:
    """Group and channel dims of a producer whose consumers have the same groups; otherwise they stay whole."""
    first = maps[0]
    if any(m != first for m in maps) or not isinstance(first, Composed) or not isinstance(first.axis, Grouped):
        return {}
    inner = {d: (m, e) for d, m, e in first.inner}
    group, channel = inner.get(first.axis.group), inner.get(first.axis.dim)
    if not group or not channel or first.axis.per != axis.per or group[1] != producer.dims[axis.group]:
        return {}
    return {axis.group: group[0], axis.dim: channel[0]}
