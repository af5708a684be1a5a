"""What no plan can beat: below every prediction, and no higher with more memory; by hand where that can be done."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from networks import random_graph, seeds

import ooc
from ooc.networks import POLICIES, Graph
from ooc.networks.bound import bound_seconds
from ooc.networks.tensors import Role
from ooc.planner.question import least_computing
from ooc.runtime.device import Device

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)


def device(name: str) -> Device:
    return ooc.device("null", calibration=name)


@pytest.mark.parametrize("seed", seeds(60, 1))
def test_no_plan_is_predicted_faster(seed: int) -> None:
    rng, graph = random.Random(seed), random_graph(seed)
    where, batch = device(rng.choice(("k40", "p100", "h200", "cpu"))), rng.choice((16, 64, 256))
    home = rng.choice(("pinned", "host", "disk"))
    keep = graph.plan(batch=batch, policy="keep", device=where, home=home)
    bounds = [keep.bound_seconds]
    for share in reversed(SHARES):
        budget = int(keep.peaks["device"] * share)
        for policy in ("auto", *rng.sample(list(POLICIES), 3)):
            try:
                plan = graph.plan(batch=batch, budget=budget, policy=policy, device=where, home=home)
            except (ooc.BudgetError, ooc.UnsupportedError):
                continue
            assert plan.bound_seconds <= plan.predicted_seconds * (1 + 1e-9), (policy, share, plan.why)
            bounds.append(plan.bound_seconds)
    assert bounds == sorted(bounds)


def chain(count: int, statistics: bool) -> Graph:
    graph = Graph("chain")
    h = graph.input("x", (1, 32, 32))
    for i in range(count):
        h = graph.conv(h, 8, 3, padding=1, name=f"conv{i}")
        if statistics:
            h = graph.batch_norm(h, activation="relu", name=f"norm{i}")
    graph.output(h)
    graph.loss("mse", h)
    return graph


def slow_link(where: Device, rate: float) -> Device:
    """The device with a link of so many bytes per second, both ways."""
    copies = {
        lane: replace(c, bytes_per_second=rate, latency_seconds=0.0, run_seconds=0.0) for lane, c in where.model.copies.items()
    }
    return replace(where, model=replace(where.model, copies=copies))


@pytest.mark.parametrize("times", [1e-9, 0.01, 0.2, 1.0])
def test_by_hand(times: float) -> None:
    """What no mixture of moving and making again goes below, tried one by one; times: seconds of moving the inputs, of those of
    computing everything once."""
    graph, where = chain(6, True), device("p100")
    net, scene = (plan := graph.plan(batch=64, device=where)).network, plan.scene
    least = {c.index: least_computing(c.op, scene.costs.offers(c.op), where.model) for c in net.calls}
    once, nbytes = sum(least.values()), sum(t.nbytes for t in net.tensors.values() if t.role is Role.INPUT and t.per_sample)
    rate = nbytes / (times * once)
    slow = graph.plan(batch=64, device=slow_link(where, rate)).scene
    norms = [c.index for c in net.forward if c.along is None and c.phase == "forward"]
    made = [t for t in net.kept if net.makers[t].index < norms[-1]]
    first = sum(s for i, s in least.items() if i < norms[-1])
    budget = sum(net.tensors[t].nbytes for t in made) // 4

    def again(left: float) -> float:
        seconds = 0.0
        for t in sorted(made, key=lambda t: least[net.makers[t].index] / net.tensors[t].nbytes):
            part = min(max(left, 0.0), net.tensors[t].nbytes)
            seconds += part * least[net.makers[t].index] / net.tensors[t].nbytes
            left -= part
        return seconds

    over = sum(net.tensors[t].nbytes for t in made) - budget
    tried = [max(first, m / rate) + max(once - first + again(over - m), m / rate) for m in np.linspace(0, over, 20001)]
    bound = bound_seconds(net, slow, budget)
    assert bound == pytest.approx(max(once, times * once, min(tried)), rel=1e-3) and bound <= max(once, min(tried)) * (1 + 1e-9)
    assert bound_seconds(net, slow, None) == pytest.approx(max(once, times * once))


def test_what_passes_in_parts_leaves_nothing_behind() -> None:
    plan = chain(6, False).plan(batch=64, device=slow_link(device("p100"), 1e9))
    assert bound_seconds(plan.network, plan.scene, 1 << 20) == bound_seconds(plan.network, plan.scene, None)
