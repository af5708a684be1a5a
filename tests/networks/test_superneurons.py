"""SuperNeurons by hand: checkpoints, the segments between them, and who leaves first."""

from __future__ import annotations

import pytest
from papers import judge_of, told

import ooc
from ooc.networks import Graph
from ooc.networks.calls import BACKWARD
from ooc.networks.policies.superneurons import checkpoints, layer_peak, plan_with, segments
from ooc.networks.proposal import Fate

pytestmark = pytest.mark.quick

BATCH = 2
B = BATCH * 4 * 8 * 8 * 4  # bytes of an activation
W = 4 * 4 * 3 * 3 * 4  # of a filter


def long_segment() -> Graph:
    """conv, five activations, conv, two activations, mean, linear. Gradients of activations are taken from what they made, so
    nobody asks for what the convolutions made: the first activations stand for them, or the convolutions were made again."""
    graph = Graph("long segment")
    h = graph.conv(graph.input("x", (4, 8, 8)), 4, 3, padding=1, name="conv1")
    for i in range(5):
        h = graph.activation(h, ("sigmoid", "tanh")[i % 2], name=f"a{i}")
    h = graph.conv(h, 4, 3, padding=1, name="conv2")
    h = graph.activation(graph.activation(h, "sigmoid", name="b0"), "tanh", name="b1")
    graph.loss("cross_entropy", graph.linear(graph.global_pool(h, name="mean"), 5, name="fc"))
    return graph


def stack(count: int) -> Graph:
    """Convolutions with a relu, one behind the other."""
    graph = Graph("stack")
    h = graph.input("x", (4, 8, 8))
    for i in range(count):
        h = graph.conv(h, 4, 3, padding=1, activation="relu", name=f"c{i}")
    graph.loss("cross_entropy", graph.linear(graph.global_pool(h, name="mean"), 5, name="fc"))
    return graph


def test_checkpoints_and_segments() -> None:
    net = judge_of(long_segment(), BATCH).net
    assert checkpoints(net) == ["a0", "b0", "fc", "loss.sums"]
    assert segments(net) == [["a1", "a2", "a3", "a4"], ["b1", "mean"]]
    # With their relu inside, convolutions are asked for.
    net = judge_of(stack(3), BATCH).net
    assert checkpoints(net) == ["c0", "c1", "c2", "fc", "loss.sums"]
    assert segments(net) == [["mean"]]


def test_the_largest_layer() -> None:
    # conv2: a4, the gradient behind it and that of a4, the filter and its gradient. Activations: three of B.
    assert layer_peak(judge_of(long_segment(), BATCH).net) == 3 * B + 2 * W
    # c1 has the activation's gradient too: c0, c1, d.c1, that before the relu, d.c0.
    assert layer_peak(judge_of(stack(3), BATCH).net) == 5 * B + 2 * W


def test_segments_are_made_again_once_or_for_every_use() -> None:
    judge = judge_of(long_segment(), BATCH)
    one = plan_with(judge, 0, "lean")
    # a1 to a4 are 4 B, more than 3 B + 2 W: memory-centric. b1 and the mean are not: speed-centric.
    assert 4 * B > 3 * B + 2 * W
    assert one.again == {"a1", "a2", "a3", "a4"}
    assert one.fates == dict.fromkeys(["a1", "a2", "a3", "a4", "b1", "mean"], Fate.RECOMPUTE)
    _, backward = told(judge, one)
    assert backward == [
        "load share", "loss",
        "b1", "mean",  # for fc, once: b1 stays for its own gradient
        "fc", "mean", "b1", "b0",
        "a1", "a2", "a3", "a4", "conv2",  # a4 is dropped at once,
        "a1", "a2", "a3", "a4",  # and made again for its own gradient, which is the last word
        "a1", "a2", "a3",
        "a1", "a2",
        "a1",
        "a0", "conv1",  # the batch is not decided about: it stays
    ]  # fmt: skip


def test_no_convolution_is_computed_again() -> None:
    for graph in (long_segment(), stack(4)):
        judge = judge_of(graph, BATCH)
        net = judge.net
        first = net.backward[0].index
        for evicted in range(len(checkpoints(net)) + 1):
            runs = [item.call for item in judge.trial(plan_with(judge, evicted, "lean")).program.items if item.what == "run"]
            behind = runs[runs.index(first) :]
            assert all(net.calls[i].phase == BACKWARD or net.calls[i].kind in ("activation", "global_pool") for i in behind)


def test_the_least_recently_used_leave_first_and_none_without_need() -> None:
    device = ooc.device("null", calibration="titanx")

    def leaving(budget: int | None) -> list[str]:
        plan = stack(6).plan(batch=BATCH, budget=budget, policy="superneurons", device=device)
        assert plan.fates["mean"] == "recompute"
        stored = [item.reads[0].tensor for item in judge.trial(plan.proposal).program.items if item.what == "store"]
        found = [t for t, fate in plan.fates.items() if fate == "offload"]
        assert found == stored
        return found

    judge = judge_of(stack(6), BATCH)
    all_stay = judge.needs(plan_with(judge, 0, "lean"))
    assert leaving(None) == leaving(all_stay) == []
    # Each that leaves, the earliest first, makes room for B.
    assert leaving(all_stay - 1) == leaving(all_stay - B) == ["c0"]
    assert leaving(all_stay - B - 1) == ["c0", "c1"]
