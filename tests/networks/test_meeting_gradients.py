"""Where gradients meet, the call that makes the later one adds it to those before it: none of them is there a second time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from networks import cpu, data, differing, random_graph, run
from races import races

from ooc.networks import SGD, Graph
from ooc.networks.calls import BACKWARD, Call
from ooc.networks.plan import NetworkPlan
from ooc.networks.planning import NetworkRequest, judge_of
from ooc.networks.policies.base import offloadable
from ooc.networks.proposal import CLOSE, Fate, Proposal
from ooc.networks.tensors import Mode
from ooc.schedule.arena import Layout
from ooc.schedule.budget import parse_bytes
from ooc.schedule.steps import Step

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


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB", None])
@pytest.mark.parametrize("staged", [False, True])
def test_exact_integers_within_any_budget(budget: str | None, staged: bool) -> None:
    """Memory held <= predicted <= budget, and the gradients of NumPy, to the last bit of integers."""
    rng, graph = np.random.default_rng(2), Graph("exact")
    x = graph.input("x", (2, 10, 10))
    graph.output(
        graph.add(graph.conv(x, 2, 1, name="one"), graph.add(graph.conv(x, 2, 1, name="two"), graph.conv(x, 2, 1, name="three")))
    )
    limit = parse_bytes(budget, 1 << 30) if budget else None
    judge = judge_of(graph, 3, limit, NetworkRequest(Mode.BACKWARD), cpu(staged), home="disk")
    assert sum(call.op.kind == "fused" for call in judge.net.calls) == 2
    plan = graph.plan(batch=3, train="backward", budget=limit, device=cpu(staged), home="disk")
    values = {name: rng.integers(-3, 4, w.shape).astype(np.float32) for name, w in graph.parameters.items()}
    data, dy = (rng.integers(-4, 5, (3, 2, 10, 10)).astype(np.float32) for _ in range(2))
    with plan.session(values) as session:
        gradients = session.backward(data, dy)
        held = sum(int(m.nbytes) for m in session._main.machine.memory.values())  # type: ignore[union-attr]
    predicted = sum(plan.peaks[space] for space in ("device", "staging", "pinned"))
    assert held <= predicted <= (limit or predicted)
    wanted = sum(np.einsum("nkhw,kc->nchw", dy, values[f"{name}.w"][:, :, 0, 0]) for name in ("one", "two", "three"))
    np.testing.assert_array_equal(gradients["x"], wanted)


def test_outputs_that_are_inputs_have_gradients() -> None:
    """Gradients that are given, and meet: no call makes the later one."""
    graph = Graph("given")
    x = graph.input("x", (2, 4, 4))
    graph.output(graph.reshape(x, (32,)), graph.reshape(x, (4, 8)))
    plan = graph.plan(batch=2, train="backward", device=cpu())
    dy = [np.full((2, *graph.shapes[name]), i + 1, np.float32) for i, name in enumerate(graph.outputs)]
    with plan.session() as session:
        gradients = session.backward(np.zeros((2, 2, 4, 4), np.float32), dict(zip(graph.outputs, dy, strict=True)))
    np.testing.assert_array_equal(gradients["x"], np.full((2, 2, 4, 4), 3, np.float32))


def test_a_wait_that_is_taken_out_is_missed() -> None:
    graph = block()
    judge = judge_of(graph, 4, None, NetworkRequest(Mode.STEP), cpu(staged=True), home="disk", optimizer=SGD(0.1))
    fates = {t.name: Fate.STREAM for t in judge.net.tensors.values() if t.per_sample}
    steps = (plan := NetworkPlan.of(judge.within(64 << 10), "auto", {}, Proposal("stream", fates), 0)).steps()
    assert_mutants_race(steps, plan.schedule.layout, lambda step: "sum" in step.what or step.kind == "run")


def test_plans_that_need_fewer_gaps_give_the_bits_of_keep() -> None:
    """Under budgets that colouring by size does not keep within."""
    tried = 0
    for seed in range(40):
        graph = random_graph(12_000 + seed)
        judge = judge_of(
            graph, 4, None, NetworkRequest(Mode.STEP), cpu(staged=True), home="disk", optimizer=SGD(0.1), deterministic=True
        )
        fates = dict.fromkeys(offloadable(judge.net), Fate.OFFLOAD)
        proposal = Proposal("close", fates, kernels="lean", space=CLOSE)
        plain, close = judge.needs(replace(proposal, space="colour")), judge.needs(proposal)
        assert close <= plain
        if close == plain:
            continue
        tried += 1
        tight = judge.within(close)
        assert not tight.fits(replace(proposal, space="colour")) and tight.fits(proposal)
        plan = NetworkPlan.of(tight, "auto", {}, proposal, 0)
        assert races(plan.steps(), plan.schedule.layout) == [] and plan.peaks["device"] <= close
        assert_mutants_race(plan.steps(), plan.schedule.layout, lambda step: True)
        x, labels = data(graph, 4)
        keep = NetworkPlan.of(judge, "keep", {}, Proposal("keep"), 0)
        assert differing(run(plan, x, labels), run(keep, x, labels)) == []
        if tried == 3:
            return
    assert tried


def assert_mutants_race(steps: Sequence[Step], layout: Layout, of: Callable[[Step], bool]) -> None:
    """Some waits are needed: without one of them steps race."""
    missed = 0
    for i in [i for i, step in enumerate(steps) if step.after and of(step)][::3]:
        mutant = steps[i]._replace(after=steps[i].after[1:])
        missed += bool(races((*steps[:i], mutant, *steps[i + 1 :]), layout))
    assert missed > 3
