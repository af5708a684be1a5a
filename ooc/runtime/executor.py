"""Running steps: in turn on the calling thread, or with one thread per lane.

It decides nothing: tiles come from the plan, order from `link`, memory from `arena`, and what a step does from `machine`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ooc.backends.base import Backend
from ooc.errors import BackendError, OocError
from ooc.runtime.lanes import Lanes
from ooc.runtime.machine import CallerError, Machine, Measured
from ooc.runtime.store import Store
from ooc.runtime.together import Together
from ooc.schedule.lowering import Schedule, StepWindow

Steps = TypeVar("Steps", bound=StepWindow)


def run(todo: Schedule, stores: Mapping[str, Store], backend: Backend, on_tile: Callable[[int], None] | None = None) -> Measured:
    """Run a schedule once, as `Run.go` does, in memory that is given back."""
    measured: list[Measured] = []
    once = Run(backend)
    try:
        once.go((todo,), (stores,), todo.plan.op, lambda _, times: measured.append(times()), on_tile)
    finally:
        once.release()
    return measured[0]


class Run:
    """Memory, kernels and views for steps of one layout, which run in them as often as wanted. One thread's at a time.

    memory: of each space, where another run has it already; default: its own, from the first steps on until `release`.
    """

    def __init__(self, backend: Backend, memory: Mapping[str, Any] | None = None) -> None:
        self.backend, self.memory = backend, memory
        self.machine: Machine | None = None

    def ready(self, todo: StepWindow) -> Machine:
        """What performs the steps, made for the first of them. Raises BackendError where there is no memory."""
        if self.machine is None:
            self.machine = Machine(todo, self.backend, self.memory)
        return self.machine

    def go(
        self,
        windows: Iterable[Steps | None],
        stores: Sequence[Mapping[str, Store]],
        what: Any,
        on_window: Callable[[Steps, Callable[[], Measured]], None] | None = None,
        on_tile: Callable[[int], None] | None = None,
    ) -> None:
        """Run the windows of one plan, one after the other. A failing step stops every lane; all threads are joined before the
        error is raised. Errors that are neither ooc's own nor the caller's become BackendError.

        windows: linked steps. Where the backend is behind the host, steps of the next are made after each tile, see
            `windows_beside`.
        stores: where whole operands lie, by name, for each of the jobs; forgotten when it ends.
        what: is run, for errors.
        on_window: called as f(steps, measured) after each window; measured() tells times, and is true until the next begins.
        on_tile: called as f(i) on the calling thread after each computed tile.
        """
        begun = False
        try:
            with Guarded(what):
                ahead = Ahead(windows) if self.backend.behind else None
                for todo in windows if ahead is None else ahead:
                    if todo is None:
                        continue
                    machine = self.ready(todo)
                    machine.turn_to(todo)
                    if not begun:
                        machine.begin(stores, on_tile, None if ahead is None else ahead.some)
                        begun = True
                    walk(machine, todo)
                    if on_window is not None:
                        on_window(todo, machine.measured)
        finally:
            if self.machine is not None:
                self.machine.end()

    def release(self) -> None:
        """Give the memory back, when every lane has stopped."""
        if self.machine is not None:
            self.machine.release()
        self.machine = None


class Ahead(Iterable[Steps]):
    """Windows of a run, of which the next is made a few steps at a time while one runs; whoever makes them says None between."""

    def __init__(self, windows: Iterable[Steps | None]) -> None:
        self.coming: Iterator[Steps | None] = iter(windows)
        self.next: Steps | None = None
        self.more = True

    def some(self) -> None:
        """Make some steps of the next window."""
        if self.more and self.next is None:
            try:
                self.next = next(self.coming)
            except StopIteration:
                self.more = False

    def __iter__(self) -> Iterator[Steps]:
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
            own, error.__cause__ = error.__cause__, None  # the two errors would hold each other, and by their frames the arrays
            assert own is not None
            try:
                raise own from None
            finally:
                del own
        if isinstance(error, Exception) and not isinstance(error, (OocError, MemoryError)):
            raise BackendError(f"{self.what}: {type(error).__name__}: {error}") from error


def walk(machine: Machine, todo: StepWindow) -> None:
    """Perform the steps that a machine was turned to, each as soon as what it waits for is done. Steps that are only issued here,
    and done behind the host, need no thread for each lane, and a single one nothing at all."""
    if len(todo.steps) == 1:
        with machine.backend.lane(todo.steps[0].lane):
            machine.issue(0)
            machine.tell(0)
    elif todo.alone or machine.backend.behind.issuperset(todo.lanes):
        _in_turn(machine, todo.lanes)
    else:
        Lanes(machine).run()


def _in_turn(machine: Machine, lanes: Iterable[str]) -> None:
    """The steps run here, one after the other, without a thread for each lane."""
    with contextlib.ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(machine.backend.lane(lane))
        Together(machine).run()
