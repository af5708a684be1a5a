"""Sums over positions: the gradient of a bias, global average pooling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype, crop
from ooc.ir.region import Sizes, Tile
from ooc.ops.registry import register
from ooc.ops.spatial import OUT, Elementwise


@register("reduce.bias", "reduce.positions")
@dataclass(frozen=True)
class Reduce(Elementwise):
    """y = alpha * the sum of x (n x k x spatial) over n and positions (`bias`: y has k values of the compute type), or over
    positions alone (`positions`: y is n x k x 1...). Summed in f64.

    Sources: cudnnConvolutionBackwardBias; cudnnReduceTensor. Descriptor: `reduce.bias n= k= [[d=] h=] w= [alpha=]`.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    alpha: float = 1.0
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"reduce.{self.how}"

    @property
    def reduce(self) -> tuple[str, ...]:  # type: ignore[override]
        return (("n",) if self.how == "bias" else ()) + tuple(OUT[self.rank])

    @property
    def ordered(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.reduce[:-1]

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.per_channel("y", compute_dtype(self.dtype)) if self.how == "bias" else self.partial("y", "nk"),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.partial("acc", "nk" if self.how == "positions" else "k", "f64"),)

    def flops(self, sizes: Sizes) -> Any:
        return self.inputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x = crop(blocks["x"], self.inputs[0].region(tile)).array
        axes = tuple(range(2, 2 + self.rank)) + ((0,) if self.how == "bias" else ())
        total = x.astype(np.float64, copy=False).sum(axis=axes, keepdims=True) * self.alpha
        fold(total, blocks, "y", first, last)


def in_chain(terms: Any, before: Any, axis: int) -> Any:
    """The sum of terms along an axis, one after the other, behind what is there before (None: nothing): its bits do not depend on
    where it was split."""
    chain = terms if before is None else np.concatenate([before, terms], axis=axis)
    return np.take(np.cumsum(chain, axis=axis), [-1], axis=axis)


def in_runs(terms: Any, before: Any, axis: int, run: int, begin: int) -> Any:
    """The same of runs of so many terms, each summed before it is added; begin: of the first term among all. run 0: one chain."""
    if not run:
        return in_chain(terms, before, axis)
    cuts = range(run - begin % run, terms.shape[axis], run)
    runs = [in_chain(some, None, axis) for some in np.split(terms, cuts, axis=axis)]
    return in_chain(np.concatenate(runs, axis=axis), before, axis)


def fold(total: Any, blocks: Mapping[str, Block], name: str, first: bool, last: bool) -> None:
    """Add a tile's sum to the partial sum; at the end, round it to the output."""
    acc = blocks.get("acc")
    if acc is not None:
        acc.array[...] = total if first else acc.array + total
        total = acc.array
    if last:
        y = blocks[name].array
        y[...] = total.reshape(y.shape)
