"""Small calls in memory, run again and again: their kernels are kept, what they saw is not."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.errors import BackendError
from ooc.runtime import engine
from ooc.runtime.device import Device
from ooc.runtime.single import KEPT, LARGEST


def arrays(n: int = 1, c: int = 6) -> tuple[Any, Any]:
    values = np.random.default_rng(n)
    return values.integers(-3, 4, (n, c, 11, 9)).astype(np.float32), values.integers(-3, 4, (4, c, 3, 3)).astype(np.float32)


def alone(x: Any, w: Any) -> Any:
    """By a device of its own under a budget, which keeps nothing."""
    with ooc.device("cpu", "64 KiB", threads=1):
        return ooc.conv(x, w, padding=1, activation="relu")


def test_other_values_in_the_same_arrays() -> None:
    """Filters are packed anew in each call, wherever they lie."""
    x, w = arrays()
    with ooc.device("cpu", threads=1) as device:
        for turn in range(4):
            x += 1
            w -= turn
            np.testing.assert_array_equal(ooc.conv(x, w, padding=1, activation="relu"), alone(x, w))
        assert len(device.singles.idle) == 1


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
        (single,) = device.singles.idle.values()
        found = list[Any]()
        thread = threading.Thread(target=lambda: found.append(device.singles.take(single.plan)))
        thread.start()
        thread.join()
        assert found == [None] and device.singles.take(single.plan) is single


def test_a_workspace_lives_as_long_as_its_kernel() -> None:
    """That of pooling knows its workspace by the address; arrays that come later must not lie there."""
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 9)).astype(np.float16)
    with ooc.device("cpu", threads=1) as device:
        y = ooc.max_pool(x, 3, stride=2)
        wanted = ooc.max_pool_backward(x, y, 3, stride=2).copy()
        pooling = [s for s in device.singles.idle.values() if s.plan.op.kind == "pool_backward.max"]
        assert [s.room is not None and s.room.nbytes > 0 for s in pooling] == [True]
        size = pooling[0].room.nbytes
        for _ in range(200):
            later = [np.full(n, 0xAB, np.uint8) for n in (size, size + 64, 2 * size)]
            np.testing.assert_array_equal(ooc.max_pool_backward(x, y, 3, stride=2), wanted)
            assert all((a == 0xAB).all() for a in later)


def test_few_are_kept_and_no_arrays() -> None:
    with ooc.device("cpu", threads=1) as device:
        for c in range(2, 2 + 2 * KEPT):
            x, w = arrays(1, c)
            ooc.conv(x, w, padding=1)
        assert len(device.singles.idle) == KEPT
        assert all(sum(s.bytes.values()) <= LARGEST for s in device.singles.idle.values())


def test_a_report_as_of_any_run() -> None:
    x, w = arrays()
    with ooc.device("cpu", threads=1):
        for _ in range(2):
            ooc.conv(x, w, padding=1)
            report = ooc.last_report()
            assert report is not None and report.tiles == 1 and report.peak_bytes == report.plans[0].peak_bytes
            assert 0 < report.lane_seconds["compute"] <= report.seconds


def test_none_under_a_budget_or_where_more_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = arrays()
    with ooc.device("cpu", "1 MiB", threads=1) as device:
        ooc.conv(x, w, padding=1)
        assert not device.singles.idle
    with ooc.device("cpu", threads=1) as device:
        told = list[int]()
        ooc.conv(x, w, padding=1, callbacks=lambda done, total: told.append(done))
        assert not device.singles.idle and told == [1]


def test_a_kernel_that_fails_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = arrays()
    with ooc.device("cpu", threads=1) as device:
        ooc.conv(x, w, padding=1)
        (single,) = device.singles.idle.values()

        def fails(*_: Any) -> None:
            raise ValueError("no")

        monkeypatch.setattr(single, "kernel", fails)
        with pytest.raises(BackendError, match="ValueError: no"):
            ooc.conv(x, w, padding=1)
        assert not device.singles.idle
        np.testing.assert_array_equal(ooc.conv(x, w, padding=1, activation="relu"), alone(x, w))
    assert engine.last_report() is not None
