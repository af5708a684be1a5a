"""Calls that are repeated: what is remembered between them changes nothing but the time they take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.errors import ShapeError
from ooc.ops import Pointwise
from perfmodel.bench.overhead import MIB, calls

BUDGETS = (None, MIB)


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", calls())
def test_a_small_call_starts_no_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = calls()[name]

    def refuse(*given: Any, **named: Any) -> None:
        raise AssertionError("a thread")

    monkeypatch.setattr(threading, "Thread", refuse)
    for budget in BUDGETS:
        with ooc.device("cpu", budget, threads=1):
            work()
            report = ooc.last_report()
            assert report is not None and report.tiles == len(report.plans)


WORK: dict[str, Callable[[Any, Any], Any]] = {
    "conv": lambda x, w: ooc.conv(x, w, padding=1, activation="relu", pool=2),
    "softmax": lambda x, w: ooc.softmax(x),
    "pool": lambda x, w: ooc.max_pool(x, 2),
    "norm": lambda x, w: ooc.batch_norm(x, training=True).y,
    "gradient": lambda x, w: ooc.conv_backward(x, w, ooc.conv(x, w, padding=1), padding=1).dw,
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", WORK)
def test_threads_repeat_a_call_with_arrays_of_their_own(name: str, budget: int | None) -> None:
    given = [(normal(2, 3, 8, 8, seed=i), normal(4, 3, 3, 3, seed=100 + i)) for i in range(8)]
    shared = ooc.device("cpu", budget, threads=1)
    with ooc.device("cpu", budget, threads=1):
        expected = [WORK[name](*arrays) for arrays in given]
    wrong: list[int] = []

    def repeat(i: int) -> None:
        with shared:
            for turn in range(40):
                at = (i + turn) % len(given)
                if not np.array_equal(WORK[name](*given[at]), expected[at]):
                    wrong.append(at)

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("budget", BUDGETS)
def test_strides_and_places_may_change_between_calls(budget: int | None, tmp_path: Any) -> None:
    x, w = normal(2, 3, 8, 8), normal(4, 3, 3, 3)
    np.save(tmp_path / "x.npy", x)
    spread = np.zeros((2, 3, 16, 16), np.float32)[:, :, ::2, ::2]
    spread[...] = x
    bytes_apart = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    bytes_apart[...] = x
    views = (x, np.asfortranarray(x), spread, x[::-1][::-1], np.load(tmp_path / "x.npy", mmap_mode="r"), bytes_apart)
    with ooc.device("cpu", budget):
        expected = ooc.conv(x, w, padding=1)
        for seen in (*views, *views):
            np.testing.assert_allclose(ooc.conv(seen, w, padding=1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("budget", BUDGETS)
def test_outputs_are_checked_in_every_call(budget: int | None) -> None:
    x, w = normal(1, 3, 8, 8), normal(3, 3, 3, 3)
    room = np.zeros(400, np.float32)
    room[:192] = x.ravel()
    inside, before = room[:192].reshape(x.shape), room.copy()
    with ooc.device("cpu", budget):
        expected = ooc.conv(inside, w, padding=1, out=room[192:384].reshape(x.shape)).copy()
        for _ in range(2):
            for at in (0, 8, 191):
                with pytest.raises(ShapeError, match="overlaps"):
                    ooc.conv(inside, w, padding=1, out=room[at : at + 192].reshape(x.shape))
            assert np.array_equal(room[:192], before[:192])
            assert np.array_equal(ooc.conv(inside, w, padding=1, out=room[192:384].reshape(x.shape)), expected)
        with pytest.raises(ShapeError, match="overlaps itself"):
            ooc.activation(x, "relu", out=np.lib.stride_tricks.as_strided(room, x.shape, (0, 0, 0, 4)))


def test_pointwise_numbers_are_told_apart() -> None:
    x = normal(1, 2, 4, 4)
    for factor in (1, 1.0, 2, 2.5, -2):
        assert np.array_equal(ooc.scale(x, factor), x * np.float32(factor))
    assert Pointwise(1, 2, (4, 4), alpha=2.0) is Pointwise(1, 2, (4, 4), alpha=2.0)
