"""The physical bound: no plan and no report without it, and it is that of computing and of moving once."""

from __future__ import annotations

import numpy as np
import pytest

import ooc
from ooc.model.calibration import load_device
from ooc.ops.descriptor import parse

pytestmark = pytest.mark.quick


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
    compute = model.compute("conv.fprop/f32/null").seconds(op.effort(op.dims), op.touched_bytes(op.dims))
    given, made = sum(o.nbytes for o in op.inputs), sum(o.nbytes for o in op.outputs)
    lanes = [given / model.copy("read").bytes_per_second, given / model.copy("h2d").bytes_per_second]
    lanes += [made / model.copy(lane).bytes_per_second for lane in ("d2h", "write")]
    assert plan.bound_seconds == pytest.approx(max(compute, *lanes))
