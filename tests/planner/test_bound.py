"""The bound: no plan and no report without it, none is predicted faster, and it is that of computing and of moving once."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.errors import BudgetError
from ooc.ir.axis_maps import Composed
from ooc.ir.coverage import TRIED, covered
from ooc.ir.op import Op
from ooc.ir.region import Along, AxisMap, Span, Unwindow, Whole, Window
from ooc.model.calibration import load_device, shipped
from ooc.ops.descriptor import parse
from ooc.planner.alternatives import alternatives
from ooc.runtime.report import Report
from ooc.schedule.place import Place
from ooc.schedule.plan import WrittenReasons
from perfmodel.problems.sets import problem_sets, problems

RATIOS = (1, 8, 50)  # tensors over budget
MOST = 3  # parts of a long set
ALL = tuple(op for name in problem_sets() for op in problems(name))
DEVICES = (("cpu", "cpu"), *(("null", name) for name in shipped()))  # every calibration, with the backends that plan by it
GAPS = (  # windows that leave positions of x unread
    "conv.fprop n=8 c=256 h=56 w=56 k=128 r=1 s=1 stride=2 pad=0 dtype=f32",
    "conv.dgrad n=2 c=16 h=29 w=29 k=16 r=1 s=1 stride=2 dtype=f32",
    "conv.fprop n=2 c=8 h=60 w=60 k=8 r=3 s=3 pad=1 dtype=f32 | pool.max n=2 k=8 h=60 w=60 window=2 stride=5 dtype=f32",
)  # fmt: skip


def beaten(op: Op, backend: str, calibration: str, place: Place, ratio: int, rng: random.Random, count: int = 3) -> list[str]:
    """The plans that are predicted faster than the bound allows: of the chosen one, the greedy one, and random ones."""
    base = ooc.device(backend, calibration=calibration)
    device = replace(base, device_bytes=max(1 << 16, sum(o.nbytes for o in op.operands) // ratio))
    places = {o.name: place for o in op.operands}
    try:
        chosen, bound = device.planner.plans(op, places), device.planner.bound(op, places)
        greedy, some = alternatives(op, device.planner.budget(places), device.backend, device.model, count, rng)
    except BudgetError:
        return []
    found = [(f"{len(chosen)} chosen", sum(p.predicted_seconds for p in chosen), bound.seconds)]
    found += [(repr(p), p.predicted_seconds, bound.seconds) for p in (*greedy, *some)]
    found += [(repr(p), p.predicted_seconds, p.bound_seconds) for p in chosen]
    return [f"{name}: {seconds} < {least}" for name, seconds, least in found if seconds < least * (1 - 1e-9)]


def places_of(backend: str) -> tuple[Place, ...]:
    """A processor uses memory of the host in place, pinned or not."""
    return (Place.HOST, Place.DISK) if backend == "cpu" else (Place.HOST, Place.DISK, Place.PINNED)


@pytest.mark.quick
@pytest.mark.parametrize(("backend", "calibration"), DEVICES)
def test_no_plan_is_predicted_faster_than_the_bound(backend: str, calibration: str) -> None:
    rng = random.Random(f"{backend} {calibration}")
    for op in (*map(parse, GAPS), *rng.sample(ALL, 1)):
        assert not beaten(op, backend, calibration, rng.choice(places_of(backend)), rng.choice(RATIOS), rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", problem_sets())
@pytest.mark.parametrize(("backend", "calibration"), DEVICES)
def test_no_plan_of_any_problem_is_predicted_faster(backend: str, calibration: str, name: str) -> None:
    rng, ops = random.Random(name), problems(name)
    turn = DEVICES.index((backend, calibration)) % MOST  # of a long set each calibration has another part
    for op in ops[turn::MOST] if len(ops) > 30 else ops:
        for place in places_of(backend):
            for ratio in RATIOS:
                assert not beaten(op, backend, calibration, place, ratio, rng)


@pytest.mark.quick
def test_every_plan_and_report_carries_the_bound() -> None:
    x, w = np.ones((4, 8, 24, 24), np.float32), np.ones((8, 8, 3, 3), np.float32)
    with ooc.device("cpu", "96 KiB", threads=1):
        ooc.conv(x, w, padding=1)
    report = ooc.last_report()
    assert report is not None and report.bound_seconds == sum(p.bound_seconds for p in report.plans) > 0
    assert report.bound_share == pytest.approx(min(1.0, report.bound_seconds / report.elapsed_seconds))
    assert "bound " in str(report) and "bound " in str(report.plans[0])
    assert ooc.Plan.from_json(report.plans[0].to_json()).bound_seconds == report.plans[0].bound_seconds


def took(seconds: float) -> Report:
    """A report of a run that took so long, by its plan, which is bound by 2 s."""
    plan = replace(ooc.plan("conv.fprop n=1 c=8 h=8 w=8 k=8 r=3 s=3", device="cpu"), reasons=WrittenReasons(bound_seconds=2.0))
    part: Any = SimpleNamespace(algorithms={}, 
        schedule=SimpleNamespace(plan=plan, nbytes=3 << 10), seconds=seconds, lane_bytes={}, lane_seconds={}, steps=3, rest=None,
    )  # fmt: skip
    return Report((part,), seconds, 0)


@pytest.mark.quick
def test_a_run_reaches_no_more_than_the_bound() -> None:
    slow, equal, fast = (str(took(seconds)).splitlines()[-1] for seconds in (4.0, 2.0, 1.5))
    assert slow == "bound     2 s, 50% reached" and equal == "bound     2 s, 100% reached"
    assert "faster than its calibration" in fast and "ooc calibrate" in fast and "%" not in fast
    assert [took(seconds).bound_share for seconds in (4.0, 2.0, 1.5)] == [0.5, 1.0, 1.0]


@pytest.mark.quick
def test_the_bound_is_the_busiest_of_computing_and_moving_once() -> None:
    text = "conv.fprop n=4 c=8 h=32 w=32 k=16 r=3 s=3 pad=1"
    op = parse(text)
    plan = ooc.plan(text, "64 KiB", device="null", calibration="h200")
    model = load_device("h200")
    compute = model.compute("conv.fprop/f32/null").at_best(op.effort(op.dims), op.touched_bytes(op.dims))
    given, made = sum(o.nbytes for o in op.inputs), sum(o.nbytes for o in op.outputs)
    lanes = [given / model.copy("read").bytes_per_second, given / model.copy("h2d").bytes_per_second]
    lanes += [made / model.copy(lane).bytes_per_second for lane in ("d2h", "write")]
    assert plan.bound_seconds == pytest.approx(max(compute, *lanes))


@pytest.mark.quick
def test_what_the_page_cache_holds_is_read_at_its_rate() -> None:
    text, model = "pool.max n=4 k=64 h=256 w=256 window=2 stride=2", load_device("cpu")
    plan = ooc.plan(text, "4 MiB", places={"x": "disk", "y": "disk"}, device="cpu", calibration="cpu")
    cached = parse(text).inputs[0].nbytes / max(model.copy(lane).bytes_per_second for lane in ("read", "cached"))
    assert model.best_rate("write") == model.copy("write").bytes_per_second
    assert plan.bound_seconds >= cached and re.search(r"bound +\S+ s: \d?\d% reached", str(plan))


@pytest.mark.quick
def test_what_tiles_reach_of_an_axis() -> None:
    rng = random.Random(0)
    for _ in range(200):
        size, count = rng.randint(1, 40), rng.randint(1, 12)
        window = Window("p", rng.randint(1, 4), rng.randint(1, 6), rng.randint(1, 2), rng.randint(0, 3))
        inner = Unwindow("p", rng.randint(1, 3), rng.randint(1, 3), 1, rng.randint(0, 2))
        for axis in (window, inner, Composed(window, (("p", inner, 30),)), Composed(window, (("p", window, 30),))):
            spans = [axis.span({"p": Span(i, i + 1)}).clip(size) for i in range(count)]
            reached = {i for lo, hi in spans for i in range(lo, hi)}
            assert covered(axis, {"p": count}, size) == len(reached)
    assert covered(Along("p"), {"p": 7}, 7) == covered(Whole(7), {}, 7) == 7


@pytest.mark.quick
def test_what_tiles_reach_of_a_long_axis_is_not_overstated() -> None:
    axis: AxisMap = Window("p", 2, 3)
    for count in (TRIED, TRIED + 1, 5 * TRIED + 3, 1 << 40):
        reached = covered(axis, {"p": count}, 3 * count)
        assert (0.3 * 2 * count <= reached or count == TRIED + 1) and reached <= 2 * count
