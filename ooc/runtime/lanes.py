"""Lanes as threads: each runs its steps in order, each step as soon as what it waits for is done."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from ooc.runtime.machine import Machine


class _Stopped(Exception):
    """Another lane failed."""


class LaneThreads:
    """The threads of one run: one per lane, the calling thread computes."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.done = machine, machine.done
        # Each lane sleeps on a gate of its own and is woken only by the step that it awaits.
        self.gates: dict[str, threading.Lock] = {}
        self.awaited: dict[str, int] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run every step. A lane that fails stops the others; all are joined before the error is raised."""
        queues: dict[str, list[int]] = {}
        for i, step in enumerate(self.machine.steps):
            queues.setdefault(step.lane, []).append(i)
        for lane in {**queues, "compute": ()}:
            self.gates[lane], self.awaited[lane] = threading.Lock(), -1
            self.gates[lane].acquire()
        threads = [
            threading.Thread(target=self._guarded, args=(lane, queue), name=f"ooc-{lane}", daemon=True)
            for lane, queue in queues.items()
            if lane != "compute"
        ]
        try:
            for thread in threads:
                thread.start()
            self._guarded("compute", queues.get("compute", []))
        except BaseException as error:  # an interrupt, or no thread to be had
            self._fail(error)
        self._join(threads)
        first, self.error = self.error, None
        try:
            if first is not None:
                raise first
        finally:
            del first  # which knows this frame

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Join even when the user interrupts: the lanes stop at their next step. Nobody touches the memory afterwards."""
        while True:
            try:
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()
                return
            except BaseException as error:  # KeyboardInterrupt
                self._fail(error)

    def _guarded(self, lane: str, queue: Sequence[int]) -> None:
        try:
            with self.machine.backend.lane(lane):
                self._walk(lane, queue)
        except _Stopped:
            pass
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        for lane in self.gates:
            self._open(lane)

    def _walk(self, lane: str, queue: Sequence[int]) -> None:
        for i in queue:
            for j in self.machine.steps[i].after:
                if not self.done[j]:
                    self._await(lane, j)
            if self.error is not None:
                raise _Stopped
            self.machine.issue(i)
            for other, j in self.awaited.items():
                if j == i:
                    self._open(other)
            self.machine.tell(i)

    def _await(self, lane: str, j: int) -> None:
        """Sleep until step j is done. The lane says what it awaits before it looks again, and a step is marked done before
        its lane looks who awaits it: one of the two always sees the other."""
        self.awaited[lane] = j
        while not self.done[j]:
            if self.error is not None:
                raise _Stopped
            self.gates[lane].acquire()
        self.awaited[lane] = -1

    def _open(self, lane: str) -> None:
        """Wake a lane; waking one that does not sleep only makes it look once more."""
        with contextlib.suppress(RuntimeError):  # already open
            self.gates[lane].release()
