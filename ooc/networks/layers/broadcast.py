"""Layers of two tensors, or of fewer, that repeat extents of 1: quotients, extremes, comparisons and choices, a tensor repeated,
a parameter as a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooc.errors import ArgumentError, DtypeError, ShapeError
from ooc.ir.op import DTYPES
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer, Shape, Weights
from ooc.networks.layers.repeat import letters, spread, summed
from ooc.networks.writer import Writer, full
from ooc.ops import Binary, Pointwise
from ooc.ops import Multiply as MultiplyOp
from ooc.ops.binary import BINARIES

MOST_AXES = 4  # of a sample
CHOICES = ("where", "unless")
COMPARISONS = ("greater", "not_less", "equal")  # steps: their slope is zero


@dataclass(frozen=True)
class BinaryLayer(Layer):
    """y = f(x, z), one of `ooc.ops.binary`; extents of 1 of z are repeated. What a choice looks at and what comparisons read has
    no gradient, as in PyTorch; neither has a power. Equal values share that of an extreme."""

    how: str

    kind = "binary"
    takes = 2

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in BINARIES:
            raise ArgumentError(f"{self.kind}: how: expected one of {', '.join(BINARIES)}; got {self.how!r}")
        shape = spread(self.kind, reads)
        if shape != reads[0]:
            raise ShapeError(f"{self.kind}: expected x of the shape of the result, {shape}; got {reads[0]}")
        return shape

    def _call(self, writer: Writer, how: str, x: str, z: str, into: str, by: str = "") -> None:
        k, extent = self._sizes(writer)
        op = Binary(how, writer.batch, k, extent, by, dtype=self._dtype(writer))
        writer.call(op, (x, z), (into,), over=((x, into),) if x != z else ())

    @staticmethod
    def _sizes(writer: Writer) -> tuple[int, Shape]:
        return writer.shape(writer.node.made)

    @staticmethod
    def _dtype(writer: Writer) -> str:
        return writer.dtype(writer.node.made)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        x, z = node.reads
        self._call(writer, self.how, x, z, node.made, letters(writer.graph.shapes[z], node.shape))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        x, z = node.reads
        if self.how == "power":
            return super().backward(writer, node, dy)
        if self.how in COMPARISONS:
            return (None, None)
        by = letters(writer.graph.shapes[z], node.shape)
        if self.how in CHOICES:
            dx = writer.gradient_name(x)
            self._call(writer, self.how, dy, z, dx, by)
            return (dx, None)
        pulling = self._of_quotient if self.how == "divide" else self._of_extreme
        return pulling(writer, node, dy, by)

    def _of_quotient(self, writer: Writer, node: LayerNode, dy: str, by: str) -> tuple[str | None, ...]:
        """dx = dy / z, dz = -y dy / z."""
        (x, z), dx = node.reads, None
        if x in writer.wanted:
            dx = writer.gradient_name(x)
            self._call(writer, "divide", dy, z, dx, by)
        if z not in writer.wanted:
            return (dx, None)
        dz = writer.gradient_name(z) + ("/2" if x == z else "")
        (k, extent), dtype = self._sizes(writer), self._dtype(writer)
        writer.call(MultiplyOp(writer.batch, k, extent, dtype=dtype), (dy, node.made), (f"{dz}/product",))
        self._call(writer, "divide", f"{dz}/product", z, f"{dz}/share", by)
        self._pulled(writer, node, f"{dz}/share", dz, -1.0)
        return (dx, dz)

    def _of_extreme(self, writer: Writer, node: LayerNode, dy: str, by: str) -> tuple[str | None, ...]:
        """What is larger has all of it, what is equal half."""
        x, z = node.reads
        (k, extent), dtype = self._sizes(writer), self._dtype(writer)
        dx, dz = writer.gradient_name(x), writer.gradient_name(z) + ("/2" if x == z else "")
        above, alike, share = (f"{dx}/{what}" for what in ("above", "alike", "share"))
        self._call(writer, "greater", x, z, above, by)
        self._call(writer, "equal", x, z, alike, by)
        halves = Pointwise(writer.batch, k, extent, beta=0.5, add=full((k, extent)), dtype=dtype)
        writer.call(halves, (above, alike), (share,), over=((above, share),))
        larger, smaller = (dx, f"{dz}/full") if self.how == "maximum" else (f"{dz}/full", dx)
        writer.call(MultiplyOp(writer.batch, k, extent, dtype=dtype), (dy, share), (larger,))
        rest = Pointwise(writer.batch, k, extent, beta=-1.0, add=full((k, extent)), dtype=dtype)
        writer.call(rest, (dy, larger), (smaller,))
        self._pulled(writer, node, f"{dz}/full", dz)
        return (dx, dz)

    @staticmethod
    def _pulled(writer: Writer, node: LayerNode, whole: str, into: str, alpha: float = 1.0) -> None:
        """The gradient of z, where it was repeated summed."""
        shape = writer.graph.shapes[node.reads[1]]
        if shape != node.shape:
            summed(writer, whole, node.shape, shape, into, alpha=alpha)
        else:
            k, extent = writer.shape(node.made)
            writer.call(Pointwise(writer.batch, k, extent, alpha=alpha, dtype=writer.dtype(node.made)), (whole,), (into,))


def _repeated(kind: str, shape: Shape, size: Shape) -> Shape:
    """The size that a shape is repeated to. Raises ShapeError."""
    if not 1 <= len(size) <= MOST_AXES or not shape or spread(kind, (shape, size)) != size:
        raise ShapeError(f"{kind}: expected extents of 1 or those of size={size}, 1 to {MOST_AXES} of them; got {shape}")
    return size


@dataclass(frozen=True)
class ExpandLayer(Layer):
    """Extents of 1 repeated to `size`."""

    size: Shape

    kind = "expand"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return _repeated(self.kind, reads[0], self.size)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        of = letters(writer.graph.shapes[x], node.shape)
        writer.call(Pointwise(writer.batch, *writer.shape(node.made), of=of, dtype=writer.dtype(x)), (x,), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        if writer.graph.shapes[x] == node.shape:
            return (dy,)
        dx = writer.gradient_name(x)
        summed(writer, dy, node.shape, writer.graph.shapes[x], dx)
        return (dx,)


@dataclass(frozen=True)
class ParameterLayer(Layer):
    """A parameter as a tensor, the same for each sample, with extents of 1 repeated to `size`."""

    values: Shape
    size: Shape
    dtype: str = "f32"

    kind = "parameter"
    takes = 0

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return _repeated(self.kind, self.values, self.size)

    def made_dtype(self, read: str = "") -> str:
        if self.dtype not in DTYPES:
            raise DtypeError(f"{self.kind}: dtype: expected one of {', '.join(DTYPES)}; got {self.dtype!r}")
        return self.dtype

    def parameters(self, reads: Sequence[Shape], dtype: str) -> dict[str, Weights]:
        return {"value": Weights(self.values, dtype, value=0.0)}

    def forward(self, writer: Writer, node: LayerNode) -> None:
        of = letters(self.values, node.shape, "")
        op = Pointwise(writer.batch, *writer.shape(node.made), of=of, dtype=self.dtype)
        writer.call(op, (f"{node.name}.value",), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        summed(writer, dy, node.shape, self.values, writer.sink(f"{node.name}.value"), of_batch=True)
        return ()
