"""What an interpreter or a notebook shows of plans, devices and reports: little, whatever their size."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ooc
from ooc.model.calibration import load_device
from ooc.model.simulate import Timeline, simulate
from ooc.runtime.report import Part, Report

MOST = 1000  # characters
LAYER = "conv.fprop n=4 c=16 h=96 w=96 k=16 r=3 s=3 pad=1 act=relu"

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def report() -> Report:
    """Of a run of hundreds of tiles."""
    with ooc.device("cpu", "24 KiB"):
        ooc.conv(np.ones((2, 8, 128, 128), np.float32), np.ones((8, 8, 3, 3), np.float32), padding=1)
    found = ooc.last_report()
    assert found is not None and found.tiles > 100
    return found


def test_a_report_is_shown_in_a_line(report: Report) -> None:
    shown, plan = repr(report), report.plans[0]
    assert len(shown) < MOST and "\n" not in shown
    assert all(word in shown for word in (str(plan.op), f"{report.tiles} tiles", f"{report.seconds:.3g} s", "peak "))
    assert str(report).startswith("tiles ") and "lanes " in str(report)


def test_what_a_report_holds_is_shown_in_a_line(report: Report) -> None:
    part = report.parts[0]
    told = Part(part.schedule, part.measured, simulate(part.schedule.steps, load_device("cpu"), part.schedule.alone))
    for shown in (
        repr(part),
        repr(told),
        repr(told.predicted),
        repr(part.schedule.plan),
        repr(part.schedule),
        repr(part.measured),
    ):
        assert 20 < len(shown) < MOST and "\n" not in shown
    assert f"{len(part.schedule.steps)} steps" in repr(part)


def test_a_report_of_many_parts_is_shown_in_a_line(report: Report) -> None:
    many = Report(report.parts * 500, 1.0, 1)
    assert len(repr(many)) < MOST and "500 parts" in repr(many)
    assert "nothing" in repr(Report((), 0.0, 0))


def test_a_plan_is_shown_in_a_line() -> None:
    plan = ooc.plan(LAYER, "64 KiB", device="null")
    shown = repr(plan)
    assert len(shown) < MOST and "\n" not in shown
    assert all(word in shown for word in ("<Plan conv.fprop n=4 ", f"{plan.tiles} tiles of ", "p=", "peak ", " s predicted>"))
    assert "nan" not in repr(dataclasses.replace(plan, predicted_seconds=float("nan")))


def test_a_plan_of_a_long_chain_is_shown_in_a_line() -> None:
    plan = ooc.plan(" | ".join([LAYER.replace("k=16", "k=16 groups=4")] * 16), device="null")
    assert len(str(plan.op)) > MOST
    long = dataclasses.replace(plan, kernel="k" * 10_000, calibration="c" * 10_000)
    assert len(repr(plan)) < MOST and len(repr(long)) < MOST


def test_a_device_is_shown_in_a_line() -> None:
    device = ooc.device("cpu", "1 MiB", pinned="2 MiB", workspace="3 MiB", deterministic=True)
    for shown in (repr(device), repr(device.model), repr(dataclasses.replace(device, workspace_yields=True))):
        assert 20 < len(shown) < MOST and "\n" not in shown
    assert all(word in repr(device) for word in ("cpu", "budget 1 MiB", "pinned 2 MiB", "workspace 3 MiB", "deterministic"))
    assert "no limit" in repr(ooc.device("cpu"))


def test_a_model_with_a_long_name_is_shown_in_a_line() -> None:
    assert len(repr(dataclasses.replace(load_device("cpu"), name="n" * 2000))) < MOST
    assert repr(Timeline([], [], {})) == "<Timeline 0 steps in 0 s>"


def test_what_is_shown_leaves_equality_alone(report: Report) -> None:
    plan = report.plans[0]
    again = ooc.Plan.from_json(plan.to_json())
    assert dataclasses.replace(plan) == plan and hash(dataclasses.replace(plan)) == hash(plan)
    assert again.op is plan.op and again.tile == plan.tile
    assert Report(report.parts, report.seconds, report.peak_bytes) == report
