"""Budgets from a sixteenth of what keeping all takes to nine tenths of it, on any device: no plan takes more than its budget,
none is slower than what a policy has with any of its options, and more memory is hardly ever slower."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from networks import random_graph, seeds

import ooc
from ooc.errors import BudgetError, UnsupportedError
from ooc.networks import POLICIES, Graph
from ooc.runtime.device import Device

DEVICES = ("titanx", "k40", "p100", "v100", "a100", "h200", "cpu")
SHARES = (1 / 16, 1 / 8, 1 / 6, 1 / 4, 1 / 2, 0.9)
BEATEN = 0.001  # of the seconds: by no policy more
INVERTED = 0.03  # of the seconds: what a larger budget may cost, where other sizes of tiles are looked at


def fastest_of_policies(graph: Graph, batch: int, budget: int, device: Device) -> tuple[float, str]:
    """The least seconds of what any policy has with any options that auto knows."""
    plans = []
    for policy in POLICIES.values():
        for options in policy.variants:
            with suppress(BudgetError, UnsupportedError):
                plan = graph.plan(batch=batch, device=device, budget=budget, policy=policy.name, **options)
                plans.append((plan.predicted_seconds, f"{policy.name} {dict(options)}"))
    return min(plans, default=(float("inf"), ""))


@pytest.mark.parametrize("seed", seeds(300, 0))
def test_up_the_ladder(seed: int) -> None:
    rng = random.Random(seed)
    graph, device = random_graph(17_000 + seed, rng.random() < 0.6), ooc.device("null", calibration=rng.choice(DEVICES))
    batch = rng.choice((64, 256))
    whole, least = graph.plan(batch=batch, policy="keep", device=device).peaks["device"], float("inf")
    for share in SHARES:
        budget = int(whole * share)
        plan = graph.plan(batch=batch, device=device, budget=budget)
        assert plan.peaks["device"] <= budget
        seconds, who = fastest_of_policies(graph, batch, budget, device)
        assert plan.predicted_seconds <= seconds * (1 + BEATEN), f"{who} at {share}: {plan.why}"
        assert plan.predicted_seconds <= least * (1 + INVERTED), f"at {share}: {plan.why}"
        least = min(least, plan.predicted_seconds)
