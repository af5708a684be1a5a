"""The order between steps, derived from byte ranges: every wait that is needed, and none that others imply."""

from __future__ import annotations

from collections.abc import Iterable

from ooc.schedule.arena import Layout
from ooc.schedule.steps import Step


def link(steps: Iterable[Step], layout: Layout) -> tuple[Step, ...]:
    """The steps with every wait that their byte ranges need and that is not implied by other waits.

    Runs after packing, on ranges: linking by buffer name misses conflicts once memory is reused.
    """
    writer: dict[int, int] = {}
    readers: dict[int, dict[str, int]] = {}
    known: dict[str, dict[str, int]] = {}  # lane -> what it already waited for: lane -> newest step
    clocks: list[dict[str, int]] = []
    out: list[Step] = []
    for i, step in enumerate(steps):
        need: set[int] = set()
        for ref in step.reads:
            if ref.buffer:
                for cell in layout.cells[ref.buffer]:
                    if cell in writer:
                        need.add(writer[cell])
        for ref in step.writes:
            if ref.buffer:
                for cell in layout.cells[ref.buffer]:
                    if cell in writer:
                        need.add(writer[cell])
                    need.update(readers.get(cell, _NOBODY).values())
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
        _remember(step, i, layout, writer, readers)
        out.append(step._replace(after=tuple(sorted(after))) if after else step)
    return tuple(out)


_NOBODY: dict[str, int] = {}


def _remember(step: Step, i: int, layout: Layout, writer: dict[int, int], readers: dict[int, dict[str, int]]) -> None:
    for ref in step.reads:
        if ref.buffer:
            for cell in layout.cells[ref.buffer]:
                readers.setdefault(cell, {})[step.lane] = i
    for ref in step.writes:
        if ref.buffer:
            for cell in layout.cells[ref.buffer]:
                writer[cell] = i
                readers.pop(cell, None)
