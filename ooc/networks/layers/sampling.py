"""Sampling at positions that the network computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ooc.errors import ArgumentError, ShapeError
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer, Shape, spatial
from ooc.networks.writer import Writer
from ooc.ops import GridSample, GridSampleDgrid, GridSampleDx
from ooc.ops.grid_sample import MODES, PADDINGS


@dataclass(frozen=True)
class GridSampleLayer(Layer):
    """Values of the first tensor where the second says, see `ooc.ops.grid_sample`."""

    how: str = "linear"
    padding: str = "zeros"
    aligned: bool = False
    displacement: Shape = ()

    kind = "grid_sample"
    takes = 2

    def _op(self, passing: Any, n: int, x: Shape, size: Shape, dtype: str) -> Any:
        c, extent = spatial(self.kind, x)
        return passing(n, c, extent, size, self.how, self.padding, self.aligned, self.displacement, dtype)

    def shape(self, reads: Sequence[Shape]) -> Shape:
        for name, words in (("how", tuple(MODES)), ("padding", PADDINGS)):
            if (word := getattr(self, name)) not in words:
                raise ArgumentError(f"{self.kind}: {name}: expected one of {', '.join(words)}; got {word!r}")
        x, grid = reads
        (_, extent), (channels, size) = spatial(self.kind, x), spatial(self.kind, grid)
        if not channels == len(size) == len(extent):
            raise ShapeError(f"{self.kind}: expected a grid of {len(extent)} channels and as many axes for {x}; got {grid}")
        if len(self.displacement) not in (0, len(extent)) or min(self.displacement, default=0) < 0:
            raise ShapeError(f"{self.kind}: displacement: expected {len(extent)} numbers, 0 or more; got {self.displacement}")
        return (x[0], *size)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        x, grid = node.reads
        op = self._op(GridSample, writer.batch, writer.graph.shapes[x], node.shape[1:], writer.dtype(x))
        writer.call(op, (x, grid), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        x, grid = node.reads
        shape, dtype = writer.graph.shapes[x], writer.dtype(x)
        dx = writer.gradient_name(x) if x in writer.wanted else None
        dgrid = None
        if dx is not None:
            writer.call(self._op(GridSampleDx, writer.batch, shape, node.shape[1:], dtype), (grid, dy), (dx,))
        if grid in writer.wanted:
            dgrid = writer.gradient_name(grid) + ("/2" if x == grid else "")
            writer.call(self._op(GridSampleDgrid, writer.batch, shape, node.shape[1:], dtype), (x, grid, dy), (dgrid,))
        return (dx, dgrid)
