"""Pooling, over windows and over all positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ooc.errors import ArgumentError
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer, Shape, spatial
from ooc.networks.writer import Writer
from ooc.ops import Pointwise, PoolBackward, Reduce
from ooc.ops import PoolForward as PoolOp


@dataclass(frozen=True)
class PoolLayer(Layer):
    """Maximum or mean over windows."""

    how: str
    window: Shape
    stride: Shape
    pad: tuple[tuple[int, int], ...]

    kind = "pool"

    def _op(self, passing: Any, n: int, x: Shape, dtype: str) -> Any:
        c, extent = spatial(self.kind, x)
        return passing(self.how, n, c, extent, self.window, self.stride, self.pad, dtype=dtype)

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in ("max", "average", "average_valid"):
            raise ArgumentError(f"{self.kind}: how: expected max, average or average_valid; got {self.how!r}")
        shape: Shape = self._op(PoolOp, 1, reads[0], "f32").outputs[0].shape
        return shape[1:]

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        writer.call(self._op(PoolOp, writer.batch, writer.graph.shapes[x], writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        dx = writer.gradient_name(x)
        op = self._op(PoolBackward, writer.batch, writer.graph.shapes[x], writer.dtype(x))
        writer.call(op, (x, dy) if self.how == "max" else (dy,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class GlobalPool(Layer):
    """Mean or maximum over all positions: one value per channel."""

    how: str

    kind = "global_pool"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in ("max", "average"):
            raise ArgumentError(f"{self.kind}: how: expected max or average; got {self.how!r}")
        return (spatial(self.kind, reads[0])[0],)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        k, extent = writer.shape(x)
        op: Any = PoolOp("max", writer.batch, k, extent, extent, dtype=writer.dtype(x))
        if self.how == "average":
            op = Reduce("positions", writer.batch, k, extent, 1 / math.prod(extent), dtype=writer.dtype(x))
        writer.call(op, (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        k, extent = writer.shape(x)
        dx = writer.gradient_name(x)
        if self.how == "max":
            writer.call(PoolBackward("max", writer.batch, k, extent, extent, dtype=writer.dtype(x)), (x, dy), (dx,))
        else:
            op = Pointwise(writer.batch, k, extent, alpha=1 / math.prod(extent), of="nk", dtype=writer.dtype(x))
            writer.call(op, (dy,), (dx,))
        return (dx,)
