"""Units of a source (chunks, shards, tiles, strips) between the regions of tiles and the file: what is decoded is kept while
tiles need it, and what waits to become a whole unit is held; in memory, and beyond that in a file without a name."""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ooc.ir.region import Region, Span, elements, extents
from ooc.sources.around import Around, Arranged
from ooc.sources.arrays import ArraySource
from ooc.sources.base import FileSource
from ooc.sources.protocol import Array, Source
from ooc.sources.scratch import Scratch
from ooc.sources.units import inside
from ooc.sources.view import View

Index = tuple[int, ...]  # of a unit along each axis


@dataclass(frozen=True)
class Keeping:
    """What of the units of a source is kept, and where.

    Fields:
        near: along each axis, how many positions regions that lie beside each other share.
        repeats: whether regions are read more than once, others in between.
        most: how many units are kept at the same time.
        memory_bytes: of these in memory.
        run_bytes: of units that are decoded at once; at least one is.
        folder: of the file for the others; "": the temporary one.
        uses: how often units are read, of those that are read more than once, where that is known.
    """

    near: tuple[int, ...] = ()
    repeats: bool = False
    most: int = 0
    memory_bytes: int = 0
    run_bytes: int = 0
    folder: str = ""
    uses: Mapping[Index, int] = field(default_factory=dict)


@dataclass
class KeptUnit:
    """Where a unit is kept. waiting: whether the file lacks something of it; written: how many of its elements were."""

    number: int
    waiting: bool = False
    written: int = 0


class UnitRoom:
    """Slots for units, those with the lowest numbers in memory."""

    def __init__(self, unit: tuple[int, ...], dtype: np.dtype, count: int, in_memory: int, folder: str) -> None:  # type: ignore[type-arg]
        self.unit, self.dtype, self.folder, self.count = unit, dtype, folder, max(count, 1)
        self.memory = np.empty((min(in_memory, self.count), *unit), dtype)
        self.file: Scratch | None = None
        self.spare: list[int] = []  # slots that were given back
        self.taken = 0

    def take(self) -> int | None:
        """The number of a free slot; None: there is none."""
        if self.spare:
            return self.spare.pop()
        if self.taken == self.count:
            return None
        self.taken += 1
        return self.taken - 1

    def get(self, number: int, part: Region, out: Array) -> None:
        """Copy a part of a slot, counted from its beginning, into `out`."""
        if number < len(self.memory):
            out[...] = self.memory[self._at(number, part)]
        else:
            self._file().raw.read(self._in_file(number, part), out[None])

    def put(self, number: int, part: Region, array: Array) -> None:
        """Copy `array` into a part of a slot."""
        if number < len(self.memory):
            self.memory[self._at(number, part)] = array
        else:
            self._file().raw.write(self._in_file(number, part), array[None])

    def close(self) -> None:
        """Give the file back."""
        if self.file is not None:
            self.file.close()

    def _at(self, number: int, part: Region) -> tuple[int | slice, ...]:
        return (number, *[slice(lo, hi) for lo, hi in part])

    def _in_file(self, number: int, part: Region) -> Region:
        at = number - len(self.memory)
        return (Span(at, at + 1), *part)

    def _file(self) -> Scratch:
        if self.file is None:
            self.file = Scratch((self.count - len(self.memory), *self.unit), self.dtype, self.folder or None)
        return self.file


