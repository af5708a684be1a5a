"""Executing a schedule: in turn on the calling thread, or with one thread per lane.

It decides nothing: tiles come from the plan, order from `link`, memory from `arena`, and what a step does from `machine`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from ooc.backends.base import Backend
from ooc.errors import BackendError, OocError
from ooc.runtime.lanes import Lanes
from ooc.runtime.machine import CallerError, Machine, Measured
from ooc.runtime.store import Store
from ooc.runtime.together import Together
from ooc.schedule.lowering import Schedule, Todo


def run(todo: Schedule, stores: Mapping[str, Store], backend: Backend, on_tile: Callable[[int], None] | None = None) -> Measured:
    """Execute a schedule. `on_tile(i)` is called on the calling thread after each computed tile.

    A failing step stops every lane; all threads are joined before the error is raised. Errors that are neither ooc's own
    nor the caller's become BackendError with the step that failed.
    """
    found: list[Measured] = []
    run_each((todo,), stores, backend, lambda _, measured: found.append(measured), on_tile)
    return found[0]


def run_each(
    windows: Iterable[Schedule | None],
    stores: Mapping[str, Store],
    backend: Backend,
    on_window: Callable[[Schedule, Measured], None],
    on_tile: Callable[[int], None] | None = None,
) -> None:
    """Execute the windows of one plan, one after the other in the same memory, as `run` does. `on_window(schedule, measured)` is
    called after each. Where the backend is behind the host, steps of the next are made after each tile (`windows_beside`)."""
    machine: Machine | None = None
    try:
        with Guarded("steps could not be made") as guard:
            ahead = Ahead(windows)
            for todo in ahead:
                guard.what = todo.plan.op
                if machine is None:
                    machine = Machine(todo, (stores,), backend, on_tile)
                    machine.meanwhile = ahead.some if backend.behind else None
                    machine.begin()
                else:
                    machine.turn_to(todo)
                walk(machine, todo)
                on_window(todo, machine.measured())
    finally:
        if machine is not None:
            machine.release()


class Ahead:
    """Windows of a run, of which the next is made a few steps at a time while one runs; whoever makes them says None between."""

    def __init__(self, windows: Iterable[Schedule | None]) -> None:
        self.coming, self.ready = iter(windows), None  # type: Iterator[Schedule | None], Schedule | None
        self.more = True

    def some(self) -> None:
        """Make some steps of the next window."""
        if self.more and self.ready is None:
            try:
                self.ready = next(self.coming)
            except StopIteration:
                self.more = False

    def __iter__(self) -> Iterator[Schedule]:
        while self.more:
            self.some()
            if self.ready is not None:
                found, self.ready = self.ready, None
                yield found


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


def walk(machine: Machine, todo: Todo) -> None:
    """Perform the steps that a machine was turned to, each as soon as what it waits for is done. Steps that are only issued here,
    and done behind the host, need no thread for each lane."""
    if todo.alone or machine.backend.behind.issuperset(todo.lanes):
        _in_turn(machine, todo.lanes)
    else:
        Lanes(machine).run()


def _in_turn(machine: Machine, lanes: Iterable[str]) -> None:
    """The steps run here, one after the other, without a thread for each lane."""
    with contextlib.ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(machine.backend.lane(lane))
        Together(machine).run()
