"""Plans whose steps run one after the other: when they are chosen, and that they compute the same."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest
from calibrated import CONV, device, places

from ooc.ops.descriptor import parse
from ooc.planner.alternatives import alternatives
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from perfmodel.calibrate.trial import TimedProblem

pytestmark = pytest.mark.quick


def test_threads_that_wake_slowly_are_not_used() -> None:
    op = parse(CONV)
    plan = device(1e-3).planner.plan(op, places(op))
    assert plan.in_turn and plan.depth == 1 and plan.tiles > 1
    assert plan.predicted_seconds == pytest.approx(sum(plan.lane_seconds.values()))
    assert ", in turn" in str(plan) and Plan.from_json(plan.to_json()) == plan


def test_queues_of_a_device_never_run_in_turn() -> None:
    op = parse(CONV)
    asked = device(None)
    assert not asked.planner.plan(op, places(op)).in_turn
    greedy, others = alternatives(op, asked.planner.budget(places(op)), asked.backend, asked.model, 10, random.Random(0))
    assert len(others) > 5 and not any(p.in_turn for p in greedy + others)


def test_threads_are_used_where_they_gain() -> None:
    """Reading takes nearly as long as computing, which hides it where the budget has room for direct I/O."""
    op = parse("conv.fprop n=128 c=64 h=56 w=56 k=64 r=3 s=3 pad=1")
    asked = device(0.0, 32 << 20)
    compute = asked.planner.plan(op, places(op)).lane_seconds["compute"]
    slow = replace(asked.model.copies["read"], bytes_per_second=op.inputs[0].nbytes / (0.8 * compute))
    model = replace(asked.model, contention={}, copies={**asked.model.copies, "read": slow})
    placed = {"x": Place.DISK, "w": Place.HOST, "y": Place.HOST}
    plan = replace(asked, model=model).planner.plan(op, placed)
    assert not plan.in_turn and plan.depth > 1 and sum(plan.lane_seconds.values()) > 1.25 * plan.predicted_seconds
    assert replace(asked, model=model, device_bytes=8 << 20).planner.plan(op, placed).in_turn
    slower = replace(slow, bytes_per_second=slow.bytes_per_second / 2)
    assert replace(asked, model=replace(model, copies={**model.copies, "read": slower})).planner.plan(op, placed).in_turn
    assert replace(asked, model=model).planner.plan(op, places(op)).in_turn


@pytest.mark.parametrize("place", [Place.HOST, Place.DISK])
def test_the_same_steps_in_turn_and_on_threads(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    op, asked = parse(CONV), device(None)
    started: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (started.append(thread.name), start(thread))[1])
    plan = asked.planner.plan(op, {"x": place, "w": Place.HOST, "y": place})
    with TimedProblem(op, dict(plan.places), asked) as trial:
        made = []
        for one in (replace(plan, in_turn=True), plan):
            trial.arrays["y"][...] = np.nan
            part = trial.run(one)[1]
            made.append(np.array(trial.arrays["y"]))
            assert bool(started) == (not one.in_turn)
            if one.in_turn:
                ends = part.measured.ends
                assert all(begin >= end for begin, end in zip(part.measured.starts[1:], ends, strict=False))
    np.testing.assert_array_equal(*made)
    assert not np.isnan(made[0]).any()
