"""Gradients from given ones of the outputs, of inputs and parameters, have the bits of those of a training step; what is lent is
read where it lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from networks import cpu, data, random_graph, seeds

import ooc
from ooc.networks import Graph

BATCH = 4


def budgets(graph: Graph, device: ooc.Device, **asked: Any) -> list[int | None]:
    """None, shares of what is taken without a limit, and the smallest."""
    free = graph.plan(batch=BATCH, device=device, deterministic=True, **asked)
    peak, least = free.peaks["device"], free.smallest_bytes
    return [None, max(peak // 3, least), max(peak // 10, least), least]


def values_of(graph: Graph, seed: int = 0) -> dict[str, Any]:
    """What a session with this seed begins with."""
    with graph.plan(batch=BATCH, device=cpu(), deterministic=True).session(seed=seed) as session:
        return session.parameters() | session.statistics()


@pytest.mark.parametrize("seed", seeds(30, 3))
@pytest.mark.parametrize("lent", [False, True])
def test_bits_of_a_step(seed: int, lent: bool) -> None:
    """The gradient of the loss, given to the logits, comes out as a step has it; at every budget."""
    graph, device = random_graph(seed), cpu()
    x, labels = data(graph, BATCH)
    own = values_of(graph) if lent else {}
    train: dict[str, Any] = {"device": device, "deterministic": True}
    with graph.plan(batch=BATCH, train=True, **train).session() as session:
        session.step(x, labels)
        wanted, moved = session.gradients(), session.statistics()
    with graph.plan(batch=BATCH, train="forward", lent=lent, **train).session() as session:
        y = session.forward({"x": x, **own} if lent else x)
        assert {n: v.tobytes() for n, v in session.statistics().items()} == {n: v.tobytes() for n, v in moved.items()}
    dy = ooc.cross_entropy_backward(y, labels)
    for budget in budgets(graph, device, train="backward", lent=lent):
        plan = graph.plan(batch=BATCH, train="backward", lent=lent, budget=budget, **train)
        used = {name: own[name] for name in plan.network.borrowed}
        with plan.session() as session:
            found = session.backward({"x": x, **used} if lent else x, dy)
        assert found.keys() == {"x", *wanted}
        odd = [name for name, value in wanted.items() if found[name].tobytes() != value.astype(found[name].dtype).tobytes()]
        assert not odd, (budget, plan.why, odd)
        assert np.any(found["x"])
        assert budget is None or plan.peaks["device"] <= budget
