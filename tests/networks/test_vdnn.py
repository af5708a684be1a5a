"""vDNN and vDNN++ as their papers and code have them, on a chain worked by hand (`papers.chain`)."""

from __future__ import annotations

import pytest
from papers import chain, judge_of, told

import ooc
from ooc.errors import BudgetError
from ooc.networks import Graph
from ooc.networks.judge import Judge
from ooc.networks.policies import POLICIES
from ooc.networks.policies.base import room_beside
from ooc.networks.policies.vdnn import CONVOLUTIONS, candidates, rung
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.spaces import ends
from ooc.schedule.arena import Buffer, Layout, colour

pytestmark = pytest.mark.quick

# Inputs of conv1, pool1, conv2 and lrn1. Not of act1 and of the loss, which work in place, nor of fc, the last layer that does
# not. x is among them, as it is let go of, but never stored.
ALL = {"x", "conv1", "pool1", "act1"}
CONV = {"x", "pool1"}  # inputs of conv1 and conv2


def proposal(fates: set[str], kernels: str = "fastest") -> Proposal:
    moved = dict.fromkeys(sorted(fates), Fate.OFFLOAD)
    return Proposal("by hand", moved, window="vdnn", barrier=True, kernels=kernels, patient=False)


def test_which_tensors_leave() -> None:
    net = judge_of(chain(), 2).net
    assert candidates(net, None) == dict.fromkeys(ALL, Fate.OFFLOAD)
    assert candidates(net, CONVOLUTIONS) == dict.fromkeys(CONV, Fate.OFFLOAD)


def test_the_input_of_a_convolution_stays_where_it_is_the_last_layer() -> None:
    graph = Graph("ends in a convolution")
    h = graph.conv(graph.input("x", (4, 8, 8)), 4, 3, padding=1, name="a")
    h = graph.conv(graph.conv(h, 4, 3, padding=1, name="b"), 4, 1, name="c")
    graph.loss("cross_entropy", graph.activation(h, "relu"))
    net = judge_of(graph, 2).net
    assert set(candidates(net, None)) == set(candidates(net, CONVOLUTIONS)) == {"x", "a"}  # of a and b; c reads b


def test_the_search_window_and_the_barriers_of_all() -> None:
    judge = judge_of(chain(), 2)
    forward, backward = told(judge, rung(judge.net, None, "lean", "all (m)"))
    # Each input is stored while its last reader runs; a fence ends every layer in which something moved.
    assert forward == [
        "load x", "conv1", "fence", "store conv1", "pool1", "fence", "store pool1", "conv2", "fence", "act1",
        "store act1", "lrn1", "fence", "fc", "loss", "load labels", "loss", "fence",
    ]  # fmt: skip
    # At the start of each layer the layers before it are looked at, the nearest first:
    assert backward == [
        "load share",  # the loss's own, on demand
        "load act1", "loss", "fence",  # past fc, which waits for nothing, to lrn1; one a step: pool1 has to wait
        "load pool1", "fc", "fence",  # past lrn1, which has its input, and act1, which needs none, to conv2
        "lrn1",  # past act1 to conv2, a convolution that has its input: the search ends, though pool1 waits behind it
        "act1",  # conv2 again
        "load conv1", "conv2", "fence",  # pool1 waits
        "load x", "pool1", "fence",  # conv1 waits
        "conv1",
    ]  # fmt: skip


def test_the_search_window_of_conv() -> None:
    judge = judge_of(chain(), 2)
    forward, backward = told(judge, rung(judge.net, CONVOLUTIONS, "lean", "conv (m)"))
    assert [word for word in forward if word.startswith("store")] == ["store pool1"]
    assert backward == [
        "load share",
        "load pool1", "loss", "fence",  # past fc, lrn1 and act1, which all kept their inputs, to conv2
        "fc", "lrn1", "act1",  # each finds conv2, which waits no longer
        "load x", "conv2", "fence",  # past pool1 to conv1
        "pool1", "conv1",
    ]  # fmt: skip


def test_nothing_is_fetched_past_a_convolution_that_was_kept() -> None:
    # Of conv1's input x, pool1's conv1 and conv2's pool1 the last is kept: layers behind conv2 fetch nothing.
    judge = judge_of(chain(), 2)
    _, backward = told(judge, proposal({"x", "conv1"}))
    assert backward == [
        "load share", "loss", "fence", "fc", "lrn1", "act1", "load conv1", "conv2", "fence", "load x", "pool1", "fence", "conv1",
    ]  # fmt: skip


# ---- the ladder


def ladder() -> list[tuple[str, Proposal]]:
    """The rungs of vDNN_dyn in the order of the paper, but those whose kernels depend on the budget."""
    return [
        ("none (p)", Proposal("by hand")),
        ("conv (p)", proposal(CONV)),
        ("all (p)", proposal(ALL)),
        # with the fastest kernels whose workspace fits beside the leanest ones': these fit where those do
        ("conv (greedy)", proposal(CONV, "lean")),
        ("all (greedy)", proposal(ALL, "lean")),
    ]


def plan_of(policy: str, budget: int) -> ooc.NetworkPlan:
    return chain().plan(batch=8, budget=budget, policy=policy, device=ooc.device("null", calibration="titanx"))


