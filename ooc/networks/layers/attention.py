"""Attention, whose scores are never a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooc.errors import ShapeError
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer, Shape
from ooc.networks.layers.repeat import letters, summed
from ooc.networks.writer import Writer
from ooc.ops import Attention


@dataclass(frozen=True)
class AttentionLayer(Layer):
    """y = softmax(scale * q k^T + bias) v for each head, see `ooc.ops.attention`: reads q, k, v and perhaps a bias."""

    scale: float = 1.0

    kind = "attention"
    takes = None

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if len(reads) not in (3, 4) or any(len(r) != 3 for r in reads):
            raise ShapeError(
                f"{self.kind}: expected q, k, v and perhaps a bias, of three axes each, got {', '.join(map(str, reads))}"
            )
        (heads, queries, c), k, v = reads[:3]
        keys = k[1]
        if k != (heads, keys, c) or v[:2] != (heads, keys):
            raise ShapeError(
                f"{self.kind}: expected heads x queries x c, heads x keys x c, heads x keys x depth; got {reads[:3]}"
            )
        full = (heads, queries, keys)
        if any(e not in (1, f) for bias in reads[3:] for e, f in zip(bias, full, strict=True)):
            raise ShapeError(f"{self.kind}: expected a bias of {full}, or of 1 where it is repeated; got {reads[3]}")
        return (heads, queries, v[2])

    def _op(self, writer: Writer, node: LayerNode, how: str) -> Attention:
        (heads, queries, c), (_, keys, depth), *bias = (writer.graph.shapes[x] for x in (node.reads[0], *node.reads[2:]))
        by = "".join(letters(b, (heads, queries, keys)) or "nkhw" for b in bias)
        extent = (queries, 1 if how == "dots" else keys)
        return Attention(
            how, writer.batch, heads, extent, c, depth, self.scale, "" if how == "dots" else by, dtype=writer.dtype(node.made)
        )

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (q, k, v, *bias), sums = node.reads, f"{node.name}.sums"
        writer.call(self._op(writer, node, "forward"), (q, k, v, *bias), (node.made, sums))

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (q, k, v, *bias), sums, dots = node.reads, f"{node.name}.sums", f"d.{node.name}.dots"
        writer.call(self._op(writer, node, "dots"), (node.made, dy), (dots,))
        gradients: list[str | None] = []
        for i, (x, how) in enumerate(zip(node.reads, ("q", "k", "v", "scores"), strict=False)):
            dx = writer.gradient_name(x) + (f"/{i}" if node.reads.count(x) > 1 else "")
            gradients.append(dx if x in writer.wanted else None)
            if x not in writer.wanted:
                continue
            reads = (q, k, dy, sums, *bias) if how == "v" else (q, k, v, dy, sums, dots, *bias)
            if how != "scores":
                writer.call(self._op(writer, node, how), reads, (dx,))
                continue
            full = (*writer.graph.shapes[q][:2], writer.graph.shapes[k][1])
            repeated = writer.graph.shapes[x] != full
            writer.call(self._op(writer, node, how), reads, (f"{dx}/full" if repeated else dx,))
            if repeated:
                summed(writer, f"{dx}/full", full, writer.graph.shapes[x], dx)
        return tuple(gradients)
