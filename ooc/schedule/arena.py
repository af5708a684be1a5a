"""Where buffers lie: lifetimes -> byte offsets and a peak. Pure integers; the memory itself belongs to the backend."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ooc.cache import cached_property
from ooc.ir.op import aligned


class Buffer(NamedTuple):
    """A piece of memory that a schedule names. `space` is device, staging (pinned host) or spill (host)."""

    space: str
    name: str
    slot: int
    nbytes: int

    def __str__(self) -> str:
        prefix = "" if self.space == "device" else f"{self.space}:"
        return f"{prefix}{self.name}#{self.slot}"


class Use(Protocol):
    """A reference to a buffer (or to none) in a step."""

    @property
    def buffer(self) -> Buffer | None: ...


class Uses(Protocol):
    """What packing needs to know of a step."""

    @property
    def reads(self) -> tuple[Use, ...]: ...

    @property
    def writes(self) -> tuple[Use, ...]: ...


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
        found: dict[Buffer, tuple[int, ...]] = {}
        base = 0
        for space in self.peaks:
            own = [b for b in self.offsets if b.space == space and b.nbytes]
            edges = sorted({self.offsets[b] for b in own} | {self.end(b) for b in own})
            for b in own:
                lo, hi = bisect.bisect_left(edges, self.offsets[b]), bisect.bisect_left(edges, self.end(b))
                found[b] = tuple(range(base + lo, base + hi))
            base += len(edges)
        found |= {b: () for b in self.offsets if not b.nbytes}
        return found


def pack(steps: Iterable[Uses]) -> Layout:
    """Offsets for every buffer that the steps name: offline interval colouring, best fit by decreasing size.

    Source: SmartPool, Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems", 2019. Unlike
    its published code, the gap below the first placed neighbour counts as a gap.
    """
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for i, step in enumerate(steps):
        for ref in (*step.reads, *step.writes):
            if ref.buffer is not None:
                first.setdefault(ref.buffer, i)
                last[ref.buffer] = i
    offsets: dict[Buffer, int] = {}
    peaks: dict[str, int] = {}
    placed: dict[str, list[Buffer]] = {}
    for buffer in sorted(first, key=lambda b: (-b.nbytes, first[b], b)):
        neighbours = placed.setdefault(buffer.space, [])
        busy = sorted(
            (offsets[o], aligned(offsets[o] + o.nbytes))
            for o in neighbours
            if first[o] <= last[buffer] and first[buffer] <= last[o]
        )
        offsets[buffer] = _best_gap(busy, buffer.nbytes)
        neighbours.append(buffer)
        peaks[buffer.space] = max(peaks.get(buffer.space, 0), aligned(offsets[buffer] + buffer.nbytes))
    return Layout(offsets, peaks)


def _best_gap(busy: list[tuple[int, int]], nbytes: int) -> int:
    """Offset of the smallest gap that holds the bytes, or the end."""
    best, best_room, at = None, None, 0
    for lo, hi in busy:
        room = lo - at
        if room >= nbytes and (best_room is None or room < best_room):
            best, best_room = at, room
        at = max(at, hi)
    return at if best is None else best


def pack_in_sequence(buffers: Iterable[Buffer]) -> Layout:
    """Offsets one after the other, for buffers that all live through the whole schedule (the rings of one op).

    Gives the same peak as `pack` for such buffers, without a pass over the steps.
    """
    offsets: dict[Buffer, int] = {}
    peaks: dict[str, int] = {}
    for buffer in buffers:
        offsets[buffer] = peaks.get(buffer.space, 0)
        peaks[buffer.space] = aligned(offsets[buffer] + buffer.nbytes)
    return Layout(offsets, peaks)
