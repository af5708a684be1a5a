"""Batch normalisation: statistics, and their use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype, numpy_dtype
from ooc.ir.region import Sizes, Tile
from ooc.ops.activation import activate
from ooc.ops.registry import register
from ooc.ops.statistics import Normal, Statistics


@register("bn.moments")
@dataclass(frozen=True)
class BnMoments(Statistics):
    """mean and (biased) var of x (n x k x spatial) over a batch, exact although it is streamed: moments of tiles are merged.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    per: str = "channel"
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "bn.moments"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.statistic("mean"), self.statistic("var"))

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.rows(3),)  # count, mean, sum of squared deviations

    def flops(self, sizes: Sizes) -> Any:
        return 4 * self.inputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x = self.parts(tile, blocks, np.float64)["x"]
        acc = blocks["acc"].array if "acc" in blocks else None
        count = x.size // max(1, int(np.prod(np.delete(x.shape, self.summed_axes))))
        mean = x.mean(axis=self.summed_axes, keepdims=True) if count else np.zeros(self.outputs[0].shape)
        squares = np.square(x - mean).sum(axis=self.summed_axes, keepdims=True)
        if acc is not None and not first:
            before, total = acc[0:1], acc[0:1] + count
            shift = mean - acc[1:2]
            mean, squares = acc[1:2] + shift * count / total, squares + acc[2:3] + shift**2 * before * count / total
            count = total
        if acc is not None:
            acc[0:1], acc[1:2], acc[2:3] = count, mean, squares
        if last:
            blocks["mean"].array[...], blocks["var"].array[...] = mean, squares / self.count


@register("bn.apply")
@dataclass(frozen=True)
class BnApply(Normal):
    """y = act((x - mean) / sqrt(var + eps) * scale + b). Sources: cudnnBatchNormalizationForwardTraining, -Inference."""

    n: int
    k: int
    extent: tuple[int, ...]
    eps: float = 1e-5
    act: str = "identity"
    coef: float = 0.0
    per: str = "channel"
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "bn.apply"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"), *map(self.statistic, ("mean", "var", "scale", "b")))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def flops(self, sizes: Sizes) -> Any:
        return 3 * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        p = self.parts(tile, blocks, np.float64)
        factor, mean, b = (a.astype(compute) for a in (p["scale"] / np.sqrt(p["var"] + self.eps), p["mean"], p["b"]))
        z = (p["x"].astype(compute) - mean) * factor + b
        blocks["y"].array[...] = activate(self.act, self.coef, z)
