"""Steps are made in windows beside the run, where that runs behind the host: the first byte is soon on its way."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cases import data
from emulated_driver import emulated
from running import poisoned

from ooc.errors import BackendError
from ooc.ops.descriptor import parse
from ooc.runtime import executor
from ooc.runtime.executor import run_each
from ooc.runtime.store import ArrayStore
from ooc.schedule.lowering import FIRST_WINDOW, Schedule, windows
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

TILES, FEW = 60, 4


def streamed(place: Place, tiles: int = TILES) -> Plan:
    """A sample at a time, there and back."""
    op = parse(f"pointwise n={tiles} k=2 h=4 w=4 act=relu dtype=f32")
    places = tuple((o.name, place) for o in op.operands)
    return Plan(op, tuple({**op.dims, "n": 1}.items()), tuple(op.dims), 3, places, True, False, kernel="cuda")


def run(plan: Plan, made: Iterator[Schedule], backend: Any, x: Any) -> tuple[Any, list[int]]:
    """The result, and the steps of each window."""
    whole = {"x": x, "y": poisoned(plan.op.outputs[0])}
    if plan.place("x") is Place.PINNED:
        whole = {name: backend.place_copy(array, "pinned") for name, array in whole.items()}
    ran: list[int] = []
    stores = {name: ArrayStore(array) for name, array in whole.items()}
    run_each(made, stores, backend, lambda todo, measured: ran.append(len(measured.ends)))
    return np.array(whole["y"]), ran


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first window of a few steps."""
    monkeypatch.setattr(executor, "FIRST_WINDOW", FEW)


@pytest.mark.parametrize("place", [Place.PINNED, Place.HOST])
def test_windows_grow_and_change_nothing(place: Place, few: None) -> None:
    """Whether lanes are streams alone, or threads too; streams overtake each other wherever nothing forbids it."""
    plan = streamed(place)
    x = data(random.Random(1), plan.op)["x"]
    y, ran = run(plan, windows(plan, 32, first_steps=FEW), emulated(3), x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert ran[:4] == [4, 8, 16, 32] and max(ran) == 32 and sum(ran) == TILES * (3 if place is Place.PINNED else 5)
    assert not [t for t in threading.enumerate() if t.name.startswith("ooc-steps")]


def test_the_first_byte_waits_for_few_steps() -> None:
    """Of a plan of thousands of steps, two windows at most are made when the first copy is asked for."""
    plan, backend = streamed(Place.PINNED, 2000), emulated(3)
    made: list[int] = []
    seen: list[int] = []
    copy = backend.driver.copy

    def counted() -> Iterator[Schedule]:
        for window in windows(plan, first_steps=FIRST_WINDOW):
            made.append(len(window.steps))
            yield window

    def noted(*given: Any) -> None:
        seen.append(len(made))
        copy(*given)

    backend.driver.copy = noted  # type: ignore[method-assign]
    x = data(random.Random(1), plan.op)["x"]
    y, ran = run(plan, counted(), backend, x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert made == ran and made[0] == FIRST_WINDOW and len(made) > 3
    assert seen[0] <= 2


def test_the_processor_makes_them_in_turn(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread would take the time that kernels need."""
    monkeypatch.setattr(executor, "ThreadPoolExecutor", None)
    assert list(executor.ahead(iter([]), True)) == []
    made = list(windows(streamed(Place.HOST), 32))
    assert list(executor.ahead(iter(made), False)) == made
    monkeypatch.setattr(executor, "FIRST_WINDOW", 33)
    assert list(executor.ahead(iter(made), True)) == made


def test_an_error_in_making_them_ends_the_run(few: None) -> None:
    plan = streamed(Place.PINNED)

    def broken() -> Iterator[Schedule]:
        yield from list(windows(plan, 8))[:3]
        raise ZeroDivisionError("in the making")

    with pytest.raises(BackendError, match="ZeroDivisionError: in the making"):
        run(plan, broken(), emulated(3), data(random.Random(1), plan.op)["x"])
    assert not [t for t in threading.enumerate() if t.name.startswith("ooc-steps")]


def test_a_run_that_fails_waits_for_nobody(few: None) -> None:
    """The maker of steps is done when the error is raised."""
    plan, backend = streamed(Place.PINNED), emulated(3)

    def full(*given: Any) -> None:
        raise OSError("no device")

    backend.driver.launch = full  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="no device"):
        run(plan, windows(plan, 8), backend, data(random.Random(1), plan.op)["x"])
    assert not [t for t in threading.enumerate() if t.name.startswith("ooc-steps")]
