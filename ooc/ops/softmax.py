"""Softmax over channels, in two halves: what is summed over the axis, and its use.

Fused they read x once; where an axis does not fit they run one after the other, the first as a fold over the axis.
Source of the fold: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ooc.ir.op import Block, Operand, crop
from ooc.ir.region import Sizes, Tile, Whole
from ooc.ops.registry import IN, register
from ooc.ops.spatial import Elementwise

KINDS = ("plain", "log")


class OverChannels(Elementwise):
    """Base: one f64 number per position sums up its channels."""

    groups = 1

    def summary(self, name: str) -> Operand:
        return self.partial(name, "n" + IN[self.rank], "f64")

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
    """lse = log(sum over channels of exp(x)), without overflow."""

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
        return (self.summary("lse"),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        one = self.summary("acc")
        # The largest value so far, and the sum of exponentials relative to it.
        return (Operand("acc", (one.shape[0], 2, *one.shape[2:]), "f64", (one.axes[0], Whole(2), *one.axes[2:])),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        (x,) = self.parts(tile, blocks)
        top = x.max(axis=1, keepdims=True)
        acc = blocks["acc"].array if "acc" in blocks else None
        if acc is not None and not first:
            top = np.maximum(top, acc[:, :1])
        with np.errstate(invalid="ignore", divide="ignore"):
            total = in_turn(np.exp(x - top))
            if acc is not None and not first:
                total = total + np.where(acc[:, 1:] > 0, acc[:, 1:] * np.exp(acc[:, :1] - top), acc[:, 1:])
            if acc is not None:
                acc[:, :1], acc[:, 1:] = top, total
            if last:
                blocks["lse"].array[...] = top + np.log(total)


@register("softmax.plain", "softmax.log")
@dataclass(frozen=True)
class SoftmaxApply(OverChannels):
    """y = exp(x - lse), or its logarithm x - lse. Source: cudnnSoftmaxForward's CUDNN_SOFTMAX_ACCURATE and _LOG."""

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
        return (self.tensor("x"), self.summary("lse"))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, lse = self.parts(tile, blocks)
        with np.errstate(invalid="ignore"):
            blocks["y"].array[...] = x - lse if self.how == "log" else np.exp(x - lse)
