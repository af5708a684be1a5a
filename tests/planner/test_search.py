"""The search among plans: alternatives, and finalists that are costed together."""

from __future__ import annotations

import random

import pytest
from calibrated import device, places

import ooc
from ooc.ops.descriptor import parse
from ooc.planner.alternatives import alternatives
from ooc.planner.alternatives import some as some_plans
from ooc.planner.confirm import confirm
from ooc.planner.question import Question
from ooc.planner.search import Search
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
