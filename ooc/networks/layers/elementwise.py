"""Layers that work element by element: activations, functions, sums, products, conversions, dropout, softmax."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ooc.errors import ArgumentError, DtypeError, ShapeError
from ooc.ir.op import DTYPES, INTEGERS, Op
from ooc.networks.calls import STEP, LayerNode
from ooc.networks.layers.base import Layer, Shape, Weights, spatial, through_activation
from ooc.networks.layers.repeat import letters, spread, summed
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer, full
from ooc.ops import ArgMax as ArgMaxOp
from ooc.ops import ConvertIn, ConvertOut, Pointwise, SoftmaxApply, SoftmaxDot, SoftmaxPull, SoftmaxSum
from ooc.ops import Dropout as DropoutOp
from ooc.ops import Function as FunctionOp
from ooc.ops import Multiply as MultiplyOp
from ooc.ops.function import FUNCTIONS, slope_of


@dataclass(frozen=True)
class Act(Layer):
    """y = act(x)."""

    act: str
    coef: float = 0.0

    kind = "activation"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return reads[0]

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        op = Pointwise(writer.batch, *writer.shape(x), act=self.act, coef=self.coef, dtype=writer.dtype(x))
        writer.call(op, (x,), (node.made,), over=((x, node.made),))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        return (through_activation(writer, node, self.act, self.coef, dy),)


@dataclass(frozen=True)
class FunctionLayer(Layer):
    """y = f(x), one of `ooc.ops.function`; with a gradient where it has a slope."""

    how: str
    a: float = 0.0
    b: float = 0.0

    kind = "function"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in FUNCTIONS:
            raise ArgumentError(f"{self.kind}: how: expected one of {', '.join(FUNCTIONS)}; got {self.how!r}")
        return reads[0]

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        op = FunctionOp(self.how, writer.batch, *writer.shape(x), self.a, self.b, dtype=writer.dtype(x))
        writer.call(op, (x,), (node.made,), over=((x, node.made),))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,), slope = node.reads, slope_of(self.how)
        if slope is None:
            return super().backward(writer, node, dy)
        shape, dtype, dx = writer.shape(x), writer.dtype(x), writer.gradient_name(x)
        by = f"{dx}/slope"
        writer.call(FunctionOp(slope, writer.batch, *shape, self.a, self.b, dtype=dtype), (x,), (by,))
        writer.call(MultiplyOp(writer.batch, *shape, dtype=dtype), (by, dy), (dx,), over=((by, dx), (dy, dx)))
        return (dx,)


@dataclass(frozen=True)
class Add(Layer):
    """y = act(x + beta * z); extents of 1 are repeated."""

    act: str = "identity"
    coef: float = 0.0
    beta: float = 1.0

    kind = "add"
    takes = 2

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return spread(self.kind, reads)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        x, z = node.reads
        shape, shapes = writer.shape(node.made), writer.graph.shapes
        of, add = letters(shapes[x], node.shape), letters(shapes[z], node.shape) or full(shape)
        op = Pointwise(writer.batch, *shape, act=self.act, coef=self.coef, beta=self.beta, of=of, add=add, dtype=writer.dtype(x))
        over = [(name, node.made) for name in (x, z) if x != z and shapes[name] == node.shape]
        writer.call(op, (x, z), (node.made,), over=over)

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        dz = through_activation(writer, node, self.act, self.coef, dy)
        gradients: list[str | None] = []
        for name, by in zip(node.reads, (1.0, self.beta), strict=True):
            shape = writer.graph.shapes[name]
            if shape == node.shape and by == 1:
                gradients.append(dz)
                continue
            if name not in writer.wanted:
                gradients.append(None)
                continue
            gradient = writer.gradient_name(name) + ("/2" if len(set(node.reads)) == 1 and gradients else "")
            gradients.append(gradient)
            if shape != node.shape:
                summed(writer, dz, node.shape, shape, gradient, alpha=by)
            else:
                writer.call(Pointwise(writer.batch, *writer.shape(name), alpha=by, dtype=writer.dtype(name)), (dz,), (gradient,))
        return tuple(gradients)


@dataclass(frozen=True)
class MultiplyLayer(Layer):
    """y = act(x * z); extents of 1 of z are repeated."""

    act: str = "identity"
    coef: float = 0.0

    kind = "multiply"
    takes = 2

    def shape(self, reads: Sequence[Shape]) -> Shape:
        product = spread(self.kind, reads)
        if product != reads[0]:
            raise ShapeError(f"{self.kind}: expected x of the shape of the product, {product}; got {reads[0]}")
        return product

    def forward(self, writer: Writer, node: LayerNode) -> None:
        x, z = node.reads
        by = letters(writer.graph.shapes[z], node.shape)
        op = MultiplyOp(writer.batch, *writer.shape(x), by=by, act=self.act, coef=self.coef, dtype=writer.dtype(x))
        writer.call(op, (x, z), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        x, z = node.reads
        by = letters(writer.graph.shapes[z], node.shape)
        dt = through_activation(writer, node, self.act, self.coef, dy)
        shape, dtype = writer.shape(x), writer.dtype(x)
        gradients: list[str | None] = []
        for name, other, mask in ((x, z, by), (z, x, "")):
            if name not in writer.wanted:
                gradients.append(None)
                continue
            gradient = writer.gradient_name(name) + ("/2" if x == z and gradients else "")
            product = f"{gradient}/full" if name == z and by else gradient
            writer.call(MultiplyOp(writer.batch, *shape, by=mask, dtype=dtype), (dt, other), (product,))
            if product != gradient:
                summed(writer, product, node.shape, writer.graph.shapes[z], gradient)
            gradients.append(gradient)
        return tuple(gradients)


@dataclass(frozen=True)
class Affine(Layer):
    """y = act(alpha * x + value) (how: "shift") or act(x * value) ("scale"), with values of its own, of which extents of 1 are
    repeated."""

    how: str
    values: Shape
    alpha: float = 1.0
    act: str = "identity"
    coef: float = 0.0

    kind = "affine"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in ("shift", "scale"):
            raise ArgumentError(f"{self.kind}: how: expected shift or scale; got {self.how!r}")
        shape = spread(self.kind, (reads[0], self.values))
        if self.how == "scale" and shape != reads[0]:
            raise ShapeError(f"{self.kind}: expected x of the shape of the product, {shape}; got {reads[0]}")
        return shape

    def parameters(self, reads: Sequence[Shape], dtype: str) -> dict[str, Weights]:
        return {"value": Weights(self.values, dtype, value=0.0 if self.how == "shift" else 1.0)}

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        shape = writer.shape(node.made)
        common: dict[str, Any] = {"act": self.act, "coef": self.coef, "dtype": writer.dtype(x)}
        axes = letters(self.values, node.shape, "")
        of = letters(writer.graph.shapes[x], node.shape)
        op: Op = MultiplyOp(writer.batch, *shape, by=axes, **common)
        if self.how == "shift":
            op = Pointwise(writer.batch, *shape, alpha=self.alpha, of=of, add=axes, **common)
        over = ((x, node.made),) if writer.graph.shapes[x] == node.shape else ()
        writer.call(op, (x, f"{node.name}.value"), (node.made,), over=over)

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,), value, sink = node.reads, f"{node.name}.value", writer.sink(f"{node.name}.value")
        shape, dtype, axes = writer.shape(node.made), writer.dtype(x), letters(self.values, node.shape, "")
        dz, part = through_activation(writer, node, self.act, self.coef, dy), f"{sink}/full"
        if self.how == "scale":
            writer.call(MultiplyOp(writer.batch, *shape, dtype=dtype), (dz, x), (part,))
        summed(writer, part if self.how == "scale" else dz, node.shape, self.values, sink, of_batch=True)
        if x not in writer.wanted:
            return (None,)
        dx, read = writer.gradient_name(x), writer.graph.shapes[x]
        if self.how == "scale":
            writer.call(MultiplyOp(writer.batch, *shape, by=axes, dtype=dtype), (dz, value), (dx,))
        elif read != node.shape:
            summed(writer, dz, node.shape, read, dx, alpha=self.alpha)
        elif self.alpha == 1:
            return (dz,)
        else:
            writer.call(Pointwise(writer.batch, *shape, alpha=self.alpha, dtype=dtype), (dz,), (dx,))
        return (dx,)


@dataclass(frozen=True)
class Convert(Layer):
    """Integers as floating numbers: x * scale + offset, in `dtype`. Without a gradient."""

    scale: float = 1.0
    offset: float = 0.0
    dtype: str = "f32"

    kind = "convert"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return reads[0]

    def made_dtype(self, read: str) -> str:
        if read not in INTEGERS or self.dtype not in DTYPES:
            raise DtypeError(f"{self.kind}: from integers to a floating dtype, not from {read} to {self.dtype}")
        return self.dtype

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        op = ConvertIn(writer.batch, *writer.shape(x), writer.dtype(x), scale=self.scale, offset=self.offset, dtype=self.dtype)
        writer.call(op, (x,), (node.made,))


@dataclass(frozen=True)
class Round(Layer):
    """Floating numbers as integers of a type: the nearest one, within its range. Without a gradient."""

    store: str

    kind = "round"
    without_channels = True

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return reads[0]

    def made_dtype(self, read: str) -> str:
        if self.store not in INTEGERS:
            raise DtypeError(f"{self.kind}: to: expected one of {', '.join(INTEGERS)}; got {self.store!r}")
        super().made_dtype(read)
        return self.store

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        op = ConvertOut(writer.batch, *writer.shape(x), self.store, dtype=writer.dtype(x))
        writer.call(op, (x,), (node.made,))


@dataclass(frozen=True)
class ArgMaxLayer(Layer):
    """Which channel is the largest, as integers of a type. Without a gradient."""

    store: str = "u8"

    kind = "argmax"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return (1, *spatial(self.kind, reads[0])[1])

    def made_dtype(self, read: str) -> str:
        super().made_dtype(read)
        return self.store

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        writer.call(ArgMaxOp(writer.batch, *writer.shape(x), self.store, writer.dtype(x)), (x,), (node.made,))


@dataclass(frozen=True)
class DropoutLayer(Layer):
    """Each value dropped with probability `rate`."""

    rate: float = 0.5

    kind = "dropout"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        DropoutOp(1, 1, (1,), self.rate)
        return reads[0]

    def _op(self, writer: Writer, node: LayerNode) -> DropoutOp:
        seed = zlib.crc32(node.name.encode())
        return DropoutOp(writer.batch, *writer.shape(node.made), self.rate, seed, drawn=True, dtype=writer.dtype(node.made))

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        if not writer.mode.trains:
            writer.aliases[node.made] = x
            return
        draw = writer.given(STEP, (1,), "i64", Role.INPUT)
        writer.call(self._op(writer, node), (x, draw), (node.made,), over=((x, node.made),))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        dx = writer.gradient_name(x)
        writer.call(self._op(writer, node), (dy, STEP), (dx,), over=((dy, dx),))
        return (dx,)


@dataclass(frozen=True)
class Softmax(Layer):
    """Softmax over the channels (how: plain), or its logarithm (log)."""

    how: str = "plain"

    kind = "softmax"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return reads[0]

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,), sums = node.reads, f"{node.name}.sums"
        shape, dtype = writer.shape(x), writer.dtype(x)
        writer.call(SoftmaxSum(writer.batch, *shape, dtype=dtype), (x,), (sums,))
        writer.call(SoftmaxApply(self.how, writer.batch, *shape, dtype=dtype), (x, sums), (node.made,))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,), dot = node.reads, f"d.{node.name}.dot"
        shape, dtype, dx = writer.shape(x), writer.dtype(x), writer.gradient_name(x)
        of = (dy, node.made) if self.how == "plain" else (dy,)
        writer.call(SoftmaxDot("dot" if self.how == "plain" else "sum", writer.batch, *shape, dtype=dtype), of, (dot,))
        writer.call(SoftmaxPull(self.how, writer.batch, *shape, dtype=dtype), (node.made, dy, dot), (dx,))
        return (dx,)
