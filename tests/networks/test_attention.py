"""Networks with attention and products under budgets: the bits of keeping all, without races, within what was predicted."""

from __future__ import annotations

import random
from typing import Any

import pytest
from emulated_driver import emulated
from networks import data, differing, planned, run, smallest
from races import races
from sweeps import crossed

import ooc
from ooc.model.calibration import load_device
from ooc.runtime.device import Device

BATCH = 3
BUDGETS = (0, 2 << 10, 16 << 10, 256 << 10, None)  # below the smallest one: that


def attentive(masked: bool) -> ooc.Graph:
    """Two heads of twelve tokens, whose bias the network computes; what comes of them meets in products."""
    g = ooc.Graph("attentive")
    x = g.input("x", (3, 12, 10))
    q, k, v = (g.conv(x, 2, 3, padding=1, bias=True, name=name) for name in "qkv")
    bias = g.function(g.matmul(q, k, "nt", alpha=0.1), "above", a=-0.2) if masked else g.matmul(q, k, "nt", alpha=0.1)
    y = g.attention(q, k, v, bias, name="attention")
    mixed = g.matmul(g.matmul(y, v, "tn"), g.activation(k, "tanh"), "nt", name="mixed")
    g.output(y)
    g.loss("cross_entropy", g.linear(g.global_pool(g.conv(mixed, 4, 3, padding=1, activation="relu")), 3, bias=True))
    return g


def device_of(name: str, seed: int) -> Any:
    if name == "cpu":
        return ooc.device("cpu", threads=2)
    return Device(emulated(seed, cudnn=True), load_device("p100"), deterministic=True)


@pytest.mark.parametrize(("name", "policy"), crossed(("cpu", "emulated"), ("vdnn_all", "superneurons", "auto"), every=2))
def test_the_bits_of_keeping_all(name: str, policy: str) -> None:
    graph = attentive(name == "cpu")
    x, labels = data(graph, BATCH)
    device = device_of(name, 1)
    expected = run(planned(graph, "keep", None, device, BATCH), x, labels)
    least = smallest(graph, policy, device, BATCH)
    for budget in BUDGETS:
        within = None if budget is None else max(budget, least)
        plan = planned(graph, policy, within, device, BATCH)
        assert races(plan.steps(), plan.schedule.layout) == []
        assert within is None or plan.peaks["device"] <= within
        assert not differing(run(plan, x, labels), expected), (budget, plan.why)
        with plan.session() as session:
            held = session._main.machine.space_bytes  # type: ignore[union-attr]
        assert held["device"] <= plan.peaks["device"]


@pytest.mark.parametrize("name", ["cpu", "emulated"])
def test_inference_has_the_same_bits(name: str) -> None:
    graph = attentive(False)
    x, _ = data(graph, BATCH)
    device = device_of(name, 2)

    def outputs(budget: int | None) -> Any:
        plan = graph.plan(batch=BATCH, train=False, budget=budget, device=device, deterministic=True)
        with plan.session(seed=1) as session:
            return session.forward(x)

    expected = outputs(None)
    least = graph.plan(batch=BATCH, train=False, device=device, deterministic=True).smallest_bytes
    for budget in BUDGETS[:-1]:
        assert not differing({"y": outputs(max(budget or 0, least))}, {"y": expected})


def test_waits_that_are_left_out_are_races() -> None:
    graph = attentive(False)
    device = device_of("emulated", 3)
    plan = planned(graph, "vdnn_all", None, device, BATCH)
    steps = plan.steps()
    assert races(steps, plan.schedule.layout) == []
    waits = [(i, j) for i, step in enumerate(steps) for j in step.after if steps[j].lane != step.lane]
    for i, j in random.Random(0).sample(waits, min(12, len(waits))):
        mutant = [*steps]
        mutant[i] = steps[i]._replace(after=tuple(k for k in steps[i].after if k != j))
        assert races(mutant, plan.schedule.layout), f"{i} need not wait for {j}"
