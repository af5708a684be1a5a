"""The soft Dice loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ooc.errors import ArgumentError
from ooc.networks.calls import Along, LayerNode
from ooc.networks.layers.base import Shape
from ooc.networks.layers.loss import Loss, LossInputs, losses_of
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer
from ooc.ops import DiceDot, DicePull, DiceScore, DiceSums, SoftmaxSum


@dataclass(frozen=True)
class DiceLoss(Loss):
    """1 - (2 * sum of p * t + smooth) / (sum of p + t + smooth), the mean over channels, and over samples, unless batch takes the
    sums over all of them. p: softmax of the channels, or the sigmoid of one; background: whether channel 0 counts."""

    smooth: float = 1.0
    batch: bool = False
    background: bool = True

    kind = "dice"

    def shape(self, reads: Sequence[Shape]) -> Shape:
        if not (math.isfinite(self.smooth) and self.smooth >= 0):
            raise ArgumentError(f"loss: smooth: expected a finite number that is not negative, got {self.smooth:g}")
        if not self.background and reads[0][0] < 2:
            raise ArgumentError("loss: background=False: expected more than one channel")
        return super().shape(reads)

    def classes(self, channels: int) -> int:
        return max(2, channels)

    def counted(self, target: Any, channels: int) -> float:
        classes = channels if self.background else channels - 1
        return classes if self.batch else target.shape[0] * classes

    @property
    def _along(self) -> Along | None:
        return None if self.batch else ("n", 1)

    def _reads(self, writer: Writer, node: LayerNode, names: LossInputs) -> tuple[str, ...]:
        """x, labels, and what softmax sums where there is more than one channel."""
        (x,) = node.reads
        return (x, names.target, *((f"{node.name}.sums",) if writer.shape(x)[0] > 1 else ()))

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,), names, totals = node.reads, self.compared(writer, node), f"{node.name}.totals"
        (k, extent), dtype, n = writer.shape(x), writer.dtype(x), writer.batch
        if k > 1:
            writer.call(SoftmaxSum(n, k, extent, dtype=dtype), (x,), (f"{node.name}.sums",))
        op = DiceSums(n, k, extent, self.batch, dtype)
        writer.call(op, self._reads(writer, node, names), (totals,), self._along)
        score = DiceScore(1 if self.batch else n, k, (1,), self.smooth, self.background)
        writer.call(score, (totals,), (node.made,), self._along, Role.LOSS)

    def backward(self, writer: Writer, node: LayerNode, dy: str) -> tuple[str | None, ...]:
        (x,), names = node.reads, losses_of(writer.graph)[node.name].inputs
        dx, k = writer.gradient_name(x), writer.shape(x)[0]
        how: dict[str, Any] = {
            "smooth": self.smooth,
            "batch": self.batch,
            "background": self.background,
            "dtype": writer.dtype(x),
        }
        reads = (*self._reads(writer, node, names), f"{node.name}.totals", self.factor(writer, node))
        if k > 1:
            dot = f"d.{node.name}.dot"
            writer.call(DiceDot(writer.batch, *writer.shape(x), **how), reads, (dot,))
            reads = (*reads, dot)
        writer.call(DicePull(writer.batch, *writer.shape(x), **how), reads, (dx,))
        return (dx,)
