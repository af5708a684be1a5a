"""Steps of optimizers: parameters and what is kept of past gradients, element by element, in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Sizes, Tile, Whole
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise

RATES = 8  # values of the operand `rates`, those that an optimizer has first


class Update(Elementwise):
    """Base: tensors of one shape (n=1, k=1 and one extent for parameters in a row) and `rates`, f64, an input as it changes
    from step to step. Computed in the compute dtype, to which rates are rounded. Outputs may be the inputs that they follow."""

    layout = "channels_first"
    groups = 1

    @property
    def rates(self) -> Operand:
        return Operand("rates", (RATES,), "f64", (Whole(RATES),))

    @property
    def wide(self) -> Any:
        """The NumPy type that is computed in."""
        return numpy_dtype(compute_dtype(self.dtype)).type

    def effort(self, sizes: Sizes) -> Any:
        """As of other passes over memory: one per value that is read."""
        return (len(self.inputs) - 1) * self.outputs[0].count(sizes)

    def parts(self, tile: Tile, blocks: Mapping[str, Block]) -> list[Any]:
        """What a tile needs of every input but the rates."""
        return [crop(blocks[o.name], o.region(tile)).array.astype(self.wide, copy=False) for o in self.inputs[:-1]]


@register("sgd")
@dataclass(frozen=True)
class Sgd(Update):
    """q = p - lr * d: parameters p after a step of gradient descent; d = g + weight_decay * p for their gradient g.

    momentum: with its velocity, v before and u = momentum * v + d after the step, q = p - lr * u, or, with Nesterov's, q = p -
    lr * (d + momentum * u). rates: lr, momentum, weight_decay, whether Nesterov's (0 or 1). Source: torch.optim.SGD with
    dampening=0. Descriptor: `sgd n=1 k=1 w= [momentum=1]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    momentum: bool = False
    dtype: str = "f32"

    kind = "sgd"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (*map(self.tensor, "pgv" if self.momentum else "pg"), self.rates)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return tuple(map(self.tensor, "qu" if self.momentum else "q"))

    def flops(self, sizes: Sizes) -> Any:
        return (4 + 4 * self.momentum) * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        p, g, *v = self.parts(tile, blocks)
        lr, momentum, decay, nesterov = map(self.wide, blocks["rates"].array[:4])
        d = g + decay * p
        if self.momentum:
            u = momentum * v[0] + d
            d = d + momentum * u if nesterov else u
            blocks["u"].array[...] = u
        blocks["q"].array[...] = p - lr * d


@register("adam")
@dataclass(frozen=True)
class AdamUpdate(Update):
    """q = p - lr/(1 - beta1**t) * r / (sqrt(s)/sqrt(1 - beta2**t) + eps): parameters p after step t of Adam, t from 1.

    r = beta1 * m + (1 - beta1) * d and s = beta2 * v + (1 - beta2) * d**2 are the new moments, d = g + weight_decay * p. rates:
    lr, beta1, beta2, eps, weight_decay, t; what follows from them alone is computed in f64. Sources: Kingma, Ba, "Adam: a method
    for stochastic optimization", 2015; torch.optim.Adam. Descriptor: `adam n=1 k=1 w=`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    dtype: str = "f32"

    kind = "adam"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (*map(self.tensor, "pgmv"), self.rates)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return tuple(map(self.tensor, "qrs"))

    def flops(self, sizes: Sizes) -> Any:
        return 14 * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        p, g, m, v = self.parts(tile, blocks)
        lr, beta1, beta2, eps, decay, t = blocks["rates"].array[:6]
        C = self.wide
        with np.errstate(divide="ignore", invalid="ignore"):
            step, share = lr / (1 - beta1**t), np.sqrt(1 - beta2**t)
            d = g + C(decay) * p
            r = C(beta1) * m + C(1 - beta1) * d
            s = C(beta2) * v + C(1 - beta2) * (d * d)
            q = p - C(step) * (r / (np.sqrt(s) / C(share) + C(eps)))
        blocks["q"].array[...], blocks["r"].array[...], blocks["s"].array[...] = q, r, s
