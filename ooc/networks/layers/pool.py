"""Pooling, over windows and over all positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ooc.errors import ArgumentError, ShapeError
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer, Shape, spatial
from ooc.networks.writer import Writer
from ooc.ops import Binary, Function, Pointwise, PoolBackward, Reduce
from ooc.ops import PoolForward as PoolOp


@dataclass(frozen=True)
class PoolLayer(Layer):
    """Maximum or mean over windows."""

    how: str
    window: Shape
    stride: Shape
    pad: tuple[tuple[int, int], ...]

    kind = "pool"

    def op(self, passing: Any, n: int, x: Shape, dtype: str) -> Any:
        """Its op forward (passing: PoolForward) or backward on so many samples of a shape."""
        c, extent = spatial(self.kind, x)
        return passing(self.how, n, c, extent, self.window, self.stride, self.pad, dtype=dtype)

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in ("max", "average", "average_valid"):
            raise ArgumentError(f"{self.kind}: how: expected max, average or average_valid; got {self.how!r}")
        shape: Shape = self.op(PoolOp, 1, reads[0], "f32").outputs[0].shape
        return shape[1:]

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        writer.call(self.op(PoolOp, writer.batch, writer.graph.shapes[x], writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        dx = writer.gradient_name(x)
        op = self.op(PoolBackward, writer.batch, writer.graph.shapes[x], writer.dtype(x))
        writer.call(op, (x, dy) if self.how == "max" else (dy,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class MaxUnpool(Layer):
    """Values of windows where the tensor that is read first has the maximum of each, zeros elsewhere."""

    window: Shape
    stride: Shape
    pad: tuple[tuple[int, int], ...]

    kind = "max_unpool"
    takes = 2

    def _op(self, passing: Any, n: int, x: Shape, dtype: str, how: str = "max") -> Any:
        return PoolLayer(how, self.window, self.stride, self.pad).op(passing, n, x, dtype)

    def shape(self, reads: Sequence[Shape]) -> Shape:
        x, values = reads
        pooled = self._op(PoolOp, 1, x, "f32").outputs[0].shape[1:]
        if values != pooled:
            raise ShapeError(f"{self.kind}: expected values of shape {pooled}, one for each window, got {values}")
        if any(s < w for s, w in zip(self.stride, self.window, strict=True)):
            raise ShapeError(f"{self.kind}: windows of {self.window} overlap at a stride of {self.stride}")
        return x

    def forward(self, writer: Writer, node: LayerNode) -> None:
        x, values = node.reads
        op = self._op(PoolBackward, writer.batch, writer.graph.shapes[x], writer.dtype(x))
        writer.call(op, (x, values), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        """Of the values alone: the gradient at each maximum, found by what unpooling makes of ones."""
        x, values = node.reads
        shape, dtype, like = writer.graph.shapes[x], writer.dtype(x), writer.shape(values)
        ones, mask, part, mean = (f"d.{node.made}/{what}" for what in ("ones", "places", "part", "mean"))
        dx = writer.gradient_name(values)
        writer.call(Function("clip", writer.batch, *like, 1.0, 1.0, dtype=dtype), (values,), (ones,))
        writer.call(self._op(PoolBackward, writer.batch, shape, dtype), (x, ones), (mask,))
        writer.call(Binary("where", writer.batch, *writer.shape(x), dtype=dtype), (dy, mask), (part,))
        writer.call(self._op(PoolOp, writer.batch, shape, dtype, "average"), (part,), (mean,))
        writer.call(Pointwise(writer.batch, *like, alpha=math.prod(self.window), dtype=dtype), (mean,), (dx,))
        return (None, dx)


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
