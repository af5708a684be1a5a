"""Dropout with a counter-based generator: the mask of an element depends on the seed and its index alone.

Any tiling therefore drops the same elements, and the backward pass is the same operation on dy, with no stored mask.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox 4x32-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ArgumentError
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Region, Sizes, Tile, Whole
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise

MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (0x9E3779B9, 0xBB67AE85)
STRIDE = 0x9E3779B97F4A7C15  # between the keys of neighbouring draws: odd, so that 2**64 draws have as many keys
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


@register("dropout")
@dataclass(frozen=True)
class Dropout(Elementwise):
    """y = x / (1 - rate) where kept, else 0; each element is dropped with probability `rate`. seed: 64 bits.

    An element's index is its row-major position in n x k x spatial, whatever the layout. drawn: the mask also depends on a
    second input `draw`, one i64: the generator's key is seed + draw * STRIDE, modulo 2**64. Source: cudnnDropoutForward.
    Descriptor: `dropout n= k= [[d=] h=] w= rate= seed= [drawn=1]`.
    """

    n: int
    k: int
    extent: tuple[int, ...]
    rate: float = 0.5
    seed: int = 0
    dtype: str = "f32"
    layout: str = "channels_first"
    drawn: bool = False

    kind = "dropout"
    groups = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rate < 1 or not 0 <= self.seed < 1 << 64:
            raise ArgumentError(f"dropout: expected 0 <= rate < 1 and a seed of 64 bits, got rate={self.rate} seed={self.seed}")

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        x = self.tensor("x")
        return (x, Operand("draw", (1,), "i64", (Whole(1),))) if self.drawn else (x,)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def flops(self, sizes: Sizes) -> Any:
        return 20 * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        part = crop(blocks["x"], self.inputs[0].region(tile))
        compute = numpy_dtype(compute_dtype(self.dtype))
        draw = int(blocks["draw"].array[0]) if self.drawn else 0
        key = (self.seed + draw * STRIDE) % (1 << 64)
        kept = random_words(self._indices(part.region), key) >= np.uint64(round(self.rate * 2**32))
        scaled = part.array.astype(compute) * compute.type(1 / (1 - self.rate))
        blocks["y"].array[...] = np.where(kept, scaled, compute.type(0))

    def _indices(self, region: Region) -> Any:
        """The row-major index of every element of a region."""
        shape = self.inputs[0].shape
        index: Any = np.zeros((), np.uint64)
        for span, extent in zip(region, shape, strict=True):
            index = index[..., None] * np.uint64(extent) + np.arange(span.lo, span.hi, dtype=np.uint64)
        return index


def random_words(index: Any, seed: int) -> Any:
    """The 32-bit random word of every index (uint64 arrays): word index % 4 of the Philox block index // 4."""
    block, lane = index >> np.uint64(2), index & np.uint64(3)
    words = [block & LOW, block >> HALF, np.zeros_like(block), np.zeros_like(block)]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        left, right = MULTIPLIERS[0] * words[0], MULTIPLIERS[1] * words[2]
        words = [
            (right >> HALF) ^ words[1] ^ np.uint64(keys[0]), right & LOW,
            (left >> HALF) ^ words[3] ^ np.uint64(keys[1]), left & LOW,
        ]  # fmt: skip
        keys = [(k + w) & 0xFFFFFFFF for k, w in zip(keys, WEYL, strict=True)]
    return np.choose(lane.astype(np.int64), words)
