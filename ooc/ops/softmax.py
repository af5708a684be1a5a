"""Softmax over channels, in two halves: what is summed over the axis, and its use.

Fused they read x once; where an axis does not fit they run one after the other, the first as a fold over the axis.
Source of the fold: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, crop
from ooc.ir.region import Sizes, Tile, Whole
from ooc.ops.registry import IN, register
from ooc.ops.spatial import Elementwise

KINDS = ("plain", "log")


class OverChannels(Elementwise):
    """Base: a few f64 numbers per position sum up its channels."""

    groups = 1

    def summary(self, name: str) -> Operand:
        return self.partial(name, "n" + IN[self.rank], "f64")

    def sums(self) -> Operand:
        """Two numbers a position: its largest value, and the sum of exponentials relative to it. One number, the logarithm
        of the sum, would lose the sum beside a large value."""
        one = self.summary("sums")
        return Operand("sums", (one.shape[0], 2, *one.shape[2:]), "f64", (one.axes[0], Whole(2), *one.axes[2:]))

    def parts(self, tile: Tile, blocks: Mapping[str, Block]) -> list[Any]:
        return [crop(blocks[o.name], o.region(tile)).array.astype(np.float64) for o in self.inputs]

    def flops(self, sizes: Sizes) -> Any:
        return 4 * self.inputs[0].count(sizes)


def in_turn(terms: Any) -> Any:
    """The sum over channels, one after the other: NumPy's `sum` picks an order by the shape of the piece."""
    return np.cumsum(terms, axis=1)[:, -1:]


@register("softmax.sum")
@dataclass(frozen=True)
class SoftmaxSum(OverChannels):
    """sums: the largest x of a position's channels, and the sum of exp(x - largest). Infinities as in PyTorch: -inf adds
    nothing, +inf makes the sum NaN."""

    n: int
    k: int
    extent: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "softmax.sum"
    reduce = ("k",)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.sums(),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.outputs

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        (x,), sums = self.parts(tile, blocks), blocks["sums"].array
        top = x.max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            if not first:
                before, had = sums[:, :1], sums[:, 1:]
                top = np.maximum(top, before)
                had = np.where(had > 0, had * np.exp(before - top), had)
            total = in_turn(np.where(x == -np.inf, 0.0, np.exp(x - top)))
            sums[:, 1:] = total if first else had + total
            sums[:, :1] = top


def shifted(x: Any, sums: Any) -> tuple[Any, Any]:
    """x less the largest of its channels, and the sum of exponentials relative to that."""
    return x - sums[:, :1], sums[:, 1:]


@register("softmax.plain", "softmax.log")
@dataclass(frozen=True)
class SoftmaxApply(OverChannels):
    """y = exp(x - largest) / sum, or its logarithm, x - largest - log(sum).

    Source: cudnnSoftmaxForward's CUDNN_SOFTMAX_ACCURATE and _LOG.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"softmax.{self.how}"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"), self.sums())

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            z, total = shifted(*self.parts(tile, blocks))
            blocks["y"].array[...] = z - np.log(total) if self.how == "log" else np.exp(z) / total
