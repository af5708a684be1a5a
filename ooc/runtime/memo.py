"""Plans that were run before, ready to run again: their steps, and of small ones the memory and the kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ooc.backends.base import Backend
from ooc.cache import lock_across_forks
from ooc.runtime.executor import Run
from ooc.runtime.machine import Measured
from ooc.runtime.store import Store
from ooc.schedule.lowering import WINDOW, Schedule, windows, windows_beside
from ooc.schedule.plan import Plan

SHORT, STEPS = WINDOW // 4, 16 * WINDOW  # steps of a plan that is remembered, and of all that are
WITH_PLAN = 16  # steps that hold as much as what a plan's memo has beside its own
KEPT = 16  # runs that keep their memory and kernels,
LARGEST = 256 << 10  # of so many bytes each at most

_sharing = lock_across_forks()  # of the tables of all devices: what is done under it is short


class PreparedRun:
    """A plan, its linked steps once they are known to be few, and what they run in. chapters: see `windows`."""

    def __init__(self, plan: Plan, backend: Backend, chapters: Sequence[Sequence[int]] = ((),)) -> None:
        self.plan, self.backend, self.chapters, self.run = plan, backend, chapters, Run(backend)
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
        return self._linked() if self.schedule is None else (self.schedule,)

    def _linked(self) -> Iterator[Schedule | None]:
        steps = (windows_beside if self.backend.behind else windows)(self.plan, chapters=self.chapters)
        first = next(window for window in steps if window is not None)
        short = len(first.steps) <= SHORT
        second = next((window for window in steps if window is not None), None) if short else None
        if short and second is None:
            self.schedule = first
        yield first
        if second is not None:
            yield second
        yield from steps


Key = tuple[int, int]  # a thread, since what kernels have made belongs to one, and the identity of a plan


class Runs:
    """The prepared runs of a device. On a processor the latest keep their memory, which is given back where a call or a session
    needs the room within the device's limit.

    limit: bytes; None: none.
    """

    def __init__(self, backend: Backend, limit: int | None) -> None:
        self.backend, self.limit = backend, limit
        self.idle: dict[Key, PreparedRun] = {}  # in the order of their use
        self.warm: dict[Key, PreparedRun] = {}  # those of them that keep their memory
        self.weight = 0

    def go(
        self, plan: Plan, stores: Mapping[str, Store], on_window: Callable[[Schedule, Callable[[], Measured]], None],
        on_tile: Callable[[int], None] | None = None, chapters: Sequence[Sequence[int]] | None = None, beside: int = 0,
    ) -> None:  # fmt: skip
        """Run a plan, as `Run.go` does. chapters: those of its outermost loops alone, of which nothing is remembered. beside:
        bytes that the call holds beside its plan's."""
        prepared = self._take(plan) if chapters is None else PreparedRun(plan, self.backend, chapters)
        self.make_room(plan.peak_bytes + beside)
        try:
            prepared.run.go(prepared.windows(), (stores,), plan.op, on_window, on_tile)
        except BaseException:
            prepared.run.release()
            raise
        if chapters is None:
            self._give(prepared)
        else:
            prepared.run.release()

    def make_room(self, nbytes: int) -> None:
        """Give idle memory back until so many bytes more are within the limit."""
        if self.limit is None or not self.warm:
            return
        with _sharing:
            while self.warm and sum(one.nbytes for one in self.warm.values()) + nbytes > self.limit:
                self._cool_oldest()

    def _take(self, plan: Plan) -> PreparedRun:
        """The prepared run of a plan, nobody else's until it is given back: a caller's function may make the same call."""
        key = threading.get_ident(), id(plan)
        with _sharing:
            prepared = self.idle.pop(key, None)
            if prepared is None:
                return PreparedRun(plan, self.backend)
            self.weight -= prepared.weight
            self.warm.pop(key, None)
        return prepared

    def _give(self, prepared: PreparedRun) -> None:
        key = threading.get_ident(), id(prepared.plan)
        keeps = self.backend.shared and prepared.nbytes <= LARGEST
        if not keeps:
            prepared.run.release()
        with _sharing:
            if keeps:
                self.warm[key] = prepared
                if len(self.warm) > KEPT:
                    self._cool_oldest()
            self.idle[key] = prepared
            self.weight += prepared.weight
            while self.weight > STEPS:
                oldest = next(iter(self.idle))
                self.weight -= self.idle.pop(oldest).weight
                if oldest in self.warm:
                    self.warm.pop(oldest).run.release()

    def _cool_oldest(self) -> None:
        """Give the memory of the run back that was not used for longest."""
        self.warm.pop(next(iter(self.warm))).run.release()
