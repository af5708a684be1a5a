"""Between integers as they are stored and the floating values that are computed with: pictures, volumes, masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ooc.errors import ArgumentError
from ooc.ir.op import INTEGERS, Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Sizes, Tile
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise

RANGES = {"u8": (0, 255), "u16": (0, 65535), "i16": (-32768, 32767), "i32": (-(2**31), 2**31 - 1), "b8": (0, 1)}


class Conversion(Elementwise):
    """Base of both directions: a field `store` says how the integers lie in memory."""

    store: str
    words: ClassVar[dict[str, tuple[str, ...]]] = {**Elementwise.words, "store": INTEGERS}

    @property
    def wide(self) -> str:
        """The dtype of the arithmetic: f32 does not hold all values of 32 bits."""
        return "f64" if self.store == "i32" else compute_dtype(self.dtype)


@register("convert.in")
@dataclass(frozen=True)
class ConvertIn(Conversion):
    """y = x * scale + offset: integers x become floating values, false and true 0 and 1; n x k x spatial.

    channelwise: scale and offset are operands, a value per channel each; else they are these numbers. Computed in f32, in f64
    for integers of 32 bits and where y is f64. Source: not in cuDNN.
    Descriptor: `convert.in n= k= [[d=] h=] w= store=u8|u16|i16|i32|b8 [channelwise=1] [scale=] [offset=]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    store: str
    channelwise: bool = False
    scale: float = 1.0
    offset: float = 0.0
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "convert.in"
    inward = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channelwise and (self.scale, self.offset) != (1.0, 0.0):
            raise ArgumentError("convert.in: scale= and offset= are operands with channelwise=1")

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        x = self.tensor("x", self.store)
        return (x, self.per_channel("scale", "f64"), self.per_channel("offset", "f64")) if self.channelwise else (x,)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        wide = numpy_dtype(self.wide)
        x, *numbers = (crop(blocks[o.name], o.region(tile)).array for o in self.inputs)
        each = numbers or [np.full(1, self.scale), np.full(1, self.offset)]
        with np.errstate(invalid="ignore", over="ignore"):
            scale, offset = (values.astype(wide).reshape(-1, *(1,) * self.rank) for values in each)
            blocks["y"].array[...] = x.astype(wide) * scale + offset


@register("convert.out")
@dataclass(frozen=True)
class ConvertOut(Conversion):
    """y = x as an integer: the nearest one, the even one of two, within the range of its type; 0 for NaN; n x k x spatial.

    Source: not in cuDNN. Descriptor: `convert.out n= k= [[d=] h=] w= store=u8|u16|i16|i32|b8`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    store: str
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "convert.out"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("x"),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y", self.store),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x = crop(blocks["x"], self.inputs[0].region(tile)).array
        blocks["y"].array[...] = saturated(x.astype(numpy_dtype(self.wide)), self.store)


def saturated(x: Any, store: str) -> Any:
    """Floating values as integers of a type: rounded half to even, within its range, 0 for NaN."""
    held = np.clip(np.rint(np.where(np.isnan(x), 0, x).astype(np.float64)), *RANGES[store])
    return held.astype(numpy_dtype(store))
