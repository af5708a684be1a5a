"""Inputs that are mirrored at their ends, to multiples of what a network halves, and results that are cut back."""

from __future__ import annotations

from collections.abc import Sequence

from ooc.errors import UnsupportedError
from ooc.networks import Graph
from ooc.networks.layers import ResizeLayer


def padded(graph: Graph, x: str, size: tuple[int, ...]) -> str:
    """x mirrored at its ends to a size."""
    if size == graph.shapes[x][1:]:
        return x
    return graph.add_layer(ResizeLayer("reflect", size, (0.0, 1.0, 1.0, 0.0) * len(size)), (x,))


def cut_back(graph: Graph, x: str, extent: Sequence[int], size: Sequence[int]) -> str:
    """The result without what belongs to the padding, scaled as the network scales. extent, size: of its input, before it was
    padded and after. Raises UnsupportedError."""
    out = graph.shapes[x][1:]
    if tuple(size) == tuple(extent) or len(out) != len(extent):
        return x
    if any(m * e % w for m, e, w in zip(out, extent, size, strict=True)):
        raise UnsupportedError(f"--pad-to: a result of {out} cannot be cut back to {extent}")
    return graph.crop(x, [(0, m - m * e // w) for m, e, w in zip(out, extent, size, strict=True)])
