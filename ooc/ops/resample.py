"""What resizing and its gradient share: which positions meet, with what weight. Nearest neighbour, linear (bilinear,
trilinear) interpolation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import UnsupportedError
from ooc.ir.axis_maps import enclosing
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Along, AxisMap, Line, Sizes, Span, Tile, least
from ooc.ops.spatial import SpatialOp, check_positive

KINDS = ("nearest", "linear", "aligned")
MOST_POSITIONS = 1 << 26  # along an axis that is resized: where each is made of is held in tables


def check_positions(size: int) -> None:
    """Refuse an axis that is resized to more than a table holds. Raises UnsupportedError."""
    if size > MOST_POSITIONS:
        raise UnsupportedError(f"an axis resized to {size} positions; at most {MOST_POSITIONS}: resize pieces of it")


@lru_cache(maxsize=256)
def samples(how: str, extent: int, out: int) -> tuple[Any, Any, Any]:
    """For each of `out` results along an axis: its two sources in [0, extent), and the weight of the second.

    nearest: floor(i * extent / out). linear: centres of pixels are matched. aligned: centres of the corners are.
    """
    check_positions(out)
    i = np.arange(out)
    if how == "nearest":
        source = i * extent // out
        return source, source, np.zeros(out)
    at = i * ((extent - 1) / max(out - 1, 1)) if how == "aligned" else np.maximum((i + 0.5) * (extent / out) - 0.5, 0)
    first = np.minimum(np.floor(at).astype(np.int64), extent - 1)
    return first, np.minimum(first + 1, extent - 1), at - first


@dataclass(frozen=True)
class Sampled:
    """Results -> the positions that they are made of (`backward`: positions -> the results made of them). margin: so many
    positions to either side may count, too."""

    dim: str
    how: str
    extent_in: int
    extent_out: int
    backward: bool = False
    margin: int = 0

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def span(self, tile: Tile) -> Span:
        lo, hi = tile[self.dim]
        first, second = self.ends
        if self.backward:
            return Span(int(np.searchsorted(second, lo)), int(np.searchsorted(first, hi)))
        return Span(int(first[lo]), int(second[hi - 1]) + 1)

    def extent(self, sizes: Sizes) -> Any:
        return least(self._bounds.extent(sizes[self.dim]), self.extent_out if self.backward else self.extent_in)

    def line(self) -> Line:
        return self._bounds

    @cached_property
    def ends(self) -> tuple[Any, Any]:
        """The first and the last position that may count for each result, some of them beyond the axis."""
        first, second, _ = samples(self.how, self.extent_in, self.extent_out)
        return first - self.margin, second + self.margin

    @cached_property
    def _bounds(self) -> Line:
        """As `measured` finds them, of all positions at once."""
        pace = Fraction(self.extent_in, self.extent_out)
        lo, second = self.ends
        hi = second + 1
        if self.backward:
            check_positions(self.extent_in)
            at = np.arange(self.extent_in)
            pace, lo, hi = 1 / pace, np.searchsorted(second, at), np.searchsorted(lo, at + 1)
        return enclosing(pace, lo, hi)


@dataclass(frozen=True)
class Resampling(SpatialOp):
    """The sizes of both passes; size: the output extents."""

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    size: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, k=self.k, extent=self.extent, size=self.size)
        self.check_words()

    def tensor(self, name: str, extent: tuple[int, ...], spatial: list[AxisMap]) -> Operand:
        """An n x k x extent tensor."""
        axes = (Along("n"), Along("k"), *spatial)
        return Operand(name, (self.n, self.k, *extent), self.dtype, axes, self.memory_order)

    def maps(self, letters: str, backward: bool) -> list[AxisMap]:
        axes = zip(letters, self.extent, self.size, strict=True)
        return [Sampled(d, self.how, e, o, backward) for d, e, o in axes]

    def flops(self, sizes: Sizes) -> Any:
        return 2 * self.inputs[0].count(sizes) + 2 * self.outputs[0].count(sizes)

    def table(self, axis: int) -> tuple[Any, Any, Any]:
        """Of a spatial axis: both sources of each result, and the weight of the second."""
        taps: tuple[Any, Any, Any] = samples(self.how, self.extent[axis], self.size[axis])
        return taps

    def apply(self, tile: Tile, blocks: Mapping[str, Block], backward: bool) -> None:
        """Resize, or take the gradient of it, one spatial axis after the other; sums in ascending order."""
        output = self.outputs[0]
        part, region = crop(blocks[self.inputs[0].name], self.inputs[0].region(tile)), output.region(tile)
        z = part.array.astype(numpy_dtype(compute_dtype(self.dtype)))
        for axis in range(self.rank):
            z = np.moveaxis(z, axis + 2, -1)
            z = (_gather if backward else mix)(z, self.table(axis), part.region[axis + 2], region[axis + 2])  # fmt: skip
            z = np.moveaxis(z, -1, axis + 2)
        blocks[output.name].array[...] = z


def mix(z: Any, table: tuple[Any, Any, Any], held: Span, span: Span) -> Any:
    """Results along the last axis, each of two sources."""
    first, second, share = (t[span.lo : span.hi] for t in table)
    share = share.astype(z.dtype)
    near = z[..., first - held.lo]
    return near + share * (z[..., second - held.lo] - near) if share.any() else near


def _gather(z: Any, table: tuple[Any, Any, Any], held: Span, span: Span) -> Any:
    """Positions along the last axis, each from the results made of it."""
    first, second, share = table
    positions = np.arange(span.lo, span.hi)
    lo, hi = np.searchsorted(second, positions), np.searchsorted(first, positions, side="right")
    total = np.zeros((*z.shape[:-1], span.extent), z.dtype)
    for t in range(int((hi - lo).max(initial=0))):
        result = np.minimum(lo + t, hi - 1)
        weight = np.where(first[result] == positions, 1 - share[result], 0) + np.where(
            second[result] == positions, share[result], 0
        )
        total += z[..., np.clip(result - held.lo, 0, held.extent - 1)] * np.where(lo + t < hi, weight, 0).astype(z.dtype)
    return total
