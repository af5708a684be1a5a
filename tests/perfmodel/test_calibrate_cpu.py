"""Calibrating a processor: rehearsals of tiles, rounds of plans, and what is kept of all that was measured."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from calibrated import CONV, device

import ooc
from ooc.model.calibration import read_model
from ooc.model.cost import AGAIN, CACHED, Compute, Copy
from ooc.ops.descriptor import parse
from ooc.schedule.place import Place
from ooc.schedule.work import Moved, Work
from perfmodel.calibrate import cpu as calibrate
from perfmodel.calibrate.cpu import PROBLEM_BYTES, Samples, practise, tiles
from perfmodel.calibrate.timed_runs import along_batch, plan_of, rehearse
from perfmodel.calibrate.trial import TimedProblem, question


@pytest.mark.parametrize("place", [Place.HOST, Place.DISK])
def test_a_rehearsal_times_every_kind_of_step(place: Place) -> None:
    asked, op = device(None), along_batch(parse(CONV.replace("n=8", "n=2")))
    plan = plan_of(asked, op, {"n": 2}, asked.backend.offers(op)[0].name, place)
    begin = time.perf_counter()
    timed = rehearse(asked, plan)
    assert all(0 < seconds <= time.perf_counter() - begin for seconds in timed.values())
    (tile,) = (did for did in timed if isinstance(did, Work))
    assert tile.effort == 2 * (2 * 24 * 24) * 16 * 16 * 9
    image = op.operands[0].nbytes // (op.dims["n"] // 2)
    lanes = ("h2d", "d2h") if place is Place.HOST else ("read", "write")
    assert {(m.lane, m.nbytes) for m in timed if isinstance(m, Moved)} >= {(lane, image) for lane in lanes}
    few = rehearse(asked, plan, most_steps=3)  # x, w, and a tile that comes but once
    assert len(few) == (2 if place is Place.HOST else 4) and all(isinstance(did, Moved) for did in few)


def test_practice_measures_what_is_planned(tmp_path: Any) -> None:
    rng, samples = random.Random(2), Samples()
    asked = [question(rng, PROBLEM_BYTES) for _ in range(3)]
    practise(device(2e-5), asked, str(tmp_path), samples)
    kinds = {stage.kind for one in asked for stage in one.op.stages}
    assert samples.copies and samples.tiles
    assert {key.split("/")[0] for key in samples.tiles} <= kinds
    assert not list(tmp_path.iterdir())


def test_calibrations_keep_the_median_of_all_moments() -> None:
    samples, tile, copy = Samples(), Work("conv.fprop/f32/native", 8.0, 64), Moved("h2d", 4096, 2)
    for seconds in (3.0, 1.0, 9.0):
        samples.add({tile: seconds, copy: seconds / 8})
    samples.add({tile: 100.0, copy: 100.0, tile._replace(effort=16.0): 4.0}, (Work,))
    found = samples.entries()
    kernel, lane = Compute(**found["computes"]["conv.fprop/f32/native"]), Copy(**found["copies"]["h2d"])
    assert lane.seconds(4096, 2) == pytest.approx(0.375)
    assert found["origins"]["computes.*/*/*"] == "assumed" and "computes.conv.fprop/f32/native" not in found["origins"]
    assert 4.0 <= kernel.seconds(8.0, 64) <= 6.0 and "conv.fprop/f32/native" not in found["fit_error"]  # two tiles say little


def test_calibrations_measure_tiles_of_volumes_too() -> None:
    shapes = [parse(f"conv.fprop {text}") for text in tiles(40)]
    assert sum(len(op.inputs[0].shape) == 5 for op in shapes) == 8
    assert tiles(40) == tiles(40) == tiles(80)[:40]


def test_a_rehearsal_tells_reads_from_the_disk_and_from_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TimedProblem.fetch
    monkeypatch.setattr(TimedProblem, "fetch", lambda *args: plain(*args) + 3600.0)  # longer than any read takes
    op = parse("pointwise n=16 k=16 h=64 w=64 act=relu")
    asked = device(None)
    found = rehearse(asked, plan_of(asked, op, {"n": 1}, asked.backend.offers(op)[0].name, Place.DISK))
    lanes = {did.lane: (did.nbytes, did.pieces) for did in found if isinstance(did, Moved)}
    assert lanes == dict.fromkeys(("read", CACHED, AGAIN, "write"), (256 << 10, 1)) and min(found.values()) > 0
    seconds = {did.lane: s for did, s in found.items() if isinstance(did, Moved)}
    assert seconds[AGAIN] < 3600.0 / 16 < seconds[CACHED]  # each of 16 reads has its part of what is fetched, once


@pytest.mark.parametrize(("moments", "apart"), [(1, 0), (2, 3), (3, 2)])
def test_calibrations_measure_everything_at_so_many_moments(moments: int, apart: int) -> None:
    given: list[Any] = list(range(12))
    rounds = calibrate._rounds(given, 6, moments)
    assert len(rounds) == 6 and len({len(some) for some in rounds}) == 1
    for one in given:
        when = [i for i, some in enumerate(rounds) if one in some]
        assert len(when) == moments and {b - a for a, b in itertools.pairwise(when)} <= {apart}


def _kinds(rehearsals: Iterable[Any]) -> list[Any]:
    return [(plan.op.kind, plan.kernel, plan.op.inputs[0].dtype, plan.places, kept) for plan, kept in rehearsals]


def test_calibrations_begin_with_one_of_each_kernel() -> None:
    """So that a slow machine leaves out a little of everything, and nothing altogether."""
    every = list(calibrate._rehearsals(ooc.device("cpu"), True))
    firsts, others = calibrate._mixed(every)
    assert len(firsts) + len(others) == len(every) and all(one in firsts or one in others for one in every)
    counts = Counter(_kinds(every))
    assert Counter(_kinds(firsts)) == dict.fromkeys(counts, 1) and len(firsts) > 40
    half = Counter(_kinds(others)[: len(others) // 2])
    assert all(abs(half[kind] - count / 2) <= max(1, 0.15 * count) for kind, count in counts.items() if count > 4)


def test_a_calibration_that_is_late_from_the_start_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each kernel, of copies and of files is measured however slow the machine is."""
    monkeypatch.setattr(calibrate, "LATE", {True: 0.0, False: 0.0})
    monkeypatch.setattr(calibrate, "measure_contention", lambda *args: {})
    monkeypatch.setattr(calibrate, "measure_handoff", lambda *args: 1e-5)
    calibration = calibrate.calibrate_cpu(say=lambda text: None, quick=True)
    assert calibration["copies"].keys() >= {"read", "write", "h2d", "d2h"}
    read_model(calibration, "calibration")
