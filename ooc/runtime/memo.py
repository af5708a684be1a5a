"""Plans that were run before, ready to run again: their steps, and of small ones the memory and the kernels."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ooc.backends.base import Backend
from ooc.cache import lock_across_forks
from ooc.runtime.executor import Run
from ooc.runtime.machine import Measured
from ooc.runtime.store import Store
from ooc.schedule.lowering import WINDOW, Schedule, schedule_of
from ooc.schedule.plan import Plan

SHORT, STEPS = WINDOW // 4, 16 * WINDOW  # steps of a plan that is remembered, and of all that are
WITH_PLAN = 16  # steps that hold as much as what a plan's memo has beside its own
KEPT = 16  # runs that keep their memory and kernels,
LARGEST = 256 << 10  # of so many bytes each at most

_sharing = lock_across_forks()  # of the tables of all devices: what is done under it is short


Key = tuple[int, int]  # a thread, since what kernels have made belongs to one, and the identity of a plan


class Resting(Protocol):
    """What holds memory of a device for its next use."""

    @property
    def nbytes(self) -> int: ...

    def release(self) -> None: ...


class Runs:
    """The prepared runs of a device. On a processor the latest keep their memory, which is given back where a call or a session
    needs the room within the device's limit; so is that of whatever else rests.

    limit: bytes; None: none.
    """

    def __init__(self, backend: Backend, limit: int | None) -> None:
        self.backend, self.limit = backend, limit
        self.idle: dict[Key, Run] = {}  # in the order of their use
        self.warm: dict[Key, Run] = {}  # those of them that keep their memory
        self.weight = 0
        self.resting: list[weakref.ref[Resting]] = []  # in the order of their use

    def go(
        self, plan: Plan, stores: Mapping[str, Store], on_window: Callable[[Schedule, Callable[[], Measured]], None],
        on_tile: Callable[[int], None] | None = None, chapters: Sequence[Sequence[int]] | None = None, beside: int = 0,
    ) -> None:  # fmt: skip
        """Run a plan, as `Run.go` does. chapters: those of its outermost loops alone, of which nothing is remembered. beside:
        bytes that the call holds beside its plan's."""
        key = threading.get_ident(), id(plan)
        run = self._take(key, plan) if chapters is None else Run(schedule_of(plan, chapters), self.backend, 0)
        self.make_room(plan.peak_bytes + beside)
        try:
            run.go((stores,), plan.op, on_window, on_tile)
        except BaseException:
            run.release()
            raise
        if chapters is None:
            self._give(key, run)
        else:
            run.release()

    def make_room(self, nbytes: int) -> None:
        """Give idle memory back until so many bytes more are within the limit."""
        if self.limit is None or not (self.warm or self.resting):
            return
        with _sharing:
            while (self.warm or self.resting) and self._idle_bytes() + nbytes > self.limit:
                if self.warm:
                    self._cool_oldest()
                elif (one := self.resting.pop(0)()) is not None:
                    one.release()

    def rest(self, one: Resting) -> None:
        """Let something rest, which may be released at any time from now on, and is forgotten when nobody else has it."""
        with _sharing:
            self.resting = [ref for ref in self.resting if (other := ref()) is not None and other.nbytes]
            self.resting.append(weakref.ref(one))

    def _idle_bytes(self) -> int:
        resting = (one for ref in self.resting if (one := ref()) is not None)
        return sum(one.nbytes for one in (*self.warm.values(), *resting))

    def _take(self, key: Key, plan: Plan) -> Run:
        """The prepared run of a plan, nobody else's until it is given back: a caller's function may make the same call."""
        with _sharing:
            run = self.idle.pop(key, None)
            if run is not None:
                self.weight -= WITH_PLAN + run.count
                self.warm.pop(key, None)
        return Run(schedule_of(plan), self.backend, SHORT) if run is None else run

    def _give(self, key: Key, run: Run) -> None:
        keeps = self.backend.shared and run.nbytes <= LARGEST
        if not keeps:
            run.release()
        with _sharing:
            if keeps:
                self.warm[key] = run
                if len(self.warm) > KEPT:
                    self._cool_oldest()
            self.idle[key] = run
            self.weight += WITH_PLAN + run.count
            while self.weight > STEPS:
                oldest = next(iter(self.idle))
                self.weight -= WITH_PLAN + self.idle.pop(oldest).count
                if oldest in self.warm:
                    self.warm.pop(oldest).release()

    def _cool_oldest(self) -> None:
        """Give the memory of the run back that was not used for longest."""
        self.warm.pop(next(iter(self.warm))).release()
