"""What predictions rest on, and what would change them: said where numbers were not measured, planned and not guessed."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import ooc
from ooc.errors import BudgetError
from ooc.ir.op import Op
from ooc.model.calibration import load_device
from ooc.ops.descriptor import parse
from ooc.planner import explain
from ooc.planner.basis import PlannedOp, change, enough_of_disk, rests_on
from ooc.runtime.device import Device
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan, WrittenReasons

pytestmark = pytest.mark.quick

WIDE = "conv.fprop n=4 c=16 h=64 w=64 k=16 r=3 s=3 pad=1"  # copies take longest on every GPU
DEEP = "conv.fprop n=8 c=512 h=56 w=56 k=512 r=3 s=3 pad=1"  # computing does


def asked(text: str, name: str, **places: str) -> tuple[Device, PlannedOp]:
    device = ooc.device("null" if name != "cpu" else "cpu", "1 MiB" if text == WIDE else "64 MiB", calibration=name)
    op = parse(text)
    where = {o.name: Place(places.get(o.name, "host")) for o in op.operands}
    return device, PlannedOp(op, where, device.planner.plans(op, where))


def test_what_binds_and_where_its_numbers_are_from() -> None:
    device, case = asked(WIDE, "rtx4090")
    text = case.plans[0].rests
    assert text.startswith("bound by the read lane: staging copies at 10 GB/s, assumed; assumed too: write")
    assert text == rests_on(case.plans, device.model) and f"rests on  {text}" in str(case.plans[0])
    assert ooc.Plan.from_json(case.plans[0].to_json()).rests == text
    pinned = asked(WIDE, "rtx4090", x="pinned", w="pinned", y="pinned")[1].plans[0].rests
    assert re.match(r"bound by the (h2d|d2h) lane: the link at 25 GB/s, datasheet", pinned) and "assumed" not in pinned
    assert asked(DEEP, "k40")[1].plans[0].rests.startswith("bound by compute: kernels (*/f32/cudnn_winograd), assumed")
    double = asked(f"{DEEP} dtype=f64", "k40")[1].plans[0].rests
    assert double.startswith("bound by compute: kernels (*/f64/*), datasheet")


def test_files_are_said_to_be_assumed_where_a_calibration_knows_no_disk() -> None:
    device, case = asked(WIDE, "h100", x="disk", y="disk")
    assert "files taken to be as fast as staging copies, 10 GB/s, assumed; assumed too: write" in case.plans[0].rests
    measured = replace(device.model, origins={})  # of a GPU that was measured the disk still was not
    assert "files taken to be as fast as staging copies, 10 GB/s, assumed" in rests_on(case.plans, measured)
    assert rests_on(asked(WIDE, "h100")[1].plans, measured) == ""


def test_what_was_measured_is_not_said_to_be_assumed() -> None:
    for places in ({}, {"x": "disk", "y": "disk"}):
        plan = asked(WIDE, "cpu", **places)[1].plans[0]
        assert plan.rests == "" and "rests on" not in str(plan)
    half = asked(f"{WIDE} dtype=bf16", "cpu")[1]
    assert re.match(r"bound by compute: kernels \(conv.fprop/bf16/\w+\), assumed", half.plans[0].rests)
    assert rests_on([], load_device("h200")) == ""


@pytest.mark.parametrize("name", ["h200", "rtx4090", "l4"])
def test_pinned_memory_is_what_would_change_it(name: str) -> None:
    device, case = asked(WIDE, name)
    found = change([case], device.planner.plans)
    assert found is not None and set(found.places) >= {"x", "y"} and str(found).startswith("x=pinned ")
    there = device.planner.plans(case.op, {**case.places, **found.places})
    assert found.seconds == sum(p.predicted_seconds for p in there) < case.seconds
    assert change([case, case], device.planner.plans) == (found.places, pytest.approx(2 * found.seconds))


def test_nothing_is_said_where_nothing_would_change() -> None:
    device, case = asked(WIDE, "h200", x="pinned", w="pinned", y="pinned")
    assert change([case], device.planner.plans) is None and enough_of_disk([case], device.planner.plans) == ""
    device, case = asked(DEEP, "k40")
    assert change([case], device.planner.plans) is None  # computing hides the copies
    device, case = asked(WIDE, "cpu", x="disk")
    assert enough_of_disk([case], device.planner.plans) == ""  # its disk was measured
    assert change([], device.planner.plans) is None and enough_of_disk([], device.planner.plans) == ""


def test_a_change_that_does_not_fit_is_none() -> None:
    def refuse(op: Op, places: Mapping[str, Place]) -> Any:
        raise BudgetError("too small")

    _, case = asked(WIDE, "h200", x="disk")
    assert change([case], refuse) is None and enough_of_disk([case], refuse) == ""


def test_the_disk_that_is_fast_enough_for_the_link() -> None:
    device, case = asked(DEEP.replace("r=3 s=3 pad=1", "r=1 s=1"), "h200", x="disk", y="disk")
    text = enough_of_disk([case], device.planner.plans)
    told = re.fullmatch(r"from some (\S+) GB/s on it is not the disk that binds but the (h2d|d2h) lane", text)
    assert told and 0.7 * 55 < float(told[1]) <= 55.0


def test_files_that_bind_on_a_processor_are_compared_with_memory() -> None:
    device, case = asked("pool.max n=64 k=64 h=64 w=64 window=2 stride=2", "cpu", x="disk", y="disk")
    busiest = max(case.plans[0].lane_seconds, key=lambda lane: case.plans[0].lane_seconds[lane])
    found = change([case], device.planner.plans)
    assert busiest == "read" and found and str(found) == "x=host y=host" and found.seconds < case.seconds


def test_reasons_are_found_out_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []
    for name in ("bound_of", "rests_on"):
        own = getattr(explain, name)
        monkeypatch.setattr(explain, name, lambda *given, own=own, name=name: (asked_for.append(name), own(*given))[1])
    device = replace(ooc.device("cpu", "96 KiB", calibration="k40"), pinned_bytes=1 << 30)  # a planner of its own
    plan = device.planner.plan(parse("conv.fprop n=3 c=8 h=31 w=31 k=8 r=3 s=3"), {})
    assert not asked_for and plan.tiles > 1
    text = str(plan)
    assert asked_for == ["bound_of", "rests_on"] and "bound " in text and "greedy point" in text
    assert str(plan) == text and len(asked_for) == 2
    told = ooc.Plan.from_json(plan.to_json())
    assert str(told) == text and told == plan and pickle.loads(pickle.dumps(plan)).reasons == told.reasons


def test_what_was_predicted_decides_nothing() -> None:
    """A call that is resumed may be predicted by another calibration."""
    plan = ooc.plan("conv.fprop n=3 c=8 h=31 w=31 k=8 r=3 s=3", device="cpu", budget="96 KiB")
    other = replace(
        plan, predicted_seconds=7.0, spread=0.5, lane_seconds={}, lane_bytes={}, calibration="other", reasons=WrittenReasons()
    )
    assert other.decision == plan.decision
    assert all(replace(plan, **change).decision != plan.decision for change in (  # type: ignore[arg-type]
        {"depth": plan.depth + 1}, {"kernel": "other"}, {"in_turn": not plan.in_turn}, {"order": plan.order[::-1]},
        {"tile": (("n", 2), *plan.tile[1:])}, {"workspace_bytes": plan.workspace_bytes + 1},
    ))  # fmt: skip


def test_one_tile_says_why_nothing_else_was_looked_for() -> None:
    plan = ooc.plan("pool.max n=1 k=4 h=16 w=16 window=2 stride=2", device="cpu", calibration="cpu")
    assert plan.tiles == 1 and plan.why == "one tile, in less time than a search would take"
    assert isinstance(plan, Plan) and plan.binds.startswith("bound by ")
