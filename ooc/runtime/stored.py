"""A source as an array that carries shape, dtype and strides alone: what is made of it (views) says which region is meant."""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.backends.device_array import Untouched, host_array, owner_of
from ooc.errors import UnsupportedError
from ooc.ir.region import Region, Span, extents
from ooc.native import address
from ooc.sources.around import Around
from ooc.sources.arrays import ArraySource
from ooc.sources.base import FileSource
from ooc.sources.protocol import Array, Source
from ooc.sources.raw import strides_of
from ooc.sources.scratch import unpacked

FIRST = 1 << 60  # addresses from here on belong to no process


class StoredArray(Untouched):
    """An array whose numbers a source holds. Slicing, transposing and reshaping give views; nothing else touches the numbers."""

    where = "in a file that is read by region; read it into an array first"


class _Addresses:
    """Addresses that no process has, those of a source as long as it lives."""

    def __init__(self) -> None:
        self._lock, self._next = threading.Lock(), FIRST
        self._taken: weakref.WeakKeyDictionary[Source, int] = weakref.WeakKeyDictionary()

    def of(self, source: Source) -> int:
        """Where a source begins."""
        with self._lock:
            first = self._taken.get(source)
            if first is None:
                first = self._taken[source] = self._next
                self._next += math.prod(source.shape) * source.dtype.itemsize
        return first


_addresses = _Addresses()


def bare(source: Source) -> Source:
    """What holds the numbers of a source that sees them with other axes; what only notes what passes is itself."""
    while isinstance(source, Around) and type(source).see is not Around.see:
        source = source.source
    return source


def array_of(name: str, source: Source) -> Array:
    """A source as an array: a memory map where its numbers lie in the file as in memory, else a `StoredArray`, which has the
    same addresses each time. Raises UnsupportedError for one that is empty or closed."""
    if not math.prod(source.shape) or getattr(source, "closed", False):
        raise UnsupportedError(f"{name}: this source is empty or closed; pass an array")
    held = bare(source)
    if isinstance(held, FileSource) and held.sequential:
        return _with_axes(source, unpacked(held))
    return viewed(source)


def viewed(source: Source) -> Array:
    """The same, whatever order the source is best read in."""
    mapped, held = source.mapped(), bare(source)
    if mapped is not None:
        return mapped
    if isinstance(held, ArraySource) and isinstance(held.array, np.ndarray):
        return _with_axes(source, held.array)
    array = host_array(_addresses.of(held), held.shape, held.dtype, None, held).view(StoredArray)
    array.flags.writeable = getattr(held, "writable", True)
    return _with_axes(source, array)


def _with_axes(source: Source, array: Array) -> Array:
    """An array of what holds a source's numbers, with the axes of the source."""
    if isinstance(source, Around) and type(source).see is not Around.see:
        return source.see(_with_axes(source.source, array))
    return array


@dataclass(frozen=True)
class Stored:
    """Which part of a source an array is.

    Fields:
        source: what holds the numbers.
        start: of the array's first element, a position for each axis of the source.
        runs: for each axis of the array the axes of the source that it is: one, several that are seen as one, or none.
    """

    source: Source
    start: tuple[int, ...]
    runs: tuple[tuple[int, ...], ...]

    def pieces(self, region: Region, array: Array) -> Iterator[tuple[Region, Array]]:
        """A region of the array as regions of the source, each with the part of `array` that it is, of the source's axes."""
        shape = self.source.shape
        cuts = [list(_boxes(s, [shape[a] for a in run])) for s, run in zip(region, self.runs, strict=True)]
        axes = [a for run in self.runs for a in run]
        order = [axes.index(a) for a in sorted(axes)]
        lifted: Any = (*[slice(None) if a in axes else None for a in range(len(shape))], ...)  # a view, though there be no axis
        for combination in itertools.product(*cuts):
            inside: Any = (*[slice(lo, lo + n) for lo, n, _ in combination], ...)
            part = array[inside]
            spans = [span for _, _, box in combination for span in box]
            part = part.reshape([s.extent for s in spans])
            at = dict(zip(axes, spans, strict=True))
            place = [at[a].shift(lo) if a in at else Span(lo, lo + 1) for a, lo in enumerate(self.start)]
            yield tuple(place), part.transpose(order)[lifted]

    def regions(self, region: Region) -> Iterator[Region]:
        """A region of the array as regions of the source."""
        nothing = np.broadcast_to(np.empty((), np.uint8), extents(region))
        for piece, _ in self.pieces(region, nothing):
            yield piece


def _boxes(span: Span, extent: Sequence[int]) -> Iterator[tuple[int, int, tuple[Span, ...]]]:
    """Positions along some axes seen as one, as boxes in them: the first of each within the span, how many, and its spans."""
    done = 0
    for box in _cut(span.lo, span.hi, extent):
        count = math.prod(s.extent for s in box)
        yield done, count, box
        done += count


def _cut(lo: int, hi: int, extent: Sequence[int]) -> Iterator[tuple[Span, ...]]:
    if len(extent) < 2:
        yield (Span(lo, hi),) if extent else ()
        return
    inner = math.prod(extent[1:])
    first, last = lo // inner, hi // inner
    if lo % inner or first == last:  # a part of one row, up to its end
        end = min(hi, (first + 1) * inner)
        for rest in _cut(lo - first * inner, end - first * inner, extent[1:]):
            yield (Span(first, first + 1), *rest)
        if end < hi:
            yield from _cut(end, hi, extent)
        return
    yield (Span(first, last), *[Span(0, e) for e in extent[1:]])
    if last * inner < hi:
        yield from _cut(last * inner, hi, extent)


def stored_in(array: Any) -> Stored | None:
    """Which part of a source an array is, where it is one. Raises UnsupportedError where its axes are none of the source's."""
    if not isinstance(array, StoredArray):
        return None
    source: Source = owner_of(array)
    shape, item = source.shape, source.dtype.itemsize
    steps = strides_of(shape, item)
    ahead = address(array) - _addresses.of(source) if array.size else 0
    start = []
    for step in steps:
        start.append(ahead // step)
        ahead %= step
    free = {steps[a]: a for a in range(len(shape)) if shape[a] > 1}
    runs = []
    for extent, stride in zip(array.shape, array.strides, strict=True):
        run = _run(extent, free.pop(stride, None), shape, start) if extent > 1 else ()
        if run is None:
            raise UnsupportedError(
                f"an array of shape {array.shape} is seen with axes that its file of {shape} has not; read it into an array"
            )
        for a in run:
            free.pop(steps[a], None)
        runs.append(run)
    return Stored(source, tuple(start), tuple(runs))


def _run(extent: int, last: int | None, shape: Sequence[int], start: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of a source, up to `last`, that an axis of some extent is; None: it is none of them."""
    first, inner = last, 1
    while first is not None:
        if extent <= inner * (shape[first] - start[first]):
            return tuple(range(first, last + 1)) if extent % inner == 0 else None  # type: ignore[operator]
        whole = start[first] == 0 and extent % (inner * shape[first]) == 0
        inner *= shape[first]
        first = first - 1 if whole and first else None
    return None
