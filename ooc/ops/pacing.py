"""How far an optimizer goes in a step: gradients over several steps, their norm, and what follows from it for all parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ArgumentError
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Sizes, Tile, Whole
from ooc.ops.optimizer import RATES, SHARE
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise

LANES = 256  # sums that are taken side by side
SHARES, CONTROLS, STATE = 2, 8, 4  # values of the operands `shares`, `controls` and `state`
PIECE = 64 * LANES  # elements whose squares are there at a time
GOOD = 2000  # steps without an overflow after which a loss scale is doubled
LEAST = 2.0**-24  # a loss scale is not halved below it


def numbers(name: str, count: int) -> Operand:
    """Some numbers, f64, of which there is one set for all of an op."""
    return Operand(name, (count,), "f64", (Whole(count),))


@register("pointwise.accrue")
@dataclass(frozen=True)
class Accrue(Elementwise):
    """r = keep * a + take * x: a sum, or a mean that runs, of the computed type; a share of 0 leaves its term out, NaN or not.

    shares: keep and take, f64, rounded to the computed type. Source: not in cuDNN; torch.optim.swa_utils.get_ema_multi_avg_fn.
    Descriptor: `pointwise.accrue n=1 k=1 w=`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    dtype: str = "f32"

    kind = "pointwise.accrue"
    layout = "channels_first"
    groups = 1

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"), self.tensor("a", compute_dtype(self.dtype)), numbers("shares", SHARES))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("r", compute_dtype(self.dtype)),)

    def flops(self, sizes: Sizes) -> Any:
        return 3 * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        wide = numpy_dtype(compute_dtype(self.dtype))
        x, a = (crop(blocks[o.name], o.region(tile)).array.astype(wide, copy=False) for o in self.inputs[:2])
        keep, take = map(wide.type, blocks["shares"].array)
        with np.errstate(over="ignore", invalid="ignore"):
            kept, taken = keep * a if keep else wide.type(0), take * x if take else wide.type(0)
            blocks["r"].array[...] = kept + taken


@register("reduce.squares")
@dataclass(frozen=True)
class Squares(Elementwise):
    """y = what was before + the sums of x * x in f64 over the elements whose index leaves the same rest by 256: each in the order
    of the index, so that its bits do not depend on how x is cut.

    after: whether there are sums from before. x is 1 x 1 x w. Source: torch.nn.utils.clip_grad_norm_, whose norm is the root of
    the sum of all of y. Descriptor: `reduce.squares n=1 k=1 w= [after=1]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    after: bool = False
    dtype: str = "f32"

    kind = "reduce.squares"
    layout = "channels_first"
    groups = 1
    reduce = ("q",)
    ordered = ("q",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.n, self.k, self.rank) != (1, 1, 1):
            raise ArgumentError(f"reduce.squares: expected n=1, k=1 and one extent, got {self.n} x {self.k} x {self.extent}")

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"), *([numbers("before", LANES)] if self.after else []))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (numbers("y", LANES),)

    @property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.outputs

    def flops(self, sizes: Sizes) -> Any:
        return 2 * self.inputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        span, y = tile["q"], blocks["y"].array
        x = crop(blocks["x"], self.inputs[0].region(tile)).array.reshape(-1)
        if first:
            y[...] = blocks["before"].array if self.after else 0
        for lo in range(span.lo // LANES * LANES, span.hi, PIECE):
            begin, end = max(lo, span.lo), min(lo + PIECE, span.hi)
            rows = np.zeros((1 + PIECE // LANES, LANES))  # what lies outside adds zeros
            rows[0] = y
            flat = rows[1:].reshape(-1)[begin - lo : end - lo]
            flat[...] = x[begin - span.lo : end - span.lo]
            with np.errstate(over="ignore", invalid="ignore"):
                np.multiply(flat, flat, out=flat)
                y[...] = np.add.reduce(rows, axis=0)


@register("sgd.pace")
@dataclass(frozen=True)
class Pace(Elementwise):
    """What a step takes of its gradients, from what follows from the step alone and from what has come of the steps before.

    controls: whether the parameters move in this step (0 or 1), the share of a gradient in the mean over steps, the largest norm
    (inf: any), the decay of averages, the loss scale (0: the one in `state`). state: the loss scale, good steps since it changed,
    moves. Where there are `sums` of squares (`summed`), a step whose sum is not finite moves nothing; the loss scale is halved
    then, and doubled after 2000 good ones. Made are `pace`, the rates of the updates, with what gradients are multiplied by (-1:
    nothing moves) and, at index `count`, the number of the move; `shares` of the averages; `left`, the state after the step.

    Sources: torch.nn.utils.clip_grad_norm_; Micikevicius et al., "Mixed precision training", ICLR 2018; torch.amp.GradScaler.
    Descriptor: `sgd.pace n=1 k=1 w=1 [summed=1] [count=5]`.
    """

    n: int = 1
    k: int = 1
    extent: tuple[int, ...] = (1,)
    summed: bool = False
    count: int = -1
    dtype: str = "f64"

    kind = "sgd.pace"
    layout = "channels_first"
    groups = 1

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        alone = numbers("rates", RATES), numbers("controls", CONTROLS), numbers("state", STATE)
        return (*alone, numbers("sums", LANES)) if self.summed else alone

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (numbers("pace", RATES), numbers("shares", SHARES), numbers("left", STATE))

    def flops(self, sizes: Sizes) -> Any:
        return LANES

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        due, share, most, decay, fixed = blocks["controls"].array[:5].tolist()
        scale, good, moves, rest = blocks["state"].array.tolist()
        by = share / (fixed or scale)
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.add.accumulate(blocks["sums"].array)[-1] if self.summed else 0.0
            norm = np.sqrt(total) * by
        finite = bool(np.isfinite(norm))
        moving = bool(due) and finite
        if due and not fixed:
            good = good + 1 if finite else 0
            scale = scale if finite else max(scale / 2, LEAST)
            scale, good = (scale * 2, 0) if good >= GOOD else (scale, good)
        rates = blocks["rates"].array.tolist()
        rates[SHARE] = by * min(1.0, most / (norm + 1e-6)) if moving else -1.0
        if self.count >= 0:
            rates[self.count] = moves + 1
        blocks["pace"].array[...] = rates
        blocks["shares"].array[...] = (decay, 1 - decay) if moving else (1.0, 0.0)
        blocks["left"].array[...] = (scale, good, moves + moving, rest)
