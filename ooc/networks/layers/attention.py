"""Attention, whose scores are never a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooc.errors import ShapeError
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer, Shape
from ooc.networks.layers.repeat import summed
from ooc.networks.writer import Writer
from ooc.ops import Attention


def _joined(apart: Shape) -> Shape:
    """Groups and heads as one axis."""
    return (apart[0] * apart[1], *apart[2:])


@dataclass(frozen=True)
class AttentionLayer(Layer):
    """y = softmax(scale * q k^T + biases) v for each head, see `ooc.ops.attention`: reads q, k, v and up to two biases.

    groups: heads come in so many groups, windows say, one after the other. by: of each bias the axes along which it is full, as
    letters of g (groups), k (heads of a group), h (queries) and w (keys); empty: as their shapes tell, with one group.
    """

    scale: float = 1.0
    groups: int = 1
    by: tuple[str, ...] = ()

    kind = "attention"
    takes = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", tuple(self.by))

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if len(reads) not in (3, 4, 5) or any(len(r) != 3 for r in reads):
            raise ShapeError(
                f"{self.kind}: expected q, k, v and up to two biases, of three axes each, got {', '.join(map(str, reads))}"
            )
        (heads, queries, c), k, v = reads[:3]
        keys = k[1]
        if k != (heads, keys, c) or v[:2] != (heads, keys):
            raise ShapeError(
                f"{self.kind}: expected heads x queries x c, heads x keys x c, heads x keys x depth; got {reads[:3]}"
            )
        if any(not isinstance(letters, str) or not set(letters) <= set("gkhw") for letters in self.by):
            raise ShapeError(f"{self.kind}: by: expected letters of gkhw for each bias, got {self.by}")
        if self.groups < 1 or heads % self.groups or ((self.groups > 1 or self.by) and len(self.by) != len(reads) - 3):
            raise ShapeError(f"{self.kind}: groups and by go with {heads} heads and {len(reads) - 3} biases; got {self}")
        for bias, expected in zip(reads[3:], self.apart(reads), strict=True):
            if bias != _joined(expected):
                full = (heads, queries, keys)
                raise ShapeError(f"{self.kind}: expected a bias of {full}, or of 1 where it is repeated; got {bias}")
        return (heads, queries, v[2])

    def apart(self, reads: Sequence[Shape]) -> list[Shape]:
        """Of each bias its groups, heads of a group, queries and keys; 1 where it is repeated."""
        return [self._expected(letters, (*reads[0][:2], reads[1][1])) for letters in self._letters(reads)]

    def _letters(self, reads: Sequence[Shape]) -> tuple[str, ...]:
        """Of each bias the axes along which it is full."""
        full = (*reads[0][:2], reads[1][1])
        return self.by or tuple("".join(n for n, e, f in zip("khw", b, full) if e == f and f > 1) for b in reads[3:])

    def _expected(self, letters: str, full: Shape) -> Shape:
        """Groups, heads, queries and keys of a bias."""
        apart = (self.groups, full[0] // self.groups, *full[1:])
        return tuple(e if letter in letters else 1 for letter, e in zip("gkhw", apart, strict=True))

    def _op(self, writer: Writer, node: LayerNode, how: str) -> Attention:
        reads = [writer.graph.shapes[x] for x in node.reads]
        (heads, queries, c), (_, keys, depth) = reads[0], reads[2]
        extent, by = (queries, keys), ["n" + letters for letters in self._letters(reads)]
        if how == "dots":
            extent, by = (queries, 1), []
        first, second = (*by, "", "")[:2]
        return Attention(
            how, writer.batch, heads, extent, c, depth, self.scale, first, second, self.groups, writer.dtype(node.made)
        )  # fmt: skip

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (q, k, v, *bias), sums = node.reads, f"{node.name}.sums"
        writer.call(self._op(writer, node, "forward"), (q, k, v, *bias), (node.made, sums))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (q, k, v, *bias), sums, dots = node.reads, f"{node.name}.sums", f"d.{node.name}.dots"
        shapes = [writer.graph.shapes[read] for read in node.reads]
        writer.call(self._op(writer, node, "dots"), (node.made, dy), (dots,))
        gradients: list[str | None] = []
        for i, (x, how) in enumerate(zip(node.reads, ("q", "k", "v", "scores", "scores"), strict=False)):
            dx = writer.gradient_name(x) + (f"/{i}" if node.reads.count(x) > 1 else "")
            gradients.append(dx if x in writer.wanted else None)
            if x not in writer.wanted:
                continue
            reads = (q, k, dy, sums, *bias) if how == "v" else (q, k, v, dy, sums, dots, *bias)
            if how != "scores":
                writer.call(self._op(writer, node, how), reads, (dx,))
                continue
            full = (*shapes[0][:2], shapes[1][1])
            repeated = writer.graph.shapes[x] != full
            writer.call(self._op(writer, node, how), reads, (f"{dx}/full" if repeated else dx,))
            if repeated:
                summed(writer, f"{dx}/full", (self.groups, full[0] // self.groups, *full[1:]), self.apart(shapes)[i - 3], dx)
        return tuple(gradients)
