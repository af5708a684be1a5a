"""Soft Dice: how much of what is predicted lies where the labels are, class by class, and its gradient.

Probabilities are softmax over the channels, on top of softmax's sum, or the sigmoid of one channel. They are computed where they
are used, so that a tensor of any size has two numbers per class between its passes.
Source: Milletari, Navab, Ahmadi, "V-Net", 3DV 2016; smoothed as in nnU-Net (Isensee et al., 2021).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ShapeError
from ooc.ir.op import Block, Operand, crop
from ooc.ir.region import Sizes, Span, Tile, Whole, split
from ooc.ops.activation import activate
from ooc.ops.loss import Labelled
from ooc.ops.reduce import fold, in_chain
from ooc.ops.registry import register
from ooc.ops.softmax import shifted
from ooc.ops.spatial import OUT

PIECE = 1 << 14  # elements that NumPy's temporaries have


class Overlapping(Labelled):
    """Base: totals are f64, two numbers per class: the sum of p * t, and that of p + t, over the positions with a label; p: the
    probability, t: 1 where the label is that class, else 0. One channel is the class 1. batch: of all samples together."""

    k: int
    batch: bool

    @property
    def logistic(self) -> bool:
        """Whether there is one channel, whose sigmoid is the probability."""
        return self.k == 1

    @property
    def totals(self) -> Operand:
        one = self.partial("totals", "k" if self.batch else "nk", "f64")
        return Operand("totals", (*one.shape[:-1], 2), "f64", (*one.axes[:-1], Whole(2)))

    @property
    def labelled(self) -> tuple[Operand, ...]:
        """What probabilities and labels follow from."""
        return (self.tensor("x"), self.labels, *(() if self.logistic else (self.sums(),)))

    def both(self, tile: Tile, x: Any, labels: Any, sums: Any) -> tuple[Any, Any]:
        """p and t of a tile; both are 0 where there is no label."""
        with np.errstate(all="ignore"):
            if self.logistic:
                p, t = activate("sigmoid", 0.0, x), labels == 1
            else:
                z, total = shifted(x, sums)
                p, t = np.exp(z) / total, self.chosen(tile, labels)
        return np.where(labels < 0, 0.0, p), t


@register("dice.sums")
@dataclass(frozen=True)
class DiceSums(Overlapping):
    """totals: the sums of p * t and of p + t over positions, and with batch over n."""

    n: int
    k: int
    extent: tuple[int, ...]
    batch: bool = False
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "dice.sums"

    @property
    def reduce(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("n",) * self.batch + tuple(OUT[self.rank])

    @property
    def ordered(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.reduce

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.labelled

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.totals,)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.outputs

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        totals = blocks["totals"].array
        for piece in self._pieces(tile):
            x, labels, *sums = self.parts(piece, blocks)
            p, t = self.both(piece, x, labels, *(sums or [None]))
            for i, terms in enumerate((p * t, p + t)):
                each = np.moveaxis(terms, 1, 0)[None] if self.batch else terms  # what is summed comes last
                each = each.reshape(*totals.shape[:2], -1)
                before = None if first else totals[..., i].reshape(*totals.shape[:2], 1)
                totals[..., i] = in_chain(each, before, 2).reshape(totals.shape[:-1])
            first = False

    def _pieces(self, tile: Tile) -> Iterator[Tile]:
        """Of a tile, in the order in which its terms are summed: the outermost dims are cut first."""
        sizes = {d: s.extent for d, s in tile.items()}
        for d in self.reduce:
            while sizes[d] > 1 and self.inputs[0].count(sizes) > PIECE:
                sizes[d] = -(-sizes[d] // 2)
        cuts = [[s.shift(tile[d].lo) for s in split(tile[d].extent, sizes[d])] for d in tile]
        return (dict(zip(tile, spans, strict=True)) for spans in itertools.product(*cuts))


class Scored(Overlapping):
    """Base: what follows from the totals. background: whether channel 0 counts."""

    smooth: float
    background: bool

    @property
    def first(self) -> int:
        """The first channel that counts."""
        return 0 if self.background or self.logistic else 1

    def counts(self, tile: Tile) -> Any:
        """Which channels of a tile count, beside n and positions."""
        span: Span = tile["k"]
        return (np.arange(span.lo, span.hi) >= self.first).reshape(1, -1, *(1,) * self.rank)

    def pulled(self, tile: Tile, totals: Any, share: Any, t: Any) -> Any:
        """The gradient of the loss by p: of 1 - (2 * overlap + smooth) / (mass + smooth), times share."""
        with np.errstate(all="ignore"):
            mass = totals[..., 1:] + self.smooth
            slope = ((2 * totals[..., :1] + self.smooth) / mass - 2 * t) / mass * share
        return np.where(self.counts(tile), slope, 0.0)


@register("dice.score")
@dataclass(frozen=True)
class DiceScore(Scored):
    """loss = the sum over n and channels of 1 - (2 * overlap + smooth) / (mass + smooth), from totals of n x k; f64. There is one
    position."""

    n: int
    k: int
    extent: tuple[int, ...]
    smooth: float = 1.0
    background: bool = True
    dtype: str = "f64"
    layout: str = "channels_first"

    kind = "dice.score"
    batch = False
    reduce = ("n", "k")
    ordered = ("n", "k")

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(e != 1 for e in self.extent):
            raise ShapeError(f"{self.kind}: expected one position, got {self.extent}")

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.totals,)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.partial("loss", "", "f64"),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.outputs

    def flops(self, sizes: Sizes) -> Any:
        return 4 * self.totals.count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        totals, loss = crop(blocks["totals"], self.totals.region(tile)).array, blocks["loss"].array
        with np.errstate(all="ignore"):
            missed = 1 - (2 * totals[..., :1] + self.smooth) / (totals[..., 1:] + self.smooth)
        terms = np.where(self.counts(tile), missed, 0.0)
        loss[...] = in_chain(terms.reshape(1, -1), None if first else loss.reshape(1, 1), 1).reshape(loss.shape)


@dataclass(frozen=True)
class DiceBackward(Scored):
    """Base: the two passes of the gradient."""

    n: int
    k: int
    extent: tuple[int, ...]
    smooth: float = 1.0
    batch: bool = False
    background: bool = True
    dtype: str = "f32"
    layout: str = "channels_first"

    @property
    def summed(self) -> tuple[Operand, ...]:
        """What both passes read."""
        return (*self.labelled, self.totals, self.partial("share", "", "f64"))


@register("dice_backward.dot")
@dataclass(frozen=True)
class DiceDot(DiceBackward):
    """s = the sum over channels of p times the gradient of the loss by p."""

    kind = "dice_backward.dot"
    reduce = ("k",)
    ordered = ("k",)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.summed

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.summary("s"),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.summary("acc"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, labels, *sums, totals, share = self.parts(tile, blocks)
        p, t = self.both(tile, x, labels, *(sums or [None]))
        with np.errstate(invalid="ignore"):
            terms = p * self.pulled(tile, totals, share, t)
        fold(in_chain(terms, None if first else blocks["acc"].array, 1), blocks, "s", True, last)


@register("dice_backward.pull")
@dataclass(frozen=True)
class DicePull(DiceBackward):
    """dx = p * (g - s), g: the gradient of the loss by p; of one channel p * (1 - p) * g. 0 where there is no label."""

    kind = "dice_backward.pull"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.summed if self.logistic else (*self.summed, self.summary("s"))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        parts = dict(zip((o.name for o in self.inputs), self.parts(tile, blocks), strict=True))
        p, t = self.both(tile, parts["x"], parts["labels"], parts.get("sums"))
        with np.errstate(invalid="ignore"):
            g = self.pulled(tile, parts["totals"], parts["share"], t)
            dx = p * (1 - p) * g if self.logistic else p * (g - parts["s"])
        blocks["dx"].array[...] = np.where(parts["labels"] < 0, 0.0, dx)
