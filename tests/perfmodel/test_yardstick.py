"""The optimum of an integer program: what it is by hand, and where auto is beside it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import ooc
from ooc.networks import Graph, NetworkPlan
from ooc.networks.auto.assigned import FATES, Assigned, AssignmentProgram
from ooc.networks.auto.prices import Prices
from ooc.networks.judge import Judge
from ooc.networks.proposal import Fate
from perfmodel.bench.yardstick import GAP, NETWORKS


def chain(count: int) -> Graph:
    graph = Graph("chain")
    h = graph.input("x", (16, 32, 32))
    for i in range(count):
        h = graph.batch_norm(graph.conv(h, 16, 3, padding=1, name=f"conv{i}"), activation="relu", name=f"norm{i}")
    graph.output(h)
    graph.loss("mse", h)
    return graph


def prices(plan: NetworkPlan) -> Prices:
    return Prices(Judge(plan.network, plan.scene, plan.budget))


def optimum(plan: NetworkPlan) -> Assigned | None:
    return AssignmentProgram(prices(plan)).optimum(plan.budget or 0, GAP)


def planned(graph: Graph, share: float, device: str = "p100") -> NetworkPlan:
    where = ooc.device("null", calibration=device)
    keep = graph.plan(batch=128, policy="keep", device=where)
    return graph.plan(batch=128, budget=int(keep.peaks["device"] * share), device=where)


def test_with_all_the_memory_nothing_moves() -> None:
    plan = ooc.Graph.plan(chain(3), batch=128, budget="8 GiB", device=ooc.device("null", calibration="p100"))
    best = optimum(plan)
    assert best is not None and best.seconds <= plan.predicted_seconds
    assert best.seconds == pytest.approx(sum(s for _, s in plan.kernels.values()), rel=0.02)


@pytest.mark.parametrize("device", ["k40", "h200"])
def test_no_assignment_of_a_small_chain_is_better(device: str) -> None:
    """All of them are tried, by the program's own rows: what the solver says is the least."""
    plan = planned(chain(3), 0.5, device)
    program = AssignmentProgram(prices(plan))
    busy, least = np.array(program.busy), np.array(program.least)
    stay = [program.column(t) for t in program.lasting]
    best = math.inf
    for ways in itertools.product(FATES, repeat=len(program.names)):
        if any(way is Fate.RECOMPUTE and t not in program.recompute for t, way in zip(program.names, ways, strict=True)):
            continue
        x = np.zeros(program.columns)
        x[stay] = 1  # they are small beside the rest
        x[[program.column(t, way) for t, way in zip(program.names, ways, strict=True)]] = 1
        if np.all(program.used @ x <= (plan.budget or 0) - program.present):
            passes = least - busy[:, :-2] @ x[:-2]
            best = min(best, sum(passes[busy[:, at] > 0].max() for at in (-2, -1)))
    solved = optimum(plan)
    assert solved is not None and solved.seconds == pytest.approx(best, rel=2e-3)
    assert solved.seconds <= plan.predicted_seconds * 1.001


@pytest.mark.parametrize("share", [1.0, 0.75])
def test_where_memory_is_not_tight_auto_is_close(share: float) -> None:
    """A tenth at most for waiting, in a network of the size that it was made for."""
    graph = ooc.networks.models.named("wrn16-2")
    plan = planned(graph, share)
    best = optimum(plan)
    assert best is not None and best.seconds <= plan.predicted_seconds <= 1.1 * best.seconds


def test_more_memory_is_never_worse() -> None:
    seconds = [one.seconds for share in (0.3, 0.5, 0.8) if (one := optimum(planned(chain(4), share))) is not None]
    assert len(seconds) >= 2 and all(a >= b * (1 - 2e-3) for a, b in itertools.pairwise(seconds))
    assert {name for name, _, _ in NETWORKS} >= {"resnet18", "unet3d"}
