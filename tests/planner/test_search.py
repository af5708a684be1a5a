"""The search among plans: alternatives, and finalists that are costed together."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from calibrated import device, places

import ooc
from ooc.ir.op import Op
from ooc.ops.descriptor import parse
from ooc.planner import costs
from ooc.planner.alternatives import alternatives
from ooc.planner.alternatives import some as some_plans
from ooc.planner.confirm import confirm
from ooc.planner.explain import smallest_bytes
from ooc.planner.question import Question
from ooc.planner.search import Search
from ooc.runtime.engine import execute
from ooc.schedule.budget import parse_bytes
from ooc.schedule.place import Place

pytestmark = pytest.mark.quick


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


def test_alternatives_fit_and_differ() -> None:
    device = ooc.device("cpu", "128 KiB")
    op = parse("conv.fprop n=4 c=16 h=32 w=32 k=16 r=3 s=3 pad=1")
    places = {o.name: Place.HOST for o in op.operands}
    greedy, some = alternatives(op, device.planner.budget(places), device.backend, device.model, 20, random.Random(0))
    assert len(greedy) == 1 and len(some) == len({(p.tile, p.order, p.depth, p.kernel) for p in some}) == 20
    assert all(p.peak_bytes <= 128 << 10 and p.predicted_seconds > 0 for p in greedy + some)
    assert device.planner.plan(op, places).predicted_seconds <= 1.1 * min(p.predicted_seconds for p in greedy + some)
    assert alternatives(op, device.planner.budget(places), device.backend, device.model, 0, random.Random(0))[1] == []


LINES = (
    "conv.fprop n=2 c=32 h=12 w=12 k=32 r=3 s=3 pad=1", "conv.wgrad n=4 c=16 h=12 w=12 k=16 r=3 s=3 pad=1",
    "conv.dgrad n=2 c=32 h=12 w=12 k=32 r=3 s=3 pad=1", "reduce.bias n=4 k=16 h=12 w=12",
)  # fmt: skip


@pytest.mark.parametrize("name", ["null", "cpu"])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB", None])
def test_orders_that_spill_nothing_take_no_more_memory(
    line: str, budget: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few partial results may have a place, there is a plan, and the smallest budget is no larger."""

    op, where = parse(line), ooc.device(name, budget)
    outside = {o.name: Place.HOST for o in op.operands}
    tight = replace(where.planner.budget(outside), device_bytes=1)
    least = smallest_bytes(Question(op, tight, where.backend.offers(op), where.model))
    monkeypatch.setattr(costs, "MOST_SPILLED", 0)
    assert smallest_bytes(Question(op, tight, where.backend.offers(op), where.model)) == least
    plan = where.planner.plan(op, outside)
    assert plan.spill_buffers == ()
    if budget is not None:
        assert plan.peak_bytes <= (where.device_bytes or 0)
    if name == "cpu":
        assert_right(op, budget)


def assert_right(op: Op, budget: str | None) -> None:
    """Integers come out exactly, as they do without a limit."""
    rng = np.random.default_rng(0)
    inputs = {o.name: rng.integers(-3, 4, o.shape).astype(np.float32) for o in op.inputs}
    outputs = []
    for limit in (budget, None):
        outs = {o.name: np.empty(o.shape, np.float32) for o in op.outputs}
        with ooc.device("cpu", limit):
            execute(op, inputs, outs)
            report = ooc.last_report()
        assert report is not None and (
            limit is None or report.peak_bytes <= report.predicted_peak_bytes <= parse_bytes(limit, None)
        )
        outputs.append(outs)
    assert all(np.array_equal(outputs[0][name], outputs[1][name]) for name in outputs[0])
