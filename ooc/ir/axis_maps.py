"""Axis maps made of axis maps: what fusion composes, joins and cuts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ooc.cache import Cache, cached_property
from ooc.ir.region import Along, AxisMap, Line, Sizes, Span, Tile, Unwindow, Whole, Window, least

REMEMBERED = 4096  # spans of a map
MOST_TRIED, TRIED = 4096, 512  # indices that are tried one by one, and how many of each part of more
EXACT = 1 << 61  # products up to which differences have 64 bits


class _Nested:
    """Base of maps made of maps: a graph's maps share parts, so that hashes and spans must be found once, not per path."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((type(self).__name__, *(value for name, value in vars(self).items() if not name.startswith("_"))))

    @cached_property
    def _known(self) -> Cache[Span]:
        return Cache(REMEMBERED)


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

    @cached_property
    def pace(self) -> Fraction | None:
        outer = pace_of(self.axis)
        inner = pace_of(self.inner[0][1]) if len(self.inner) == 1 else None
        return None if outer is None or inner is None else outer * inner

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
        span = self._known.get(at)
        if span is None:
            spans = [part.span(tile).clip(self.size) for part in self.parts]
            full = [s for s in spans if s.hi > s.lo] or spans[:1]
            span = self._known.keep(at, Span(min(s.lo for s in full), max(s.hi for s in full)))
        return span

    def extent(self, sizes: Sizes) -> Any:
        return _extent(self, sizes[self.dims[0]])

    @property
    def pace(self) -> Fraction | None:
        return pace_of(self.parts[0])

    def line(self) -> Line:
        return self.bounds

    @cached_property
    def bounds(self) -> Line:
        return measured(self, self.pace, self.of)


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
        span = self._known.get(at)
        if span is None:
            span = self._known.keep(at, Span(self._start(at.lo), self._start(at.hi)))
        return span

    def _start(self, at: int) -> int:
        if at <= 0 or at >= self.of:
            return 0 if at <= 0 else self.size
        return self.axis.span({self.dims[0]: Span(at, at + 1)}).clip(self.size).lo

    def extent(self, sizes: Sizes) -> Any:
        return _extent(self, sizes[self.dims[0]])

    @property
    def pace(self) -> Fraction | None:
        return pace_of(self.axis)

    def line(self) -> Line:
        return self.bounds

    @cached_property
    def bounds(self) -> Line:
        return measured(self, self.pace, self.of)


def _extent(axis: Hull | Owned, size: Any) -> Any:
    """Of tiles of a size; one tile needs no measuring."""
    if isinstance(size, int) and size >= axis.of:
        return axis.size
    return least(axis.bounds.extent(size), axis.size)


def pace_of(axis: AxisMap) -> Fraction | None:
    """How many indices a map advances by for one of its dim; None where it does not follow exactly one."""
    if isinstance(axis, (Composed, Hull, Owned)):
        return axis.pace
    line = axis.line()
    return line.slope if line else None


def measured(axis: AxisMap, pace: Fraction | None, of: int) -> Line:
    """Straight bounds found by trying every index: clipping at the ends of a tensor bends a map. Of very many that repeat
    themselves, those at both ends and as many in the middle: nearer to an end a map is bent more."""
    assert pace is not None
    tried = np.arange(of)
    if of > MOST_TRIED and pace.denominator < TRIED and repeats(axis):
        tried = np.concatenate([np.arange(first, first + TRIED) for first in (0, (of - TRIED) // 2, of - TRIED)])
    spans = [axis.span({axis.dims[0]: Span(v, v + 1)}) for v in tried.tolist()]
    return enclosing(pace, np.array([s.lo for s in spans]), np.array([s.hi for s in spans]), tried)


def repeats(axis: AxisMap) -> bool:
    """Whether a map is the same again and again, but for its ends."""
    if isinstance(axis, Composed):
        return repeats(axis.axis) and all(repeats(inner) for _, inner, _ in axis.inner)
    if isinstance(axis, Hull):
        return all(map(repeats, axis.parts))
    return repeats(axis.axis) if isinstance(axis, Owned) else isinstance(axis, (Along, Window, Unwindow))


def enclosing(pace: Fraction, lo: Any, hi: Any, v: Any = None) -> Line:
    """Straight bounds around the spans of indices `v`, from `lo` to before `hi`, arrays of integers; default: of every index."""
    up, down, v = pace.numerator, pace.denominator, np.arange(len(lo)) if v is None else v
    if max(down * max(-int(lo.min()), int(hi.max())), up * (int(v.max()) + 2)) >= EXACT:
        lo, hi, v = (array.astype(object) for array in (lo, hi, v))
    low, high = int((down * lo - up * v).min()), int((down * hi - up * (v + 1)).max())
    return Line(pace, Fraction(low, down), Fraction(high, down))


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
    paces = {None if (pace := pace_of(m)) is None else (m.dims, pace) for m in distinct}
    return Hull(distinct, loops[distinct[0].dims[0]], size) if len(paces) == 1 and None not in paces else Whole(size)


def owned(axis: AxisMap, loops: Mapping[str, int], size: int) -> AxisMap:
    """A map's disjoint version: every index of the axis belongs to exactly one tile."""
    if isinstance(axis, Along) and loops[axis.dim] == size:
        return axis
    return Owned(axis, loops[axis.dims[0]], size) if pace_of(axis) is not None else Whole(size)
