"""The proof that a schedule waits enough: every conflict that its waits leave unordered, from the waits alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ooc.schedule.arena import Buffer, Layout
from ooc.schedule.steps import Step


class Race(NamedTuple):
    """Two steps that touch the same bytes, one of them writing, with no order between them."""

    earlier: int
    later: int
    buffer: Buffer


def races(steps: Sequence[Step], layout: Layout) -> list[Race]:
    """Every conflict that the waits leave unordered, by happens-before on vector clocks.

    Looks only at `lane` and `after`: it shares nothing with `link`. Checking each access against the last writer and
    the readers since then finds a race whenever there is one (the earliest unordered pair is always such a pair).
    """
    found: list[Race] = []
    tail: dict[str, dict[str, int]] = {}
    clocks: list[dict[str, int]] = []
    touched: dict[int, list[tuple[int, bool]]] = {}
    for i, step in enumerate(steps):
        clock = dict(tail.get(step.lane, {}))
        for j in step.after:
            clock = {lane: max(clock.get(lane, -1), clocks[j].get(lane, -1)) for lane in clock.keys() | clocks[j].keys()}
        clock[step.lane] = i
        clocks.append(clock)
        tail[step.lane] = clock
        uses = [(r, False) for r in step.reads] + [(r, True) for r in step.writes]
        for ref, writes in uses:
            for cell in layout.cells[ref.buffer] if ref.buffer else ():
                before = touched.setdefault(cell, [])
                for j, wrote in before:
                    if (writes or wrote) and j != i and clock.get(steps[j].lane, -1) < j:
                        assert ref.buffer is not None
                        found.append(Race(j, i, ref.buffer))
                if writes:
                    before.clear()
                before.append((i, writes))
    return found
