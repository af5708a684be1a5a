"""Plans whose steps run one after the other: when they are chosen, that they compute the same, and what is measured of them."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.ir.op import ITEM_BYTES
from ooc.ir.region import elements, slices
from ooc.model.calibration import load_device
from ooc.model.cost import CACHED, Copy, Model, sample_of
from ooc.model.simulate import simulate
from ooc.ops.descriptor import parse
from ooc.planner.alternatives import alternatives
from ooc.planner.alternatives import some as some_plans
from ooc.planner.confirm import confirm
from ooc.planner.question import Question
from ooc.planner.search import Search
from ooc.runtime.device import Device
from ooc.runtime.store import FileStore
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from ooc.schedule.readahead import AHEAD
from ooc.schedule.work import Moved, Work
from perfmodel.calibrate.cpu import PROBLEM_BYTES, Samples, practise, tiles
from perfmodel.calibrate.entries import copies_entry, copies_error
from perfmodel.calibrate.timed_runs import along_batch, plan_of, rehearse
from perfmodel.calibrate.trial import Trial, placed, question

CONV = "conv.fprop n=8 c=16 h=24 w=24 k=16 r=3 s=3 pad=1"


def device(handoff: float | None, budget: int | None = 64 << 10) -> Device:
    found = ooc.device("cpu", budget, calibration="cpu")
    return replace(found, model=replace(load_device("cpu"), handoff_seconds=handoff))


def places(plan_or_op: Any, place: Place = Place.HOST) -> dict[str, Place]:
    return {o.name: place for o in plan_or_op.operands}


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
    slow = replace(asked.model.copies["read"], bytes_per_second=op.inputs[0].nbytes / (0.8 * compute), samples=())
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
    with Trial(op, dict(plan.places), asked) as trial:
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


# ---- rehearsals


@pytest.mark.parametrize("place", [Place.HOST, Place.DISK])
def test_a_rehearsal_times_every_kind_of_step(place: Place) -> None:
    asked, op = device(None), along_batch(parse(CONV.replace("n=8", "n=2")))
    plan = plan_of(asked, op, {"n": 2}, asked.backend.offers(op)[0].name, place)
    timed = rehearse(asked, plan)
    assert all(0 < seconds < 1 for seconds in timed.values())
    (tile,) = (did for did in timed if isinstance(did, Work))
    assert tile.shape == (2 * 24 * 24, 24, 16, 16, 9, 1)
    image = op.operands[0].nbytes // (op.dims["n"] // 2)
    lanes = ("h2d", "d2h") if place is Place.HOST else ("read", "write")
    assert {(m.lane, m.nbytes) for m in timed if isinstance(m, Moved)} >= {(lane, image) for lane in lanes}
    few = rehearse(asked, plan, most_steps=3)  # x, w, and a tile that comes but once
    assert len(few) == (2 if place is Place.HOST else 3) and all(isinstance(did, Moved) for did in few)


def test_samples_say_what_was_done() -> None:
    assert sample_of(Moved("read", 4096, 4), 1e-3) == (4, 4096, (4096, 1024), 1e-3)
    work = Work("conv.fprop/f32/native", 2.0, 3, (1.0,) * 6)
    assert sample_of(work, 0.5) == (2.0, 3.0, (1.0,) * 6, 0.5)


def test_measured_copies_correct_the_line() -> None:
    """Rows of 4 KiB cost ten times as much as their bytes say: so do copies like those, and no others."""
    rows = [(n, n // 4096, 10 * n / 1e9) for n in (1 << 16, 1 << 18, 1 << 20)]
    whole = [(n, 1, n / 1e9) for n in (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)]
    samples = [sample_of(Moved("read", nbytes, runs), seconds) for nbytes, runs, seconds in rows + whole]
    entry, error = copies_entry(samples), copies_error(samples)
    assert error < 0.5 and len(entry["samples"]) == 9
    raw = {"copies": dict.fromkeys(("read", "h2d", "d2h", "write"), entry), "computes": {"*/*/*": {
        "latency_seconds": 0.0, "flops_per_second": 1e9, "bytes_per_second": 1e9}}}  # fmt: skip
    from ooc.model.calibration import read_model

    model: Model = read_model(raw, "here")
    for nbytes, runs, seconds in rows + whole:
        assert model.copy("read").seconds(nbytes, runs) == pytest.approx(seconds, rel=0.35)
    sizes = np.array([1 << 16, 1 << 20])
    together = model.copy("read").seconds(sizes, np.array([16, 256]))
    np.testing.assert_allclose(together, [model.copy("read").seconds(n, n // 4096) for n in sizes.tolist()], rtol=1e-5)


def test_practice_measures_what_is_planned(tmp_path: Any) -> None:
    rng, samples = random.Random(2), Samples()
    asked = [question(rng, PROBLEM_BYTES) for _ in range(3)]
    practise(device(2e-5), asked, str(tmp_path), samples)
    kinds = {stage.kind for one in asked for stage in one.op.stages}
    assert samples.copies and samples.tiles
    assert {key.split("/")[0] for key in samples.tiles} <= kinds
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", [Place.HOST, Place.DISK])
def test_plans_confirmed_together_are_those_confirmed_alone(place: Place) -> None:
    asked, op = device(2e-5), parse("conv.fprop n=4 c=16 h=24 w=24 k=16 r=3 s=3 pad=1")
    budget = asked.planner.budget(places(op, place))
    question = Question(op, budget, asked.backend.offers(op), asked.model)
    some = some_plans(Search(question), 12, random.Random(3))
    together, alone = confirm(question, some), [confirm(question, [p])[0] for p in some]
    assert len({p.predicted_seconds for p in together}) > 6 and confirm(question, []) == []
    for one, other in zip(together, alone, strict=True):
        assert one.predicted_seconds == pytest.approx(other.predicted_seconds, rel=1e-4)
        assert one.lane_bytes == other.lane_bytes and dict(one.lane_seconds) == pytest.approx(dict(other.lane_seconds), rel=1e-4)


def test_calibrations_keep_the_median_of_all_moments() -> None:
    samples, tile, copy = Samples(), Work("conv.fprop/f32/native", 8.0, 64, (1, 2, 3, 4, 5, 6)), Moved("h2d", 4096, 2)
    for seconds in (3.0, 1.0, 9.0):
        samples.add({tile: seconds, copy: seconds / 8})
    samples.add({tile: 100.0, copy: 100.0, tile._replace(effort=16.0): 4.0}, (Work,))
    found, shape = samples.entries(), [1, 2, 3, 4, 5, 6]
    assert found["computes"]["conv.fprop/f32/native"]["samples"] == [[8.0, 64.0, *shape, 6.0], [16.0, 64.0, *shape, 4.0]]
    assert found["copies"]["h2d"]["samples"] == [[4096, 2, 0.375]]


def test_calibrations_measure_tiles_of_volumes_too() -> None:
    shapes = [parse(f"conv.fprop {text}") for text in tiles(40)]
    assert sum(len(op.inputs[0].shape) == 5 for op in shapes) == 8
    assert tiles(40) == tiles(40) == tiles(80)[:40]


# ---- reading ahead


@pytest.mark.parametrize("in_turn", [True, False])
def test_the_system_is_told_of_reads_before_they_are_made(in_turn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    unread: list[int] = []
    fetch, read = FileStore.fetch, FileStore.read

    def telling(store: FileStore, regions: Any, bounce_bytes: int) -> None:
        told.extend(regions)
        fetch(store, regions, bounce_bytes)

    def reading(store: FileStore, region: Any, *rest: Any) -> None:
        assert region == told.pop(0)  # each once, in this order
        unread.append(sum(elements(r) for r in told) * 4)
        read(store, region, *rest)

    monkeypatch.setattr(FileStore, "fetch", telling)
    monkeypatch.setattr(FileStore, "read", reading)
    op = parse("pointwise n=24 k=8 h=64 w=64 act=relu")  # 128 KiB each
    asked = device(1e-5, 1 << 20)
    plan = replace(asked.planner.plan(op, places(op, Place.DISK)), in_turn=in_turn)
    with Trial(op, dict(plan.places), asked) as trial:
        part = trial.run(plan)[1]
    assert len(unread) == sum(step.lane == "read" for step in part.schedule.steps) > 4 and not told
    block = max(step.nbytes for step in part.schedule.steps)
    assert AHEAD // 2 - block < unread[1] <= max(unread) < AHEAD + block


def test_bytes_that_are_read_again_are_known() -> None:
    """Of whole and of overlapping regions, in any order of the loops; the sums of the search agree about them."""
    rng, repeated = random.Random(3), 0
    for _ in range(10):
        asked = question(rng, 8 << 20)
        own = replace(device(5e-5), device_bytes=asked.budget)
        places = placed(asked.op, Place.DISK)
        budget = own.planner.budget(places)
        greedy, some = alternatives(asked.op, budget, own.backend, own.model, 4, rng)
        for plan in greedy + some:
            seen = {o.name: np.zeros(o.shape, bool) for o in asked.op.operands}
            sizes = {o.name: ITEM_BYTES[o.dtype] for o in asked.op.operands}
            first = dict.fromkeys(seen, 0)
            reads = [step for step in own.planner.schedule(plan).steps if step.lane == "read"]
            for step in reads:
                block = seen[step.what][slices(step.region)]
                assert step.again == np.count_nonzero(block) * sizes[step.what]
                first[step.what] += step.nbytes - step.again
                block[...] = True
            repeated += any(step.again for step in reads)
            assert all(n == np.count_nonzero(seen[name]) * sizes[name] for name, n in first.items())
    assert repeated > 8


def test_reads_that_were_fetched_meanwhile_are_copies() -> None:
    """The whole schedule and its sums agree about them, as do a plan and its simulation step by step."""
    op = parse("conv.fprop n=16 c=8 h=28 w=28 k=16 r=3 s=3 pad=1")
    asked = device(1e-3, 96 << 10)
    slow = Copy(1e-4, 0.0, 1e9)
    model = replace(asked.model, copies={**asked.model.copies, "read": slow, CACHED: Copy(1e-6, 0.0, 8e9)})
    plan = replace(asked, model=model).planner.plan(op, {"x": Place.DISK, "w": Place.HOST, "y": Place.HOST})
    without = replace(asked, model=replace(model, copies={k: v for k, v in model.copies.items() if k != CACHED}))
    steps = asked.planner.schedule(plan).steps
    timeline = simulate(steps, model, in_turn=True)
    assert plan.in_turn and timeline.seconds == pytest.approx(plan.predicted_seconds, rel=0.05)
    assert timeline.lane_seconds["read"] < 0.5 * sum(model.seconds(step) for step in steps if step.lane == "read")
    assert simulate(steps, without.model, in_turn=True).seconds == pytest.approx(sum(map(without.model.seconds, steps)))


def test_a_rehearsal_tells_reads_from_the_disk_and_from_the_page_cache() -> None:
    op = parse("pointwise n=16 k=16 h=64 w=64 act=relu")
    asked = device(None)
    found = rehearse(asked, plan_of(asked, op, {"n": 1}, asked.backend.offers(op)[0].name, Place.DISK))
    lanes = {did.lane: (did.nbytes, did.pieces) for did in found if isinstance(did, Moved)}
    assert lanes == dict.fromkeys(("read", CACHED, "write"), (256 << 10, 1)) and min(found.values()) > 0
