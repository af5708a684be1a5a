"""What an update moves, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

import ooc

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_parameters_that_the_loss_does_not_depend_on_stay(momentum: float) -> None:
    g = ooc.Graph("branches")
    x = g.input("x", (2, 5, 5))
    h = g.conv(x, 3, 3, bias=True, name="both")
    apart = g.batch_norm(g.conv(h, 2, 1, bias=True, name="apart"), name="norm")
    g.loss("cross_entropy", g.linear(g.flatten(h), 4, name="fc"))
    g.output(apart)
    plan = g.plan(batch=2, device=ooc.device("cpu", threads=1), optimizer=ooc.SGD(0.1, momentum, weight_decay=0.1))
    with plan.session() as session:
        before = session.parameters()
        session.step(np.ones((2, 2, 5, 5), np.float32), np.array([1, 2]))
        after, gradients = session.parameters(), session.gradients()
        statistics = session.statistics()
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert moved == {"both.w", "both.b", "fc.w"}
    assert {name for name, g in gradients.items() if g.any()} == moved
    assert statistics["norm.mean"].any()  # it has seen the batch all the same
