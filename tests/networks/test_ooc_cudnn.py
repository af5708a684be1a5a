"""ooc_cuDNN's places by hand: first come, first served, up to a share of the memory; all else is streamed. Sizes are in U."""

from __future__ import annotations

import pytest
from networks import cpu, data, differing, planned, run, smallest
from papers import U, by_hand, judge_of

import ooc
from ooc.networks import Graph
from ooc.networks.auto.choice import moving_seconds, ruled_out
from ooc.networks.fusing import gradient_runs
from ooc.networks.judge import Judge
from ooc.networks.policies import POLICIES
from ooc.networks.policies.ooccudnn import placed
from ooc.networks.proposal import Fate, Proposal

pytestmark = pytest.mark.quick

BATCH = 4
LITTLE = 4096  # bytes of parameters, their gradients, logits, labels, their like


def two() -> Graph:
    """x (1 U a sample) -> a (4) -> b (2) -> fc."""
    graph = Graph("two convolutions")
    h = graph.conv(graph.conv(graph.input("x", (1, 32, 32)), 4, 3, padding=1, name="a"), 2, 3, padding=1, name="b")
    graph.loss("cross_entropy", graph.linear(graph.flatten(h), 2, name="fc"))
    return graph


def large(judge: Judge, names: list[str]) -> list[str]:
    return [t for t in names if judge.net.tensors[t].nbytes >= U]


def test_places_are_given_in_the_order_of_first_use() -> None:
    judge = judge_of(two(), 1, device=by_hand())
    every = large(judge, list(judge.net.tensors))
    assert set(every) >= {"x", "a", "b", "fc.w", "d.fc.w", "d.flatten1", "d.a"}
    assert judge.net.tensors["fc.w"].nbytes == judge.net.tensors["d.fc.w"].nbytes == 4 * U
    # x 1, a 4 and b 2 are there, and 3 are left: too little for fc's weights, and for their gradient. d.flatten1, of b, takes 2
    # of the 5 when nobody reads b any more, and d.a the 4 of a.
    assert large(judge, placed(judge.net, 10 * U + LITTLE)) == ["x", "a", "b", "d.flatten1", "d.a"]
    assert large(judge, placed(judge.net, 11 * U + LITTLE)) == ["x", "a", "b", "fc.w", "d.flatten1", "d.a"]
    assert large(judge, placed(judge.net, 4 * U + LITTLE)) == ["x", "b", "d.flatten1"]  # a comes before b, and finds too little
    assert set(large(judge, placed(judge.net, 100 * U))) == set(every)
    assert placed(judge.net, 0) == []


def test_what_is_done_with_gives_its_place_back() -> None:
    """x 1, a 4, b 2, fc's weights 4; the gradient of those, which lasts, 4: 15 U, and more is never in use at once."""
    net = judge_of(two(), 1, device=by_hand()).net
    names = placed(net, 15 * U + LITTLE)
    assert set(names) == set(net.tensors) and sum(net.tensors[t].nbytes for t in names) >= 21 * U


