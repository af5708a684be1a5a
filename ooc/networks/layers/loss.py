"""The loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooc.ir.op import compute_dtype
from ooc.networks.calls import LayerNode
from ooc.networks.layers.base import Layer, Shape
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer
from ooc.ops import CrossEntropy, CrossEntropyBackward, Reduce, SoftmaxSum

LABELS, SHARE = "labels", "share"  # inputs: the labels, and what each position counts for


@dataclass(frozen=True)
class CrossEntropyLoss(Layer):
    """Cross-entropy of the channels and a label per position, the mean over positions with a label."""

    kind = "cross_entropy"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        return ()

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        (k, extent), dtype, n = writer.shape(x), writer.dtype(x), writer.batch
        sums, each, wide = f"{node.name}.sums", f"{node.name}.each", compute_dtype(dtype)
        writer.given(LABELS, (n, *writer.graph.shapes[x][1:]), "i64", Role.INPUT, per_sample=True)
        writer.given(SHARE, (n, *writer.graph.shapes[x][1:]), wide, Role.INPUT, per_sample=True)
        writer.call(SoftmaxSum(n, k, extent, dtype=dtype), (x,), (sums,))
        writer.call(CrossEntropy(n, k, extent, dtype=dtype), (x, LABELS, sums), (each,))
        writer.call(Reduce("bias", n, 1, extent, dtype=wide), (each,), (node.made,), role=Role.LOSS)

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,) = node.reads
        dx = writer.gradient_name(x)
        op = CrossEntropyBackward(writer.batch, *writer.shape(x), dtype=writer.dtype(x))
        writer.call(op, (x, LABELS, f"{node.name}.sums", SHARE), (dx,))
        return (dx,)
