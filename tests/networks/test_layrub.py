"""Layrub's three rules by hand: gradients over data, blocks in turn, moves a layer ahead with a barrier at each."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from networks import random_graph
from papers import chain, judge_of, told

import ooc
from ooc.networks import Graph
from ooc.networks.judge import Judge
from ooc.networks.models import named
from ooc.networks.planning import NetworkRequest
from ooc.networks.planning import judge_of as network_judge
from ooc.networks.policies.layrub import aliases, proposals
from ooc.networks.proposal import Proposal
from ooc.networks.spaces import blocks
from ooc.networks.tensors import Mode
from ooc.schedule.arena import Buffer, Layout

pytestmark = pytest.mark.quick


def branches() -> Graph:
    """Two convolutions and a pool; two convolutions that are added; that beside what the pool made; lrn, conv, linear."""
    graph = Graph("branches")
    a = graph.conv(graph.input("x", (4, 8, 8)), 4, 3, padding=1, name="a")
    p = graph.pool(graph.conv(a, 4, 3, padding=1, name="b"), 2, name="p")
    s = graph.add(graph.conv(p, 4, 1, name="l"), graph.conv(p, 4, 1, name="r"), name="s")
    u = graph.lrn(graph.concat(s, p, name="t"), name="u")
    v = graph.conv(u, 4, 1, name="v")
    graph.loss("cross_entropy", graph.linear(graph.flatten(v, name="flat"), 5, name="fc"))
    return graph


# By the kinds of the layer whose gradient it is and of the one that made the data:
TABLE = {
    ("fc", "d.fc"),  # the loss, of a linear layer
    ("v", "d.flat"),  # linear, of a convolution; flattened it is the same bytes
    # v reads what an lrn made, u is an lrn; s is made by an addition, but no backward pass reads it: it is gone by then
    ("p", "d.p/t"),  # concat, of a pool
    ("p", "d.p"),  # convolutions, of a pool: the last of them sums what its readers make
    # the gradient of an addition is that behind it
    ("b", "d.b"),  # a pool, of a convolution
    ("a", "d.a"),  # convolutions both
    # a reads the input of the batch
}  # fmt: skip


def layrub(judge: Judge) -> Proposal:
    first = next(iter(proposals(judge, ("lean",))))
    assert first.space == "rotate"
    return first


def test_which_gradients_may_take_the_place_of_data() -> None:
    assert set(aliases(judge_of(branches(), 2).net)) == TABLE


def test_which_gradients_do() -> None:
    judge = judge_of(branches(), 2)
    made = judge.trial(layrub(judge)).program
    assert layrub(judge).over == aliases(judge.net)
    found = {(read.tensor, made.tensor) for made, read in made.storage.items()}
    # p is read until the last of its readers, l, makes the sum, which takes the place of the sum before. A pool reads its input
    # while it makes the gradient, and not value by value. fc is loaded while the loss runs, at whose end a barrier waits for it.
    assert found & TABLE == TABLE - {("p", "d.p/t"), ("p", "d.p"), ("b", "d.b"), ("fc", "d.fc")}
    # Legal: when the gradient is made nobody reads the data any more, but for that very call where it goes value by value.
    at = {m: i for i, item in enumerate(made.items) for m in item.makes}
    for gradient, data in made.storage.items():
        assert all(data not in item.reads and data not in item.makes for item in made.items[at[gradient] + 1 :])


def test_filter_gradients_come_before_those_of_the_data() -> None:
    judge = judge_of(branches(), 2)
    order = [made for call in judge.net.backward for made in call.makes]
    assert order.index("d.fc.w") < order.index("d.flat") and order.index("d.b.w") < order.index("d.a")


def test_blocks_are_taken_in_turn() -> None:
    """Sizes in units of 64 bytes. a and b take blocks 0 and 1. c comes when a is gone: block 0, which grows to 5. d comes when b
    is gone: block 1, of 8. e comes with d, and c is still there: block 2. f comes when all but e are gone: block 0, the first."""
    given = [("a", 4, 0, 1), ("b", 6, 1, 2), ("c", 5, 2, 3), ("d", 8, 3, 4), ("e", 1, 3, 5), ("f", 2, 5, 6)]
    lives = {Buffer("device", name, 0, 64 * size): (first, last) for name, size, first, last in given}
    below = Layout({}, {"device": 3 * 64})
    layout = blocks(lives, below)
    wanted = {"a": 3, "c": 3, "f": 3, "b": 3 + 5, "d": 3 + 5, "e": 3 + 5 + 8}
    assert {b.name: at // 64 for b, at in layout.offsets.items()} == wanted
    assert layout.peaks == {"device": (3 + 5 + 8 + 1) * 64}


def test_what_layers_make_takes_blocks_and_all_else_lies_over_them() -> None:
    judge = judge_of(branches(), 2)
    lowering = judge.trial(layrub(judge)).lowering
    layout, lives = judge.trial(layrub(judge)).layout, {b: life for b, life in lowering.lives.items() if b.space == "device"}
    tops = lowering.under("rotate")
    assert {b.name.partition("'")[0] for b in tops} == {"a", "b", "p", "l", "r", "t", "u", "v", "fc"}  # s is l's bytes
    rest = lives.keys() - tops
    assert max(map(layout.end, tops)) <= min(layout.offsets[b] for b in rest)
    blocks_of: dict[int, list[tuple[int, int]]] = {}
    for b in sorted(tops, key=lives.__getitem__):
        blocks_of.setdefault(layout.offsets[b], []).append(lives[b])
    assert len(blocks_of) < len(tops) / 2  # what comes back takes blocks in turn, too
    assert all(a[1] < b[0] for tenants in blocks_of.values() for a, b in pairwise(tenants))


def test_buffers_in_use_at_the_same_time_are_apart() -> None:
    for seed in range(8):
        judge = judge_of(random_graph(seed), 4)
        trial = judge.trial(next(iter(proposals(judge, ("lean",)))))
        spans = [(life, trial.layout.offsets[b], trial.layout.end(b)) for b, life in trial.lowering.lives.items()
                 if b.space == "device"]  # fmt: skip
        for (one, low, high), (other, low2, high2) in combinations(spans, 2):
            assert one[1] < other[0] or other[1] < one[0] or high <= low2 or high2 <= low


@pytest.mark.parametrize(("network", "batch"), [("resnet50", 64), ("vgg16", 64), ("googlenet", 128), ("unet3d", 2)])
def test_it_never_takes_more_than_keeping_everything(network: str, batch: int) -> None:
    judge = network_judge(named(network), batch, None, NetworkRequest(Mode.STEP), ooc.device("null", calibration="p100"))
    for kernels in ("fastest", "lean"):
        first = next(iter(proposals(judge, (kernels,))))
        assert judge.needs(first) <= judge.needs(Proposal("keep", kernels=kernels))
        # VGG16's first two layers make half of all bytes: blocks of that size, there all the time, would take more than it all.
        assert first.space == ("colour" if network == "vgg16" else "rotate")


def test_moves_a_layer_ahead_and_a_barrier_at_each() -> None:
    judge = judge_of(chain(), 2)
    forward, backward = told(judge, layrub(judge))
    # All that layers read leaves while its last reader runs: but conv2, which nobody asks for again.
    assert forward == [
        "load x", "conv1", "fence", "store conv1", "pool1", "fence", "store pool1", "conv2", "fence", "act1",
        "store act1", "lrn1", "fence", "store lrn1", "fc", "fence", "loss", "load labels", "store fc", "loss", "fence",
    ]  # fmt: skip
    # The loss has none before it and fetches its own; while a layer runs the next one's is fetched.
    assert backward == [
        "load fc", "load share", "load lrn1", "loss", "fence", "load act1", "fc", "fence", "lrn1", "load pool1", "act1", "fence",
        "load conv1", "conv2", "fence", "load x", "pool1", "fence", "conv1",
    ]  # fmt: skip
