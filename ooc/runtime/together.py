"""Reads and writes of files done at once by all threads, where steps run in turn and nothing else wants the processors."""

from __future__ import annotations

import time
from typing import Any

from ooc import native
from ooc.runtime.machine import Machine
from ooc.runtime.store import FileStore
from ooc.schedule.steps import Step


class Together:
    """The steps of a run in turn, of which neighbours that move regions of plain files, and wait for none of each other, are done
    at once. Such steps are said to have run one after the other, each for its share of the threads' work."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.threads = machine, machine.backend.turn_threads
        self.gathered: list[int] = []

    def run(self) -> None:
        """Run every step."""
        for i, step in enumerate(self.machine.steps):
            if self.threads < 2 or not self._moves_file(step):
                self._flush()
                self.machine.issue(i)
                self.machine.tell(i)
                continue
            if not set(self.gathered).isdisjoint(step.after):
                self._flush()
            self.gathered.append(i)
        self._flush()

    def _moves_file(self, step: Step) -> bool:
        if native.kernels is None or step.lane not in ("read", "write"):
            return False
        return isinstance(self.machine.desks[step.job].stores[step.what], FileStore)

    def _flush(self) -> None:
        """Do what was gathered."""
        if not self.gathered:
            return
        machine, gathered, self.gathered = self.machine, self.gathered, []
        begin = time.perf_counter()
        stores: list[FileStore] = []
        moves: list[tuple[bool, tuple[Any, ...]]] = []
        fetches: list[tuple[Any, ...]] = []
        for i in gathered:
            step = machine.steps[i]
            store, asked = machine.file_move(step)
            stores.append(store)
            moves.append((step.lane == "write", asked))
            if step.lane == "read":
                fetches += machine.fetches_after(step)
        spent = move_all(stores, moves, fetches, self.threads)
        machine.done_at_once(gathered, begin, spent)


def move_all(
    stores: list[FileStore], moves: list[tuple[bool, tuple[Any, ...]]], fetches: list[tuple[Any, ...]], threads: int
) -> list[float]:
    """Move regions of files, `moves[i]` those of `stores[i]`; the seconds that threads spent on each. Raises StoreError."""
    assert native.kernels is not None
    try:
        found: list[float] = native.kernels.move_regions(moves, fetches, threads)
    except (OSError, EOFError) as error:
        at = error.move  # type: ignore[union-attr]
        raise stores[at].fault("writing" if moves[at][0] else "reading", error) from error
    return found
