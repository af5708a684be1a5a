"""Workers of a Dask cluster, workers that die or hang, a scheduler that goes and comes again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import swept
from tasks import SHAPE, by_tasks, plan_of, wanted, written

import ooc

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("ooc.dask")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("finer")]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with dask.local(2) as found:
        yield found


def plan() -> ooc.NetworkPlan:
    return plan_of(1 << 20)


@pytest.mark.parametrize("count", swept((1, 3, 2, 4), suite=2))
def test_any_number_of_processes_gives_the_same_bits(count: int, tmp_path: Path) -> None:
    assert np.allclose(by_tasks(), wanted(tmp_path), 1e-5, 1e-6)
    with (
        distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, processes=True, resources={"GPU": 1}, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        seen: list[tuple[int, int]] = []
        tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
        told = ooc.dask.run(tasks, client, resources={"GPU": 1}, progress=lambda *at, seen=seen: seen.append(at))
        assert len(told) == len(tasks) and seen[-1] == (len(tasks), len(tasks)) and len(seen) == len(tasks)
        assert 1 <= len({one["process"] for one in told}) <= count
    assert np.array_equal(np.load(tmp_path / "y.npy"), by_tasks())


def test_a_worker_that_is_killed(client: Any, tmp_path: Path) -> None:
    written(tmp_path / "x.npy", SHAPE)
    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    finished: dict[Path, int] = {}

    def kill(done: int, of: int) -> None:
        if done == len(tasks) // 2 and not finished:
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
            units = [p for p in (tmp_path / "y.npy.work" / "done").iterdir() if ".part" not in p.name]
            finished.update((unit, unit.stat().st_mtime_ns) for unit in units)

    told = ooc.dask.run(tasks, client, progress=kill)
    # What the killed one had finished, whether it had told of it or not, is not computed again.
    assert len(tasks) // 2 <= len(finished) and all(unit.stat().st_mtime_ns == at for unit, at in finished.items())
    assert len(tasks) // 2 <= sum(one["computed"] for one in told) <= len(tasks)
    assert np.array_equal(np.load(tmp_path / "y.npy"), by_tasks())


def test_a_worker_that_hangs(client: Any, tmp_path: Path) -> None:
    written(tmp_path / "x.npy", SHAPE)
    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    client.wait_for_workers(2)
    pid = next(iter(client.run(os.getpid).values()))
    os.kill(pid, signal.SIGSTOP)
    try:
        ooc.dask.run(tasks, client, patience=0.3)  # in each level
    finally:
        os.kill(pid, signal.SIGCONT)
    assert np.array_equal(np.load(tmp_path / "y.npy"), by_tasks())


def test_the_scheduler_goes_and_the_run_goes_on(tmp_path: Path) -> None:
    written(tmp_path / "x.npy", SHAPE)
    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(KeyboardInterrupt), dask.local(1) as client:

        def stop(done: int, of: int) -> None:
            if done == len(tasks) // 2:
                raise KeyboardInterrupt

        ooc.dask.run(tasks, client, progress=stop)
    before = sum(task.done for task in tasks)
    again = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy", resume=True)
    with dask.local(2) as client:
        told = ooc.dask.run(again, client)
    assert len(tasks) // 2 <= before and sum(one["computed"] for one in told) == len(tasks) - before
    assert np.array_equal(np.load(tmp_path / "y.npy"), by_tasks())


def test_errors_of_a_task_are_one_line(client: Any, tmp_path: Path) -> None:
    written(tmp_path / "x.npy", SHAPE)
    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    (tmp_path / "x.npy").write_bytes(b"gone")
    with pytest.raises(ooc.StoreError, match=r"x\.npy"):
        ooc.dask.run(tasks, client)
    with pytest.raises(ooc.ShapeError, match="client"):
        ooc.dask.run(tasks, "tcp://127.0.0.1:1")
    with pytest.raises(ooc.ShapeError, match="patience"):
        ooc.dask.run(tasks, client, patience=-1)
    with pytest.raises(ooc.BackendError, match="no scheduler"):
        dask.connected("tcp://127.0.0.1:1", 0.5)


def test_a_process_has_one_task_at_a_time(tmp_path: Path) -> None:
    """However many threads it has; tasks are named after what they do."""
    written(tmp_path / "x.npy", SHAPE)
    most, keys = [0], list[str]()
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=3, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        submit = client.submit

        def noted(*args: Any, **options: Any) -> Any:
            keys.append(options["key"])
            return submit(*args, **options)

        client.submit = noted
        dask.run(
            ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy"), client,
            progress=lambda done, of: most.append(max(map(len, client.processing().values()))),
        )  # fmt: skip
    assert max(most) <= 1 and {key[: key.index("-", 4)] for key in keys} >= {"ooc-chain", "ooc-merge"}
    assert np.array_equal(np.load(tmp_path / "y.npy"), by_tasks())
