"""What goes wrong while tasks run: nothing is lost, nothing hangs, one error says what it was."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_driver import emulated
from sweeps import swept
from tasks import SHAPE, by_tasks, normed, plan_of, session, stored, wanted, written
from waiting import HANGS, until_files

import ooc
from ooc.backends.cpu.backend import CpuBackend
from ooc.model.calibration import load_device
from ooc.runtime.device import Device

pytestmark = pytest.mark.usefixtures("finer")
ROOT = Path(__file__).parent.parent


def plan(device: ooc.Device | None = None, budget: int = 1 << 20) -> ooc.NetworkPlan:
    if device is None:
        return plan_of(budget)
    return normed().plan(batch=1, train=False, budget=budget, device=device, deterministic=True)


@pytest.mark.parametrize("refusals", [1, 3, 6])
def test_memory_that_is_refused(refusals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, allocate, refused = wanted(tmp_path), CpuBackend.allocate, []  # type: Any, Any, list[int]

    def short(self: Any, space: str, nbytes: int) -> Any:
        if nbytes > 4000 and len(refused) < refusals:
            refused.append(nbytes)
            raise ooc.errors.OutOfMemoryError(f"cannot allocate {nbytes} bytes")
        return allocate(self, space, nbytes)

    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    monkeypatch.setattr(CpuBackend, "allocate", short)
    if refusals > 5:
        with pytest.raises(ooc.BackendError, match="cannot allocate"):
            ooc.run_tasks(tasks)
        told = ooc.run_tasks(ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy", resume=True))
    else:
        told = ooc.run_tasks(tasks)
        notes = [note for one in told for note in one["notes"]]
        assert len(notes) == refusals and all("went on with a budget of" in note for note in notes)
    assert len(refused) == refusals
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole)


def test_a_device_that_refuses_memory_says_so() -> None:
    device = Device(emulated(3), load_device("p100"))

    def refuse(nbytes: int) -> int:
        raise RuntimeError("cudaErrorMemoryAllocation: out of memory")

    device.backend.driver.malloc = refuse  # type: ignore[attr-defined]
    x = np.zeros((1, 2, 9, 9), np.float32)
    with device, pytest.raises(ooc.errors.OutOfMemoryError, match="out of memory"):
        ooc.max_pool(x, 3)


def test_an_input_that_shrinks_or_goes_away(tmp_path: Path) -> None:
    whole = wanted(tmp_path)
    for fault in ("shrinks", "goes"):
        tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / f"{fault}.npy")
        tasks[0]()
        status = os.stat(tmp_path / "x.npy")
        shutil.copy2(tmp_path / "x.npy", tmp_path / "kept.npy")
        if fault == "goes":
            (tmp_path / "x.npy").unlink()
        else:
            os.truncate(tmp_path / "x.npy", 5000)
        with pytest.raises(ooc.StoreError, match=r"x\.npy"):
            ooc.run_tasks(tasks)
        shutil.copy2(tmp_path / "kept.npy", tmp_path / "x.npy")
        os.utime(tmp_path / "x.npy", ns=(status.st_atime_ns, status.st_mtime_ns))
        again = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / f"{fault}.npy", resume=True)
        assert sum(one["computed"] for one in ooc.run_tasks(again)) == len(tasks) - 1
        assert np.array_equal(np.load(tmp_path / f"{fault}.npy"), whole)


def test_a_result_or_weights_that_go_away(tmp_path: Path) -> None:
    wanted(tmp_path)
    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    tasks[0]()
    (made,) = (tmp_path / "y.npy.work").glob("result.*/y.npy")
    made.unlink()
    with pytest.raises(ooc.StoreError, match=r"y\.npy"):
        ooc.run_tasks(tasks)
    with pytest.raises(ooc.StoreError, match="gone"):
        ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy", resume=True, folder=tmp_path / "y.npy.work")
    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "z.npy")
    (tmp_path / "z.npy.work" / "weights.zip").unlink()
    with pytest.raises(ooc.OocError, match="weights"):
        ooc.run_tasks(tasks)
    with pytest.raises(ooc.StoreError, match="weights are gone"):
        ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "z.npy", resume=True)


FULL = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
import numpy as np, ooc
from networks import cpu
from tasks import normed
from ooc.workers import cut
cut.SECONDS, cut.PARTS, cut.DEARER = 1e-9, 7, 1e9
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
plan = normed().plan(batch=1, train=False, budget=1 << 20, device=cpu(), deterministic=True)
tasks = ooc.tasks(plan, sys.argv[1] + "/x.npy", sys.argv[1] + "/y.npy")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    ooc.run_tasks(tasks)
except ooc.StoreError as error:
    print(len(str(error).splitlines()), sum(task.done for task in tasks))
"""


@pytest.mark.parametrize("most", [10_000, 60_000])
def test_a_full_disk(most: int, tmp_path: Path) -> None:
    whole = wanted(tmp_path)
    args = [sys.executable, "-c", FULL, str(tmp_path), str(ROOT / "helpers"), str(most)]
    done = subprocess.run(args, capture_output=True, text=True, timeout=HANGS, check=True)
    lines, finished = map(int, done.stdout.split())
    assert lines == 1 and resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    again = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy", resume=True)
    assert sum(one["computed"] for one in ooc.run_tasks(again)) == len(again) - finished
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole)


