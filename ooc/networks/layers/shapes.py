"""Layers that only move values: joining, cutting, padding, resizing, flattening."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ooc.errors import ArgumentError, ShapeError
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer, Shape, spatial
from ooc.networks.writer import Writer
from ooc.ops import Concat as ConcatOp
from ooc.ops import Embed as PlaceOp
from ooc.ops import Permute as PermuteOp
from ooc.ops import Resize as ResizeOp
from ooc.ops import ResizeBackward, UpsampleBackward
from ooc.ops import Spread as SpreadOp
from ooc.ops import Upsample as UpsampleOp
from ooc.ops.resize import HOWS


@dataclass(frozen=True)
class ConcatLayer(Layer):
    """Tensors one after the other along the channels."""

    kind = "concat"
    takes = None

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if not reads or len({r[1:] for r in reads}) > 1:
            raise ShapeError(f"{self.kind}: expected tensors of the same extents, got {', '.join(map(str, reads)) or 'none'}")
        return (sum(r[0] for r in reads), *reads[0][1:])

    def forward(self, writer: Writer, node: LayerNode) -> None:
        _, extent = writer.shape(node.made)
        channels = tuple(writer.shape(x)[0] for x in node.reads)
        writer.call(ConcatOp(writer.batch, channels, extent, dtype=writer.dtype(node.made)), node.reads, (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        k, extent = writer.shape(node.made)
        gradients: list[str | None] = []
        lead, rest = 0, (0,) * len(extent)
        for i, x in enumerate(node.reads):
            c, _ = writer.shape(x)
            dx = None
            if x in writer.wanted:
                dx = writer.gradient_name(x) + (f"/{i}" if node.reads.count(x) > 1 else "")
                op = PlaceOp(writer.batch, k, extent, c, extent, (-lead, *rest), dtype=writer.dtype(x))
                writer.call(op, (dy,), (dx,))
            gradients.append(dx)
            lead += c
        return tuple(gradients)


@dataclass(frozen=True)
class Pad(Layer):
    """Zeros around; negative: positions cut off."""

    around: tuple[tuple[int, int], ...]

    kind = "pad"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        c, extent = spatial(self.kind, reads[0])
        padded = tuple(e + a + b for e, (a, b) in zip(extent, self.around, strict=True))
        if min(padded) < 1:
            raise ShapeError(f"{self.kind}: {self.around} leaves nothing of {reads[0]}")
        return (c, *padded)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        (c, extent), (_, size) = writer.shape(x), writer.shape(node.made)
        lead = (0, *(a for a, _ in self.around))
        writer.call(PlaceOp(writer.batch, c, extent, c, size, lead, dtype=writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        (c, extent), (_, size) = writer.shape(x), writer.shape(node.made)
        dx, lead = writer.gradient_name(x), (0, *(-a for a, _ in self.around))
        writer.call(PlaceOp(writer.batch, c, size, c, extent, lead, dtype=writer.dtype(x)), (dy,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class Laid(Layer):
    """x laid into a tensor of another size, `value` around: channels and spatial axes padded or cut.

    lead: of the channels and each spatial axis, what is put in front; negative: what is cut off there. size: of the result.
    """

    lead: Shape
    size: Shape
    value: float = 0.0

    kind = "laid"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if not len(self.lead) == len(self.size) == len(reads[0]) or min(self.size) < 1:
            raise ShapeError(f"{self.kind}: {self.lead}, {self.size} are no lead and size for a tensor of shape {reads[0]}")
        return self.size

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        (c, extent), (k, size) = writer.shape(x), writer.shape(node.made)
        lead = self.lead if len(self.lead) > 1 else (*self.lead, 0)
        writer.call(PlaceOp(writer.batch, c, extent, k, size, lead, self.value, writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        (c, extent), (k, size) = writer.shape(x), writer.shape(node.made)
        lead = self.lead if len(self.lead) > 1 else (*self.lead, 0)
        dx, back = writer.gradient_name(x), tuple(-a for a in lead)
        writer.call(PlaceOp(writer.batch, k, size, c, extent, back, dtype=writer.dtype(x)), (dy,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class ResizeLayer(Layer):
    """Spatial axes resized, mirrored or picked by tables of positions, see `ooc.ops.resize`."""

    how: str
    size: Shape
    lines: tuple[float, ...]

    kind = "resize"

    def _op(self, n: int, k: int, extent: Shape, dtype: str) -> ResizeOp:
        return ResizeOp(self.how, n, k, extent, self.size, self.lines, dtype)

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in HOWS:
            raise ArgumentError(f"{self.kind}: how: expected one of {', '.join(HOWS)}; got {self.how!r}")
        self._op(1, *spatial(self.kind, reads[0]), "f32")
        return (reads[0][0], *self.size)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        writer.call(self._op(writer.batch, *writer.shape(x), writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        dx = writer.gradient_name(x)
        op = ResizeBackward(self.how, writer.batch, *writer.shape(x), self.size, self.lines, writer.dtype(x))
        writer.call(op, (dy,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class PermuteLayer(Layer):
    """Channels and spatial axes in another order: axis i of the result is axis order[i] of x."""

    order: Shape

    kind = "permute"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if sorted(self.order) != list(range(len(reads[0]))):
            raise ShapeError(f"{self.kind}: order={self.order}: expected the axes of {reads[0]} in some order")
        return tuple(reads[0][axis] for axis in self.order)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        if len(self.order) == 1:
            writer.aliases[node.made] = x
            return
        writer.call(PermuteOp(writer.batch, *writer.shape(x), self.order, writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        if len(self.order) == 1:
            return (dy,)
        dx, back = writer.gradient_name(x), tuple(self.order.index(axis) for axis in range(len(self.order)))
        writer.call(PermuteOp(writer.batch, *writer.shape(node.made), back, writer.dtype(x)), (dy,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class DepthToSpace(Layer):
    """Channels spread over blocks of positions, see `ooc.ops.moved.Spread`."""

    block: int
    how: str = "crd"

    kind = "depth_to_space"

    def _op(self, n: int, k: int, extent: Shape, dtype: str) -> SpreadOp:
        return SpreadOp(self.how, n, k, extent, self.block, dtype)

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in ("crd", "dcr"):
            raise ArgumentError(f"{self.kind}: how: expected crd or dcr; got {self.how!r}")
        shape: Shape = self._op(1, *spatial(self.kind, reads[0]), "f32").outputs[0].shape
        return shape[1:]

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        writer.call(self._op(writer.batch, *writer.shape(x), writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        """Axis by axis, the places in a block are moved in front of the blocks, behind the channels."""
        (x,) = node.reads
        (_, extent), (k, size) = writer.shape(x), writer.shape(node.made)
        dx, b, dtype = writer.gradient_name(x), self.block, writer.dtype(x)
        for axis, blocks in enumerate(extent):
            before, behind = math.prod(extent[:axis]), math.prod(size[axis + 1 :])
            last = axis + 1 == len(extent) and self.how == "crd"
            moved = dx if last else f"{dx}/{axis}"
            op = PermuteOp(writer.batch, k * b**axis, (before * blocks, b, behind), (0, 2, 1, 3), dtype)
            writer.call(op, (dy,), (moved,))
            dy = moved
        if self.how == "dcr":
            op = PermuteOp(writer.batch, k, (b ** len(extent), math.prod(extent)), (1, 0, 2), dtype)
            writer.call(op, (dy,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class Reshape(Layer):
    """The same bytes with other extents; (): one number of each sample."""

    size: Shape

    kind = "reshape"
    without_channels = True

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if math.prod(self.size) != math.prod(reads[0]) or len(self.size) > 4:
            raise ShapeError(f"{self.kind}: {reads[0]} has not the values of {self.size}")
        return self.size

    def forward(self, writer: Writer, node: LayerNode) -> None:
        writer.aliases[node.made] = node.reads[0]

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        return (dy,)


@dataclass(frozen=True)
class Stop(Layer):
    """x under another name, cut off from gradients. how: "zero": none passes; "unknown": a plan that needs one is refused."""

    how: str = "zero"

    kind = "stop"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in ("zero", "unknown"):
            raise ArgumentError(f"{self.kind}: how: expected zero or unknown; got {self.how!r}")
        return reads[0]

    @property
    def passes(self) -> bool:
        return self.how != "zero"

    def forward(self, writer: Writer, node: LayerNode) -> None:
        writer.aliases[node.made] = node.reads[0]


@dataclass(frozen=True)
class UpsampleLayer(Layer):
    """Spatial axes resized."""

    how: str
    size: Shape

    kind = "upsample"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        c, extent = spatial(self.kind, reads[0])
        if self.how not in ("nearest", "linear", "aligned"):
            raise ArgumentError(f"{self.kind}: how: expected nearest, linear or aligned; got {self.how!r}")
        UpsampleOp(self.how, 1, c, extent, self.size)
        return (c, *self.size)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        k, extent = writer.shape(x)
        writer.call(UpsampleOp(self.how, writer.batch, k, extent, self.size, dtype=writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
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

    def forward(self, writer: Writer, node: LayerNode) -> None:
        writer.aliases[node.made] = node.reads[0]

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        return (dy,)
