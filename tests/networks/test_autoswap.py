"""AutoSwap's scores, choices and schedules on curves made by hand: every item takes a second."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from papers import by_hand, judge_of

import ooc
from ooc.errors import OptionError
from ooc.networks import Graph
from ooc.networks.policies.autoswap import Candidate, candidates, issues, item_seconds, order, propose
from ooc.networks.policies.curve import Curve
from ooc.networks.proposal import Proposal

pytestmark = pytest.mark.quick

LIMIT = 5.0
LOAD = np.array([2.0, 6.0, 7.0, 8.0, 10.0, 9.0, 8.0, 7.0, 3.0, 1.0])  # over the limit: 0 1 2 3 5 4 3 2 0 0
SECONDS = np.ones(10)
A = Candidate("a", 6, 2, 8, gap=5.0, out=1.0, back=1.0)  # away at items 3 to 7
B = Candidate("b", 4, 0, 5, gap=4.0, out=2.5, back=2.0)  # 1 to 4
C = Candidate("c", 2, 3, 8, gap=4.0, out=0.25, back=0.25)  # 4 to 7


def names(score: str, *found: Candidate) -> str:
    return "".join(c.tensor for c in order(found or (A, B, C), score, LOAD, SECONDS, LIMIT))


def test_duration_of_absence() -> None:
    assert [c.doa for c in (A, B, C)] == [5 - 2, 4 - 4.5, 4 - 0.5]
    assert names("doa") == "cab"


def test_area_of_absence() -> None:
    assert [c.aoa for c in (A, B, C)] == [3 * 6, -0.5 / 4, 3.5 * 2]
    assert names("aoa") == "acb"
    # Of two that come back too late the larger is better, though it be later: -1 / 16 is more than -0.5 / 4.
    late = Candidate("d", 16, 0, 5, gap=4.0, out=3.0, back=2.0)
    assert late.doa == -1.0 and names("aoa", B, late) == "db" and names("doa", B, late) == "bd"


def test_weighted_duration_of_absence() -> None:
    # Sums of what is over the limit: 3 + 5 + 4 + 3 + 2, 1 + 2 + 3 + 5, 5 + 4 + 3 + 2.
    assert [c.wdoa(LOAD, SECONDS, LIMIT) for c in (A, B, C)] == [17, 11, 14]
    assert names("wdoa") == "acb"
    # An item of 3 seconds counts thrice.
    assert B.wdoa(LOAD, np.array([1, 1, 3, 1, 1, 1, 1, 1, 1, 1]), LIMIT) == 1 + 3 * 2 + 3 + 5


def test_submodular_weighted_duration_of_absence() -> None:
    # a is first. Without its 6 bytes nothing is over the limit at items 3 to 7: c is worth 0, b 1 + 2 at items 1 and 2.
    assert names("swdoa") == "abc"
    assert LOAD[4] == 10  # the curve that was given is not changed


def test_looking_again_at_the_best_alone_gives_the_plain_order() -> None:
    rng = random.Random(0)
    for _ in range(200):
        load = np.array([float(rng.randint(0, 30)) for _ in range(30)])
        seconds = np.array([rng.choice((0.0, 0.5, 1.0, 2.0)) for _ in range(30)])
        found = []
        for i in range(rng.randint(1, 10)):
            first = rng.randint(0, 12)
            last = rng.randint(first + 2, 29)
            gap = float(seconds[first + 1 : last].sum())
            found.append(Candidate(f"t{i}", rng.randint(1, 9), first, last, gap, rng.random(), rng.random()))
        limit = float(rng.randint(0, 20))
        # The definition: all that is left is scored again before every choice; of equals the one of larger area, the earlier.
        left, curve, wanted = list(found), load.copy(), []
        while left:
            scores = [(c.wdoa(curve, seconds, limit), c.aoa) for c in left]
            best = left.pop(scores.index(max(scores)))
            wanted.append(best)
            curve[best.first + 1 : best.last] -= best.nbytes
        assert order(found, "swdoa", load, seconds, limit) == wanted


# ---- schedulers: item i is call i, and the backward pass begins with item 5


def issued(load: Any, limit: float, scheduler: str, *picked: Candidate) -> dict[str, int]:
    net: Any = SimpleNamespace(backward=[SimpleNamespace(index=5)])
    curve: Any = SimpleNamespace(bytes=np.array(load), at={i: i for i in range(10)}, trial=SimpleNamespace(net=net))
    return dict(issues(picked, curve, SECONDS, limit, scheduler))


def away(tensor: str, nbytes: int, last: int, back: float) -> Candidate:
    return Candidate(tensor, nbytes, 0, last, last - 1.0, 1.0, back)


def test_no_overhead_loads_back_from_the_deadlines() -> None:
    # a must be there at 9 s and takes 2: from 7 s. b at 8 s and takes 1.5, but the link is free until 7 s only: from 5.5 s, so
    # before item 5, which runs then.
    a, b = away("a", 2, 9, 2.0), away("b", 3, 8, 1.5)
    assert issued([10] * 10, 0.0, "no_overhead", a, b) == issued([10] * 10, 0.0, "no_overhead", b, a) == {"a": 7, "b": 5}
    # c, at 7 s, would be next, from 4.5 s. That is in the forward pass: it is the first thing that the backward pass does.
    c = away("c", 1, 7, 1.0)
    assert issued([10] * 10, 0.0, "no_overhead", a, b, c) == {"a": 7, "b": 5, "c": 5}


def test_limit_waits_for_the_last_item_that_would_be_over_it() -> None:
    # Without a and b (2 and 3) items 1 to 8 hold 5, item 6, the high one, 8. With a back from item 7 on they hold 7 there. b
    # would come from item 5 on: 8 at item 5, 11 at item 6, then 10. Limit 10: from item 7. Limit 9: not before it is needed.
    a, b = away("a", 2, 9, 2.0), away("b", 3, 9, 1.5)
    load = [10, 10, 10, 10, 10, 10, 13, 10, 10, 10]
    assert issued(load, 10.0, "no_overhead", a, b) == {"a": 7, "b": 5}
    assert issued(load, 11.0, "limit", a, b) == {"a": 7, "b": 5}
    assert issued(load, 10.0, "limit", a, b) == {"a": 7, "b": 7}
    assert issued(load, 9.0, "limit", a, b) == {"a": 7, "b": 9}


# ---- in a network


def convolutions(count: int) -> Graph:
    """Convolutions of 8 channels on 32 x 32 points, 8 U each, from an input of 1 U."""
    graph = Graph("convolutions")
    h = graph.input("x", (1, 32, 32))
    for i in range(count):
        h = graph.conv(h, 8, 3, padding=1, name=f"c{i}")
    graph.loss("cross_entropy", graph.linear(graph.global_pool(h), 2))
    return graph


def test_candidates_lie_across_the_peak() -> None:
    # c0 to c3 are read by the filter gradients of c1 to c4; c4, which the global mean reads, is not read again. The peak is
    # where that mean is taken, beside x and c0 to c3. Candidates are those from a sixteenth of 8 U on, so x is one.
    judge = judge_of(convolutions(5), 1, device=by_hand({"conv.fprop": 10.0, "conv.wgrad": 20.0, "conv.dgrad": 30.0}))
    curve = Curve(judge.trial(Proposal("keep")))
    items = curve.trial.program.items
    peak = int(curve.bytes.argmax())
    made = {judge.net.calls[i.call].makes[0]: n for n, i in enumerate(items) if i.what == "run"}
    assert peak == made["global_pool1"]
    found = {c.tensor: c for c in candidates(judge, curve, item_seconds(judge, curve))}
    assert list(found) == ["x", "c0", "c1", "c2", "c3"]
    # c1: made, read by c2, then by c2's filter gradient.
    one = found["c1"]
    assert (one.first, one.last, one.nbytes) == (made["c2"], made["d.c2.w"], 8 * 4096)
    assert (one.out, one.back) == (8.0, 8.0)
    # Between: c3 and c4 forward; linear and loss, of which the linear layer's two and one gradients count as convolutions; c4's
    # and c3's two gradients.
    assert 2 * 10 + 10 + 20 + 30 + 2 * (20 + 30) <= one.gap <= 2 * 10 + 10 + 20 + 30 + 2 * (20 + 30) + 0.2


def test_as_few_leave_as_must() -> None:
    graph, device = convolutions(6), by_hand({"conv.fprop": 10.0, "conv.wgrad": 20.0, "conv.dgrad": 30.0})
    judge = judge_of(graph, 1, device=device)
    keep = judge.needs(Proposal("keep"))
    for less, count in ((0, 0), (1, 1), (8 * 4096, 1), (8 * 4096 + 1, 2)):
        plan = graph.plan(batch=1, budget=keep - less, policy="autoswap", device=device)
        assert list(plan.fates.values()).count("offload") == count, plan.why


def test_words_that_are_not_known() -> None:
    judge = judge_of(convolutions(2), 1, budget=1, device=by_hand())
    for options in ({"score": "area"}, {"scheduler": "never"}):
        with pytest.raises(OptionError):
            list(propose(judge, **options))
    with pytest.raises(ooc.OptionError):
        convolutions(2).plan(batch=1, policy="autoswap", device=by_hand(), score="area")
