"""PoocH's choice of keep, swap and recompute on five layers, with sizes and times from which it follows by hand."""

from __future__ import annotations

import pytest
from papers import U, by_hand, chain, judge_of, lasting, told

from ooc.networks import Graph
from ooc.networks.judge import Judge
from ooc.networks.policies.pooch import again_seconds, keeping, propose, stalls, swapping
from ooc.networks.proposal import Fate

pytestmark = pytest.mark.quick

# Seconds of a step: convolutions take 20 forward, an lrn 1 forward and 2 backward, all else next to nothing. The link moves a U a
# second each way.
SECONDS = {"conv.fprop": 20.0, "lrn": 1.0, "lrn_backward": 2.0}


def five_layers() -> Graph:
    """x (1 U) -> conv1 (8 U) -> lrn1 (8 U) -> conv2 (8 U) -> pool1 (2 U) -> fc: a few bytes, as labels and sums of the loss."""
    graph = Graph("five layers")
    h = graph.conv(graph.input("x", (1, 32, 32)), 8, 3, padding=1, name="conv1")
    h = graph.conv(graph.lrn(h, name="lrn1"), 8, 3, padding=1, name="conv2")
    graph.loss("cross_entropy", graph.linear(graph.flatten(graph.pool(h, 2, name="pool1")), 2, name="fc"))
    return graph


EVERY = ["x", "conv1", "lrn1", "conv2", "pool1", "fc", "loss.sums", "labels"]
BIG = {"x": 1, "conv1": 8, "lrn1": 8, "conv2": 8, "pool1": 2}  # U
LITTLE = 0.05  # U that the others take, or seconds that they take to move


def judge_with(units: float) -> Judge:
    """Room for so many U beside parameters and their gradients."""
    return judge_of(five_layers(), 1, int(units * U) + lasting(judge_of(five_layers(), 1)), by_hand(SECONDS))


def test_how_long_compute_waits_for_what_is_swapped() -> None:
    judge = judge_with(25.5)
    assert list(BIG) == [t for t in EVERY if judge.net.tensors[t].nbytes >= U]
    # All swapped, bytes used again at once. Each load waits for the room that the gradient before it leaves, and compute for each
    # load from its first byte to the last. Of the stores, that of conv1 runs beside lrn1, which takes 1 s of its 8, that of conv2
    # beside pool1, 0.01 s of 8; who takes their bytes waits for the rest. Those of lrn1 and pool1 run beside convolutions, which
    # take 20. x is waited for in the forward pass too.
    waits = stalls(judge, swapping(dict.fromkeys(EVERY, Fate.OFFLOAD), "all", "fastest"))
    stores = {"conv1": 8 - 1, "conv2": 8 - 0.01}
    wanted = {t: units + stores.get(t, 0) + (t == "x") for t, units in BIG.items()}
    assert {t: waits[t] for t in BIG} == pytest.approx(wanted, abs=LITTLE)
    assert all(waits.get(t, 0.0) <= LITTLE for t in EVERY if t not in BIG)


def test_what_is_kept() -> None:
    judge = judge_with(25.5)
    base = swapping(dict.fromkeys(EVERY, Fate.OFFLOAD), "all", "fastest")
    # In use when all is swapped, in U: conv1 and lrn1 16, lrn1 and conv2 16, conv2 and pool1 10; at pool1's gradient conv2,
    # d.pool1 and d.conv2: 18; at conv2's lrn1, d.conv2, d.lrn1: 16 at a time; at lrn1's conv1, d.lrn1 and d.conv1: 24.
    names = ["pool1", "conv2", "lrn1", "conv1", "x", "fc", "loss.sums", "labels"]  # what stalls last to first, then the others
    # pool1 and conv2 go across the loss, where nothing large is; lrn1 and conv1 across pool1's gradient, 18 + 8; x across lrn1's,
    # 24 + 1; the rest are a few bytes.
    kept = keeping(judge, base, names, judge.budget or 0)
    assert [t for t, how in kept.items() if how is Fate.OFFLOAD] == ["lrn1", "conv1"]
    # With a little less x does not find room, with a little more lrn1 does, and then conv1 and x do not.
    for units, swapped in ((24.9, ["lrn1", "conv1", "x"]), (26.1, ["conv1", "x"])):
        kept = keeping(judge, base, names, lasting(judge) + units * U)
        assert [t for t, how in kept.items() if how is Fate.OFFLOAD] == swapped


def test_seconds_to_make_again() -> None:
    judge = judge_with(25.5)
    seconds = judge.call_seconds()
    swapped = dict.fromkeys(EVERY, Fate.OFFLOAD)
    assert again_seconds(judge, "lrn1", swapped, seconds) == 1
    assert again_seconds(judge, "conv1", swapped, seconds) == 20
    assert again_seconds(judge, "lrn1", {**swapped, "conv1": Fate.RECOMPUTE}, seconds) == 20 + 1


def test_one_stalls_one_has_room_one_is_made_again_one_is_swapped() -> None:
    # conv2, whose store and load both stall, and pool1 are kept; fc, labels and sums, for which nobody waits, as there is room.
    # Of the two others lrn1 takes 1 s to make again and 8 s of waiting: 1/8 < 1. conv1 20 s and 15 s: it stays swapped.
    judge = judge_with(25.5)
    first = next(iter(propose(judge)))
    assert first.fates == {"lrn1": Fate.RECOMPUTE, "conv1": Fate.OFFLOAD}
    assert judge.fits(first)
    # Seconds, with bytes of stores left alone as there is room: 20 + 1 + 20 + 20 forward, 2 backward, and waits of 2 + 2 + 8 + 8
    # + 8 for x (1 at first), pool1, conv2, lrn1, conv1; now 1 more for lrn1, conv1's wait alone, and 1 for x at first.
    every = swapping(dict.fromkeys(EVERY, Fate.OFFLOAD), "all", "fastest")
    assert judge.seconds(every) == pytest.approx(63 + 28, abs=0.3)
    assert judge.seconds(first) == pytest.approx(63 + 1 + 8 + 1, abs=0.3)
    plan = five_layers().plan(batch=1, budget=judge.budget, policy="pooch", device=by_hand(SECONDS))
    assert plan.proposal.fates == first.fates
    # Where it comes back: conv1 is needed to make lrn1 again, and there was no room (18 + 1 + 8) at pool1's gradient.
    _, backward = told(judge, first)
    assert backward[:1] == ["load share"]
    assert backward[1:] == ["loss", "fc", "pool1", "load conv1", "lrn1", "conv2", "lrn1", "conv1"]


def test_nothing_is_made_again_where_that_takes_longer() -> None:
    seconds = {**SECONDS, "lrn": 9.0}  # 9 s to make lrn1 again, 8 s to wait
    plan = five_layers().plan(batch=1, budget=judge_with(25.5).budget, policy="pooch", device=by_hand(seconds))
    assert plan.proposal.fates == {"lrn1": Fate.OFFLOAD, "conv1": Fate.OFFLOAD}


def test_all_is_kept_where_it_fits() -> None:
    judge = judge_of(chain(), 2, 1 << 30)
    (one,) = propose(judge)
    assert one.fates == {}
