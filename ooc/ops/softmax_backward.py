"""The gradient of softmax, in two halves as the forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand
from ooc.ir.region import Tile
from ooc.ops.reduce import fold
from ooc.ops.registry import register
from ooc.ops.softmax import OverChannels, in_turn


@register("softmax_backward.dot", "softmax_backward.sum")
@dataclass(frozen=True)
class SoftmaxDot(OverChannels):
    """s = sum over channels of y * dy (`dot`), or of dy (`sum`, for the logarithm)."""

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    reduce = ("k",)

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"softmax_backward.{self.how}"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dy"), self.tensor("y")) if self.how == "dot" else (self.tensor("dy"),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.summary("s"),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.summary("acc"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        fold(in_turn(np.prod(self.parts(tile, blocks), axis=0)), blocks, "s", first, last)


@register("softmax_backward.plain", "softmax_backward.log")
@dataclass(frozen=True)
class SoftmaxPull(OverChannels):
    """dx = y * (dy - s), or for the logarithm dy - exp(y) * s. Source: cudnnSoftmaxBackward."""

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"softmax_backward.{self.how}"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"), self.tensor("dy"), self.summary("s"))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        y, dy, s = self.parts(tile, blocks)
        blocks["dx"].array[...] = dy - np.exp(y) * s if self.how == "log" else y * (dy - s)
