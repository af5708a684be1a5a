"""Where gradients meet, the call that makes the later one adds it to those before it: none of them is there a second time."""

from __future__ import annotations

import pytest
from networks import cpu, data, differing, random_graph, run
from races import races

from ooc.networks import SGD, Graph
from ooc.networks.calls import BACKWARD, Call
from ooc.networks.plan import NetworkPlan
from ooc.networks.planning import NetworkRequest, judge_of
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.tensors import Mode

pytestmark = pytest.mark.quick


def block(side: int = 16, k: int = 8, readers: int = 2) -> Graph:
    """A tensor that several convolutions read."""
    graph = Graph("block")
    h = graph.conv(graph.input("x", (3, side, side)), k, 3, padding=1, activation="tanh", name="h")
    total = graph.conv(h, k, 3, padding=1)
    for _ in range(readers - 1):
        total = graph.add(total, graph.conv(h, k, 1))
    graph.output(graph.linear(graph.global_pool(total), 4, name="logits"))
    graph.loss("cross_entropy", "logits")
    return graph


def backward(graph: Graph, batch: int = 4) -> list[Call]:
    net = judge_of(graph, batch, None, NetworkRequest(Mode.STEP), cpu(), optimizer=SGD(0.1)).net
    return [call for call in net.calls if call.phase == BACKWARD]


@pytest.mark.parametrize("readers", [2, 3, 4])
def test_there_is_no_sum_of_its_own(readers: int) -> None:
    calls = backward(block(readers=readers))
    sums = [call for call in calls if call.op.kind == "fused"]
    assert len(sums) == readers - 1
    assert not [call for call in calls if call.op.kind == "pointwise" and call.makes[0].startswith("d.h")]
    for call in sums:
        (made,), ((total, over),) = call.makes, call.over
        assert over == made and total in call.reads
    assert sums[-1].makes == ("d.h",)


def test_it_takes_a_tensor_less() -> None:
    """At most the gradient so far, the one behind, and a slice of what is added."""
    graph, batch = block(side=64, k=32), 64
    judge = judge_of(graph, batch, None, NetworkRequest(Mode.STEP), cpu(), optimizer=SGD(0.1))
    large = judge.net.tensors["h"].nbytes
    (call,) = (call for call in judge.net.calls if call.op.kind == "fused")
    plan = judge.costs.plan(call.op)
    assert large == 32 << 20 and plan.workspace_bytes < 1.2 * large
    twice = judge_of(graph, 4 * batch, None, NetworkRequest(Mode.STEP), cpu(), optimizer=SGD(0.1))
    (call,) = (call for call in twice.net.calls if call.op.kind == "fused")
    assert twice.net.tensors["h"].nbytes == 4 * large and twice.costs.plan(call.op).workspace_bytes < 1.2 * large


@pytest.mark.parametrize("seed", range(8))
def test_every_fate_gives_the_bits_of_keep(seed: int) -> None:
    graph = random_graph(11_000 + seed) if seed % 2 else block(readers=2 + seed // 2)
    x, labels = data(graph, 4)
    judge = judge_of(graph, 4, None, NetworkRequest(Mode.STEP), cpu(), home="disk", optimizer=SGD(0.1), deterministic=True)
    wanted = None
    for fate in (Fate.KEEP, Fate.OFFLOAD, Fate.STREAM):
        fates = {t.name: fate for t in judge.net.tensors.values() if t.per_sample}
        plan = NetworkPlan.of(judge, "auto", {}, Proposal(fate, fates), 0)
        assert races(plan.steps(), plan.schedule.layout) == []
        results = run(plan, x, labels)
        wanted = wanted or results
        assert differing(results, wanted) == []
