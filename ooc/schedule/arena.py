"""Where buffers lie: lifetimes -> byte offsets and a peak. Pure integers; the memory itself belongs to the backend."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import ALIGN, aligned
from ooc.native import kernels

TRIES = 16  # orders in which buffers are placed
SMALL = 256  # parts of the peak: smaller buffers fill gaps


class Buffer(NamedTuple):
    """A piece of memory that a schedule names. `space` is device, staging (pinned host) or spill (host)."""

    space: str
    name: str
    slot: int
    nbytes: int

    def __str__(self) -> str:
        prefix = "" if self.space == "device" else f"{self.space}:"
        return f"{prefix}{self.name}#{self.slot}"


@dataclass(frozen=True)
class Layout:
    """The byte offset of every buffer in its space, and the peak of every space."""

    offsets: dict[Buffer, int]
    peaks: dict[str, int]

    def end(self, buffer: Buffer) -> int:
        """First byte after a buffer."""
        return self.offsets[buffer] + buffer.nbytes

    @cached_property
    def cells(self) -> dict[Buffer, tuple[int, ...]]:
        """Each buffer as the elementary byte ranges it covers, numbered; buffers clash where they share one."""
        cells: dict[Buffer, tuple[int, ...]] = {}
        base = 0
        for space in self.peaks:
            buffers = [b for b in self.offsets if b.space == space and b.nbytes]
            edges = sorted({self.offsets[b] for b in buffers} | {self.end(b) for b in buffers})
            for b in buffers:
                lo, hi = bisect.bisect_left(edges, self.offsets[b]), bisect.bisect_left(edges, self.end(b))
                cells[b] = tuple(range(base + lo, base + hi))
            base += len(edges)
        cells |= {b: () for b in self.offsets if not b.nbytes}
        return cells


class Longer(NamedTuple):
    """Buffers that had better live longer, where that ends below a limit: what would take their bytes waits for them.

    Fields:
        until: moments, by the buffer.
        limit: bytes of their space.
    """

    until: Mapping[Buffer, int]
    limit: int


UNCHANGED = Longer({}, 0)


def colour(
    lives: Mapping[Buffer, tuple[int, int]], below: Layout | None = None, best_fit: bool = True, close: bool = False,
    longer: Longer = UNCHANGED,
) -> Layout:  # fmt: skip
    """Offsets for buffers that live from a first to a last moment, both included: offline interval colouring by decreasing
    size, each in the smallest gap between its neighbours in time that holds it, or (best_fit False) in the lowest.

    below: buffers that live all the time, under all others. close: where that leaves gaps, other orders are tried. longer: see
    there.

    Source: SmartPool, Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems", 2019.
    Unlike its published code, the gap below the first placed neighbour counts as a gap.
    """
    offsets = dict(below.offsets) if below else {}
    peaks = dict(below.peaks) if below else {}
    spaces: dict[str, list[Buffer]] = {}
    for buffer in sorted(lives, key=lambda b: (-b.nbytes, lives[b][0], b)):
        spaces.setdefault(buffer.space, []).append(buffer)
    for space, buffers in spaces.items():
        ground = peaks.get(space, 0)
        room = longer._replace(limit=longer.limit - ground) if any(b in longer.until for b in buffers) else UNCHANGED
        lows, peak = _placed(buffers, lives, best_fit, room)
        if close and peak > (least := max(int(load(buffers, lives).max(initial=0)), room.limit)):
            order = _reordered(buffers, lives, least, best_fit)
            again, lower = _placed(order, lives, best_fit, room)
            if lower < peak:
                buffers, lows, peak = order, again, lower
        offsets |= {buffer: ground + int(low) for buffer, low in zip(buffers, lows, strict=True)}
        peaks[space] = ground + peak
    return Layout(offsets, peaks)


def load(buffers: Iterable[Buffer], lives: Mapping[Buffer, tuple[int, int]], moments: int = 0) -> Any:
    """Bytes that some buffers take at every moment, of so many at least: no layout's peak is less than the most."""
    spans = [(*lives[buffer], int(aligned(buffer.nbytes))) for buffer in buffers]
    change = np.zeros(max([moments, *(last + 1 for _, last, _ in spans)]) + 1, np.int64)
    for first, last, nbytes in spans:
        change[first] += nbytes
        change[last + 1] -= nbytes
    return np.cumsum(change)[:-1]


