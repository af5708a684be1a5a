"""Layers that only move values: joining, cutting, padding, resizing, flattening."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ooc.errors import ShapeError
from ooc.networks.calls import Node, Writer
from ooc.networks.layers.base import Layer, Shape, spatial
from ooc.ops import Concat as ConcatOp
from ooc.ops import Place as PlaceOp
from ooc.ops import Upsample as UpsampleOp
from ooc.ops import UpsampleBackward


@dataclass(frozen=True)
class Concat(Layer):
    """Tensors one after the other along the channels."""

    kind = "concat"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if not reads or len({r[1:] for r in reads}) > 1:
            raise ShapeError(f"{self.kind}: expected tensors of the same extents, got {', '.join(map(str, reads)) or 'none'}")
        return (sum(r[0] for r in reads), *reads[0][1:])

    def forward(self, writer: Writer, node: Node) -> None:
        _, extent = writer.shape(node.made)
        channels = tuple(writer.shape(x)[0] for x in node.reads)
        writer.call(ConcatOp(writer.batch, channels, extent, dtype=writer.dtype(node.made)), node.reads, (node.made,))

    def backward(self, writer: Writer, node: Node, dy: str) -> tuple[str | None, ...]:
        k, extent = writer.shape(node.made)
        found: list[str | None] = []
        lead, rest = 0, (0,) * len(extent)
        for i, x in enumerate(node.reads):
            c, _ = writer.shape(x)
            dx = None
            if x in writer.wanted:
                dx = writer.gradient_name(x) + (f"/{i}" if node.reads.count(x) > 1 else "")
                op = PlaceOp(writer.batch, k, extent, c, extent, (-lead, *rest), dtype=writer.dtype(x))
                writer.call(op, (dy,), (dx,))
            found.append(dx)
            lead += c
        return tuple(found)


@dataclass(frozen=True)
class Pad(Layer):
    """Zeros around; negative: positions cut off."""

    around: tuple[tuple[int, int], ...]

    kind = "pad"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        c, extent = spatial(self.kind, reads[0])
        made = tuple(e + a + b for e, (a, b) in zip(extent, self.around, strict=True))
        if min(made) < 1:
            raise ShapeError(f"{self.kind}: {self.around} leaves nothing of {reads[0]}")
        return (c, *made)

    def forward(self, writer: Writer, node: Node) -> None:
        (x,) = node.reads
        (c, extent), (_, size) = writer.shape(x), writer.shape(node.made)
        lead = (0, *(a for a, _ in self.around))
        writer.call(PlaceOp(writer.batch, c, extent, c, size, lead, dtype=writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: Node, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        (c, extent), (_, size) = writer.shape(x), writer.shape(node.made)
        dx, lead = writer.gradient_name(x), (0, *(-a for a, _ in self.around))
        writer.call(PlaceOp(writer.batch, c, size, c, extent, lead, dtype=writer.dtype(x)), (dy,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class Upsample(Layer):
    """Spatial axes resized."""

    how: str
    size: Shape

    kind = "upsample"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        c, extent = spatial(self.kind, reads[0])
        if self.how not in ("nearest", "linear", "aligned"):
            raise ShapeError(f"{self.kind}: how: expected nearest, linear or aligned; got {self.how!r}")
        UpsampleOp(self.how, 1, c, extent, self.size)
        return (c, *self.size)

    def forward(self, writer: Writer, node: Node) -> None:
        (x,) = node.reads
        k, extent = writer.shape(x)
        writer.call(UpsampleOp(self.how, writer.batch, k, extent, self.size, dtype=writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: Node, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        k, extent = writer.shape(x)
        dx = writer.gradient_name(x)
        writer.call(UpsampleBackward(self.how, writer.batch, k, extent, self.size, dtype=writer.dtype(x)), (dy,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class Flatten(Layer):
    """All values of a sample as one axis."""

    kind = "flatten"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return (math.prod(reads[0]),)

    def forward(self, writer: Writer, node: Node) -> None:
        writer.aliases[node.made] = node.reads[0]

    def backward(self, writer: Writer, node: Node, dy: str) -> tuple[str | None, ...]:
        return (dy,)
