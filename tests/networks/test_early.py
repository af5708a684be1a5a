"""Loads in time: in the room that there is, and no later than they are needed."""

from __future__ import annotations

import random

import pytest
from networks import random_graph, seeds

import ooc
from ooc.networks import models
from ooc.networks.auto.early import SHARES, in_time
from ooc.networks.auto.prices import Prices
from ooc.networks.judge import Judge
from ooc.networks.planning import NetworkRequest, judge_of
from ooc.networks.policies.base import offloadable
from ooc.networks.proposal import CLOSE, Fate, Proposal


def judged(graph: ooc.Graph, batch: int, budget: int | None = None) -> Judge:
    device = ooc.device("null", calibration="p100")
    return judge_of(graph, batch, budget, NetworkRequest.of(graph, True, None, False), device)


def all_away(judge: Judge) -> Proposal:
    return Proposal("all away", dict.fromkeys(offloadable(judge.net), Fate.OFFLOAD), space=CLOSE)


@pytest.mark.parametrize("seed", seeds(30, 5))
def test_what_comes_early_has_room(seed: int) -> None:
    graph, rng = random_graph(15_000 + seed), random.Random(seed)
    free = judged(graph, 4)
    least = free.trial(all_away(free)).least
    judge = judged(graph, 4, int(least * rng.uniform(1.0, 2.0)))
    demand = judge.trial(all_away(judge))
    *early, as_it_is = in_time(Prices(judge), demand.proposal)
    assert as_it_is == demand.proposal and len(early) == len(SHARES)
    loads = sum(item.what == "load" for item in demand.program.items)
    for share, proposal in zip(SHARES, early, strict=True):
        trial = judge.trial(proposal)
        assert len(proposal.early) == loads and min(proposal.early, default=0) >= 0
        assert trial.least <= max(demand.least, (judge.budget or 0) * share)
        assert sorted(map(str, trial.program.items)) == sorted(map(str, demand.program.items))


def test_loads_in_time_take_less_time() -> None:
    """VGG16 for a P100, all that its layers read away: on demand kernels wait for each load; in time for stores alone, which the
    loads of the last layers cannot be before."""
    judge = judged(models.vgg(16), 64, 8 << 30)
    early, *_, demand = in_time(Prices(judge), all_away(judge))
    assert judge.seconds(early) < 0.85 * judge.seconds(demand)


def test_without_a_limit_all_come_in_time() -> None:
    """More memory is never later."""
    graph = models.vgg(16)
    free, tight = judged(graph, 64), judged(graph, 64, 8 << 30)
    (endless, *_), (early, *_) = (in_time(Prices(judge), all_away(judge)) for judge in (free, tight))
    assert max(endless.early) > 0 and free.seconds(endless) <= tight.seconds(early)
    assert all(a >= b for a, b in zip(endless.early, early.early, strict=True))
