"""Gradients from given ones of the outputs, of inputs and parameters, have the bits of those of a training step; what is lent is
read where it lies."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import Hostile, cpu, data, random_graph, seeds
from races import races
from sweeps import crossed

import ooc
from ooc.networks import Graph
from ooc.runtime import executor

BATCH = 4


def budgets(graph: Graph, device: ooc.Device, **asked: Any) -> list[int | None]:
    """None, shares of what is taken without a limit, and the smallest."""
    free = graph.plan(batch=BATCH, device=device, **asked)
    least = free.smallest_bytes
    return [None, *(max(free.peaks["device"] // share, least) for share in (3, 10)), least]


def values_of(graph: Graph, seed: int = 0) -> dict[str, Any]:
    """What a session with this seed begins with."""
    with graph.plan(batch=BATCH, train=False, device=cpu(), deterministic=True).session(seed=seed) as session:
        return session.parameters() | session.statistics()


@pytest.mark.parametrize(("seed", "lent"), crossed(range(30), [False, True], every=30))
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
    passing = {**train, "train": "backward", "lent": lent}
    for budget in budgets(graph, **passing):
        plan = graph.plan(batch=BATCH, budget=budget, **passing)
        used = {name: own[name] for name in plan.network.borrowed}
        with plan.session() as session:
            found = session.backward({"x": x, **used} if lent else x, dy)
        assert found.keys() == {"x", *wanted}
        odd = [name for name, value in wanted.items() if found[name].tobytes() != value.astype(found[name].dtype).tobytes()]
        assert not odd, (budget, plan.why, odd)
        assert np.any(found["x"])
        assert budget is None or plan.peaks["device"] <= budget


def heavy() -> Graph:
    """A network whose parameters outweigh its activations."""
    g = Graph("heavy")
    h = g.conv(g.input("x", (16, 5, 4)), 64, 3, padding=1, bias=True, activation="relu", name="one")
    h = g.batch_norm(g.conv(h, 64, 3, padding=1, name="two"), activation="relu", name="norm")
    g.output(g.linear(g.flatten(h), 32, bias=True, name="last"))
    return g


@pytest.mark.parametrize("mode", [False, "forward", "backward"])
def test_parameters_that_are_lent_and_larger_than_the_budget(mode: bool | str) -> None:
    """They are read where they lie, a part at a time: neither the device nor any other home has room for them."""
    graph, device, rng = heavy(), cpu(), np.random.default_rng(0)
    own = values_of(graph)
    x, dy = (rng.standard_normal((BATCH, *graph.shapes[t])).astype(np.float32) for t in ("x", graph.outputs[0]))
    parameters = sum(v.nbytes for v in own.values())
    found = []
    for budget in (None, parameters // 8):
        plan = graph.plan(batch=BATCH, train=mode, lent=True, budget=budget, device=device, deterministic=True)
        given = {"x": x, **{name: own[name].copy() for name in plan.network.borrowed}}
        with plan.session() as session:
            if mode == "backward":
                found.append(session.backward(given, dy))
            else:
                found.append({"y": session.forward(given), **session.statistics()})
        still = {name for name in plan.network.borrowed if not name.endswith((".mean", ".var"))}
        assert still and all(np.array_equal(given[name], own[name]) for name in still)
        if budget is not None:
            assert plan.peaks["device"] <= budget
            assert mode == "backward" or sum(plan.peaks.values()) < parameters, plan.peaks
    assert found[0].keys() == found[1].keys()
    assert [name for name, value in found[0].items() if value.tobytes() != found[1][name].tobytes()] == []


@pytest.mark.parametrize("seed", seeds(20, 1))
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_hostile_orders_and_waits(seed: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No race, one without any wait, and the same bits in any order that the waits allow."""
    graph, device, rng = random_graph(500 + seed), cpu(staged=True), random.Random(seed)
    x, _ = data(graph, BATCH)
    own = values_of(graph)
    dy = np.random.default_rng(seed).standard_normal((BATCH, *graph.shapes[graph.outputs[0]])).astype(np.float32)
    asked: dict[str, Any] = {"train": mode, "lent": True, "device": device, "deterministic": True}

    def results(plan: ooc.NetworkPlan) -> dict[str, bytes]:
        given = {"x": x, **{name: own[name].copy() for name in plan.network.borrowed}}
        with plan.session(seed=3) as session:
            if mode == "backward":
                return {name: value.tobytes() for name, value in session.backward(given, dy).items()}
            return {"y": session.forward(given).tobytes()} | {n: v.tobytes() for n, v in session.statistics().items()}

    plans = [graph.plan(batch=BATCH, budget=budget, **asked) for budget in budgets(graph, **asked)[:3]]
    wanted = [results(plan) for plan in plans]
    assert wanted[1:] == wanted[:-1]
    hostile = Hostile(rng)
    monkeypatch.setattr(executor, "walk", hostile)
    for plan in plans:
        steps, layout = plan.steps(), plan.schedule.layout
        assert races(steps, layout) == [], plan.why
        waits = [(i, j) for i, step in enumerate(steps) for j in step.after]
        for i, j in rng.sample(waits, min(3, len(waits))):
            mutant = [*steps]
            mutant[i] = steps[i]._replace(after=tuple(k for k in steps[i].after if k != j))
            assert races(mutant, layout), f"{plan.why}: {i} need not wait for {j}"
        assert results(plan) == wanted[0], plan.why
    assert hostile.walked


@pytest.mark.parametrize("share", [None, 3, 0])
def test_outputs_of_one_number_of_each_sample(share: int | None, tmp_path: Path) -> None:
    """They have the shape (batch,), in arrays and in files, and so have their gradients; layers read channels."""

    def scored(shape: tuple[int, ...]) -> Graph:
        g = Graph("scored")
        h = g.conv(g.input("x", (3, 9, 8)), 4, 3, padding=1, activation="tanh", name="c")
        g.output(g.reshape(g.linear(g.flatten(h), 1, name="score"), shape, name="y"))
        g.output(g.round(g.reshape(g.stop("score"), shape), "u8", name="z"))
        return Graph.from_json(g.to_json())

    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((BATCH, 3, 9, 8)).astype("f4"), rng.standard_normal(BATCH).astype("f4")
    results = []
    for shape in ((), (1,)):
        least = scored(shape).plan(batch=BATCH, train="both", device=cpu())
        budget = None if share is None else max(least.smallest_bytes, least.peaks["device"] // share if share else 0)
        plan = scored(shape).plan(batch=BATCH, train="both", device=cpu(), budget=budget)
        outputs = {n: np.lib.format.open_memmap(tmp_path / n, "w+", dt, (BATCH, *shape)) for n, dt in (("y", "f4"), ("z", "u1"))}
        with plan.session(seed=0) as session:
            session.forward(x, outputs)
            gradients = session.backward(x, {"y": dy.reshape(BATCH, *shape), "z": outputs["z"]})
        results.append([outputs["y"].ravel(), outputs["z"].ravel(), *gradients.values()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    g = scored(())
    with pytest.raises(ooc.ShapeError, match=r"linear: y is one number, without channels"):
        g.linear("y", 3)
