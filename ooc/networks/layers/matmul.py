"""Products of matrices that the network computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooc.errors import ArgumentError, ShapeError
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer, Shape
from ooc.networks.writer import Writer
from ooc.ops import MatMul
from ooc.ops.matmul import HOWS

# For each product, the gradients of a and b: how they multiply which two of a, b and dy.
GRADIENTS = {
    "nn": (("nt", "dy", "b"), ("tn", "a", "dy")),
    "nt": (("nn", "dy", "b"), ("tn", "dy", "a")),
    "tn": (("nt", "b", "dy"), ("nn", "a", "dy")),
}


@dataclass(frozen=True)
class MatMulLayer(Layer):
    """y = alpha * a b (how: nn), a b^T (nt) or a^T b (tn) for each head, see `ooc.ops.matmul`."""

    how: str = "nn"
    alpha: float = 1.0

    kind = "matmul"
    takes = 2

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if self.how not in HOWS:
            raise ArgumentError(f"{self.kind}: how: expected one of {', '.join(HOWS)}; got {self.how!r}")
        a, b = reads
        if not len(a) == len(b) == 3 or a[0] != b[0]:
            raise ShapeError(f"{self.kind}: expected two tensors of heads x rows x columns, as many heads; got {a} and {b}")
        (rows, c), (deep, columns) = (a[:0:-1] if self.how == "tn" else a[1:]), (b[:0:-1] if self.how == "nt" else b[1:])
        if c != deep:
            raise ShapeError(f"{self.kind}: {self.how}: {a} and {b} do not share the axis that is summed: {c} and {deep}")
        return (a[0], rows, columns)

    def forward(self, writer: Writer, node: LayerNode) -> None:
        a, b = node.reads
        self._call(writer, self.how, (a, b), node.shape[1:], _summed(self.how, writer.graph.shapes[a]), node.made)

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        a, b = node.reads
        names = {"a": a, "b": b, "dy": dy}
        shapes = {"a": writer.graph.shapes[a], "b": writer.graph.shapes[b], "dy": node.shape}
        gradients: list[str | None] = []
        for x, (how, one, other) in zip(node.reads, GRADIENTS[self.how], strict=True):
            into = writer.gradient_name(x) + ("/2" if gradients and a == b else "")
            if x in writer.wanted:
                self._call(writer, how, (names[one], names[other]), writer.graph.shapes[x][1:], _summed(how, shapes[one]), into)
            gradients.append(into if x in writer.wanted else None)
        return tuple(gradients)

    def _call(self, writer: Writer, how: str, reads: tuple[str, str], extent: Shape, c: int, into: str) -> None:
        heads, dtype = writer.shape(writer.node.made)[0], writer.dtype(writer.node.made)
        writer.call(MatMul(how, writer.batch, heads, extent, c, self.alpha, dtype=dtype), reads, (into,))


def _summed(how: str, a: Shape) -> int:
    """The extent that is summed over, of a first factor."""
    return a[1] if how == "tn" else a[2]
