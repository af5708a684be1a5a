"""Calls on their own, in tiles: never above the budget, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sweeps import crossed

import ooc
from ooc import Graph
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge
from ooc.networks.plan import NetworkPlan
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.scene import Scene
from ooc.networks.tensors import Mode
from ooc.networks.where import space_of
from ooc.networks.writer import network


def graph() -> Graph:
    g = Graph("deep")
    h = g.conv(g.input("x", (3, 12, 12), "f64"), 8, 3, padding=1, activation="relu")
    h = g.add(g.conv(h, 8, 3, padding=1), h)
    h = g.conv(g.conv(h, 32, 3, stride=3), 64, 3, stride=2, padding=1, bias=True)
    logits = g.linear(g.flatten(h), 5)
    g.loss("cross_entropy", logits)
    g.output(logits)
    return g


def results(plan: Any) -> tuple[float, Any]:
    """The loss of a step, and the outputs of an inference after it."""
    x = np.random.default_rng(0).standard_normal((4, 3, 12, 12))
    with plan.session() as session:
        return session.step(x, np.arange(4)), session.forward(x)


@pytest.mark.parametrize(("pinned", "home"), crossed([None, "64 KiB"], ["disk", "host"], every=2))
def test_partial_sums_and_rings_count(pinned: str | None, home: str) -> None:
    """One call needs much for its tiles, another one less, but also room for partial sums, or a staging ring."""
    device = ooc.device("cpu", threads=2, pinned=pinned)
    wanted = results(graph().plan(batch=4, device=ooc.device("cpu", threads=2)))
    least = graph().plan(batch=4, policy="stream", device=device, home=home).smallest_bytes
    for room in (12 << 10, 44 << 10, 24 << 10):
        plan = graph().plan(batch=4, policy="stream", budget=least + room, device=device, home=home)
        assert sum(plan.peaks[space] for space in ("device", "staging", "pinned")) <= least + room
    loss, logits = results(plan)
    assert loss == pytest.approx(wanted[0], rel=1e-12)
    np.testing.assert_allclose(logits, wanted[1], rtol=1e-9, atol=1e-12)


def test_nothing_takes_the_place_of_what_is_streamed() -> None:
    """An element by element call reads what has no place on the device, and makes an output."""
    g = Graph("mixed")
    h = g.conv(g.input("x", (3, 12, 12)), 8, 3, padding=1)
    shifted = g.affine(h, "shift", np.arange(8.0).reshape(8, 1, 1), name="shifted")
    g.output(g.activation(shifted, "tanh", name="out"))
    device = ooc.device("cpu", threads=2)
    net = network(g, 2, Mode.INFER, None, True)
    judge = Judge(net, Scene(CallCosts(device, True), space_of("disk", device)), None)
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype("f4")
    with NetworkPlan.of(judge, "keep", {}, Proposal("all stays"), 0).session() as session:
        wanted = session.forward(x)
    mixed = Proposal("one in tiles", {"shifted": Fate.STREAM})
    with NetworkPlan.of(judge, "keep", {}, mixed, 0).session() as session:
        np.testing.assert_array_equal(session.forward(x), wanted)
