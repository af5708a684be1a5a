"""Executing a schedule: in turn on the calling thread, or with one thread per lane.

It decides nothing: tiles come from the plan, order from `link`, memory from `arena`, and what a step does from `machine`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import TracebackType
from typing import Any

from ooc.backends.base import Backend
from ooc.errors import BackendError, OocError
from ooc.runtime.lanes import Lanes
from ooc.runtime.machine import CallerError, Machine, Measured
from ooc.runtime.store import Store
from ooc.schedule.lowering import FIRST_WINDOW, Schedule, Todo


def run(todo: Schedule, stores: Mapping[str, Store], backend: Backend, on_tile: Callable[[int], None] | None = None) -> Measured:
    """Execute a schedule. `on_tile(i)` is called on the calling thread after each computed tile.

    A failing step stops every lane; all threads are joined before the error is raised. Errors that are neither ooc's own
    nor the caller's become BackendError with the step that failed.
    """
    found: list[Measured] = []
    run_each((todo,), stores, backend, lambda _, measured: found.append(measured), on_tile)
    return found[0]


def run_each(
    windows: Iterable[Schedule],
    stores: Mapping[str, Store],
    backend: Backend,
    on_window: Callable[[Schedule, Measured], None],
    on_tile: Callable[[int], None] | None = None,
) -> None:
    """Execute the windows of one plan, one after the other in the same memory, as `run` does. `on_window(schedule, measured)` is
    called after each."""
    machine: Machine | None = None
    try:
        with Guarded("steps could not be made") as guard, closing(ahead(windows, bool(backend.behind))) as made:
            for todo in made:
                guard.what = todo.plan.op
                if machine is None:
                    machine = Machine(todo, (stores,), backend, on_tile)
                    machine.begin()
                else:
                    machine.turn_to(todo)
                walk(machine, todo)
                on_window(todo, machine.measured())
    finally:
        if machine is not None:
            machine.release()


def ahead(windows: Iterable[Schedule], beside: bool) -> Generator[Schedule, None, None]:
    """The windows, each made while the one before runs, where that leaves the host time to spare (beside)."""
    coming = iter(windows)
    window = next(coming, None)
    if window is None or not beside or len(window.steps) < FIRST_WINDOW:  # a thread takes as long as some steps
        yield from () if window is None else (window,)
        yield from coming
        return
    with ThreadPoolExecutor(1, "ooc-steps") as maker:
        while window is not None:
            making = maker.submit(next, coming, None)
            yield window
            window = making.result()


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
    """The steps run here, one after the other, without any thread."""
    with contextlib.ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(machine.backend.lane(lane))
        for i in range(len(machine.steps)):
            machine.issue(i)
            machine.tell(i)
