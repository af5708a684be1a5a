"""What measured tiles teach the model, what is kept of them, and what becomes of files that hold something else."""

from __future__ import annotations

import itertools
import json
import math
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.model.calibration import DEVICES, load_device
from ooc.model.cost import Compute, Copy, Model
from ooc.model.gaussian import CAUTION, MOST, NOISE, SPREAD, Sample, SampleRows
from ooc.ops.descriptor import parse
from ooc.planner.alternatives import alternatives
from ooc.schedule.place import Place
from ooc.schedule.work import Work
from perfmodel.calibrate import cpu as calibrate
from perfmodel.calibrate.entries import compute_entry, tiles_entry, tiles_error
from perfmodel.calibrate.trial import question
from perfmodel.report import check

KEY = "conv.fprop/f32/native"
COPIES = dict.fromkeys(("read", "h2d", "d2h", "write"), Copy(0.0, 0.0, 1e9))


def sample(positions: float, seconds: float, k: float = 16.0) -> Sample:
    shape = (positions, 16.0, k, 16.0, 9.0, 1.0)
    return Sample(2 * math.prod(shape) / 16, 4 * positions, shape, seconds)


def modelled(*samples: Sample) -> Model:
    return Model("m", COPIES, {"*/*/*": Compute(0.0, 1e9), KEY: Compute(0.0, 1e9, samples=samples)})


def seconds(model: Model, s: Sample) -> float:
    return float(model.compute(KEY).seconds(s.effort, s.nbytes, 1, s.shape))


def test_a_tile_measured_often_is_predicted_as_measured() -> None:
    """Measurements are noisy: one is believed by four fifths."""
    slow, fast = sample(64, 1e-3), sample(1 << 16, 0.3)
    model = modelled(*[slow] * 8, *[fast] * 8)
    assert seconds(model, slow) == pytest.approx(slow.seconds, rel=0.1)
    assert seconds(model, fast) == pytest.approx(fast.seconds, rel=0.1)
    line, once = slow.effort / 1e9, seconds(modelled(slow, fast), slow)
    assert 0.7 < math.log(once / line) / math.log(slow.seconds / line) < 0.9


def test_what_is_near_is_alike_and_what_is_far_is_the_line_with_caution() -> None:
    known = sample(1024, 5.0)
    model = modelled(known)
    near, far = sample(1100, 0.0), sample(1 << 24, 0.0, k=2.0)
    line = near.effort / 1e9
    assert seconds(model, near) > 1.5 * line  # towards what was measured
    assert seconds(model, far) == pytest.approx(far.effort / 1e9 * math.exp(CAUTION * SPREAD), rel=1e-3)


def test_the_model_says_how_sure_it_is() -> None:
    known, far = sample(1024, 1e-3), sample(1 << 24, 0.0, k=2.0)
    entry = modelled(known).compute(KEY)
    assert entry.spread(known.shape) < 1.5 * NOISE
    assert entry.spread(far.shape) == pytest.approx(math.hypot(SPREAD, NOISE), rel=1e-2)
    assert modelled().spread([Work(KEY, 1.0, 1, known.shape)]) == math.hypot(SPREAD, NOISE)
    work = Work(KEY, known.effort, int(known.nbytes), known.shape)
    assert modelled(known).spread([work, work]) == pytest.approx(entry.spread(known.shape))


def test_many_shapes_at_once_are_each_of_them() -> None:
    model = modelled(sample(64, 1e-3), sample(4096, 1e-3))
    sizes = np.array([64.0, 300.0, 1e6])
    shape = (sizes, 16.0, 16.0, 16.0, 9.0, 1.0)
    together = model.compute(KEY).seconds(sizes, sizes, 1, shape)
    each = [model.compute(KEY).seconds(v, v, 1, (v, *shape[1:])) for v in sizes]
    np.testing.assert_allclose(together, each, rtol=1e-5)  # factors have the digits of f32


