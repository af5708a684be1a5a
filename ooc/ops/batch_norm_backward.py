"""The gradients of batch normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand
from ooc.ir.region import Sizes, Tile
from ooc.ops.registry import register
from ooc.ops.statistics import Normal, Statistics


@register("bn.sums")
@dataclass(frozen=True)
class BnSums(Statistics):
    """dscale = sum of dy * (x - mean) / sqrt(var + eps), db = sum of dy, over a batch; f64.

    Source: cudnnBatchNormalizationBackward.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    eps: float = 1e-5
    per: str = "channel"
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "bn.sums"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"), self.tensor("dy"), self.statistic("mean"), self.statistic("var"))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.statistic("dscale"), self.statistic("db"))

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.rows(2),)

    def flops(self, sizes: Sizes) -> Any:
        return 5 * self.inputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        p = self.parts(tile, blocks, np.float64)
        unit = (p["x"] - p["mean"]) / np.sqrt(p["var"] + self.eps)
        sums = [z.sum(axis=self.summed_axes, keepdims=True) for z in (p["dy"] * unit, p["dy"])]
        total = np.concatenate(sums)
        if "acc" in blocks:
            acc = blocks["acc"].array
            acc[...] = total if first else acc + total
            total = acc
        if last:
            blocks["dscale"].array[...], blocks["db"].array[...] = total[0:1], total[1:2]


@register("bn.pull")
@dataclass(frozen=True)
class BnPull(Normal):
    """dx of batch normalisation, from the sums over the whole batch. Source: cudnnBatchNormalizationBackward."""

    n: int
    k: int
    extent: tuple[int, ...]
    eps: float = 1e-5
    per: str = "channel"
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "bn.pull"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        statistics = map(self.statistic, ("mean", "var", "scale", "dscale", "db"))
        return (self.tensor("x"), self.tensor("dy"), *statistics)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx"),)

    def flops(self, sizes: Sizes) -> Any:
        return 7 * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        p = self.parts(tile, blocks, np.float64)
        rstd = 1 / np.sqrt(p["var"] + self.eps)
        unit = (p["x"] - p["mean"]) * rstd
        blocks["dx"].array[...] = p["scale"] * rstd * (p["dy"] - (p["db"] + unit * p["dscale"]) / self.count)
