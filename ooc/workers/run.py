"""Tasks run level by level: here, or by whatever executor there is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from ooc.errors import ArgumentError, BackendError
from ooc.workers.tasks import Task
from ooc.workers.work import WorkFolder

Told = Callable[[int, int], None]  # how many tasks are finished, of how many


def run_tasks(
    tasks: Iterable[Task], executor: Executor | None = None, *, threads: int | None = None, progress: Told | None = None
) -> list[dict[str, Any]]:
    """Run the tasks of `ooc.tasks`, level by level.

    Parameters:
        tasks: all of a run, or those that are wanted now; finished ones are not computed again.
        executor: of `concurrent.futures`, or one like it (mpi4py.futures); its workers see the same files. Default None: this
            thread.
        threads: of each task, on a processor; default None: the device's.
        progress: called with how many tasks are finished, and how many there are.

    Returns:
        told: of every task, in order, see `Task`.

    Raises:
        OocError: of the first task that failed; what is finished stays so, and `ooc.tasks(..., resume=True)` goes on.
    """
    listed = sorted(checked(tasks), key=lambda task: task.level)
    run: Run[Task] = alone(threads) if executor is None else pooled(executor, threads)
    return levels(listed, run, progress)


def checked(tasks: Iterable[Task]) -> list[Task]:
    """Tasks of one run. Raises ArgumentError."""
    listed = list(tasks)
    odd = next((type(task).__name__ for task in listed if not isinstance(task, Task)), None)
    if odd is not None or len({task.digest for task in listed}) > 1:
        raise ArgumentError(f"tasks: expected tasks of one ooc.tasks call, got {odd or 'those of several'}")
    return listed


def levels(
    tasks: Sequence[Task], run: Run[Task], progress: Told | None
) -> list[dict[str, Any]]:  # fmt: skip
    """Each level in turn; what is not needed any more goes."""
    told: dict[str, dict[str, Any]] = {}
    for level, group in itertools.groupby(tasks, key=lambda task: task.level):
        for task, report in run(list(group)):
            told[task.name] = report
            if progress is not None:
                progress(len(told), len(tasks))
        sweep(tasks[0].work, level)
    return [told[task.name] for task in tasks]


def sweep(work: WorkFolder, level: int) -> None:
    """Remove what is not needed any more when a level is finished, if it is."""
    finished = work.journal.finished()
    if work.names <= finished:
        work.tidy()
    elif {*work.names_of(level)} <= finished:
        work.sweep(level)


class Calling(Protocol):
    """What an executor is given."""

    def __call__(self, *, threads: int | None = None) -> dict[str, Any]: ...


T = TypeVar("T", bound=Calling)
Run = Callable[[Sequence[T]], Iterator[tuple[T, dict[str, Any]]]]


def alone(threads: int | None) -> Run[T]:
    """One after the other, in this thread."""

    def run(tasks: Sequence[T]) -> Iterator[tuple[T, dict[str, Any]]]:
        for task in tasks:
            yield task, task(threads=threads)

    return run


def pooled(executor: Executor, threads: int | None) -> Run[T]:
    """By the workers of an executor; what is left is not begun when one fails."""

    def run(tasks: Sequence[T]) -> Iterator[tuple[T, dict[str, Any]]]:
        futures: dict[Future[dict[str, Any]], T] = {}
        try:
            futures |= {executor.submit(task, threads=threads): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise BackendError(f"a worker died; what is finished stays so, and resume=True goes on ({error})") from error
        finally:
            for future in futures:
                future.cancel()

    return run
