"""Cross-entropy of logits and labels, and its gradient, on top of softmax's sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ArgumentError
from ooc.ir.op import Block, Operand, compute_dtype
from ooc.ir.region import Span, Tile, Whole
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


class Smoothed(Labelled):
    """Base: of channel c a position of label y seeks q[c] = weights[c] * ((1 - smoothing) * (c == y) + smoothing / k); without
    weights they are 1.

    Source: torch.nn.functional.cross_entropy's weight and label_smoothing; Szegedy et al., "Rethinking the Inception
    architecture for computer vision", 2016.
    """

    smoothing: float
    weighted: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing <= 1:
            raise ArgumentError(f"{self.kind}: smoothing must be from 0 to 1, got {self.smoothing:g}")

    @property
    def weights(self) -> tuple[Operand, ...]:
        """The weight of each channel, and behind them their sum."""
        return (Operand("weights", (self.k + 1,), "f64", (Whole(self.k + 1),)),) if self.weighted else ()

    def sought(self, tile: Tile, labels: Any, weights: list[Any]) -> Any:
        """q, for the channels of a tile."""
        q = (1 - self.smoothing) * self.chosen(tile, labels) + self.smoothing / self.k
        for w in weights:
            q = q * w[tile["k"].lo : tile["k"].hi].reshape(1, -1, *(1,) * self.rank)
        return np.where(labels < 0, 0.0, q)

    def in_all(self, labels: Any, weights: list[Any]) -> Any:
        """The sum of q over all channels."""
        one, every = 1.0, float(self.k)
        for w in weights:
            one, every = w[np.maximum(labels, 0).astype(np.int64)], w[self.k]
        return (1 - self.smoothing) * one + self.smoothing / self.k * every


@register("cross_entropy")
@dataclass(frozen=True)
class CrossEntropy(Smoothed):
    """loss = sum over c of q[c] * (log(sum of exp(x)) - x[c]) at every position, 0 where the label is negative. Without smoothing
    and weights that is log(sum of exp(x)) - x[label].

    x is n x k x spatial, loss n x 1 x spatial.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    smoothing: float = 0.0
    weighted: bool = False
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "cross_entropy"
    reduce = ("k",)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"), self.labels, self.sums(), *self.weights)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.partial("loss", "n" + IN[self.rank], compute_dtype(self.dtype)),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.summary("acc"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, labels, sums, *weights = self.parts(tile, blocks)
        q = self.sought(tile, labels, weights)
        with np.errstate(invalid="ignore", divide="ignore"):
            z, total = shifted(x, sums)
            terms = np.where(q != 0, q * (np.log(total) - z), 0.0)
        fold(in_turn(terms), blocks, "loss", first, last)


@register("cross_entropy_backward")
@dataclass(frozen=True)
class CrossEntropyBackward(Smoothed):
    """dx = (softmax(x) * (sum of q) - q) * dloss, 0 where the label is negative; dloss is n x 1 x spatial. Without smoothing and
    weights that is (softmax(x) - onehot(label)) * dloss."""

    n: int
    k: int
    extent: tuple[int, ...]
    smoothing: float = 0.0
    weighted: bool = False
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "cross_entropy_backward"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        dloss = self.partial("dloss", "n" + IN[self.rank], compute_dtype(self.dtype))
        return (self.tensor("x"), self.labels, self.sums(), dloss, *self.weights)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, labels, sums, dloss, *weights = self.parts(tile, blocks)
        with np.errstate(invalid="ignore", divide="ignore"):
            z, total = shifted(x, sums)
            gradient = (np.exp(z) / total * self.in_all(labels, weights) - self.sought(tile, labels, weights)) * dloss
        blocks["dx"].array[...] = np.where(labels < 0, 0.0, gradient)
