"""Where results lie among the positions of the input, along each spatial axis: the centres of what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from ooc.apply.axes import SPACE
from ooc.networks import layers
from ooc.networks.build import Built
from ooc.sources import Source
from ooc.sources.around import innermost
from ooc.sources.geometry import geometry_of
from ooc.sources.place import header_of

FINEST = 1 << 12  # denominator of a quotient of lengths
Shape = tuple[int, ...]


class AxisPositions(NamedTuple):
    """Along an axis, result i lies at position offset + i * step of what it is made of."""

    offset: float
    step: float

    def then(self, other: AxisPositions) -> AxisPositions:
        """Of results of results."""
        return AxisPositions(self.offset + self.step * other.offset, self.step * other.step)

    @property
    def back(self) -> AxisPositions:
        """The same seen from what they are made of."""
        return AxisPositions(-self.offset / self.step, 1 / self.step)


SAME = AxisPositions(0.0, 1.0)


def positions(graph: Built) -> list[AxisPositions] | None:
    """Of the first output, a line per spatial axis; None where its axes are not those of the input. What has the extents of the
    input lies where the input lies."""
    (x, *_), (y, *_) = graph.inputs, graph.outputs
    extent = graph.shapes[x][1:]
    known: dict[str, tuple[int, list[AxisPositions]]] = {x: (0, [SAME] * len(extent))}  # with how often it was sampled anew
    for node in graph.nodes:
        if node.shape[1:] == extent:
            known[node.made] = known[x]
            continue
        read = graph.shapes[node.reads[0]][1:]
        moved = _moved(node.layer, read, node.shape[1:])
        whole = [known[r] for r in node.reads if r in known and graph.shapes[r][1:] == read]
        if moved is None or not whole:
            continue
        times, lines = min(whole, key=lambda one: one[0])
        known[node.made] = times + any(line.step != 1 for line in moved), [a.then(b) for a, b in zip(lines, moved, strict=True)]
    return known[y][1] if y in known else None


def by_letter(file: Source, letters: str, lines: Sequence[AxisPositions]) -> dict[str, tuple[float, float]] | None:
    """Offset and step by letter of an axis of space; None where a file tells of no place, or has other axes of space than the
    network. letters: of the file's axes, as the network takes them."""
    told = header_of(innermost(file)) is not None or geometry_of(file)
    network_axes, file_axes = ([letter for letter in axes if letter in SPACE] for axes in (letters, file.axes))
    if not told or not lines or network_axes != file_axes:
        return None
    return {letter: (line.offset, line.step) for letter, line in zip(SPACE[-len(lines) :], lines, strict=True)}


def _moved(layer: object, read: Shape, out: Shape) -> list[AxisPositions] | None:
    """What a layer does to positions; None: they are no longer there."""
    match layer:
        case layers.ConvLayer():
            return _windows(layer.taps, layer.stride, layer.dilation, layer.pad)
        case layers.PoolLayer():
            return _windows(layer.window, layer.stride, (1,) * len(read), layer.pad)
        case layers.ConvTranspose():
            return [line.back for line in _windows(layer.taps, layer.stride, layer.dilation, layer.pad)]
        case layers.Pad():
            return [AxisPositions(-float(lead), 1.0) for lead, _ in layer.around]
        case layers.Laid():
            return [AxisPositions(-float(lead), 1.0) for lead in layer.lead[1:]]
        case layers.DepthToSpace():
            return [AxisPositions((layer.block - 1) / 2, layer.block).back] * len(read)
        case layers.UpsampleLayer():
            if layer.how == "aligned":
                return [AxisPositions(0.0, (e - 1) / max(1, s - 1)) for e, s in zip(read, out, strict=True)]
            return [AxisPositions((e / s - 1) / 2, e / s) for e, s in zip(read, out, strict=True)]
        case layers.ResizeLayer():
            parts = [layer.lines[i : i + 4] for i in range(0, len(layer.lines), 4)]
            return [AxisPositions(a * m / d - b + _rounded(layer.how, m / d), m / d) for a, m, d, b in parts]
        case layers.PermuteLayer():
            return [SAME] * len(read) if layer.order[1:] == tuple(range(1, len(read) + 1)) else None
        case layers.Reshape() | layers.Flatten() | layers.GlobalPool() | layers.Linear():
            return None
    return [SAME] * len(read) if read == out else None


def _windows(taps: Shape, stride: Shape, dilation: Shape, pad: Sequence[tuple[int, int]]) -> list[AxisPositions]:
    axes = zip(taps, stride, dilation, pad, strict=True)
    return [AxisPositions((t - 1) * d / 2 - lead, float(s)) for t, s, d, (lead, _) in axes]


def _rounded(how: str, step: float) -> float:
    """How far a position moves by being rounded, in the middle."""
    way = {"floor": -0.5, "ceil": 0.5}.get(how, 0.0)
    return way * (1 - 1 / Fraction(step).limit_denominator(FINEST).denominator)
