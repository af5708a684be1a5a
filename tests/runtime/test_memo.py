"""Small calls in memory, run again and again: their kernels are kept, what they saw is not."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.errors import BackendError
from ooc.runtime import engine, memo
from ooc.runtime.device import Device
from ooc.runtime.executor import Run
from ooc.runtime.memo import KEPT, LARGEST, WITH_PLAN
from ooc.schedule.place import OUTSIDE


def arrays(n: int = 1, c: int = 6) -> tuple[Any, Any]:
    values = np.random.default_rng(n)
    return values.integers(-3, 4, (n, c, 11, 9)).astype(np.float32), values.integers(-3, 4, (4, c, 3, 3)).astype(np.float32)


def alone(x: Any, w: Any) -> Any:
    """By a device of its own, which knows nothing of other calls."""
    with ooc.device("cpu", "64 KiB", threads=1):
        return ooc.conv(x, w, padding=1, activation="relu")


def warm(device: Device) -> list[Run]:
    """The runs that keep memory and kernels."""
    return list(device.runs.warm.values())


def test_other_values_in_the_same_arrays() -> None:
    """Filters are packed anew in each call, wherever they lie."""
    x, w = arrays()
    with ooc.device("cpu", threads=1) as device:
        for turn in range(4):
            x += 1
            w -= turn
            np.testing.assert_array_equal(ooc.conv(x, w, padding=1, activation="relu"), alone(x, w))
        assert len(device.runs.idle) == len(warm(device)) == 1


def test_other_strides_of_the_same_plan() -> None:
    x, w = arrays()
    with ooc.device("cpu", threads=1):
        for _ in range(2):
            for seen in (x, x[:, :, ::-1], x.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)):
                np.testing.assert_array_equal(
                    ooc.conv(seen, w, padding=1, activation="relu"), alone(np.ascontiguousarray(seen), w)
                )


def test_infinite_filters_after_finite_ones() -> None:
    """What is known of filters lasts for a call."""
    x, w = arrays()
    with ooc.device("cpu", threads=1):
        ooc.conv(x, w, padding=1)
        w[0, 0, 0, 0] = np.inf
        y = ooc.conv(x, w, padding=1)
    assert np.isfinite(y[0, 0, 0]).all()  # the first row meets that tap in the padding only


def test_threads_that_call_at_once() -> None:
    """Each has a kernel of its own."""
    wanted = [alone(*arrays(n)) for n in (1, 2, 3)]
    found = list[bool]()

    def calls(device: Device, n: int) -> None:
        x, w = arrays(n)
        with device:
            for _ in range(50):
                found.append(ooc.conv(x, w, padding=1, activation="relu").tobytes() == wanted[n - 1].tobytes())

    device = ooc.device("cpu", threads=2)
    threads = [threading.Thread(target=calls, args=(device, n)) for n in (1, 2, 3, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 300


def test_what_was_made_belongs_to_its_thread() -> None:
    """Convolutions of oneDNN's are used by one thread: another one makes its own."""
    x, w = arrays()
    with ooc.device("cpu", threads=1) as device:
        ooc.conv(x, w, padding=1)
        (here,) = warm(device)
        there = list[Any]()

        def call() -> None:
            with device:
                ooc.conv(x, w, padding=1)
                there.append(warm(device)[-1])

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert there[0].schedule.plan is here.schedule.plan and there[0] is not here
        ooc.conv(x, w, padding=1)
        assert warm(device) == [there[0], here]


def test_a_workspace_lives_as_long_as_its_kernel() -> None:
    """That of pooling knows its workspace by the address; arrays that come later must not lie there."""
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 9)).astype(np.float16)
    with ooc.device("cpu", threads=1) as device:
        y = ooc.max_pool(x, 3, stride=2)
        wanted = ooc.max_pool_backward(x, y, 3, stride=2).copy()
        (pooling,) = [run for run in warm(device) if run.schedule.plan.op.kind == "pool_backward.max"]
        size = pooling.nbytes
        assert size > 0
        for _ in range(200):
            later = [np.full(n, 0xAB, np.uint8) for n in (size, size + 64, 2 * size)]
            np.testing.assert_array_equal(ooc.max_pool_backward(x, y, 3, stride=2), wanted)
            assert all((a == 0xAB).all() for a in later)