def _placed(
    buffers: Sequence[Buffer], lives: Mapping[Buffer, tuple[int, int]], best_fit: bool, longer: Longer = UNCHANGED
) -> tuple[Any, int]:
    """The offsets of buffers that are placed in this order, and their peak."""
    begins, ends, nbytes = [lives[b][0] for b in buffers], [lives[b][1] for b in buffers], [b.nbytes for b in buffers]
    until = [max(end, longer.until.get(b, end)) for b, end in zip(buffers, ends, strict=True)]
    place = _place if kernels is None else kernels.place_buffers
    lows = np.array(place(begins, ends, until, nbytes, ALIGN, best_fit, longer.limit), np.int64)
    return lows, int(aligned(lows + np.array(nbytes, np.int64)).max(initial=0))


def _place(
    begins: Sequence[int], ends: Sequence[int], longer: Sequence[int], nbytes: Sequence[int], align: int, best_fit: bool,
    limit: int,
) -> Any:  # fmt: skip
    """What the extension's function place_buffers does, without it."""
    first, last = np.array(begins, np.int64), np.array(longer, np.int64)
    lows, highs = np.zeros(len(nbytes), np.int64), np.zeros(len(nbytes), np.int64)

    def lowest(i: int) -> int:
        near = np.flatnonzero((first[:i] <= last[i]) & (first[i] <= last[:i]))
        return _gap(lows[near], highs[near], nbytes[i], best_fit)

    for i, size in enumerate(nbytes):
        lows[i] = lowest(i)
        while last[i] > ends[i] and lows[i] + size > limit:
            last[i] = ends[i] + (last[i] - ends[i]) * 3 // 4
            lows[i] = lowest(i)
        highs[i] = -(-(lows[i] + size) // align) * align
    return lows


def _reordered(buffers: Sequence[Buffer], lives: Mapping[Buffer, tuple[int, int]], least: int, best_fit: bool) -> list[Buffer]:
    """An order in which buffers leave few gaps: what ends at the peak is placed first the next time, until the peak is the least
    that it can be. Small buffers fill gaps in any order."""
    large = [b for b in buffers if b.nbytes * SMALL >= least]
    order, best, lowest = large, large, math.inf
    for _ in range(TRIES):
        lows, peak = _placed(order, lives, best_fit)
        if peak < lowest:
            best, lowest = order, peak
        if peak <= least:
            break
        top = {b for b, low in zip(order, lows, strict=True) if int(aligned(low + b.nbytes)) == peak}
        order = [*(b for b in order if b in top), *(b for b in order if b not in top)]
    return [*best, *buffers[len(large) :]]


def _gap(lows: Any, highs: Any, nbytes: int, best_fit: bool) -> int:
    """Offset of the smallest, or the lowest, gap between busy ranges that holds the bytes, or their end."""
    if not len(lows):
        return 0
    order = np.argsort(lows, kind="stable")
    tops = np.maximum.accumulate(highs[order])
    starts = np.concatenate(([0], tops[:-1]))
    rooms = lows[order] - starts
    fits = np.flatnonzero(rooms >= max(nbytes, 1))
    if not len(fits):
        return int(tops[-1])
    return int(starts[fits[rooms[fits].argmin()] if best_fit else fits[0]])


def pack_in_sequence(buffers: Iterable[Buffer]) -> Layout:
    """Offsets one after the other, for buffers that all live through the whole schedule (the rings of one op)."""
    offsets: dict[Buffer, int] = {}
    peaks: dict[str, int] = {}
    for buffer in buffers:
        offsets[buffer] = peaks.get(buffer.space, 0)
        peaks[buffer.space] = aligned(offsets[buffer] + buffer.nbytes)
    return Layout(offsets, peaks)