def test_each_rung_of_the_ladder_has_its_budgets() -> None:
    judge = judge_of(chain(), 8)
    needs = {label: judge.needs(p) for label, p in ladder()}
    taken = []
    for budget in sorted({n - less for n in needs.values() for less in (0, 1)}, reverse=True):
        wanted = next((label for label, n in needs.items() if n <= budget), None)
        if wanted is None:
            with pytest.raises(BudgetError) as caught:
                plan_of("vdnn_dyn", budget)
            assert caught.value.smallest_bytes == min(needs.values())
        else:
            assert plan_of("vdnn_dyn", budget).proposal.label == wanted
            taken.append(wanted)
    assert list(dict.fromkeys(taken)) == list(needs)  # every rung is the one for some budget, and they come in order


def test_all_and_conv_take_fast_kernels_where_these_fit() -> None:
    judge = judge_of(chain(), 8)
    for name, fates in (("all", ALL), ("conv", CONV)):
        fast, lean = judge.needs(proposal(fates)), judge.needs(proposal(fates, "lean"))
        assert lean < fast
        assert plan_of(f"vdnn_{name}", fast).proposal.label == f"{name} (p)"
        assert plan_of(f"vdnn_{name}", fast - 1).proposal.label == f"{name} (m)"
        with pytest.raises(BudgetError):
            plan_of(f"vdnn_{name}", lean - 1)


# ---- vDNN++


def test_vdnnpp_moves_the_same_without_barriers() -> None:
    judge = judge_of(chain(), 8)
    found = list(POLICIES["vdnn++"].propose(judge))
    assert found[0].fates == {}
    for one in found[1:]:
        fates = ALL if one.label.startswith("all") else CONV
        assert set(one.fates) == fates and not one.barrier
        with_them = told(judge, proposal(fates))
        assert told(judge, one) == tuple([word for word in part if word != "fence"] for part in with_them)
    # conv before all, and of each the fastest kernels, those that fit, the leanest, laid out from two ends, then coloured
    room = room_beside(judge, found[1])
    assert [(len(p.fates), p.kernels, p.space) for p in found[1:]] == [
        (len(fates), kernels, space) for fates in (CONV, ALL) for kernels in ("fastest", room, "lean")
        for space in ("ends", "colour")
    ]  # fmt: skip


def test_what_stays_lies_below_what_passes() -> None:
    judge = judge_of(chain(), 8)
    (one,) = (p for p in POLICIES["vdnn++"].propose(judge) if (p.label, p.space) == ("all (m), no barrier, ends", "ends"))
    layout = judge.trial(one).layout
    own = [b for b in layout.offsets if b.space == "device"]
    # fc and the loss read what stays: lrn1, fc, and the sums of the softmax
    stays = [b for b in own if b.name in ("lrn1", "fc", "loss.sums")]
    lasts = {t.name for t in judge.net.lasting}
    passes = [b for b in own if b not in stays and b.name not in lasts]
    assert len(stays) == 3 and len(passes) > 10
    assert max(layout.end(b) for b in own if b.name in lasts) <= min(layout.offsets[b] for b in stays)
    assert max(layout.end(b) for b in stays) <= min(layout.offsets[b] for b in passes)


def test_two_ends_by_hand() -> None:
    """In units of 64 bytes: a and d stay (2 and 1), b and c pass (4 at first, then 3)."""
    a, b, c, d = (Buffer("device", name, 0, 64 * n) for name, n in (("a", 2), ("b", 4), ("c", 3), ("d", 1)))
    lives = {a: (0, 9), b: (0, 1), c: (2, 3), d: (1, 8)}
    layout = ends(lives, Layout({}, {}), {a, d})
    assert {x.name: at // 64 for x, at in layout.offsets.items()} == {"a": 0, "d": 2, "b": 3, "c": 3}
    assert layout.peaks == {"device": 7 * 64}
    # One end, largest first: b below, a above it, d above both; c is smaller than b's gap but for d.
    assert {x.name: at // 64 for x, at in colour(lives).offsets.items()} == {"b": 0, "c": 0, "a": 4, "d": 6}


def lag() -> Graph:
    """vDNN++'s "lag" network, half as wide and deep: convolutions that wait for the link, and such that do not, in turn."""
    graph = Graph("lag")
    h = graph.conv(graph.input("x", (3, 112, 112)), 64, 3, padding=1)
    for _ in range(3):
        h = graph.conv(graph.conv(h, 64, 1), 64, 5, padding=2)
    graph.loss("cross_entropy", graph.linear(graph.global_pool(h), 10))
    return graph


def least(judge: Judge, policy: str) -> int:
    return min(judge.needs(p) for p in POLICIES[policy].frugal(judge))


@pytest.mark.parametrize("share", [1.0, 1.05, 1.2, 1.5])
def test_without_barriers_it_is_never_slower(share: float) -> None:
    judge = judge_of(lag(), 16)
    budget = int(share * max(least(judge, "vdnn_dyn"), least(judge, "vdnn++")))
    device = ooc.device("null", calibration="titanx")
    seconds = {p: lag().plan(batch=16, budget=budget, policy=p, device=device).predicted_seconds for p in ("vdnn_dyn", "vdnn++")}
    ratio = seconds["vdnn_dyn"] / seconds["vdnn++"]
    print(f"vDNN_dyn takes {ratio:.3f} times as long as vDNN++ at {share} of the smallest budget")
    assert ratio >= 1.02  # with kernels that transform, 1.05 without; up to 1.6 is what the paper reports