def test_an_entry_predicts_what_it_was_made_of() -> None:
    ops = [parse(f"conv.fprop n=1 c={c} h={h} w=16 k=16 r=3 s=3 pad=1") for c in (4, 16, 64) for h in (4, 16, 64)] * 4
    took = [1e-5 + op.flops(op.dims) / 1e10 * (3 if op.dims["c"] < 8 else 1) for op in ops]
    entry, error = compute_entry(ops, took)
    assert error < 0.5 and len(entry["samples"]) == 36
    made = Compute(*[entry[k] for k in ("latency_seconds", "flops_per_second", "bytes_per_second")],
                   tuple(Sample(r[0], r[1], tuple(r[2:8]), r[8]) for r in entry["samples"]))  # fmt: skip
    for op, real in zip(ops, took, strict=True):
        assert made.seconds(op.effort(op.dims), op.touched_bytes(op.dims), 1, op.shape(op.dims)) == pytest.approx(real, rel=0.15)


def test_few_tiles_of_a_type_are_known_by_those_of_another() -> None:
    """Thin tiles are slow in both types; only one of them was measured on thin tiles."""
    slower = [1.0 + 8 / k for k in (2.0, 4.0, 16.0, 64.0)]
    known = [
        sample(2.0**i, 2.0**i * s * 1e-6 * k, k)
        for i in range(6, 12)
        for k, s in zip((2.0, 4.0, 16.0, 64.0), slower, strict=True)
    ]
    few = [s._replace(seconds=2 * s.seconds) for s in known if s.shape[2] == 64.0][:3]
    thin = known[0]

    def predicted(entry: dict[str, Any]) -> float:
        line = [entry[k] for k in ("latency_seconds", "flops_per_second", "bytes_per_second")]
        made = Compute(*line, tuple(Sample(r[0], r[1], tuple(r[2:8]), r[8]) for r in entry["samples"]))
        return float(made.seconds(thin.effort, thin.nbytes, 1, thin.shape))

    assert predicted(tiles_entry(few, known)) == pytest.approx(2 * thin.seconds, rel=0.2)
    assert abs(math.log(predicted(tiles_entry(few)) / (2 * thin.seconds))) > 0.5
    assert tiles_error(few, known) < 0.2
    assert len(tiles_entry(few * MOST, known)["samples"]) == 3 * MOST  # no room for others


def test_every_plan_and_report_carries_the_bound() -> None:
    x, w = np.ones((4, 8, 24, 24), np.float32), np.ones((8, 8, 3, 3), np.float32)
    with ooc.device("cpu", "96 KiB", threads=1):
        ooc.conv(x, w, padding=1)
    report = ooc.last_report()
    assert report is not None and report.bound_seconds == sum(p.bound_seconds for p in report.plans) > 0
    assert report.bound_share == pytest.approx(report.bound_seconds / report.elapsed_seconds)
    assert "bound " in str(report) and "bound " in str(report.plans[0])
    assert ooc.Plan.from_json(report.plans[0].to_json()).bound_seconds == report.plans[0].bound_seconds


def test_the_bound_is_the_busiest_of_computing_and_moving_once() -> None:
    text = "conv.fprop n=4 c=8 h=32 w=32 k=16 r=3 s=3 pad=1"
    op = parse(text)
    plan = ooc.plan(text, "64 KiB", device="null", calibration="h200")
    model = load_device("h200")
    compute = model.compute("conv.fprop/f32/null").seconds(op.effort(op.dims), op.touched_bytes(op.dims), 1, op.shape(op.dims))
    given, made = sum(o.nbytes for o in op.inputs), sum(o.nbytes for o in op.outputs)
    lanes = [given / model.copy("read").bytes_per_second, given / model.copy("h2d").bytes_per_second]
    lanes += [made / model.copy(lane).bytes_per_second for lane in ("d2h", "write")]
    assert plan.bound_seconds == pytest.approx(max(compute, *lanes))


