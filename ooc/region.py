"""Intervals, regions and axis maps: the arithmetic that every plan, copy and kernel rests on.

A *tile* is a piece of an op's iteration space: one `Span` per loop dim. A *region* is a piece of a tensor: one
`Span` per axis. An *axis map* turns the first into the second. Nothing here holds an array.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, Protocol


class Span(NamedTuple):
    """A half-open interval of integers [lo, hi)."""

    lo: int
    hi: int

    @property
    def extent(self) -> int:
        """Number of integers inside."""
        return self.hi - self.lo

    def clip(self, extent: int) -> Span:
        """The part inside [0, extent). A span wholly outside becomes empty, never negative.

        >>> Span(-2, 3).clip(8), Span(9, 12).clip(8)
        (Span(lo=0, hi=3), Span(lo=8, hi=8))
        """
        lo = min(max(self.lo, 0), extent)
        return Span(lo, max(min(self.hi, extent), lo))

    def shift(self, by: int) -> Span:
        """The same interval moved by `by`."""
        return Span(self.lo + by, self.hi + by)

    def __str__(self) -> str:
        return f"{self.lo}:{self.hi}"


Region = tuple[Span, ...]
Tile = Mapping[str, Span]
Sizes = Mapping[str, Any]  # loop dim -> tile size: an int, or an array of candidates while planning


def whole(shape: tuple[int, ...]) -> Region:
    """The region that covers a tensor of this shape."""
    return tuple(Span(0, s) for s in shape)


def extents(region: Region) -> tuple[int, ...]:
    """Shape of the array that holds a region."""
    return tuple(hi - lo for lo, hi in region)


def elements(region: Region) -> int:
    """Number of elements in a region."""
    return math.prod(hi - lo for lo, hi in region)


def clip(region: Region, shape: tuple[int, ...]) -> Region:
    """The part of a region that lies inside a tensor of this shape."""
    return tuple(span.clip(extent) for span, extent in zip(region, shape, strict=True))


def slices(region: Region) -> tuple[slice, ...]:
    """A region as an index for an array."""
    return tuple(slice(lo, hi) for lo, hi in region)


def split(extent: int, tile: int) -> list[Span]:
    """[0, extent) cut into spans of `tile`; the last may be shorter.

    >>> split(5, 2)
    [Span(lo=0, hi=2), Span(lo=2, hi=4), Span(lo=4, hi=5)]
    """
    return [Span(lo, min(lo + tile, extent)) for lo in range(0, extent, tile)]


class Line(NamedTuple):
    """Straight bounds of an axis map over one dim: a tile [lo, hi) maps into [slope*lo + low, slope*hi + high]."""

    slope: Fraction
    low: Fraction
    high: Fraction

    def extent(self, size: Any) -> Any:
        """Upper bound of the span's extent for tiles of a size (an int or an array)."""
        return math.ceil(self.high - self.low) + -(-self.slope.numerator * size // self.slope.denominator)


class _Nested:
    """Base of maps made of maps: a graph's maps share parts, so that hashes and spans must be found once, not per path."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((type(self).__name__, *(value for name, value in vars(self).items() if not name.startswith("_"))))

    @cached_property
    def _known(self) -> dict[Span, Span]:
        return {}


class AxisMap(Protocol):
    """Tile of the iteration space -> span of one tensor axis (before clipping to the tensor)."""

    @property
    def dims(self) -> tuple[str, ...]:
        """The loop dims that the span depends on."""

    def span(self, tile: Tile) -> Span:
        """The span that a tile needs; it may reach outside the tensor, where padding lies."""

    def extent(self, sizes: Sizes) -> Any:
        """Upper bound of the span's extent for tiles of these sizes (ints or arrays)."""

    def line(self) -> Line | None:
        """Straight bounds of the map; None when it does not follow exactly one dim."""


@dataclass(frozen=True)
class Along:
    """The axis runs along a loop dim."""

    dim: str

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def span(self, tile: Tile) -> Span:
        return tile[self.dim]

    def extent(self, sizes: Sizes) -> Any:
        return sizes[self.dim]

    def line(self) -> Line | None:
        return Line(Fraction(1), Fraction(0), Fraction(0))


@dataclass(frozen=True)
class Whole:
    """The whole axis, whatever the tile."""

    size: int

    dims: tuple[str, ...] = ()

    def span(self, tile: Tile) -> Span:
        return Span(0, self.size)

    def extent(self, sizes: Sizes) -> Any:
        return self.size

    def line(self) -> Line | None:
        return None


@dataclass(frozen=True)
class Window:
    """Output positions -> their receptive field (the halo of convolution and pooling).

    Output i reads inputs i*stride - pad + t*dilation for t in [0, size).
    """

    dim: str
    size: int
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def span(self, tile: Tile) -> Span:
        lo, hi = tile[self.dim]
        reach = (self.size - 1) * self.dilation
        return Span(lo * self.stride - self.pad, (hi - 1) * self.stride - self.pad + reach + 1)

    def extent(self, sizes: Sizes) -> Any:
        return (sizes[self.dim] - 1) * self.stride + (self.size - 1) * self.dilation + 1

    def line(self) -> Line | None:
        reach = (self.size - 1) * self.dilation
        return Line(Fraction(self.stride), Fraction(-self.pad), Fraction(reach + 1 - self.stride - self.pad))


@dataclass(frozen=True)
class Unwindow:
    """Input positions -> every output whose window touches them: the preimage of `Window`.

    Serves dgrad, transposed convolution and pooling backward.
    """

    dim: str
    size: int
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def span(self, tile: Tile) -> Span:
        lo, hi = tile[self.dim]
        reach = (self.size - 1) * self.dilation
        # Floor at the lower end: the local pad of a tile is then never negative.
        return Span((lo + self.pad - reach) // self.stride, (hi - 1 + self.pad) // self.stride + 1)

    def extent(self, sizes: Sizes) -> Any:
        return (sizes[self.dim] - 1 + (self.size - 1) * self.dilation) // self.stride + 2

    def line(self) -> Line | None:
        reach, slope = (self.size - 1) * self.dilation, Fraction(1, self.stride)
        return Line(slope, slope * (self.pad - reach - self.stride + 1), slope * (self.pad - 1) + 1)


@dataclass(frozen=True)
class Grouped:
    """A channel axis of a grouped convolution: `per` channels for each index of the dim `group`.

    Several groups need all their channels (their channels would not be contiguous otherwise): `Op.legal` sees to it.
    """

    group: str
    dim: str
    per: int

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.group, self.dim)

    def span(self, tile: Tile) -> Span:
        g, c = tile[self.group], tile[self.dim]
        if g.hi - g.lo == 1:
            return c.shift(g.lo * self.per)
        return Span(g.lo * self.per, g.hi * self.per)

    def extent(self, sizes: Sizes) -> Any:
        return sizes[self.group] * sizes[self.dim]

    def line(self) -> Line | None:
        return None


@dataclass(frozen=True)
class Composed(_Nested):
    """An axis map over the dims of a producer, seen from the dims of its consumer: how fusion is expressed.

    `inner` gives, for each dim of the producer, the map that yields its span and the extent to which that span is
    clipped: an intermediate is computed where it exists and padded by its consumer, never computed from padding.
    """

    axis: AxisMap
    inner: tuple[tuple[str, AxisMap, int], ...]

    def __post_init__(self) -> None:
        needed = tuple(entry for entry in self.inner if entry[0] in self.axis.dims)
        object.__setattr__(self, "inner", needed)

    __hash__ = _Nested.__hash__

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d for _, m, _ in self.inner for d in m.dims))

    def span(self, tile: Tile) -> Span:
        return self.axis.span({dim: m.span(tile).clip(extent) for dim, m, extent in self.inner})

    def extent(self, sizes: Sizes) -> Any:
        return self.axis.extent({dim: least(m.extent(sizes), extent) for dim, m, extent in self.inner})

    def line(self) -> Line | None:
        outer = self.axis.line()
        inner = self.inner[0][1].line() if len(self.inner) == 1 else None
        if outer is None or inner is None:
            return None
        slope = outer.slope
        return Line(slope * inner.slope, slope * inner.low + outer.low, slope * inner.high + outer.high)


