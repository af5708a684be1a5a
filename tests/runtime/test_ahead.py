"""Steps are made in windows beside the run, where that runs behind the host: the first byte is soon on its way."""

from __future__ import annotations

import random
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
from ooc.runtime.executor import Run
from ooc.runtime.store import ArrayStore
from ooc.schedule import lowering
from ooc.schedule.lowering import FIRST_WINDOW, Schedule, schedule_of
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

TILES, FEW = 60, 4


def streamed(place: Place, tiles: int = TILES) -> Plan:
    """A sample at a time, there and back."""
    op = parse(f"pointwise n={tiles} k=2 h=4 w=4 act=relu dtype=f32")
    places = tuple((o.name, place) for o in op.operands)
    return Plan(op, tuple({**op.dims, "n": 1}.items()), tuple(op.dims), 3, places, True, False, kernel="cuda")


class Given(Run):
    """A run of windows that a test makes."""

    made: Iterator[Schedule | None]

    def windows(self) -> Iterator[Schedule | None]:
        return self.made


def run(plan: Plan, backend: Any, x: Any, made: Iterator[Schedule | None] | None = None) -> tuple[Any, list[int]]:
    """The result, and the steps of each window. made: the windows; default: as ever."""
    whole = {"x": x, "y": poisoned(plan.op.outputs[0])}
    if plan.place("x") is Place.PINNED:
        whole = {name: backend.place_copy(array, "pinned") for name, array in whole.items()}
    ran: list[int] = []
    stores = {name: ArrayStore(array) for name, array in whole.items()}
    going = (Run if made is None else Given)(schedule_of(plan), backend, 0)
    if made is not None:
        going.made = made  # type: ignore[attr-defined]
    going.go((stores,), plan.op, lambda todo, measured: ran.append(len(measured().ends)))
    return np.array(whole["y"]), ran


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first window of a few steps, and small ones after it."""
    monkeypatch.setattr(lowering, "FIRST_WINDOW", FEW)
    monkeypatch.setattr(lowering, "WINDOW", 32)


@pytest.mark.parametrize("place", [Place.PINNED, Place.HOST])
def test_windows_grow_and_change_nothing(place: Place, few: None) -> None:
    """Whether lanes are streams alone, or threads too; streams overtake each other wherever nothing forbids it."""
    plan = streamed(place)
    x = data(random.Random(1), plan.op)["x"]
    y, ran = run(plan, emulated(3), x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert ran[:4] == [4, 8, 16, 32] and max(ran) == 32 and sum(ran) == TILES * (3 if place is Place.PINNED else 5)


def test_the_first_byte_waits_for_few_steps() -> None:
    """Of a plan of thousands of steps only the first window is made when the first copy is asked for; others are made between
    tiles, and each is there when it is wanted."""
    plan, backend = streamed(Place.PINNED, 2000), emulated(3)
    made: list[int] = []
    seen: list[int] = []
    waited: list[int] = []
    copy = backend.driver.copy

    def counted() -> Iterator[Schedule | None]:
        slices = 0
        for window in schedule_of(plan).windows_beside():
            slices += window is None
            if window is not None:
                made.append(len(window.steps))
                waited.append(len(seen))
            yield window

    def noted(*given: Any) -> None:
        seen.append(len(made))
        copy(*given)

    backend.driver.copy = noted  # type: ignore[method-assign]
    x = data(random.Random(1), plan.op)["x"]
    y, ran = run(plan, backend, x, counted())
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert made == ran and made[0] == FIRST_WINDOW and len(made) > 3
    assert seen[0] == 1
    # copies that were asked for when a window was complete: less than those of all windows before it
    assert all(now < 2 * sum(made[:i]) // 3 for i, now in enumerate(waited) if i)


def test_the_processor_makes_them_in_turn() -> None:
    """Where kernels take the processor's own time nothing is gained."""
    plan = streamed(Place.HOST)
    made = list(schedule_of(plan).windows(32))
    assert list(executor.Ahead(iter(made))) == made
    assert list(executor.Ahead(iter([]))) == []
    assert list(executor.Ahead(iter([None, made[0], None, None, made[1], None]))) == made[:2]


def test_an_error_in_making_them_ends_the_run(few: None) -> None:
    plan = streamed(Place.PINNED)

    def broken() -> Iterator[Schedule | None]:
        for i, window in enumerate(schedule_of(plan).windows_beside()):
            if i > 6:
                raise ZeroDivisionError("in the making")
            yield window

    with pytest.raises(BackendError, match="ZeroDivisionError: in the making"):
        run(plan, emulated(3), data(random.Random(1), plan.op)["x"], broken())


def test_a_run_that_fails_makes_no_more(few: None) -> None:
    plan, backend, made = streamed(Place.PINNED), emulated(3), []

    def full(*given: Any) -> None:
        raise OSError("no device")

    def counted() -> Iterator[Schedule | None]:
        for window in schedule_of(plan).windows_beside():
            made.append(window)
            yield window

    backend.driver.launch = full  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="no device"):
        run(plan, backend, data(random.Random(1), plan.op)["x"], counted())
    assert len(made) == 1
