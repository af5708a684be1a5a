"""Every policy gives the same bits as keeping everything, at any budget, without races and in hostile orders."""

from __future__ import annotations

import functools
import random

import pytest
from networks import Hostile, cpu, data, differing, planned, random_graph, run, seeds, smallest
from races import races

import ooc
from ooc.networks import POLICIES, Graph
from ooc.runtime import executor

BATCH = 8
SHARES = (None, 2, 4, 8, "smallest")
# 576 bytes are the smallest budget of a network that streams; so small a tile takes a minute even here. Of places for tensors
# a tenth is left for tiles: with more of these than a plan holds, a hostile order does not see who reads a tensor last.
LEAST_STREAMED = {"stream": 16 << 10, "auto": 16 << 10, "ooc_cudnn": 32 << 10}


@functools.cache
def kept_bytes(graph: Graph, device: ooc.Device) -> int:
    return smallest(graph, "keep", device, BATCH)


def budgets(graph: Graph, policy: str, device: ooc.Device, **options: object) -> list[int | None]:
    """No limit, shares of what keeping takes, and the smallest."""
    keep = kept_bytes(graph, device)
    least = smallest(graph, policy, device, BATCH, **options)
    least = max(least, LEAST_STREAMED.get(policy, 0))
    found: list[int | None] = [None, *(keep // share for share in (2, 4, 8) if keep // share >= least), least]
    return list(dict.fromkeys(found))


def assert_same(graph: Graph, device: ooc.Device, hostile: Hostile | None = None) -> None:
    x, labels = data(graph, BATCH)
    wanted = run(planned(graph, "keep", None, device, BATCH), x, labels)
    for policy in (*POLICIES, "auto"):
        try:
            every = budgets(graph, policy, device)
        except ooc.UnsupportedError:
            assert policy == "modnn"
            continue
        for budget in every:
            plan = planned(graph, policy, budget, device, BATCH)
            note = f"{graph.name} {policy} {budget}: {plan.why}"
            assert races(plan.steps(), plan.schedule.layout) == [], note
            assert budget is None or counted(plan) <= budget, note
            assert differing(run(plan, x, labels), wanted) == [], note


def counted(plan: ooc.NetworkPlan) -> int:
    return sum(plan.peaks[s] for s in ("device", "staging", "pinned")) if plan.device.backend.shared else plan.peaks["device"]


@pytest.mark.parametrize("seed", seeds(200, 1))
def test_every_policy_gives_the_same_bits_at_any_budget(seed: int) -> None:
    assert_same(random_graph(seed, statistics=seed % 3 != 0), cpu())


@pytest.mark.quick
def test_an_operand_may_have_the_name_and_the_size_of_another_tensor() -> None:
    """A part of `x`, the gradient that comes from its home tile by tile, has as many bytes as the network's own `x`, which lies
    on the device meanwhile."""
    graph = Graph("alike")
    h = graph.conv(graph.input("x", (1, 12, 12)), 6, 1, bias=True, name="conv1")
    h = graph.conv(h, 8, 3, groups=2, activation="relu", name="conv2")
    graph.loss("cross_entropy", graph.linear(graph.flatten(graph.global_pool(h, how="max")), 4, bias=True))
    device = cpu(staged=True)
    x, labels = data(graph, BATCH)
    wanted, alike = run(planned(graph, "keep", None, device, BATCH), x, labels), 0
    for budget in range(14 << 10, 40 << 10, 1 << 10):
        for policy in ("ooc_cudnn", "stream"):
            plan = planned(graph, policy, budget, device, BATCH)
            alike += any(t.buffer.name == "x" for s in plan.steps() if s.what == "x" for t in s.writes if t.buffer)
            assert differing(run(plan, x, labels), wanted) == [], f"{policy} {budget}"
    assert alike


@pytest.mark.parametrize("seed", seeds(40, 0))
def test_hostile_orders_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = Hostile(random.Random(seed))
    monkeypatch.setattr(executor, "walk", hostile)
    assert_same(random_graph(1000 + seed, statistics=seed % 2 == 0), cpu(staged=True))
    assert hostile.walked
