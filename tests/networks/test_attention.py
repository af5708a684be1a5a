"""Networks with attention and products under budgets: the bits of keeping all, without races, within what was predicted."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
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


def test_masks_of_groups_beside_biases_of_heads() -> None:
    """Windows of two heads each: as NumPy has it, whole and under a budget that cuts it."""
    windows, heads, tokens, c = 3, 2, 5, 4
    graph = ooc.Graph("windows")
    names = [graph.input(name, (windows * heads, tokens, c)) for name in "qkv"]
    biases = [graph.input("bias", (heads, tokens, tokens)), graph.input("mask", (windows, tokens, 1))]
    graph.output(graph.attention(*names, *biases, scale=0.5, groups=windows, by=("khw", "gh")))
    draw = np.random.default_rng(0)
    fed = {name: draw.standard_normal((2, *graph.shapes[name])).astype("f4") for name in (*names, *biases)}
    q, k, v = (fed[name].astype("f8").reshape(2, windows, heads, tokens, c) for name in names)
    scores = q @ k.swapaxes(-1, -2) / 2 + fed["bias"][:, None] + fed["mask"][:, :, None]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True) @ v).reshape(2, windows * heads, tokens, c)
    for budget in (None, "4 KiB"):
        with graph.plan(batch=2, train=False, device="cpu", budget=budget).session() as session:
            np.testing.assert_allclose(session.forward(fed), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("groups", "by"), [(4, ("khw",)), (3, ()), (3, ("xw",)), (0, ("khw",)), (3, ("ghw",))])
def test_groups_and_letters_that_do_not_fit(groups: int, by: tuple[str, ...]) -> None:
    graph = ooc.Graph("windows")
    names = [graph.input(name, (6, 5, 4)) for name in "qkv"]
    with pytest.raises(ooc.ShapeError, match=r"attention: (expected|groups|by)"):
        graph.attention(*names, graph.input("bias", (2, 5, 5)), groups=groups, by=by)
