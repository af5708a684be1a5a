"""Threads that share kernels: the same bits however many there are, whoever is busy, whoever calls."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc import native
from ooc.backends.cpu import backend
from ooc.backends.cpu.backend import default_threads

pytestmark = pytest.mark.skipif(native.kernels is None, reason="needs the compiled extension")
BUDGETS = (None, 1 << 20, 1 << 16)


@pytest.fixture(autouse=True)
def shared() -> Iterator[None]:
    """Work as small as that of these tests is shared."""
    assert native.kernels is not None
    native.kernels.share_from(1)
    yield
    native.kernels.share_from(100)


def work(threads: int, budget: int | None, seed: int = 0) -> list[Any]:
    """Results of one call of every kind of kernel."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((3, 24, 30, 31), dtype=np.float32), rng.standard_normal((40, 24, 3, 3), dtype=np.float32)
    deep, one = rng.standard_normal((24, 1, 3, 3), dtype=np.float32), rng.standard_normal((40, 24, 1, 1), dtype=np.float32)
    with ooc.device("cpu", budget, threads=threads, deterministic=True):
        y = ooc.conv(x, w, padding=1, activation="relu")
        return [
            y, ooc.conv(x, w, padding=1), ooc.conv(x, deep, padding=1, stride=2, groups=24), ooc.conv(x, one),
            *ooc.conv_backward(x, w, y, padding=1), ooc.max_pool(x, 2), ooc.activation(x, "tanh"), ooc.softmax(x),
        ]  # fmt: skip


def same(one: list[Any], other: list[Any]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("budget", BUDGETS)
def test_any_number_of_threads(budget: int | None) -> None:
    wanted = work(1, budget)
    for threads in (2, 4, 16):
        for _ in range(5):
            assert same(work(threads, budget), wanted)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_beside_a_busy_process() -> None:
    """One that has a processor of its own, which is one of ours."""
    cpu = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{cpu}]); print(flush=True)\nwhile True: pass"
    wanted = work(1, 1 << 16)
    busy = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None and busy.stdout.readline()
        assert all(same(work(threads, 1 << 16), wanted) for threads in (2, 3, 16))
    finally:
        busy.kill()
        busy.communicate()


def test_callers_of_a_pool_share_the_helpers() -> None:
    """Many calls at a time, of several threads each: no more helpers than one of them asks for."""
    wanted = [work(1, None, seed) for seed in range(4)]
    before = threads_of_process()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            found = list(pool.map(lambda seed: work(3, None, seed), range(4)))
            assert all(map(same, found, wanted))
        if before:
            assert threads_of_process() <= before + 4 + 15  # the pool's, and helpers of the largest call of this process


def threads_of_process() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 0


def test_a_caller_that_is_not_the_first() -> None:
    """Threads of the caller's come and go."""
    wanted, found = work(1, None), list[bool]()
    for _ in range(5):
        thread = threading.Thread(target=lambda: found.append(same(work(4, None), wanted)))
        thread.start()
        thread.join()
    assert found == [True] * 5


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_processors_that_it_is_bound_to() -> None:
    binding = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
    code = f"{binding}\nfrom ooc.backends.cpu.backend import default_threads\nprint(default_threads())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "1"


@pytest.mark.parametrize(
    ("quota", "most"), [("100000 100000", 1), ("150000 100000", 2), ("max 100000", None), ("spoilt", None), ("0 0", None)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_time_that_the_control_group_grants(
    quota: str, most: int | None, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    monkeypatch.setattr(backend, "CGROUP", tmp_path)
    if version == 2:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    else:
        (tmp_path / "cpu").mkdir()
        for name, value in zip(("quota", "period"), quota.replace("max", "-1").split(), strict=False):
            (tmp_path / "cpu" / f"cpu.cfs_{name}_us").write_text(value + "\n")
    assert default_threads() == (everything if most is None else min(most, everything))
