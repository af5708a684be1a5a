"""Intervals, regions and axis maps: the arithmetic that every plan, copy and kernel rests on.

A *tile* is a piece of an op's iteration space: one `Span` per loop dim. A *region* is a piece of a tensor: one
`Span` per axis. An *axis map* turns the first into the second. Nothing here holds an array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np

from ooc.cache import cached_property


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
        lo, hi = self
        if 0 <= lo <= hi <= extent:
            return self
        lo = min(max(lo, 0), extent)
        return Span(lo, max(min(hi, extent), lo))

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
    return tuple([hi - lo for lo, hi in region])


def elements(region: Region) -> int:
    """Number of elements in a region."""
    return math.prod(hi - lo for lo, hi in region)


def clip(region: Region, shape: tuple[int, ...]) -> Region:
    """The part of a region that lies inside a tensor of this shape."""
    return tuple([span.clip(extent) for span, extent in zip(region, shape, strict=True)])


def slices(region: Region) -> tuple[slice, ...]:
    """A region as an index for an array."""
    return tuple([slice(lo, hi) for lo, hi in region])


def split(extent: int, tile: int) -> list[Span]:
    """[0, extent) cut into spans of `tile`; the last may be shorter.

    >>> split(5, 2)
    [Span(lo=0, hi=2), Span(lo=2, hi=4), Span(lo=4, hi=5)]
    """
    return [Span(lo, min(lo + tile, extent)) for lo in range(0, extent, tile)]


MANY = 4096  # spans from which on none is made before it is asked for


def spans(extent: int, tile: int) -> Sequence[Span]:
    """What `split` makes, however many they are."""
    return split(extent, tile) if extent <= MANY * tile else _Spans(extent, tile)


class _Spans(Sequence[Span]):
    """Spans that are made one by one."""

    def __init__(self, extent: int, tile: int) -> None:
        self.begins, self.extent, self.tile = range(0, extent, tile), extent, tile

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, i: Any) -> Any:
        lo = self.begins[i]
        return Span(lo, min(lo + self.tile, self.extent))


FEW = 64  # tiles of which is remembered what follows from them: all those of a short schedule


@dataclass(frozen=True)
class Line:
    """Straight bounds of an axis map over one dim: a tile [lo, hi) maps into [slope*lo + low, slope*hi + high]."""

    slope: Fraction
    low: Fraction
    high: Fraction

    def extent(self, size: Any) -> Any:
        """Upper bound of the span's extent for tiles of a size (an int or an array)."""
        return self._slack + -(-self.slope.numerator * size // self.slope.denominator)

    @cached_property
    def _slack(self) -> int:
        return math.ceil(self.high - self.low)


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
class PartWindow:
    """Output positions and some of a window's places -> their receptive field.

    Output i reads inputs i*stride - pad + t*dilation for the t of the dim `part`.
    """

    dim: str
    part: str
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.dim, self.part)

    def span(self, tile: Tile) -> Span:
        (lo, hi), (first, end) = tile[self.dim], tile[self.part]
        begin = -self.pad + first * self.dilation
        return Span(lo * self.stride + begin, (hi - 1) * self.stride + begin + (end - first - 1) * self.dilation + 1)

    def extent(self, sizes: Sizes) -> Any:
        return (sizes[self.dim] - 1) * self.stride + (sizes[self.part] - 1) * self.dilation + 1

    def line(self) -> Line | None:
        return None


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


def least(value: Any, bound: int) -> Any:
    """min for an int or, elementwise, for an array of candidates."""
    return np.minimum(value, bound) if isinstance(value, np.ndarray) else min(value, bound)
