"""Resizing the spatial axes, and the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand
from ooc.ir.region import Along, Tile
from ooc.ops.registry import register
from ooc.ops.resample import KINDS, Resampling
from ooc.ops.spatial import IN, OUT


@register(*(f"upsample.{how}" for how in KINDS))
@dataclass(frozen=True)
class Upsample(Resampling):
    """y: x (n x k x extent) resized to n x k x size. Descriptor: `upsample.nearest n= k= [[d=] h=] w= size=8x8`."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"upsample.{self.how}"

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, "k": self.k, **dict(zip(OUT[self.rank], self.size, strict=True))}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x", self.extent, self.maps(OUT[self.rank], False)),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y", self.size, [Along(d) for d in OUT[self.rank]]),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        self.apply(tile, blocks, False)


@register(*(f"upsample_backward.{how}" for how in KINDS))
@dataclass(frozen=True)
class UpsampleBackward(Resampling):
    """dx: the gradient of x from dy (n x k x size). Descriptor as of `upsample`."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"upsample_backward.{self.how}"

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, "k": self.k, **dict(zip(IN[self.rank], self.extent, strict=True))}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dy", self.size, self.maps(IN[self.rank], True)),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx", self.extent, [Along(d) for d in IN[self.rank]]),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        self.apply(tile, blocks, True)
