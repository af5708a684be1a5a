"""The order between steps, derived from byte ranges: every wait that is needed, and none that others imply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ooc.schedule.arena import Buffer, Layout
from ooc.schedule.steps import Step


class _Record:
    """Who touched some bytes last: the step that wrote them, and of each lane the last that read them since. whole: all the
    bytes of the buffer that it was made for are still its own."""

    __slots__ = ("readers", "whole", "writer")

    def __init__(self, writer: int) -> None:
        self.writer, self.readers, self.whole = writer, {}, True  # type: tuple[int, dict[str, int], bool]


class _ByteRecords:
    """The records of all bytes. As long as nobody else takes bytes of a buffer, it has one record, found at once."""

    def __init__(self, layout: Layout) -> None:
        self.cells = layout.cells
        self.owner: dict[int, _Record] = {}  # of each elementary byte range
        self.latest: dict[Buffer, _Record] = {}

    def records(self, buffer: Buffer) -> Iterable[_Record]:
        """Of a buffer's bytes."""
        latest = self.latest.get(buffer)
        if latest is not None and latest.whole:
            return (latest,)
        owner = self.owner
        return {id(r): r for c in self.cells[buffer] if (r := owner.get(c)) is not None}.values()

    def read(self, buffer: Buffer, lane: str, step: int) -> None:
        """A step has read a buffer."""
        latest = self.latest.get(buffer)
        if latest is None or not latest.whole:
            untouched = [c for c in self.cells[buffer] if c not in self.owner]
            if len(untouched) == len(self.cells[buffer]):
                self._take(buffer, -1)
            elif untouched:
                self.owner.update(dict.fromkeys(untouched, _Record(-1)))
        for record in self.records(buffer):
            record.readers[lane] = step

    def written(self, buffer: Buffer, step: int) -> None:
        """A step has written a buffer."""
        latest = self.latest.get(buffer)
        if latest is not None and latest.whole:
            latest.writer, latest.readers = step, {}
        else:
            self._take(buffer, step)

    def _take(self, buffer: Buffer, writer: int) -> _Record:
        record = self.latest[buffer] = _Record(writer)
        for cell in self.cells[buffer]:
            before = self.owner.get(cell)
            if before is not None:
                before.whole = False
            self.owner[cell] = record
        return record


def link(steps: Iterable[Step], layout: Layout) -> tuple[Step, ...]:
    """The steps with every wait that their byte ranges need and that is not implied by other waits.

    Runs after packing, on ranges: linking by buffer name misses conflicts once memory is reused.
    """
    return tuple(linked(steps, layout))


def linked(steps: Iterable[Step], layout: Layout) -> Iterator[Step]:
    """The steps of `link`, one by one."""
    memory = _ByteRecords(layout)
    known: dict[str, dict[str, int]] = {}  # lane -> what it already waited for: lane -> newest step
    clocks: list[dict[str, int]] = []
    out: list[Step] = []
    for i, step in enumerate(steps):
        need = _needed(step, memory)
        clock = dict(known.get(step.lane, _NOBODY))
        after = []
        for j in sorted(need, reverse=True):
            lane = out[j].lane
            if lane != step.lane and clock.get(lane, -1) < j:
                after.append(j)
                for other, newest in clocks[j].items():
                    if clock.get(other, -1) < newest:
                        clock[other] = newest
        clock[step.lane] = i
        known[step.lane] = clock
        clocks.append(clock)
        for ref in step.reads:
            if ref.buffer:
                memory.read(ref.buffer, step.lane, i)
        for ref in step.writes:
            if ref.buffer:
                memory.written(ref.buffer, i)
        out.append(step._replace(after=tuple(sorted(after))) if after else step)
        yield out[-1]


_NOBODY: dict[str, int] = {}


def _needed(step: Step, memory: _ByteRecords) -> set[int]:
    """The steps that must be complete: those that wrote what this one touches, and read what it writes."""
    need: set[int] = set()
    for ref in step.reads:
        if ref.buffer:
            need.update(r.writer for r in memory.records(ref.buffer))
    for ref in step.writes:
        if ref.buffer:
            for record in memory.records(ref.buffer):
                need.add(record.writer)
                need.update(record.readers.values())
    need.discard(-1)
    return need