def test_an_exception_in_a_callback_passes(tmp_path: Path) -> None:
    whole = wanted(tmp_path)

    def stop(done: int, of: int) -> None:
        if done == 9:
            raise ZeroDivisionError("mine")

    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(ZeroDivisionError, match="mine"):
        ooc.run_tasks(tasks, progress=stop)
    assert sum(task.done for task in tasks) == 9
    assert sum(one["computed"] for one in ooc.run_tasks(tasks)) == len(tasks) - 9
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_ways_to_start_processes(method: str, tmp_path: Path) -> None:
    whole = wanted(tmp_path)
    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        ooc.run_tasks(tasks, pool, threads=1)
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole)


def test_a_pool_whose_worker_dies_is_one_error(tmp_path: Path) -> None:
    whole = wanted(tmp_path)
    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        pool.submit(os._exit, 9)
        with pytest.raises(ooc.BackendError, match="a worker died"):
            ooc.run_tasks(tasks, pool)
    ooc.run_tasks(ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy", resume=True))
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole)


def test_two_devices_at_once(tmp_path: Path) -> None:
    """Tasks of one run on two devices, by two threads each: an emulated GPU computes what an emulated GPU computes."""
    devices = [Device(emulated(seed), load_device("p100"), deterministic=True) for seed in (1, 2)]
    x = written(tmp_path / "x.npy", SHAPE)
    tasks = ooc.tasks(plan(devices[0], 4 << 20), tmp_path / "x.npy", tmp_path / "y.npy")
    for level in range(tasks[-1].level + 1):
        own, failed = [task for task in tasks if task.level == level], []  # type: list[ooc.Task], list[BaseException]

        def some(device: Device, mine: list[ooc.Task], failed: list[BaseException] = failed) -> None:
            try:
                for task in mine:
                    task(device)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=some, args=(devices[i % 2], own[i::4])) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
    assert np.allclose(np.load(tmp_path / "y.npy"), session(plan(devices[1], 4 << 20), x), 1e-5, 1e-6)


@pytest.mark.parametrize("text", ["", "{}", "[]", "{", "[" * 100000, '{"levels": 1}', "\0\0", "null", '{"levels": {"1": [{}]}}'])
def test_damaged_work_is_one_error(text: str, tmp_path: Path) -> None:
    whole = wanted(tmp_path)
    tasks = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy")
    tasks[0]()
    about, unit = tmp_path / "y.npy.work" / "work.json", tmp_path / "y.npy.work" / "done" / tasks[0].name
    for path, error in ((unit, "damaged"), (about, "work.json")):
        kept = path.read_bytes()
        path.write_text(text)
        with pytest.raises(ooc.ShapeError, match=error):
            ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy", resume=True)
        path.write_bytes(kept)
    ooc.run_tasks(ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / "y.npy", resume=True))
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole)


GOES_ON = """
import sys
sys.path[:0] = [sys.argv[2], sys.argv[3]]
import test_faults, ooc
from ooc.workers import cut
cut.SECONDS, cut.PARTS, cut.DEARER = 1e-9, 7, 1e9  # as the fixture has it
folder = test_faults.Path(sys.argv[1])
ooc.run_tasks(ooc.tasks(test_faults.plan(), folder / "x.npy", folder / "y.zarr", resume=True))
"""


@pytest.mark.parametrize("seed", swept(range(12), 1))
def test_killed_while_shards_are_written(seed: int, tmp_path: Path) -> None:
    """3 kills, 5 in the long suite: shards are whole or missing, no finished task is computed again, the bits are one run's."""
    rng, done = random.Random(seed), tmp_path / "y.zarr.work" / "done"
    whole = wanted(tmp_path)
    ooc.create(tmp_path / "y.zarr", (1, 4, *SHAPE[2:]), np.float32, "ncyx", (1, 2, 16, 16), (1, 2, 32, 32)).close()
    seen: dict[str, int] = {}
    places = [str(tmp_path), str(Path(__file__).parent), str(Path(__file__).parent.parent / "helpers")]
    for kill in range(12):
        process = subprocess.Popen([sys.executable, "-c", GOES_ON, *places])
        if kill < (5 if seed else 3):
            until_files(process, done, more_than=len(seen) + rng.randint(0, 12))
            time.sleep(rng.random() * 0.01)
            process.kill()
        process.wait(HANGS)
        times = {p.name: p.stat().st_mtime_ns for p in done.iterdir() if ".part" not in p.name} if done.is_dir() else {}
        assert all(times[name] == at for name, at in seen.items())
        seen = times
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert len(seen) > 15 and not list(tmp_path.rglob("*.part*"))
    assert np.array_equal(stored(tmp_path / "y.zarr"), by_tasks())
    assert np.allclose(by_tasks(), whole, 1e-5, 1e-6)