def test_alternatives_fit_and_differ() -> None:
    device = ooc.device("cpu", "128 KiB")
    op = parse("conv.fprop n=4 c=16 h=32 w=32 k=16 r=3 s=3 pad=1")
    places = {o.name: Place.HOST for o in op.operands}
    greedy, some = alternatives(op, device.planner.budget(places), device.backend, device.model, 20, random.Random(0))
    assert len(greedy) == 1 and len(some) == len({(p.tile, p.order, p.depth, p.kernel) for p in some}) == 20
    assert all(p.peak_bytes <= 128 << 10 and p.predicted_seconds > 0 for p in greedy + some)
    assert device.planner.plan(op, places).predicted_seconds <= 1.1 * min(p.predicted_seconds for p in greedy + some)
    assert alternatives(op, device.planner.budget(places), device.backend, device.model, 0, random.Random(0))[1] == []


# ---- check


def test_spearman_by_hand() -> None:
    assert check.spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert check.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert check.spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert check.spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(0.75))
    assert check.spearman([1, 1], [1, 2]) == 0


def rows(*errors: float, **more: float) -> list[dict[str, Any]]:
    return [{"error": e, "unsteady": [], **more} for e in errors]


def test_the_summary_says_whether_the_aims_are_met() -> None:
    good = check.summary(rows(*[0.1] * 9, -0.9, rank=0.9, regret=0.02, over_greedy=-0.1))
    assert good.good and (good.median, good.ninth, good.worst) == (0.1, 0.1, 0.9) and str(good).endswith("the aims are met")
    assert not check.summary(rows(*[0.1] * 8, 0.31, 0.31, rank=0.9, regret=0, over_greedy=0)).good
    assert not check.summary(rows(0.16, 0.16, rank=0.9, regret=0, over_greedy=0)).good
    assert not check.summary(rows(0.1, rank=0.79, regret=0, over_greedy=0)).good
    assert not check.summary(rows(0.1)).good  # nothing was ranked


def test_the_summary_says_how_steady_the_machine_was() -> None:
    first, second = ({**row, "unsteady": apart} for row, apart in zip(rows(0.1, 0.1), ([-0.3, 0.1, 0.1, 0.1, 0.2], [0.0] * 5)))
    told = check.summary([first, second])
    assert (told.unsteady, told.unsteady_ninth) == (pytest.approx(0.05), 0.2)
    assert math.isnan(check.summary(rows(0.1)).unsteady)  # each plan ran but once
    assert check.apart([2.0, 1.0, 4.0]) == pytest.approx([2 / 2.5 - 1, 1 / 3 - 1, 4 / 1.5 - 1])
    assert check.apart([2.0]) == []


def test_questions_are_fresh_and_repeatable() -> None:
    one, same, other = ([question(rng) for _ in range(12)] for rng in map(random.Random, (1, 1, 2)))
    assert one == same and one != other
    assert {Place.DISK in q.places.values() for q in one} == {True, False}
    assert all(parse(str(q.op)) == q.op for q in one)


