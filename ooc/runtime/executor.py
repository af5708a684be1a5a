"""Running steps: in turn on the calling thread, or with one thread per lane.

It decides nothing: tiles come from the plan, order from `link`, memory from `arena`, and what a step does from `machine`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from ooc.backends.base import Backend
from ooc.errors import BackendError, OocError
from ooc.runtime.lanes import LaneThreads
from ooc.runtime.machine import CallerError, Machine, Measured
from ooc.runtime.store import Store
from ooc.runtime.together import Together
from ooc.schedule.lowering import Schedule
from ooc.schedule.steps import PAUSE


def run(todo: Schedule, stores: Mapping[str, Store], backend: Backend, on_tile: Callable[[int], None] | None = None) -> Measured:
    """Run a call's schedule once, as `Run.go` does, in memory that is given back."""
    measured: list[Measured] = []
    once = Run(todo, backend, most=0)
    try:
        once.go((stores,), todo.plan.op, lambda _, times: measured.append(times()), on_tile)
    finally:
        once.release()
    return measured[0]


class Run:
    """A schedule with memory, kernels and views, in which its steps run as often as wanted. One thread's at a time.

    most: steps that are kept, linked, for the next run; of more none is.
    memory: of each space, where another run has it already; default: its own, from the first steps on until `release`.
    """

    def __init__(self, schedule: Schedule, backend: Backend, most: int, memory: Mapping[str, Any] | None = None) -> None:
        self.schedule, self.backend, self.memory, self.most = schedule, backend, memory, most
        self.kept: tuple[Schedule, ...] = ()  # windows, when all are known and few enough
        self.paused: Ahead | None = None  # those behind a pause
        self.machine: Machine | None = None

    @property
    def count(self) -> int:
        """Steps that it keeps."""
        return sum(len(window.steps) for window in self.kept)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that it holds."""
        return 0 if self.machine is None else sum(self.machine.layout.peaks.values())

    def ready(self) -> Machine:
        """What performs the steps, made once. Raises BackendError where there is no memory."""
        if self.machine is None:
            self.machine = Machine(self.schedule, self.backend, self.memory)
        return self.machine

    def go(
        self, stores: Sequence[Mapping[str, Store]], what: Any,
        on_window: Callable[[Schedule, Callable[[], Measured]], None] | None = None,
        on_tile: Callable[[int], None] | None = None, on: bool = False,
    ) -> None:  # fmt: skip
        """Run all steps up to a pause, or on from the last one, one window after the other; where the backend is behind the host,
        those of the next window are made while one runs. A failing step stops every lane; all threads are joined before the error
        is raised. Errors that are neither ooc's own nor the caller's become BackendError.

        stores: where whole operands lie, by name, for each of the jobs; forgotten when it ends.
        what: is run, for errors.
        on_window: called as f(steps, measured) after each window; measured() tells times, and is true until the next begins.
        on_tile: called as f(i) on the calling thread after each computed tile.
        on: whether it goes on behind the pause that it has come to.
        """
        try:
            with Guarded(what):
                ahead = self.paused if on else Ahead(self.windows())
                assert ahead is not None
                self.paused = None
                machine, begun = self.ready(), False
                for todo in ahead:
                    machine.turn_to(todo)
                    if not begun:
                        machine.begin(stores, on_tile, ahead.some if self.backend.behind else None)
                        begun = True
                    walk(machine, todo)
                    if on_window is not None:
                        on_window(todo, machine.measured)
                    if todo.steps and todo.steps[-1].kind == PAUSE:
                        self.paused = ahead
                        return
        finally:
            if self.machine is not None:
                self.machine.end()

    def windows(self) -> Iterator[Schedule | None]:
        """The linked steps: those that are kept, else made, and kept where they turn out to be few."""
        if self.kept:
            yield from self.kept
            return
        kept, count = list[Schedule](), 0
        for window in self.schedule.windows_beside() if self.backend.behind else self.schedule.windows():
            if window is not None:
                count += len(window.steps)
                if count <= self.most:
                    kept.append(window)
                else:
                    kept.clear()
            yield window
        if count <= self.most:
            self.kept = tuple(kept)

    def release(self) -> None:
        """Give the memory back, when every lane has stopped."""
        if self.machine is not None:
            self.machine.release()
        self.machine = None


class Ahead(Iterable[Schedule]):
    """Windows of a run, of which the next may be made a few steps at a time while one runs; whoever makes them says None
    between."""

    def __init__(self, windows: Iterable[Schedule | None]) -> None:
        self.coming: Iterator[Schedule | None] = iter(windows)
        self.next: Schedule | None = None
        self.more = True

    def some(self) -> None:
        """Make some steps of the next window."""
        if self.more and self.next is None:
            try:
                self.next = next(self.coming)
            except StopIteration:
                self.more = False

    def __iter__(self) -> Iterator[Schedule]:
        while self.more:
            self.some()
            if self.next is not None:
                window, self.next = self.next, None
                yield window


class Guarded:
    """Errors inside that are neither ooc's own nor the caller's become BackendError, of `what`. A class, as a generator would
    turn a StopIteration of the caller's into another error."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, CallerError):
            cause, error.__cause__ = error.__cause__, None  # the two errors would hold each other, and by their frames the arrays
            assert cause is not None
            try:
                raise cause from None
            finally:
                del cause
        if isinstance(error, Exception) and not isinstance(error, (OocError, MemoryError)):
            raise BackendError(f"{self.what}: {type(error).__name__}: {error}") from error


def walk(machine: Machine, todo: Schedule) -> None:
    """Perform the steps that a machine was turned to, each as soon as what it waits for is done. Steps that are only issued here,
    and done behind the host, need no thread for each lane, and a single one nothing at all."""
    if len(todo.steps) == 1:
        with machine.backend.lane(todo.steps[0].lane):
            machine.issue(0)
            machine.tell(0)
    elif todo.alone or machine.backend.behind.issuperset(todo.lanes):
        _in_turn(machine, todo.lanes)
    else:
        LaneThreads(machine).run()


def _in_turn(machine: Machine, lanes: Iterable[str]) -> None:
    """The steps run here, one after the other, without a thread for each lane."""
    with contextlib.ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(machine.backend.lane(lane))
        Together(machine).run()