def test_few_are_kept_and_no_arrays() -> None:
    held = list[Any]()
    with ooc.device("cpu", threads=1) as device:
        for c in range(2, 2 + 2 * KEPT):
            x, w = arrays(1, c)
            held += [weakref.ref(x), weakref.ref(w), weakref.ref(ooc.conv(x, w, padding=1))]
        assert len(warm(device)) == KEPT
        assert all(p.nbytes <= LARGEST for p in warm(device))
        del x, w
        assert [ref() is None for ref in held] == [True] * len(held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of every run: the idle bytes of the device that it came after, and its own."""
    go, seen = Run.go, list[tuple[int, int]]()

    def watched(run: Run, *rest: Any, **how: Any) -> None:
        go(run, *rest, **how)
        assert run.machine is not None
        idle = sum(p.nbytes for p in warm(ooc.runtime.context.current_device()))
        seen.append((idle, sum(peak for space, peak in run.machine.layout.peaks.items() if space not in OUTSIDE)))

    monkeypatch.setattr(Run, "go", watched)
    return seen


@pytest.mark.parametrize("budget", [2 << 10, 16 << 10, 48 << 10, 256 << 10])
def test_idle_memory_and_a_call_are_within_the_budget(budget: int, held: list[tuple[int, int]]) -> None:
    """What earlier calls keep, of other threads too, is given back where the next one needs the room; results stay exact."""
    with ooc.device("cpu", budget, threads=1) as device:

        def calls() -> None:
            with device:
                for n in (1, 2, 9, 1, 2, 9, 9):
                    x, w = arrays(n)
                    y = ooc.conv(x, w, padding=1, activation="relu")
                    report = ooc.last_report()
                    assert report is not None and report.peak_bytes <= report.predicted_peak_bytes <= budget
                    results.setdefault(n, []).append(y)

        results: dict[int, list[Any]] = {}
        for _ in range(2):
            thread = threading.Thread(target=calls)
            thread.start()
            thread.join()
        calls()
        assert all(idle + own <= budget for idle, own in held)
        assert any(idle for idle, _ in held) or budget == 2 << 10  # where one call takes all
        count = len(held)
    for n, found in results.items():
        assert len(found) in (6, 9) and all(np.array_equal(y, alone(*arrays(n))) for y in found)
    assert count < len(held)


def test_units_of_files_and_sessions_have_their_room_too(tmp_path: Path, held: list[tuple[int, int]]) -> None:
    zarr = pytest.importorskip("zarr")
    x, w = arrays(4)
    zarr.open_array(tmp_path / "x.zarr", mode="w", shape=x.shape, chunks=(1, 6, 11, 9), dtype="f4")[...] = x
    budget = 16 << 10
    with ooc.device("cpu", budget, threads=1) as device:
        for n in (1, 2, 3):
            ooc.conv(*arrays(n), padding=1)
        held.clear()
        y = ooc.conv(ooc.open(tmp_path / "x.zarr"), w, padding=1, activation="relu")
        report = ooc.last_report()
        assert report is not None and report.units_bytes and all(idle + own + report.units_bytes <= budget for idle, own in held)
        g = ooc.Graph("beside")
        g.output(g.conv(g.input("x", (6, 11, 9)), 4, 3, padding=1))
        plan = g.plan(batch=4, train=False, budget=budget, device=device)
        with plan.session() as session:
            held.clear()
            session.forward(x)
        assert held and all(idle + own <= budget for idle, own in held)
    np.testing.assert_array_equal(y, alone(x, w))


def test_a_device_that_goes_takes_what_it_kept_along() -> None:
    """At once: devices are made in loops, and Python's collector may rest."""
    x, w = arrays()
    gc.disable()
    try:
        for budget in (None, "64 KiB"):
            device = ooc.device("cpu", budget, threads=1)
            with device:
                ooc.conv(x, w, padding=1)
            held = [weakref.ref(run.machine) for run in warm(device)]
            engine._last.report = None
            assert len(held) == 1 and held[0]() is not None
            del device
            assert held[0]() is None
    finally:
        gc.enable()


def test_steps_that_are_remembered_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "STEPS", 200)
    with ooc.device("cpu", "8 KiB", threads=1) as device:
        for n in range(2, 9):
            x, w = arrays(n)
            ooc.conv(x, w, padding=1)
            runs = device.runs
            assert runs.weight == sum(WITH_PLAN + run.count for run in runs.idle.values()) <= 200
            assert set(runs.warm) <= set(runs.idle)
        assert 0 < len(runs.idle) < 7


def test_a_call_within_a_call() -> None:
    """A caller's function makes the very call that it is told of: it has memory of its own."""
    x, w = arrays(4)
    wanted = alone(x, w)
    with ooc.device("cpu", "16 KiB", threads=1):
        inner = list[Any]()

        def again(done: int, total: int) -> None:
            inner.append(ooc.conv(x, w, padding=1, activation="relu"))

        outer = [ooc.conv(x, w, padding=1, activation="relu", callbacks=again) for _ in range(2)]
        assert len(inner) > 2 and all(np.array_equal(y, wanted) for y in (*outer, *inner))


def test_a_report_as_of_any_run() -> None:
    x, w = arrays()
    with ooc.device("cpu", threads=1):
        for _ in range(2):
            ooc.conv(x, w, padding=1)
            report = ooc.last_report()
            assert report is not None and report.tiles == 1 and report.peak_bytes == report.plans[0].peak_bytes
            assert 0 < report.lane_seconds["compute"] <= report.seconds


def test_a_kernel_that_fails_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = arrays()
    with ooc.device("cpu", threads=1) as device:
        ooc.conv(x, w, padding=1)
        (run,) = warm(device)
        assert run.machine is not None

        def fails(*_: Any) -> None:
            raise ValueError("no")

        monkeypatch.setattr(run.machine.desks[0], "kernel", fails)
        with pytest.raises(BackendError, match="ValueError: no"):
            ooc.conv(x, w, padding=1)
        assert not device.runs.idle and not device.runs.warm
        np.testing.assert_array_equal(ooc.conv(x, w, padding=1, activation="relu"), alone(x, w))
    assert engine.last_report() is not None
