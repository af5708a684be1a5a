"""What the system is told to read ahead, and which bytes it has already."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from calibrated import device, places
from sweeps import swept

from ooc.ir.op import ITEM_BYTES
from ooc.ir.region import elements, slices
from ooc.model.cost import CACHED, Copy
from ooc.model.simulate import simulate
from ooc.ops.descriptor import parse
from ooc.planner.alternatives import alternatives
from ooc.runtime.store import FileStore
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.readahead import AHEAD
from perfmodel.calibrate.trial import TimedProblem, placed, question


@pytest.mark.parametrize("in_turn", [True, False])
def test_the_system_is_told_of_reads_before_they_are_made(in_turn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    unread: list[int] = []
    fetching, move = FileStore.fetching, FileStore.move
    fetched: set[FileStore] = set()

    def telling(store: FileStore, regions: Any, bounce_bytes: int) -> Any:
        told.extend(regions)
        fetched.add(store)
        return fetching(store, regions, bounce_bytes)

    def moving(store: FileStore, region: Any, *rest: Any) -> Any:
        if store in fetched:  # the others are written
            assert region == told.pop(0)  # each once, in this order
            unread.append(sum(elements(r) for r in told) * 4)
        return move(store, region, *rest)

    monkeypatch.setattr(FileStore, "fetching", telling)
    monkeypatch.setattr(FileStore, "move", moving)
    op = parse("pointwise n=96 k=8 h=64 w=64 act=relu")  # 128 KiB each
    asked = device(1e-5, 1 << 20)
    plan = replace(asked.planner.plan(op, places(op, Place.DISK)), in_turn=in_turn)
    with TimedProblem(op, dict(plan.places), asked) as trial:
        part = trial.run(plan)[1]
    assert len(unread) == sum(step.lane == "read" for step in part.schedule.steps) > 4 and not told
    block = max(step.nbytes for step in part.schedule.steps)
    assert AHEAD // 2 - block < unread[1] <= max(unread) < AHEAD + block


@pytest.mark.parametrize("count", swept((4, 10), suite=1))
def test_bytes_that_are_read_again_are_known(count: int) -> None:
    """Of whole and of overlapping regions, in any order of the loops; the sums of the search agree about them."""
    rng, repeated = random.Random(3), 0
    for _ in range(count):
        asked = question(rng, 8 << 20)
        own = replace(device(5e-5), device_bytes=asked.budget)
        places = placed(asked.op, Place.DISK)
        budget = own.planner.budget(places)
        greedy, some = alternatives(asked.op, budget, own.backend, own.model, 4, rng)
        for plan in greedy + some:
            seen = {o.name: np.zeros(o.shape, bool) for o in asked.op.operands}
            sizes = {o.name: ITEM_BYTES[o.dtype] for o in asked.op.operands}
            first = dict.fromkeys(seen, 0)
            reads = [step for step in lower(plan).steps if step.lane == "read"]
            for step in reads:
                block = seen[step.what][slices(step.region)]
                assert step.again == np.count_nonzero(block) * sizes[step.what]
                first[step.what] += step.nbytes - step.again
                block[...] = True
            repeated += any(step.again for step in reads)
            assert all(n == np.count_nonzero(seen[name]) * sizes[name] for name, n in first.items())
    assert repeated > 0.8 * count


def test_reads_that_were_fetched_meanwhile_are_copies() -> None:
    """The whole schedule and its sums agree about them, as do a plan and its simulation step by step."""
    op = parse("conv.fprop n=16 c=8 h=28 w=28 k=16 r=3 s=3 pad=1")
    asked = device(1e-3, 96 << 10)
    slow = Copy(1e-4, 0.0, 1e9)
    model = replace(asked.model, copies={**asked.model.copies, "read": slow, CACHED: Copy(1e-6, 0.0, 8e9)})
    plan = replace(asked, model=model).planner.plan(op, {"x": Place.DISK, "w": Place.HOST, "y": Place.HOST})
    without = replace(asked, model=replace(model, copies={k: v for k, v in model.copies.items() if k != CACHED}))
    steps = lower(plan).steps
    timeline = simulate(steps, model, in_turn=True)
    assert plan.in_turn and timeline.seconds == pytest.approx(plan.predicted_seconds, rel=0.05)
    assert timeline.lane_seconds["read"] < 0.5 * sum(model.seconds(step) for step in steps if step.lane == "read")
    assert simulate(steps, without.model, in_turn=True).seconds == pytest.approx(sum(map(without.model.seconds, steps)))
