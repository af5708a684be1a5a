"""Steps in turn, where nothing else wants the processors: reads and writes of files are done at once by all threads."""

from __future__ import annotations

import time

from ooc.runtime.machine import Machine
from ooc.runtime.moves import Moves
from ooc.schedule.steps import Step


class Together:
    """The steps of a run in turn, of which neighbours that move regions of plain files, and wait for none of each other, are done
    at once. Such steps are said to have run one after the other, each for its share of the threads' work."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.threads = machine, machine.backend.turn_threads
        self.gathered: list[int] = []
        self.begin = 0.0  # of the first that is gathered

    def run(self) -> None:
        """Run every step. What is gathered when one fails is not done."""
        machine = self.machine
        try:
            for i, step in enumerate(machine.steps):
                if self.threads > 1 and self._moves_file(step):
                    self._gather(i, step)
                else:
                    self._flush()
                    machine.issue(i)
                    machine.tell(i)
            self._flush()
        finally:
            machine.moves = None

    def _moves_file(self, step: Step) -> bool:
        return step.lane in ("read", "write") and Moves.take(self.machine.desks[step.job].stores[step.what])

    def _gather(self, i: int, step: Step) -> None:
        """Leave a step for later, after those that it waits for."""
        if not set(self.gathered).isdisjoint(step.after):
            self._flush()
        if not self.gathered:
            self.machine.moves, self.begin = Moves(), time.perf_counter()
        self.gathered.append(i)
        self.machine.gather(step)

    def _flush(self) -> None:
        """Do what was gathered."""
        machine, gathered = self.machine, self.gathered
        if not gathered or machine.moves is None:
            return
        moves, machine.moves, self.gathered = machine.moves, None, []
        machine.done_at_once(gathered, self.begin, moves.run(self.threads))