@dataclass(frozen=True)
class Hull(_Nested):
    """The smallest span around those of several maps over one dim that advance at the same pace.

    Arises where several stages of a fused op use one tensor. `of` is the extent of the loop dim, `size` of the axis.
    """

    parts: tuple[AxisMap, ...]
    of: int
    size: int

    __hash__ = _Nested.__hash__

    @property
    def dims(self) -> tuple[str, ...]:
        return self.parts[0].dims

    def span(self, tile: Tile) -> Span:
        at = tile[self.dims[0]]
        found = self._known.get(at)
        if found is None:
            spans = [part.span(tile).clip(self.size) for part in self.parts]
            full = [s for s in spans if s.hi > s.lo] or spans[:1]
            found = self._known[at] = Span(min(s.lo for s in full), max(s.hi for s in full))
        return found

    def extent(self, sizes: Sizes) -> Any:
        return least(self._bounds.extent(sizes[self.dims[0]]), self.size)

    def line(self) -> Line:
        return self._bounds

    @cached_property
    def _bounds(self) -> Line:
        return measured(self, _pace(self.parts[0]), self.of)


@dataclass(frozen=True)
class Owned(_Nested):
    """A tensor axis cut into disjoint spans that follow another map: each tile owns what begins in its part of it.

    Windows overlap and may leave gaps; owned spans cover the axis exactly once. `of` is the extent of the loop dim,
    `size` that of the axis.
    """

    axis: AxisMap
    of: int
    size: int

    __hash__ = _Nested.__hash__

    @property
    def dims(self) -> tuple[str, ...]:
        return self.axis.dims

    def span(self, tile: Tile) -> Span:
        at = tile[self.dims[0]]
        found = self._known.get(at)
        if found is None:
            found = self._known[at] = Span(self._start(at.lo), self._start(at.hi))
        return found

    def _start(self, at: int) -> int:
        if at <= 0 or at >= self.of:
            return 0 if at <= 0 else self.size
        return self.axis.span({self.dims[0]: Span(at, at + 1)}).clip(self.size).lo

    def extent(self, sizes: Sizes) -> Any:
        return least(self._bounds.extent(sizes[self.dims[0]]), self.size)

    def line(self) -> Line:
        return self._bounds

    @cached_property
    def _bounds(self) -> Line:
        return measured(self, _pace(self.axis), self.of)


