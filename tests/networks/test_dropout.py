"""What dropout drops follows from the session's seed, the step, the layer's name and the index alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ooc
from ooc import Graph
from ooc.networks import models

COUNT, RATE = 4096, 0.25


def masked(names: tuple[str, ...] = ("drop",)) -> Graph:
    """x behind each dropout goes through a linear layer of its own, whose gradient is zero where x was dropped."""
    g = Graph("masked")
    x = g.input("x", (COUNT,))
    parts = [g.linear(g.dropout(x, RATE, name=name), 2, name=f"read {name}") for name in names]
    logits = parts[0]
    for part in parts[1:]:
        logits = g.add(logits, part)
    g.loss("cross_entropy", logits)
    g.output(logits)
    return g


def masks(steps: int, seed: int = 0, names: tuple[str, ...] = ("drop",), **options: Any) -> list[dict[str, Any]]:
    """In each step what became of ones behind each dropout, in units of the largest value."""
    plan = masked(names).plan(batch=1, device=ooc.device("cpu", threads=2), **options)
    start = {f"read {name}.w": np.zeros((2, COUNT)) for name in names}  # so that both classes are as likely
    found = []
    with plan.session(start, seed=seed) as session:
        for _ in range(steps):
            session.step(np.ones((1, COUNT), np.float32), np.array([0]))
            gradients = session.gradients()
            found.append({name: gradients[f"read {name}.w"][1] / 0.5 for name in names})
    return found


@pytest.mark.quick
def test_the_mask_changes_from_step_to_step() -> None:
    first, second, third = (m["drop"] for m in masks(3))
    for mask in (first, second, third):
        assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / (1 - RATE))}
        assert abs((mask == 0).mean() - RATE) < 0.04
    for a, b in ((first, second), (second, third), (first, third)):
        both = ((a == 0) & (b == 0)).mean()  # independent of each other
        assert abs(both - RATE**2) < 0.02


@pytest.mark.quick
def test_what_the_mask_follows_from() -> None:
    first = masks(2, seed=5)
    again = masks(2, seed=5, policy="stream", budget="16 KiB")
    assert all((a["drop"] == b["drop"]).all() for a, b in zip(first, again, strict=True))
    assert (masks(1, seed=6)[0]["drop"] != first[0]["drop"]).any()
    two = masks(2, seed=5, names=("drop", "other"))
    assert all((a["drop"] == b["drop"]).all() for a, b in zip(first, two, strict=True))
    assert (two[0]["drop"] != two[0]["other"]).any()


@pytest.mark.quick
def test_inference_drops_nothing() -> None:
    plan = masked().plan(batch=1, device=ooc.device("cpu", threads=2))
    x = np.random.default_rng(1).standard_normal((1, COUNT), np.float32)
    with plan.session(seed=2) as session:
        first = session.forward(x)
        session.step(x, np.array([1]))
        np.testing.assert_array_equal(session.forward(x), first)
        np.testing.assert_allclose(first, x @ session.parameters()["read drop.w"].T, rtol=1e-4, atol=1e-4)


# ---- the same bits, whatever the plan


NETWORKS: dict[str, Callable[[], Graph]] = {
    "alexnet": lambda: models.alexnet(side=32, classes=10, width=1 / 16, dropout=0.5),
    "wrn": lambda: models.wrn(10, 1, side=16, width=1 / 4, dropout=0.3),
    "googlenet": lambda: models.googlenet(side=16, classes=10, width=1 / 16, dropout=0.4),
    "unet3d": lambda: models.unet3d(side=8, width=1 / 16, dropout=0.2),
}


def three_steps(graph: Graph, **options: Any) -> tuple[list[float], dict[str, Any], Any]:
    """Losses of three steps, what the session holds then, and the outputs of an inference."""
    plan = graph.plan(
        batch=4,
        device=ooc.device("cpu", threads=2),
        deterministic=True,
        optimizer=ooc.SGD(0.02, 0.9, 1e-3, nesterov=True),
        **options,
    )
    numbers = np.random.default_rng(3)
    x = numbers.standard_normal((3, 4, *graph.inputs["x"]), np.float32)
    labels = numbers.integers(0, 3, (3, *plan.network.tensors["labels"].shape))
    with plan.session(seed=4) as session:
        losses = [session.step(a, b) for a, b in zip(x, labels, strict=True)]
        return losses, session.parameters() | session.statistics(), session.forward(x[0])


@pytest.mark.parametrize("name", NETWORKS)
def test_streamed_steps_have_the_bits_of_resident_ones(name: str) -> None:
    losses, kept, outputs = three_steps(NETWORKS[name]())
    assert len(set(losses)) == 3
    streamed = three_steps(NETWORKS[name](), policy="stream", budget="32 KiB")
    assert streamed[0] == losses
    assert {n for n in kept if not np.array_equal(kept[n], streamed[1][n])} == set()
    np.testing.assert_array_equal(streamed[2], outputs)
