"""Layers that work element by element: activations, sums, products, dropout, softmax."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ooc.errors import ShapeError
from ooc.networks.calls import STEP, Node, Writer, full
from ooc.networks.layers.base import Layer, Shape, same, through_activation
from ooc.networks.tensors import Role
from ooc.ops import Dropout as DropoutOp
from ooc.ops import Multiply as MultiplyOp
from ooc.ops import Pointwise, Reduce, SoftmaxApply, SoftmaxDot, SoftmaxPull, SoftmaxSum


@dataclass(frozen=True)
class Act(Layer):
    """y = act(x)."""

    act: str
    coef: float = 0.0

    kind = "activation"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return reads[0]

    def forward(self, writer: Writer, node: Node) -> None:
        (x,) = node.reads
        op = Pointwise(writer.batch, *writer.shape(x), act=self.act, coef=self.coef, dtype=writer.dtype(x))
        writer.call(op, (x,), (node.made,), over=((x, node.made),))

    def backward(self, writer: Writer, node: Node, dy: str) -> tuple[str | None, ...]:
        return (through_activation(writer, node, self.act, self.coef, dy),)


@dataclass(frozen=True)
class Add(Layer):
    """y = act(x + z)."""

    act: str = "identity"
    coef: float = 0.0

    kind = "add"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return same(self.kind, reads)

    def forward(self, writer: Writer, node: Node) -> None:
        x, z = node.reads
        shape = writer.shape(x)
        op = Pointwise(writer.batch, *shape, act=self.act, coef=self.coef, add=full(shape), dtype=writer.dtype(x))
        writer.call(op, (x, z), (node.made,), over=((x, node.made), (z, node.made)) if x != z else ())

    def backward(self, writer: Writer, node: Node, dy: str) -> tuple[str | None, ...]:
        dz = through_activation(writer, node, self.act, self.coef, dy)
        return dz, dz


@dataclass(frozen=True)
class Multiply(Layer):
    """y = act(x * z), z of the shape of x or one value per channel."""

    act: str = "identity"
    coef: float = 0.0

    kind = "multiply"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        x, z = reads
        if z != x and z not in ((x[0],), (x[0], *(1,) * (len(x) - 1))):
            raise ShapeError(f"{self.kind}: expected z of shape {x} or {x[:1]}, got {z}")
        return x

    def _by(self, writer: Writer, node: Node) -> str:
        """The axes along which z is full, where it is not along all."""
        x, z = node.reads
        return "" if writer.shape(x) == writer.shape(z) else "nk"

    def forward(self, writer: Writer, node: Node) -> None:
        x, z = node.reads
        op = MultiplyOp(
            writer.batch, *writer.shape(x), by=self._by(writer, node), act=self.act, coef=self.coef, dtype=writer.dtype(x)
        )
        writer.call(op, (x, z), (node.made,))

    def backward(self, writer: Writer, node: Node, dy: str) -> tuple[str | None, ...]:
        x, z = node.reads
        dt, by = through_activation(writer, node, self.act, self.coef, dy), self._by(writer, node)
        shape, dtype = writer.shape(x), writer.dtype(x)
        found: list[str | None] = []
        for name, other, mask in ((x, z, by), (z, x, "")):
            if name not in writer.wanted:
                found.append(None)
                continue
            made = writer.gradient_name(name) + ("/2" if x == z and found else "")
            product = f"{made}/full" if name == z and by else made
            writer.call(MultiplyOp(writer.batch, *shape, by=mask, dtype=dtype), (dt, other), (product,))
            if product != made:
                writer.call(Reduce("positions", writer.batch, *shape, dtype=dtype), (product,), (made,))
            found.append(made)
        return tuple(found)


@dataclass(frozen=True)
class Dropout(Layer):
    """Each value dropped with probability `rate`."""

    rate: float = 0.5

    kind = "dropout"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        DropoutOp(1, 1, (1,), self.rate)
        return reads[0]

    def _op(self, writer: Writer, node: Node) -> DropoutOp:
        seed = zlib.crc32(node.name.encode())
        return DropoutOp(writer.batch, *writer.shape(node.made), self.rate, seed, drawn=True, dtype=writer.dtype(node.made))

    def forward(self, writer: Writer, node: Node) -> None:
        (x,) = node.reads
        if not writer.train:
            writer.aliases[node.made] = x
            return
        draw = writer.given(STEP, (1,), "i64", Role.INPUT)
        writer.call(self._op(writer, node), (x, draw), (node.made,), over=((x, node.made),))

    def backward(self, writer: Writer, node: Node, dy: str) -> tuple[str | None, ...]:
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

    def forward(self, writer: Writer, node: Node) -> None:
        (x,), sums = node.reads, f"{node.name}.sums"
        shape, dtype = writer.shape(x), writer.dtype(x)
        writer.call(SoftmaxSum(writer.batch, *shape, dtype=dtype), (x,), (sums,))
        writer.call(SoftmaxApply(self.how, writer.batch, *shape, dtype=dtype), (x, sums), (node.made,))

    def backward(self, writer: Writer, node: Node, dy: str) -> tuple[str | None, ...]:
        (x,), dot = node.reads, f"d.{node.name}.dot"
        shape, dtype, dx = writer.shape(x), writer.dtype(x), writer.gradient_name(x)
        of = (dy, node.made) if self.how == "plain" else (dy,)
        writer.call(SoftmaxDot("dot" if self.how == "plain" else "sum", writer.batch, *shape, dtype=dtype), of, (dot,))
        writer.call(SoftmaxPull(self.how, writer.batch, *shape, dtype=dtype), (node.made, dy, dot), (dx,))
        return (dx,)