def _pace(axis: AxisMap) -> Fraction:
    line = axis.line()
    assert line is not None
    return line.slope


def measured(axis: AxisMap, pace: Fraction, of: int) -> Line:
    """Straight bounds found by trying every index: clipping at the ends of a tensor bends a map."""
    spans = [axis.span({axis.dims[0]: Span(v, v + 1)}) for v in range(of)]
    low = min(s.lo - pace * v for v, s in enumerate(spans))
    return Line(pace, low, max(s.hi - pace * (v + 1) for v, s in enumerate(spans)))


def compose(axis: AxisMap, inner: Mapping[str, tuple[AxisMap, int]]) -> AxisMap:
    """An axis map of a stage, over the loop dims that the stage's dims follow."""
    if isinstance(axis, Along):
        return inner[axis.dim][0]
    if isinstance(axis, Whole) or not axis.dims:
        return axis
    return Composed(axis, tuple((d, m, e) for d, (m, e) in inner.items()))


def hull(maps: Iterable[AxisMap], loops: Mapping[str, int], size: int) -> AxisMap:
    """One map around several of the same axis; the whole axis where they have no common pace."""
    distinct = tuple(dict.fromkeys(maps))
    if len(distinct) == 1:
        return distinct[0]
    paces = {(m.dims, line.slope) if (line := m.line()) else None for m in distinct}
    return Hull(distinct, loops[distinct[0].dims[0]], size) if len(paces) == 1 and None not in paces else Whole(size)


def owned(axis: AxisMap, loops: Mapping[str, int], size: int) -> AxisMap:
    """A map's disjoint version: every index of the axis belongs to exactly one tile."""
    if isinstance(axis, Along) and loops[axis.dim] == size:
        return axis
    return Owned(axis, loops[axis.dims[0]], size) if axis.line() else Whole(size)


def least(value: Any, bound: int) -> Any:
    """min for an int or, elementwise, for an array of candidates."""
    return value.clip(None, bound) if hasattr(value, "clip") else min(value, bound)
