"""Which reads of files the system is told of ahead, and when: one rule for those who run a schedule and who simulate it."""

from __future__ import annotations

from collections.abc import Iterable

from ooc.schedule.steps import Step

AHEAD = 8 << 20  # bytes of files that the system is told of before they are read


class Lookahead:
    """The reads of a schedule, in order: the system is told of the next ones when half of those it knows of are done."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.untold = (step for step in steps if step.lane == "read")
        self.nbytes = 0  # of reads that it was told of and that are not done

    def before(self) -> list[Step]:
        """The reads to tell of before the next one is done: some if the system knows of none."""
        return [] if self.nbytes else self._next()

    def after(self, step: Step) -> list[Step]:
        """The reads to tell of now that this one is done."""
        self.nbytes -= step.nbytes
        return self._next() if self.nbytes <= AHEAD // 2 else []

    def _next(self) -> list[Step]:
        steps = []
        while self.nbytes < AHEAD and (step := next(self.untold, None)):
            steps.append(step)
            self.nbytes += step.nbytes
        return steps
