"""Tiny budgets and many tiles: the steps are outside the budget, so they must stay few at any one time."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from races import races
from sweeps import swept

import ooc
from ooc.schedule import lowering


def deconvolved() -> Any:
    numbers = np.random.default_rng(0)
    x = numbers.integers(-2, 3, (1, 16, 40, 64)).astype("f")
    w = numbers.integers(-2, 3, (16, 8, 3, 3)).astype("f")
    return ooc.conv_transpose(x, w, stride=2, padding=1, activation="relu")


def test_a_deconvolution_in_two_kibibytes_keeps_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering.Schedule.windows, "__defaults__", (256,))
    wanted = deconvolved()
    device = ooc.device("cpu", budget="2 KiB")
    with device:
        tracemalloc.start()
        made = deconvolved()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    report = ooc.last_report()
    assert report is not None
    np.testing.assert_array_equal(made, wanted)
    assert sum(part.steps for part in report.parts) > 10 * 256
    assert report.schedule_bytes <= 1 << 20
    assert peak < 6 << 20  # steps, arrays, plans: all that Python holds


@pytest.mark.parametrize("threads", [False, True], ids=["in turn", "on threads"])
def test_reports_of_long_plans_tell_the_sums(monkeypatch: pytest.MonkeyPatch, threads: bool) -> None:
    """Bytes and steps are those of the whole plan, and its bars those of the first window; a trace has all of them."""
    x, w = np.ones((2 if threads else 8, 8, 80, 80), "f"), np.ones((8, 8, 3, 3), "f")  # more steps than are remembered
    whole = ooc.device("cpu", budget="16 KiB", pinned="16 KiB" if threads else None)
    with whole:
        ooc.conv(x, w)
    before = ooc.last_report()
    monkeypatch.setattr(lowering.Schedule.windows, "__defaults__", (100,))
    with whole:
        ooc.conv(x, w)
    after = ooc.last_report()
    assert before is not None and after is not None
    assert [p.steps for p in after.parts] == [len(p.schedule.steps) for p in before.parts]
    assert after.lane_bytes == before.lane_bytes and after.tiles == before.tiles
    assert {*after.lane_seconds} == {*before.lane_seconds}
    assert len(after.parts[0].schedule.steps) == len(after.parts[0].measured.ends) == 100
    assert after.elapsed_seconds >= after.parts[0].measured.seconds
    assert "of them at once" in str(after) and len(repr(after)) < 1000 and len(after._repr_html_()) < 1 << 16


@pytest.mark.parametrize("pinned", [None, "4 KiB"], ids=["one hop", "two hops"])
def test_windows_have_no_races_and_need_their_waits(pinned: str | None) -> None:
    """Each window alone: its waits suffice, and without any one of them a race is found in some window."""
    with ooc.device("cpu", budget="16 KiB", pinned=pinned):
        plan = replace(ooc.plan("conv.fprop n=2 c=8 h=32 w=32 k=8 r=3 s=3", budget="8 KiB"), in_turn=False, depth=1)
    some = list(lowering.schedule_of(plan).windows(40))
    assert len(some) > 2
    waits = 0
    for window in some:
        assert races(window.steps, window.layout) == []
        for i, step in enumerate(window.steps):
            for j in step.after:
                mutant = list(window.steps)
                mutant[i] = step._replace(after=tuple(k for k in step.after if k != j))
                waits += 1
                assert races(mutant, window.layout)
    assert waits > 20


def test_reports_of_many_parts_keep_few_steps() -> None:
    """All parts of a cut chain share what is kept."""
    x, w = np.ones((1, 8, 96, 96), "f"), np.ones((8, 8, 5, 5), "f")
    with ooc.device("cpu", budget="4 KiB"):
        ooc.chain(x, *[ooc.Conv(w, padding=2)] * 4)
    report = ooc.last_report()
    assert report is not None and len(report.parts) > 1
    kept = sum(len(part.schedule.steps) for part in report.parts)
    assert kept <= lowering.WINDOW < sum(part.steps for part in report.parts)
    assert all(len(part.measured.ends) == len(part.schedule.steps) for part in report.parts)
    assert sum(report.lane_bytes.values()) == sum(sum(plan.lane_bytes.values()) for plan in report.plans)
    assert report.schedule_bytes <= 16 << 20


def test_a_step_takes_what_is_said() -> None:
    """The figure of the report is not less than what Python takes."""
    plan = ooc.plan("conv.fprop n=8 c=64 h=112 w=112 k=64 r=3 s=3 pad=1", budget="64 KiB", device="null")
    steps = lowering.schedule_of(plan).windows()
    next(steps)
    tracemalloc.start()
    window = next(steps)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(window.steps) == lowering.WINDOW
    assert size <= window.nbytes + (2 << 20)  # and the tables that are remembered beside them
    assert 2 * window.nbytes <= 16 << 20


def test_a_window_that_fails_stops_the_run() -> None:
    """Nothing of a later window begins."""
    x, w = np.ones((2, 8, 64, 64), "f"), np.ones((8, 8, 3, 3), "f")
    seen = []

    def stop(done: int, tiles: int) -> None:
        seen.append(done)
        if done == tiles // 2:
            raise StopIteration("enough")

    with ooc.device("cpu", budget="16 KiB"), pytest.raises(StopIteration, match="enough"):
        ooc.conv(x, w, callbacks=stop)
    assert seen == [*range(1, len(seen) + 1)]


@pytest.mark.parametrize("most", [3, 8, 64])
def test_a_short_plan_in_windows_is_whole_again(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """What is remembered of a plan is all of it, however short windows are."""
    x = np.random.default_rng(0).integers(-2, 3, (1, 4, 24, 24)).astype("f")
    w = np.random.default_rng(1).integers(-2, 3, (4, 4, 3, 3)).astype("f")
    wanted = ooc.conv(x, w)
    monkeypatch.setattr(lowering.Schedule.windows, "__defaults__", (most,))
    with ooc.device("cpu", budget=5000 + most):
        for _ in range(3):
            np.testing.assert_array_equal(ooc.conv(x, w), wanted)


@pytest.mark.parametrize("extent", swept((64, 128), suite=1))
def test_all_windows_at_once_take_what_is_said(extent: int) -> None:
    """The whole of a long call, by what Python holds at its peak."""
    x, w = np.ones((4, 8, extent, extent), "f"), np.ones((8, 8, 3, 3), "f")
    out = np.empty((4, 8, extent - 2, extent - 2), "f")
    with ooc.device("cpu", budget="1 KiB"):
        tracemalloc.start()
        ooc.conv(x, w, out=out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    report = ooc.last_report()
    assert report is not None and sum(p.steps for p in report.parts) > 2 * lowering.WINDOW
    assert peak <= report.schedule_bytes + (2 << 20)  # and the plan, the report, the tables beside the steps
    assert report.schedule_bytes <= 16 << 20