def test_what_lasts_needs_its_place_from_the_begin() -> None:
    """The gradient of fc's weights comes when b is done with, whose 2 U are no place for it: b needs them in the next step."""
    net = judge_of(two(), 1, device=by_hand()).net
    assert "d.fc.w" not in placed(net, 14 * U + LITTLE)


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_no_more_than_a_share_is_given_away(share: float) -> None:
    keep = judge_of(two(), 8).needs(Proposal("keep", kernels="lean"))
    judge = judge_of(two(), 8, budget=keep * 3 // 4)
    proposal = POLICIES["ooc_cudnn"].best(judge, share=share)
    assert 0 < judge.trial(proposal).at_once <= share * keep * 3 // 4
    assert proposal.others is Fate.STREAM and set(proposal.fates.values()) == {Fate.KEEP}
    items = judge.trial(proposal).program.items
    runs = [item.call for item in items if item.what == "run"]
    assert runs == sorted(set(runs)) and all(item.what in ("run", "load") for item in items)  # nothing leaves, or is made again
    assert {t for item in items if item.what == "load" for (t, *_) in item.makes} <= {"x", "labels", "share"}


def test_more_memory_is_a_place_for_more() -> None:
    keep = judge_of(two(), 8).needs(Proposal("keep", kernels="lean"))
    tensors = judge_of(two(), 8).net.tensors
    sizes = []
    for eighths in (2, 5, 7):
        fates = POLICIES["ooc_cudnn"].best(judge_of(two(), 8, budget=keep * eighths // 8)).fates
        sizes.append(sum(tensors[t].nbytes for t in fates))
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert POLICIES["ooc_cudnn"].best(judge_of(two(), 8)).others is Fate.KEEP  # no limit


def test_the_same_bits_as_keeping_everything_in_any_memory() -> None:
    x, labels = data(two(), BATCH)
    right = run(planned(two(), "keep", None, cpu(), BATCH), x, labels)
    keep, least = (smallest(two(), policy, cpu(), BATCH) for policy in ("keep", "ooc_cudnn"))
    streamed = set()
    for budget in (least + (16 << 10), keep // 4, keep // 2, keep * 3 // 4, keep, None):
        plan = planned(two(), "ooc_cudnn", budget, cpu(), BATCH)
        assert budget is None or sum(plan.peaks[s] for s in ("device", "staging", "pinned")) <= budget
        assert differing(run(plan, x, labels), right) == [], plan.why
        streamed.add(len(plan.proposal.fates))
    assert len(streamed) > 3
    with pytest.raises(ooc.BudgetError) as caught:
        planned(two(), "ooc_cudnn", least - 1, cpu(), BATCH)
    assert caught.value.smallest_bytes == least


@pytest.mark.parametrize("share", [0, 1.5, True, "all", float("nan")])
def test_what_is_no_share(share: object) -> None:
    with pytest.raises(ooc.OptionError, match="expected a number above 0, at most 1"):
        two().plan(batch=2, policy="ooc_cudnn", device="cpu", share=share)


def test_auto_asks_it_where_its_traffic_leaves_a_chance() -> None:
    policy = POLICIES["ooc_cudnn"]
    judge = judge_of(two(), 8)
    judge = judge.within(judge.needs(Proposal("keep", kernels="lean")) // 2)
    bounds = [moving_seconds(judge, p) for p in policy.propose(judge) if p.others is Fate.STREAM]
    assert 0 < bounds[0] <= max(bounds) and judge.seconds(policy.best(judge)) >= bounds[0]
    assert not ruled_out(policy, judge, min(bounds)) and ruled_out(policy, judge, min(bounds) * 0.999)


def test_gradients_of_a_convolution_are_one_call() -> None:
    """Of its activation and of the pooling behind it, too: dy crosses the link once."""
    graph = Graph("pooled")
    h = graph.conv(graph.input("x", (2, 16, 16)), 4, 3, padding=1, bias=True, activation="relu", name="a")
    h = graph.conv(graph.pool(h, 2, name="pool"), 4, 3, padding=1, bias=True, activation="relu", name="b")
    graph.loss("cross_entropy", graph.linear(graph.flatten(h), 2, name="fc"))
    judge = judge_of(graph, BATCH)
    runs = tuple(gradient_runs(judge.net))
    net = judge.network(Proposal("fused", fused=runs))
    one, other = (call for call in net.backward if call.op.kind == "fused")
    assert one.makes == ("d.b.b", "d.b.w", "d.pool") and other.makes == ("d.a.b", "d.a.w")
    assert "d.pool" in other.reads and not {"d.a", "d.a/act"} & {*net.tensors}
    x, labels = data(graph, BATCH)
    right = run(planned(graph, "keep", None, cpu(), BATCH), x, labels)
    keep = smallest(graph, "keep", cpu(), BATCH)
    plans = [planned(graph, "ooc_cudnn", keep * share // 8, cpu(), BATCH) for share in (3, 5, 7)]
    assert all(differing(run(plan, x, labels), right) == [] for plan in plans)
    assert runs in [plan.proposal.fused for plan in plans]