class Units:
    """A source that is read and written by any region, each of its units decoded and encoded as seldom as there is room for.

    Parameters:
        source: what holds the numbers.
        keeping: what is kept.
        turn: what whoever decodes or encodes holds: what that takes counts once for all sources of a call.
    """

    def __init__(self, source: Source, keeping: Keeping, turn: threading.RLock) -> None:
        self.source, self.keeping, self.turn = source, keeping, turn
        self.edges = [edges_of(source, axis) for axis in range(len(source.shape))]
        self.unit = unit_of(source)
        self.plain = math.prod(self.unit) == 1
        self.slots: OrderedDict[Index, KeptUnit] = OrderedDict()  # the one that was used last comes last
        self.left = dict(keeping.uses)  # reads to come
        self.ready: list[Index] = []  # of those the ones that are whole, and wait to be encoded together
        self._room: UnitRoom | None = None

    @property
    def unit_bytes(self) -> int:
        """Of the largest unit."""
        return math.prod(self.unit) * self.source.dtype.itemsize

    @property
    def room(self) -> UnitRoom:
        """Where units are kept: made when one is."""
        if self._room is None:
            in_memory = self.keeping.memory_bytes // self.unit_bytes
            self._room = UnitRoom(self.unit, self.source.dtype, max(1, self.keeping.most), in_memory, self.keeping.folder)
        return self._room

    @property
    def held_bytes(self) -> int | None:
        """Of units in memory, without what is decoded at once; None: none was kept."""
        return None if self._room is None else int(self._room.memory.nbytes)

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`."""
        if not elements(region):
            return
        with self.turn:
            if self.plain or not (self.slots or self._kept(region)):
                self.source.read(region, out)
                return
            straight = self._straight(region)
            if straight is not None:
                part = self._span_of(straight)
                self.source.read(part, out[inside(part, region)])
            missing: list[Index] = []
            for index in self._units(region, straight):
                if index in self.slots:
                    self._read_kept(index, region, out)
                elif missing and not self._joins(missing, index):
                    self._decode(missing, region, out)
                    missing = [index]
                else:
                    missing.append(index)
            if missing:
                self._decode(missing, region, out)
            if self.left:
                self._give_up(region)

    def write(self, region: Region, array: Array) -> None:
        """Copy `array` into a region. What becomes whole goes into the file, and all else when it is finished."""
        if not elements(region):
            return
        with self.turn:
            if self.plain:
                self.source.write(region, array)
                return
            full = tuple([self._inner(axis, span) for axis, span in enumerate(region)])
            straight = full if all(full) and not any(i in self.slots for i in itertools.product(*full)) else None
            if straight is not None:
                part = self._span_of(straight)
                self.source.write(part, array[inside(part, region)])
            for index in self._units(region, straight):
                self._write_part(index, region, array)

    def finish(self) -> None:
        """All that was written is in the file."""
        with self.turn:
            self._hand_on(sorted(index for index, slot in self.slots.items() if slot.waiting))
            self.source.settle()

    def close(self) -> None:
        """Give the room back; what waits to be written is lost."""
        if self._room is not None:
            self._room.close()
        self.slots.clear()
        self.ready.clear()
        self._room = None

    # ---- which units

    def _ranges(self, region: Region) -> list[range]:
        """Units that a region meets, along each axis."""
        return ranges_of(region, self.edges)

    def _inner(self, axis: int, span: Span) -> range:
        """Units that lie within a span of an axis."""
        edges = self.edges[axis]
        return range(bisect_left(edges, span.lo), max(bisect_right(edges, span.hi) - 1, bisect_left(edges, span.lo)))

    def _straight(self, region: Region) -> tuple[range, ...] | None:
        """Units within a region that no other region needs, as a range along each axis, if there are any."""
        if self.keeping.repeats:
            return None
        ranges = []
        for axis, span in enumerate(region):
            near, extent = self.keeping.near[axis], self.source.shape[axis]
            ranges.append(self._inner(axis, Span(span.lo + near * (span.lo > 0), span.hi - near * (span.hi < extent))))
        if not all(ranges) or any(index in self.slots for index in itertools.product(*ranges)):
            return None
        return tuple(ranges)

    def _kept(self, region: Region) -> bool:
        """Whether some of the units of a region are kept."""
        straight = self._straight(region) if self.keeping.most else None
        return bool(self.keeping.most) and (straight is None or list(straight) != self._ranges(region))

    def _units(self, region: Region, without: tuple[range, ...] | None) -> Iterator[Index]:
        """Units that a region meets, the last axis fastest."""
        for index in itertools.product(*self._ranges(region)):
            if without is None or not all(i in some for i, some in zip(index, without, strict=True)):
                yield index

    def _span_of(self, ranges: tuple[range, ...]) -> Region:
        return tuple([Span(edges[some[0]], edges[some[-1] + 1]) for some, edges in zip(ranges, self.edges, strict=True)])

    def _region_of(self, index: Index) -> Region:
        return tuple([Span(edges[i], edges[i + 1]) for i, edges in zip(index, self.edges, strict=True)])

    def _joins(self, run: list[Index], index: Index) -> bool:
        """Whether a unit follows others along the last axis, and all can be decoded together."""
        return (
            (len(run) + 1) * self.unit_bytes <= self.keeping.run_bytes and bool(index) and run[-1] == (*index[:-1], index[-1] - 1)
        )

    # ---- what is kept

    def _read_kept(self, index: Index, region: Region, out: Array) -> None:
        unit = self._region_of(index)
        part = _meet(unit, region)
        self.slots.move_to_end(index)
        self.room.get(self.slots[index].number, _within(part, unit), out[inside(part, region)])

    def _give_up(self, region: Region) -> None:
        """Units of a region that was read, which are not read again, leave their slots."""
        for index in self._units(region, None):
            self.left[index] = self.left.get(index, 1) - 1
            if not self.left[index]:
                del self.left[index]
                if index in self.slots and not self.slots[index].waiting:
                    self.room.spare.append(self.slots.pop(index).number)

    def _decode(self, run: list[Index], region: Region, out: Array) -> None:
        """Read units that follow each other along the last axis, and keep them."""
        hull = self._hull(run)
        held = np.empty(extents(hull), self.source.dtype)
        self.source.read(hull, held)
        part = _meet(hull, region)
        out[inside(part, region)] = held[inside(part, hull)]
        for index in run:
            unit = self._region_of(index)
            self.room.put(self._slot(index).number, _within(unit, unit), held[inside(unit, hull)])

    def _write_part(self, index: Index, region: Region, array: Array) -> None:
        unit = self._region_of(index)
        part = _meet(unit, region)
        slot = self.slots.get(index)
        if slot is None:
            slot = self._slot(index)
            if part != unit:
                held = np.zeros(extents(unit), self.source.dtype)
                if not (isinstance(self.source, FileSource) and self.source.absent(unit)):
                    self.source.read(unit, held)
                self.room.put(slot.number, _within(unit, unit), held)
        self.slots.move_to_end(index)
        self.room.put(slot.number, _within(part, unit), array[inside(part, region)])
        slot.waiting, slot.written = True, slot.written + elements(part)
        if slot.written >= elements(unit):
            self.ready.append(index)
            if len(self.ready) * self.unit_bytes >= self.keeping.run_bytes:
                self._hand_on(sorted({*self.ready}))

    def _slot(self, index: Index) -> KeptUnit:
        """A slot for a unit."""
        number = self.room.take()
        if number is None:
            self._make_room()
            number = self.room.take()
        assert number is not None
        slot = self.slots[index] = KeptUnit(number)
        return slot

    def _make_room(self) -> None:
        """Hand on what is whole, else give up the unit that was not used for longest."""
        oldest = next(iter(self.slots))
        if self.ready:
            self._hand_on(sorted({*self.ready}))
        elif self.slots[oldest].waiting:
            self._hand_on([oldest])
        else:
            self.room.spare.append(self.slots.pop(oldest).number)

    def _hand_on(self, indices: list[Index]) -> None:
        """Write units, in order, to the file, as many at once as may be; their slots are free then."""
        run: list[Index] = []
        for index in indices:
            if run and not self._joins(run, index):
                self._encode(run)
                run = []
            run.append(index)
        if run:
            self._encode(run)
        self.ready = [index for index in self.ready if index in self.slots]

    def _encode(self, run: list[Index]) -> None:
        """Write units that follow each other along the last axis."""
        hull = self._hull(run)
        held = np.empty(extents(hull), self.source.dtype)
        for index in run:
            unit = self._region_of(index)
            self.room.get(self.slots[index].number, _within(unit, unit), held[inside(unit, hull)])
        self.source.write(hull, held)
        for index in run:
            self.room.spare.append(self.slots.pop(index).number)

    def _hull(self, run: list[Index]) -> Region:
        first, last = self._region_of(run[0]), self._region_of(run[-1])
        return tuple([Span(a.lo, b.hi) for a, b in zip(first, last, strict=True)])


def ranges_of(region: Region, edges: Sequence[Sequence[int]]) -> list[range]:
    """Which of the units that begin and end at some edges a region meets, along each axis."""
    return [range(bisect_right(e, s.lo) - 1, bisect_left(e, s.hi)) for s, e in zip(region, edges, strict=True)]


def unit_of(source: Source) -> tuple[int, ...]:
    """The extents of the largest unit of a source, of whatever extents they are."""
    if isinstance(source, FileSource):
        return tuple(map(min, source.unit, source.shape))
    return tuple([max(b - a for a, b in pairwise(edges_of(source, axis))) for axis in range(len(source.shape))])


def edges_of(source: Source, axis: int) -> list[int]:
    """Where the units of a source begin along an axis, and where the last one ends."""
    if isinstance(source, FileSource):
        return [*range(0, source.shape[axis], source.unit[axis]), source.shape[axis]]
    if isinstance(source, ArraySource):
        return source.edges[axis]
    if isinstance(source, Arranged):
        inner = source.order[axis]
        return [0, 1] if inner is None else edges_of(source.source, inner)
    if isinstance(source, Around) and type(source).see is Around.see:
        return edges_of(source.source, axis)
    if isinstance(source, View):
        lo, hi = source.picked[source.kept[axis]]
        return [0, *[e - lo for e in edges_of(source.source, source.kept[axis]) if lo < e < hi], *[hi - lo] * (hi > lo)]
    corner, extent, edges = [Span(0, min(1, e)) for e in source.shape], source.shape[axis], [0]
    while edges[-1] < extent:
        corner[axis] = Span(edges[-1], edges[-1] + 1)
        edges.append(source.own(tuple(corner))[axis].hi)
    return edges


def _meet(one: Region, two: Region) -> Region:
    return tuple([Span(max(a.lo, b.lo), min(a.hi, b.hi)) for a, b in zip(one, two, strict=True)])


def _within(part: Region, unit: Region) -> Region:
    """A part of a unit, counted from its beginning."""
    return tuple([span.shift(-u.lo) for span, u in zip(part, unit, strict=True)])
