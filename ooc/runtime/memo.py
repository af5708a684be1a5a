"""Plans that were run before, ready to run again: their steps, and of small ones the memory and the kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from ooc.backends.base import Backend
from ooc.runtime.executor import Run
from ooc.runtime.machine import Measured
from ooc.runtime.store import Store
from ooc.schedule.lowering import WINDOW, Schedule, windows, windows_beside
from ooc.schedule.plan import Plan

SHORT, STEPS = WINDOW // 4, 4 * WINDOW  # steps of a plan that is remembered, and of all that a thread remembers
WITH_PLAN = 16  # steps that hold as much as what a plan's memo has beside its own
KEPT = 16  # runs that keep their memory and kernels,
LARGEST = 256 << 10  # of so many bytes each at most


class PreparedRun:
    """A plan, its linked steps once they are known to be few, and what they run in."""

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self.plan, self.backend, self.run = plan, backend, Run(backend)
        self.schedule: Schedule | None = None

    @property
    def weight(self) -> int:
        """Steps that it holds, or that hold as much."""
        return WITH_PLAN + (len(self.schedule.steps) if self.schedule is not None else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that it holds."""
        machine = self.run.machine
        return 0 if machine is None else sum(machine.layout.peaks.values())

    def windows(self) -> Iterable[Schedule | None]:
        """The linked steps, in windows that are made when they are asked for, or beside the run (`windows_beside`)."""
        return self._made() if self.schedule is None else (self.schedule,)

    def _made(self) -> Iterator[Schedule | None]:
        made = windows_beside(self.plan) if self.backend.behind else windows(self.plan)
        first = next(window for window in made if window is not None)
        short = len(first.steps) <= SHORT
        second = next((window for window in made if window is not None), None) if short else None
        if short and second is None:
            self.schedule = first
        yield first
        if second is not None:
            yield second
        yield from made


class Runs(threading.local):
    """The prepared runs of a device, for each thread its own: what kernels have made belongs to one thread. The latest keep their
    memory on a processor, together with the call that runs within the device's limit.

    limit: bytes; None: none.
    """

    def __init__(self, backend: Backend, limit: int | None) -> None:
        self.backend, self.limit = backend, limit
        self.idle: dict[int, PreparedRun] = {}  # by the identity of the plan; in the order of their use
        self.warm: dict[int, PreparedRun] = {}  # those of them that keep their memory
        self.weight = 0

    def go(
        self, plan: Plan, stores: Mapping[str, Store], on_window: Callable[[Schedule, Callable[[], Measured]], None],
        on_tile: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        """Run a plan, as `Run.go` does."""
        prepared = self._take(plan)
        try:
            prepared.run.go(prepared.windows(), (stores,), plan.op, on_window, on_tile)
        except BaseException:
            prepared.run.release()
            raise
        self._give(prepared)

    def _take(self, plan: Plan) -> PreparedRun:
        """The prepared run of a plan, nobody else's until it is given back: a caller's function may make the same call."""
        prepared = self.idle.pop(id(plan), None)
        if prepared is None or prepared.plan is not plan:
            prepared = PreparedRun(plan, self.backend)
        else:
            self.weight -= prepared.weight
            self.warm.pop(id(plan), None)
        if self.limit is not None:
            room = self.limit - plan.peak_bytes
            while self.warm and sum(one.nbytes for one in self.warm.values()) > room:
                self._cool_oldest()
        return prepared

    def _give(self, prepared: PreparedRun) -> None:
        if self.backend.shared and prepared.nbytes <= LARGEST:
            self.warm[id(prepared.plan)] = prepared
            if len(self.warm) > KEPT:
                self._cool_oldest()
        else:
            prepared.run.release()
        self.idle[id(prepared.plan)] = prepared
        self.weight += prepared.weight
        while self.weight > STEPS:
            key = next(iter(self.idle))
            oldest = self.idle.pop(key)
            self.weight -= oldest.weight
            if self.warm.pop(key, None) is not None:
                oldest.run.release()

    def _cool_oldest(self) -> None:
        """Give the memory of the run back that was not used for longest."""
        self.warm.pop(next(iter(self.warm))).run.release()
