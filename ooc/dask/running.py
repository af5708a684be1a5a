"""Tasks run by the workers of a Dask cluster.

Futures and no collections: Dask's optimisation of collections loses their resources (dask#7036).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dask
import distributed

from ooc.errors import ArgumentError, BackendError, OocError
from ooc.lazy.blocks import one
from ooc.workers.run import Told, checked, levels
from ooc.workers.tasks import Task

WAIT = 10  # seconds until a scheduler must have answered


def run(
    tasks: Iterable[Task], client: distributed.Client, resources: Mapping[str, float] | None = None, *,
    threads: int | None = None, patience: float | None = None, progress: Told | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Run the tasks of `ooc.tasks` on a Dask cluster, level by level. Workers see the folder of the run and the files.

    Parameters:
        tasks: all of a run, or those that are wanted now; finished ones are not computed again.
        client: of the cluster.
        resources: that a task takes of its worker, such as {"GPU": 1}; default None: none. A process computes one task at a time.
        threads: of a task, on a processor; default None: those of its worker.
        patience: seconds; where none of the tasks that are left finishes for so long, they are given to other workers too, since
            theirs may hang; default None: that is waited for.
        progress: called with how many tasks are finished, and how many there are.

    Returns:
        told: of every task, in order, see `ooc.Task`.

    Raises:
        OocError: of the first task that failed, or BackendError where workers die with a task again and again; what is
            finished stays so, and `ooc.tasks(..., resume=True)` goes on.
    """
    if not isinstance(client, distributed.Client):
        raise ArgumentError(f"client: expected a dask.distributed.Client, got a {type(client).__name__}")
    if patience is not None and not patience > 0:
        raise ArgumentError(f"patience={patience!r}: expected seconds, more than 0")
    listed = sorted(checked(tasks), key=lambda task: task.level)
    return levels(listed, _on(client, dict(resources or {}), threads, patience), progress)


def connected(address: str, seconds: float = WAIT) -> distributed.Client:
    """A client of a scheduler. Raises BackendError where none answers in so many seconds."""
    before = dask.config.get("scheduler", None)
    try:
        return distributed.Client(address, timeout=seconds)
    except (OSError, ValueError, TypeError, TimeoutError) as error:  # TypeError: it wants a certificate, and there is none
        dask.config.set(scheduler=before)  # a client that could not be made leaves itself as the default
        raise BackendError(f"--dask {address}: no scheduler answers there: {error}") from error


Promise = Any  # a distributed.Future
Ran = Iterator[tuple[Task, dict[str, Any]]]


def _on(
    client: distributed.Client, resources: dict[str, float], threads: int | None, patience: float | None
) -> Callable[[Sequence[Task]], Ran]:  # fmt: skip
    """What runs the tasks of a level on a cluster."""

    def submit(task: Task, workers: list[str] | None = None, others: bool = False) -> Promise:
        kind = task.work.levels(task.piece)[task.level].kind
        key = f"ooc-{kind}-{task.digest[:8]}-{task.name}-{uuid.uuid4().hex[:8]}"
        return client.submit(
            compute, task, threads, key=key, resources=resources or None, workers=workers, allow_other_workers=others, pure=False,
        )  # fmt: skip

    def run(tasks: Sequence[Task]) -> Ran:
        """A process computes one task at a time, so it is given one at a time: what waits, waits here, for whoever is free."""
        waiting, left, at = deque(tasks), dict[Promise, Task](), dict[Promise, str]()
        try:
            while waiting or left:
                free = [w for w in _workers(client) if w not in {at[f] for f in left if f in at}]
                for worker in [*free, *([""] if not free and not left else [])]:  # nobody there yet: whoever comes
                    if waiting:
                        future = submit(waiting[0], [worker] if worker else None, others=bool(worker))
                        left[future], at[future] = waiting.popleft(), worker
                finished = _first(client, list(left), patience)
                if finished is None:
                    left |= {submit(t, others): t for t, others in _stuck(client, left)}
                    continue
                for future in finished:
                    task = left.get(future)
                    if task is None:
                        continue
                    told = _result(future, task)
                    for twin in [f for f, other in left.items() if other is task]:
                        del left[twin]
                        twin.cancel()
                    yield task, told
        finally:
            for future in left:
                future.cancel()

    return run


def _workers(client: distributed.Client) -> list[str]:
    return list(client.scheduler_info(n_workers=-1)["workers"])


def _first(client: distributed.Client, futures: list[Promise], patience: float | None) -> Any:
    """Those that are done, when there is one; None: for so long there was none."""
    try:
        return distributed.wait(futures, timeout=patience, return_when="FIRST_COMPLETED").done
    except (TimeoutError, distributed.TimeoutError):
        return None


def _stuck(client: distributed.Client, left: Mapping[Promise, Task]) -> Iterator[tuple[Task, list[str]]]:
    """Tasks that a worker has, with the other workers, if there are any."""
    workers = set(_workers(client))
    holding = {key: at for at, keys in client.processing().items() for key in keys}
    for task in dict.fromkeys(left.values()):
        busy = {holding[f.key] for f, other in left.items() if other is task and f.key in holding}
        if busy and workers - busy:
            yield task, sorted(workers - busy)


def _result(future: Promise, task: Task) -> dict[str, Any]:
    """What a task told. Raises OocError."""
    try:
        told: dict[str, Any] = future.result()
        return told
    except OocError:
        raise
    except Exception as error:
        raise BackendError(
            f"task {task.name} of {task.folder}: {type(error).__name__}: {error}; ooc.tasks(..., resume=True) goes on"
        ) from error


def compute(task: Task, threads: int | None) -> dict[str, Any]:
    """One task, in a worker."""
    nthreads = threads or distributed.get_worker().state.nthreads
    with one:
        return task(threads=nthreads)
