"""Chains grown from their last call to the front: whatever is asked in which order, and whichever like chain it was asked of."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import ooc
from ooc.networks import models
from ooc.networks.auto.chained import SHARES, Cutting, chained
from ooc.networks.auto.forms import lasting_fates
from ooc.networks.auto.prices import Prices
from ooc.networks.auto.sketches import sketched
from ooc.networks.auto.walks import Walks
from ooc.networks.judge import Judge
from ooc.networks.planning import NetworkRequest, judge_of
from ooc.networks.tensors import Mode


def judge(graph: ooc.Graph, share: float, batch: int = 1) -> Judge:
    """Of an inference, within a share of what it takes without a limit."""
    device = ooc.device("null", calibration="cpu")
    peak = graph.plan(batch=batch, train=False, device=device).peaks["device"]
    return judge_of(graph, batch, int(peak * share), NetworkRequest(Mode.INFER), device)


def blocks(count: int, side: int = 32) -> ooc.Graph:
    """The same residual block again and again; every third adds what the block before it read."""
    g = ooc.Graph("blocks")
    before = h = g.conv(g.input("x", (3, side, side)), 8, 3, padding=1)
    for i in range(count):
        long = g.conv(g.conv(h, 8, 3, padding=1, activation="relu"), 8, 3, padding=1)
        before, h = h, g.add(long, before if i % 3 == 1 else h)
    g.output(h)
    return g


def runs_of_passable(prices: Prices) -> Iterator[tuple[int, int]]:
    """The first and the last call of some chains."""
    able, rng = prices.walks.chainable, random.Random(0)
    for last in able:
        first = last
        while first - 1 in able and rng.random() < 0.9:
            first -= 1
        yield first, last


def test_chains_are_the_same_in_whichever_order_they_are_asked_for() -> None:
    under = judge(blocks(4), 0.25)
    asked, rng = Walks(under), random.Random(1)
    ends = [(first, last) for first, last in runs_of_passable(Prices(under)) for first in range(first, last + 1)]
    rng.shuffle(ends)
    assert len(ends) > 30
    for first, last in ends:
        shape = under.net.tensors[under.net.calls[last].makes[0]].shape
        for grids in asked.grids(shape):
            grid = rng.choice(grids)[1]
            assert asked.to(last, grid).chain(first) == Walks(under).to(last, grid).chain(first)


def test_chains_of_like_calls_take_the_same() -> None:
    under = judge(blocks(8), 0.25)
    walks, by_numbers, alike = Walks(under), {}, 0  # type: ignore[var-annotated]
    for begin, last in runs_of_passable(Prices(under)):
        for first in range(begin, last + 1):
            numbers = tuple(walks.alike[first : last + 1])
            grown = walks.to(last, (1, 4, 2)).chain(first)
            assert by_numbers.setdefault(numbers, grown) == grown
            alike += by_numbers[numbers] is not grown
    assert alike > 20


@pytest.mark.parametrize("make", [lambda: models.resnet(18, side=64), lambda: models.unet(side=64), lambda: blocks(6)])
def test_what_is_shared_between_weights_changes_no_cut(make: object) -> None:
    under = judge(make(), 0.125)  # type: ignore[operator]
    prices = Prices(under)
    for _, lasting in lasting_fates(under.net, under.budget or 0):
        for share in SHARES:
            for weight in (1.0, 64.0, 4.0):
                alone = Cutting(Prices(under), lasting, share, weight).cut()
                assert Cutting(prices, lasting, share, weight).cut() == alone


def test_nothing_is_cut_where_all_samples_at_once_are_as_good_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters alone are too many: they come once, and the batch stays."""
    g = ooc.Graph("wide")
    h = g.input("x", (64, 4, 4))
    for _ in range(8):
        h = g.conv(h, 64, 3, padding=1, activation="relu")
    g.output(h)
    homes = []
    monkeypatch.setattr("ooc.networks.auto.sketches.chained", lambda prices, some: homes.extend(some) or chained(prices, homes))
    under = judge(g, 0.5)
    search = sketched(under)
    best = min(search.sketches, key=lambda s: s.seconds)
    assert best.proposal.label.startswith("all samples at once") and not best.proposal.grids
    assert best.seconds <= search.prices.least(best.form.lasting) * 1.005  # type: ignore[union-attr]
    assert best.form.lasting not in [lasting for _, lasting in homes]  # type: ignore[union-attr]
