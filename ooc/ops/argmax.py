"""Which channel is the largest, at every position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ShapeError
from ooc.ir.op import INTEGERS, Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Along, AxisMap, Sizes, Tile, Whole
from ooc.ops.convert import RANGES
from ooc.ops.registry import register
from ooc.ops.spatial import OUT, SpatialOp, check_positive


@register("argmax")
@dataclass(frozen=True)
class ArgMax(SpatialOp):
    """y (n x 1 x extent, integers) = the first channel of x (n x c x extent) that none is larger than; NaN is largest.

    store: the integers' type. Source: ONNX's ArgMax. Descriptor: `argmax n= c= [[d=] h=] w= store=u8|u16|i16|i32`.
    """

    n: int
    c: int
    extent: tuple[int, ...]
    store: str
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "argmax"
    words: ClassVar[dict[str, tuple[str, ...]]] = {**SpatialOp.words, "store": tuple(s for s in INTEGERS if s != "b8")}

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, c=self.c, extent=self.extent)
        self.check_words()
        if self.c - 1 > RANGES[self.store][1]:
            raise ShapeError(f"{self.kind}: {self.store} does not count {self.c} channels")

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, **dict(zip(OUT[self.rank], self.extent, strict=True))}

    def _tensor(self, name: str, channels: int, dtype: str) -> Operand:
        axes: tuple[AxisMap, ...] = (Along("n"), Whole(channels), *map(Along, OUT[self.rank]))
        return Operand(name, (self.n, channels, *self.extent), dtype, axes, self.memory_order)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self._tensor("x", self.c, self.dtype),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self._tensor("y", 1, self.store),)

    def flops(self, sizes: Sizes) -> Any:
        return self.inputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x = crop(blocks["x"], self.inputs[0].region(tile)).array.astype(numpy_dtype(compute_dtype(self.dtype)), copy=False)
        blocks["y"].array[...] = np.argmax(x, axis=1, keepdims=True)
