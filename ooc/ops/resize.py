"""Resizing, mirroring and picking by tables of positions: each result along an axis is one source, or two mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ArgumentError
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Along, Line, Sizes, Span, Tile, least
from ooc.ops.registry import register
from ooc.ops.resample import check_positions, mix
from ooc.ops.spatial import OUT, SpatialOp, check_positive

HOWS = ("floor", "ceil", "prefer_floor", "prefer_ceil", "linear", "edge", "reflect", "wrap")  # order = codes in kernels/device
BORDERS = ("edge", "reflect", "wrap")  # results move by one as sources do
Line4 = tuple[float, float, float, float]


@lru_cache(maxsize=256)
def table(how: str, extent: int, size: int, line: Line4) -> tuple[Any, Any, Any]:
    """For each of `size` results along an axis: its two sources in [0, extent), and the weight of the second.

    Result i is made of position (i + a) * m / d - b for line = (a, m, d, b). floor, ceil, prefer_floor, prefer_ceil: the source
    that this is rounded to, for the first two of what f32 holds, as ONNX Runtime has it; linear: the two around it. Positions
    outside are those of the nearest end, mirrored at the centres of both (reflect) or go on at the other end (wrap).
    """
    check_positions(size)
    width: Any = np.float32 if how in ("floor", "ceil") else np.float64
    a, m, d, b = map(width, line)
    at = (np.arange(size).astype(width) + a) * m / d - b
    if how == "linear":
        at = np.clip(at, 0, extent - 1)
        first = np.floor(at).astype(np.int64)
        return first, np.minimum(first + 1, extent - 1), at - first
    half = width(0.5)
    rounded = {"ceil": np.ceil(at), "prefer_floor": np.ceil(at - half), "prefer_ceil": np.floor(at + half)}.get(how, np.floor(at))
    source = _inside(how, np.arange(size) + int(line[0]) if how in BORDERS else rounded.astype(np.int64), extent)
    return source, source, np.zeros(size)


def _inside(how: str, source: Any, extent: int) -> Any:
    """Positions beyond the ends, brought back."""
    if how == "reflect" and extent > 1:
        source = np.mod(source, 2 * (extent - 1))
        source = np.where(source < extent, source, 2 * (extent - 1) - source)
    return np.mod(source, extent) if how == "wrap" else np.clip(source, 0, extent - 1)


@dataclass(frozen=True)
class Taken:
    """Results -> the positions that they are made of."""

    dim: str
    how: str
    extent_in: int
    extent_out: int
    by: Line4

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.dim,)

    @property
    def _table(self) -> tuple[Any, Any, Any]:
        return table(self.how, self.extent_in, self.extent_out, self.by)

    def span(self, tile: Tile) -> Span:
        lo, hi = tile[self.dim]
        if hi <= lo:
            return Span(0, 0)
        first, second, _ = self._table
        if self.how in ("reflect", "wrap") or self.by[1] < 0:  # not in ascending order
            return Span(int(first[lo:hi].min()), int(second[lo:hi].max()) + 1)
        return Span(int(first[lo]), int(second[hi - 1]) + 1)

    def extent(self, sizes: Sizes) -> Any:
        return least(self._bounds.extent(sizes[self.dim]), self.extent_in)

    def line(self) -> Line:
        return self._bounds

    @cached_property
    def _bounds(self) -> Line:
        """Straight bounds of the table."""
        slope = Fraction(1) if self.how in BORDERS else Fraction(self.extent_in, self.extent_out)
        up, down = slope.numerator, slope.denominator
        first, second, _ = self._table
        at = np.arange(self.extent_out)
        low, high = int((down * first - up * at).min()), int((down * (second + 1) - up * (at + 1)).max())
        return Line(slope, Fraction(low, down), Fraction(high, down))


@register(*(f"resize.{how}" for how in HOWS))
@dataclass(frozen=True)
class Resize(SpatialOp):
    """y (n x k x size) from x (n x k x extent): along every spatial axis result i is made of position (i + a) * m / d - b of x.

    how: what that becomes, see `table`. lines: a, m, d, b of each axis, one after the other; of borders the a alone
    counts, and is minus what they put in front. Sources: ONNX's Resize and Pad. Descriptor:
    `resize.floor n= k= [[d=] h=] w= size=8x8 lines=0x1x2x0x0x1x2x0`.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    size: tuple[int, ...]
    lines: tuple[float, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    free = frozenset({"lines"})

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, k=self.k, extent=self.extent, size=self.size)
        self.check_words()
        if len(self.size) != self.rank or len(self.lines) != 4 * self.rank or not all(d > 0 for d in self.lines[2::4]):
            raise ArgumentError(
                f"{self.kind}: expected size= of {self.rank}, lines= of {4 * self.rank} numbers; got {self.lines}"
            )

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"resize.{self.how}"

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, "k": self.k, **dict(zip(OUT[self.rank], self.size, strict=True))}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        axes = (Taken(d, self.how, e, s, self.line(i)) for i, (d, e, s) in enumerate(zip(OUT[self.rank], self.extent, self.size)))
        return (Operand("x", (self.n, self.k, *self.extent), self.dtype, (Along("n"), Along("k"), *axes), self.memory_order),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (Operand("y", (self.n, self.k, *self.size), self.dtype, tuple(map(Along, self.dims)), self.memory_order),)

    def line(self, axis: int) -> Line4:
        """The numbers of a spatial axis."""
        a, m, d, b = self.lines[4 * axis : 4 * axis + 4]
        return a, m, d, b

    def table(self, axis: int) -> tuple[Any, Any, Any]:
        """Of a spatial axis: both sources of each result, and the weight of the second."""
        taps: tuple[Any, Any, Any] = table(self.how, self.extent[axis], self.size[axis], self.line(axis))
        return taps

    def flops(self, sizes: Sizes) -> Any:
        return 2 * self.inputs[0].count(sizes) + 2 * self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        part, region = crop(blocks["x"], self.inputs[0].region(tile)), self.outputs[0].region(tile)
        z = part.array.astype(numpy_dtype(compute_dtype(self.dtype)))
        for i in range(self.rank):
            z = np.moveaxis(mix(np.moveaxis(z, i + 2, -1), self.table(i), part.region[i + 2], region[i + 2]), -1, i + 2)
        blocks["y"].array[...] = z