def test_questions_of_problems_are_all_or_some_of_them() -> None:
    ops = [parse(f"conv.fprop n=2 c=8 h=400 w=400 k={k} r=3 s=3") for k in (8, 16)]
    every = check.questions_of(ops, None, None, 0)
    sizes = [sum(o.nbytes for o in q.op.operands) for q in every]
    assert [size // q.budget for size, q in zip(sizes, every)] == [2, 5, 10, 20, 50] * 2
    some = check.questions_of(ops, None, 3, 1)
    assert len(some) == 3 and all(q in every for q in some) and some != check.questions_of(ops, None, 3, 2)
    assert {q.op.dims["n"] for q in check.questions_of(ops, 4, None, 0)} == {4}


def test_rows_of_samples_are_the_samples() -> None:
    some = (sample(4, 1.0), sample(8, 0.25), sample(16, 3.5))
    rows = SampleRows(some)
    assert rows == some and hash(rows) == hash(some) and list(rows[1:]) == [*some[1:]] and rows[-1] == some[-1]
    assert rows != some[:2] and SampleRows([]) == () and not SampleRows([])


def test_a_calibration_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text((DEVICES / "cpu.json").read_text())
    first = load_device(path)
    assert load_device(path) is first and ooc.device("cpu", calibration=path).model is first
    path.write_text(path.read_text().replace(json.dumps(first.name), '"another"'))
    assert load_device(path).name == "another" != first.name
    path.write_text("{")
    with pytest.raises(ValueError, match=r"mine\.json"):
        load_device(path)


@pytest.mark.parametrize(("moments", "apart"), [(1, 0), (2, 3), (3, 2)])
def test_calibrations_measure_everything_at_so_many_moments(moments: int, apart: int) -> None:
    given: list[Any] = list(range(12))
    rounds = calibrate._rounds(given, 6, moments)
    assert len(rounds) == 6 and len({len(some) for some in rounds}) == 1
    for one in given:
        when = [i for i, some in enumerate(rounds) if one in some]
        assert len(when) == moments and {b - a for a, b in itertools.pairwise(when)} <= {apart}


def test_calibrations_begin_with_one_of_each_kernel() -> None:
    """So that a slow machine leaves out a little of everything, and nothing altogether."""
    device = ooc.device("cpu")
    given, mixed = list(calibrate._rehearsals(device, True)), calibrate._mixed(calibrate._rehearsals(device, True))
    assert len(mixed) == len(given) and all(one in mixed for one in given)
    kinds = [(plan.op.kind, plan.kernel, plan.op.inputs[0].dtype, plan.places, kept) for plan, kept in mixed]
    every = Counter(kinds)
    assert len(set(kinds[: len(every)])) == len(every) > 40
    half = Counter(kinds[: len(kinds) // 2])
    assert all(abs(half[kind] - count / 2) <= max(1, 0.15 * count) for kind, count in every.items() if count > 4)


def test_what_cannot_win_runs_no_more() -> None:
    asked = question(random.Random(3))
    race = check._Race(asked, ooc.device("cpu"), [], False, [[0.1, 0.5], [0.3], [0.1, 0.12], [0.04], [0.9, 1.2]])
    assert [race.tells(seen) for seen in race.seconds] == [True, False, False, True, False]
    race.seconds[0] = [1.5, 0.6]
    assert not race.tells(race.seconds[0])


def test_check_measures_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from perfmodel.__main__ import main

    out = tmp_path / "check.jsonl"
    command = ["check", "--problems", "2", "--ranked", "1", "--plans", "3", "--seed", "5", "--out", str(out)]
    assert main(command) in (0, 1)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[: check.VISITS]] == ["visit"] * check.VISITS and len(said) == check.VISITS + 6
    assert said[-4].startswith("the machine: tiles take ") and said[-3].startswith("the machine: a run of a plan is ")
    assert said[-2].startswith("simulator: ") and said[-1].startswith("check: error median ")

    head, told, *found = [json.loads(line) for line in out.read_text().splitlines()]
    assert "commit" in head["system"] and told["seed"] == 5 and told["slower"] > 0 and len(found) == 2
    for row in found:
        assert row["error"] == pytest.approx(row["predicted_seconds"] / row["measured_seconds"] - 1)
    ranked = [row for row in found if "rank" in row]
    assert len(ranked) == 1 and ranked[0]["measured_seconds"] == ranked[0]["all_measured"][0]
    assert ranked[0]["regret"] == pytest.approx(ranked[0]["measured_seconds"] / min(ranked[0]["all_measured"]) - 1)


def test_ten_thousand_steps_are_simulated_one_by_one() -> None:
    """No timed test: what they take is printed by `python -m perfmodel check`."""
    from ooc.model.simulate import simulate
    from ooc.schedule.lowering import lower

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = ooc.plan("conv.fprop n=512 c=64 h=56 w=56 k=64 r=3 s=3 pad=1", "1 MiB", device="null", calibration="h200")
    steps = lower(plan).steps
    timeline = simulate(steps, load_device("h200"))
    assert len(steps) >= 10_000 and len(timeline.ends) == len(steps)
    assert timeline.seconds == pytest.approx(plan.predicted_seconds, rel=0.1)
