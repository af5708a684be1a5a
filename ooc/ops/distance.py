"""How far x is from a target of its shape, position by position, and the gradient: squares, absolute values, binary
cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype
from ooc.ir.region import Tile
from ooc.ops.activation import activate
from ooc.ops.reduce import fold, in_chain
from ooc.ops.registry import IN, register
from ooc.ops.softmax import OverChannels


def _bce(x: Any, t: Any, w: Any) -> Any:
    """Of -w * t * log(sigmoid(x)) - (1 - t) * log(1 - sigmoid(x)), nothing overflows."""
    return (1 - t) * x + (1 + (w - 1) * t) * (np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0))


# Of x, the target and the weight of what is 1; order = codes in kernels/device/losses.cu.
DISTANCES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mse": lambda x, t, w: (x - t) * (x - t),
    "l1": lambda x, t, w: np.abs(x - t),
    "bce": _bce,
}
SLOPES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mse": lambda x, t, w: 2 * (x - t),
    "l1": lambda x, t, w: np.sign(x - t),
    "bce": lambda x, t, w: (1 + (w - 1) * t) * activate("sigmoid", 0.0, x) - w * t,
}


@dataclass(frozen=True)
class Distant(OverChannels):
    """Base: x and the target are n x k x spatial; bce may have weights, one per channel, of targets that are 1."""

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    weighted: bool = False
    dtype: str = "f32"
    layout: str = "channels_first"

    @property
    def compared(self) -> tuple[Operand, ...]:
        both = (self.tensor("x"), self.tensor("target"))
        return (*both, self.per_channel("weights", "f64")) if self.weighted else both

    def weight(self, weights: list[Any]) -> Any:
        return weights[0].reshape(-1, *(1,) * self.rank) if weights else 1.0


@register(*(f"distance.{how}" for how in DISTANCES))
@dataclass(frozen=True)
class Distance(Distant):
    """loss = the sum over the channels of (x - target)^2 (mse), |x - target| (l1), or the binary cross-entropy of logits x (bce);
    n x 1 x spatial.

    Sources: torch.nn.functional.mse_loss, l1_loss and binary_cross_entropy_with_logits.
    Descriptor: `distance.mse n= k= [[d=] h=] w= [weighted=1]`.
    """

    reduce = ("k",)
    ordered = ("k",)

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"distance.{self.how}"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.compared

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.partial("loss", "n" + IN[self.rank], compute_dtype(self.dtype)),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.summary("acc"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, target, *weights = self.parts(tile, blocks)
        with np.errstate(all="ignore"):
            terms = DISTANCES[self.how](x, target, self.weight(weights))
        before = None if first else blocks["acc"].array
        fold(in_chain(terms, before, 1), blocks, "loss", True, last)


@register(*(f"distance_backward.{how}" for how in DISTANCES))
@dataclass(frozen=True)
class DistanceBackward(Distant):
    """dx = the slope of `Distance` times share, one number."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"distance_backward.{self.how}"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        x, target, *weights = self.compared
        return (x, target, self.partial("share", "", "f64"), *weights)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x, target, share, *weights = self.parts(tile, blocks)
        with np.errstate(all="ignore"):
            blocks["dx"].array[...] = SLOPES[self.how](x, target, self.weight(weights)) * share
