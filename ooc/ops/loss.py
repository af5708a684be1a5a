"""Cross-entropy of logits and labels, and its gradient, on top of softmax's sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype
from ooc.ir.region import Span, Tile
from ooc.ops.reduce import fold
from ooc.ops.registry import IN, register
from ooc.ops.softmax import OverChannels, in_turn, shifted


class Labelled(OverChannels):
    """Base: labels are i64, one per position; a negative label leaves its position out."""

    @property
    def labels(self) -> Operand:
        return self.partial("labels", "n" + IN[self.rank], "i64")

    def chosen(self, tile: Tile, labels: Any) -> Any:
        """Which channels of a tile are the label of their position."""
        span: Span = tile["k"]
        return labels == np.arange(span.lo, span.hi).reshape(1, -1, *(1,) * self.rank)


@register("cross_entropy")
@dataclass(frozen=True)
class CrossEntropy(Labelled):
    """loss = log(sum of exp(x)) - x[label] at every position, 0 where the label is negative.

    x is n x k x spatial, loss n x 1 x spatial.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "cross_entropy"
    reduce = ("k",)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"), self.labels, self.sums())

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.partial("loss", "n" + IN[self.rank], compute_dtype(self.dtype)),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.summary("acc"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, labels, sums = self.parts(tile, blocks)
        with np.errstate(invalid="ignore", divide="ignore"):
            z, total = shifted(x, sums)
            terms = np.where(self.chosen(tile, labels), np.log(total) - z, 0.0)
        fold(in_turn(terms), blocks, "loss", first, last)


@register("cross_entropy_backward")
@dataclass(frozen=True)
class CrossEntropyBackward(Labelled):
    """dx = (softmax(x) - onehot(label)) * dloss, 0 where the label is negative; dloss is n x 1 x spatial."""

    n: int
    k: int
    extent: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "cross_entropy_backward"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        dloss = self.partial("dloss", "n" + IN[self.rank], compute_dtype(self.dtype))
        return (self.tensor("x"), self.labels, self.sums(), dloss)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, labels, sums, dloss = self.parts(tile, blocks)
        with np.errstate(invalid="ignore", divide="ignore"):
            z, total = shifted(x, sums)
            gradient = (np.exp(z) / total - self.chosen(tile, labels)) * dloss
        blocks["dx"].array[...] = np.where(labels < 0, 0.0, gradient)
