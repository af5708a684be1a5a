"""A forward pass, then the gradients of that pass from given ones of the outputs, in one plan that keeps what fits in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from networks import Hostile, cpu, random_graph, seeds
from races import races
from sweeps import crossed

import ooc
from ooc.networks import POLICIES, Graph
from ooc.networks.planning import NetworkRequest, judge_of
from ooc.networks.program import program
from ooc.networks.proposal import Proposal
from ooc.networks.tensors import Mode
from ooc.runtime import executor

BATCH = 4
Pass = dict[str, Any]


def arrays(graph: Graph, seed: int = 0) -> tuple[Any, Any]:
    """An input, and a gradient of the output."""
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((BATCH, *graph.shapes[t])).astype(np.float32) for t in (*graph.inputs, *graph.outputs))


def apart(graph: Graph, device: ooc.Device) -> Pass:
    """The two passes by a plan of each, the forward pass computed twice."""
    x, dy = arrays(graph)
    asked: dict[str, Any] = {"batch": BATCH, "device": device, "deterministic": True}
    with graph.plan(train="forward", **asked).session(seed=1) as session:
        passed = {"y": session.forward(x)} | session.statistics()
    with graph.plan(train="backward", **asked).session(seed=1) as session:
        return passed | {f"d {name}": value for name, value in session.backward(x, dy).items()}


def both(plan: ooc.NetworkPlan, spoil: bool = True) -> Pass:
    """The two passes by one plan. spoil: the caller writes over the outputs in between."""
    x, dy = arrays(plan.graph)
    with plan.session(seed=1) as session:
        y = session.forward(x)
        passed = {"y": y.copy()} | session.statistics()
        if spoil:
            y[...] = np.nan
        passed |= {f"d {name}": value for name, value in session.backward(x, dy).items()}
        assert session.statistics().keys() <= passed.keys()
    return passed


def odd(have: Pass, expected: Pass) -> list[str]:
    """What is not the same bit for bit."""
    assert have.keys() == expected.keys()
    return [name for name, value in expected.items() if have[name].tobytes() != value.tobytes()]


def budgets(graph: Graph, device: ooc.Device, **asked: Any) -> list[int | None]:
    """None, shares of what is taken without a limit, and the smallest."""
    free = graph.plan(batch=BATCH, train="both", device=device, **asked)
    least = free.smallest_bytes
    return [None, *(max(int(free.peaks["device"] * share), least) for share in (0.7, 0.3, 0.1)), least]


@pytest.mark.parametrize(("seed", "staged"), crossed(range(40), [False, True], every=40))
def test_bits_of_two_plans(seed: int, staged: bool) -> None:
    """At every budget, which the plan keeps."""
    graph, device = random_graph(17_000 + seed), cpu(staged)
    expected = apart(graph, cpu())
    for budget in budgets(graph, device, deterministic=True):
        plan = graph.plan(batch=BATCH, train="both", budget=budget, device=device, deterministic=True)
        assert not odd(both(plan), expected), (budget, plan.why)
        assert races(plan.steps(), plan.schedule.layout) == []
        assert budget is None or plan.peaks["device"] <= budget


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy(policy: str, few: bool) -> None:
    """Parts of the batch, tiles, windows and what is made again do not pass the pause."""
    tried = 0
    for seed in range(17_100, 17_102 if few else 17_106):
        graph = random_graph(seed, statistics=seed % 2 == 0)
        expected = apart(graph, cpu())
        for share in (1.0, 0.5, 0.0):
            options: dict[str, Any] = {"device": cpu(True), "policy": policy, "deterministic": True}
            try:
                free = graph.plan(batch=BATCH, train="both", **options)
                budget = max(int(free.peaks["device"] * share), free.smallest_bytes)
                plan = graph.plan(batch=BATCH, train="both", budget=budget, **options)
            except ooc.UnsupportedError:
                continue
            tried += 1
            assert not odd(both(plan), expected), (share, plan.why)
    assert tried


@pytest.mark.parametrize("seed", seeds(12, 1))
def test_in_any_order_of_lanes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(17_200 + seed)
    expected = apart(graph, cpu())
    hostile = Hostile(random.Random(seed), whole=False)
    for budget in budgets(graph, cpu(True), deterministic=True)[::2]:
        plan = graph.plan(batch=BATCH, train="both", budget=budget, device=cpu(True), deterministic=True)
        with monkeypatch.context() as patch:
            patch.setattr(executor, "walk", hostile)
            assert not odd(both(plan), expected)
    assert hostile.walked


def test_nothing_is_computed_twice_where_memory_is_plenty() -> None:
    """And where it is short it takes no longer than a plan of each pass."""
    graph = ooc.networks.models.resnet(18, side=64)
    device = ooc.device("null", calibration="p100")
    free = graph.plan(batch=16, train="both", device=device)
    runs = [step.what for step in free.steps() if step.kind == "run" and step.what == "conv1"]
    assert len(runs) == sum(call.layer == "conv1" for call in free.network.calls)
    for budget, most in ((None, 0.85), (free.peaks["device"] // 4, 1.0)):
        one, two, three = (
            graph.plan(batch=16, train=train, device=device, budget=budget) for train in ("both", "forward", "backward")
        )
        assert one.predicted_seconds < most * (two.predicted_seconds + three.predicted_seconds)


def dropping() -> Graph:
    g = Graph("dropping")
    h = g.batch_norm(g.conv(g.input("x", (3, 8, 8)), 4, 3, name="conv"), name="norm")
    g.output(g.activation(g.dropout(h, 0.5), "relu", name="y"))
    return g


def test_passes_one_after_the_other() -> None:
    """Each has a dropout of its own, an output that the backward pass reads, and statistics that run."""
    graph = dropping()
    x, dy = arrays(graph)
    plan = graph.plan(batch=BATCH, train="both", device=cpu(), deterministic=True)
    with plan.session(seed=1) as session:
        first = session.forward(x), session.backward(x, dy)["x"]
        second = session.forward(x), session.backward(x, dy)["x"]
        assert session.steps == 2 and np.any(first[0] != second[0]) and np.any(first[1] != second[1])
    for y, dx in (first, second):
        assert np.any(dx) and np.array_equal(y > 0, y != 0)
    with plan.session(seed=1) as session:
        session.forward(x)
        assert np.array_equal(session.forward(x), first[0])  # of a pass that nobody went on with nothing is left
        assert np.array_equal(session.backward(x, dy)["x"], first[1])


def test_a_pass_backward_wants_one_forward() -> None:
    graph = dropping()
    x, dy = arrays(graph)
    with graph.plan(batch=BATCH, train="both", device=cpu()).session() as session:
        with pytest.raises(ooc.ArgumentError, match="call forward before"):
            session.backward(x, dy)
        session.forward(x)
        with pytest.raises(ooc.ShapeError, match="dy"):
            session.backward(x, dy[:2])
        session.backward(x, dy)  # nothing was begun
        with pytest.raises(ooc.ArgumentError, match="call forward before"):
            session.backward(x, dy)
        with pytest.raises(ooc.UnsupportedError, match="train=True"):
            session.step(x, np.zeros(BATCH, int))


def test_what_is_wanted_and_lent() -> None:
    graph = dropping()
    x, dy = arrays(graph)
    with graph.plan(batch=BATCH, train=False, device=cpu()).session() as session:
        lent = session.parameters() | session.statistics()
    asked: dict[str, Any] = {"batch": BATCH, "gradients": ["conv.w"], "lent": True, "device": cpu(), "deterministic": True}
    plan = graph.plan(train="both", **asked)
    with plan.session() as session, graph.plan(train="backward", **asked).session() as other:
        session.forward({"x": x, **lent})
        assert set(session.statistics()) == {"norm.mean", "norm.var"}
        have = session.backward({"x": x, **lent}, dy)
        expected = other.backward({"x": x, **{n: v for n, v in lent.items() if n in other.plan.network.borrowed}}, dy)
    assert have.keys() == {"conv.w"} and np.array_equal(have["conv.w"], expected["conv.w"])


def test_a_plan_is_the_one_that_was_written() -> None:
    plan = dropping().plan(batch=BATCH, train="both", device=cpu(), budget="16 KiB")
    read = ooc.NetworkPlan.from_json(plan.to_json(), device=cpu())
    assert read.steps() == plan.steps() and read.network.pause == plan.network.pause
    assert "then gradients" in str(plan)


def read_twice() -> Graph:
    """An output that a layer reads, too: its gradient is given, and meets another one."""
    g = Graph("read twice")
    h = g.conv(g.input("x", (2, 12, 12)), 4, 1, bias=True, activation="leaky_relu", name="a")
    g.output(h := g.dropout(g.crop(h, 1), 0.25))
    g.output(g.linear(g.global_pool(g.conv(h, 8, 3, name="c")), 4, name="l"))
    return g


@pytest.mark.parametrize(
    ("mode", "make"),
    crossed(["backward", "both"], [read_twice, *(partial(random_graph, 17_300 + seed) for seed in range(6))], every=7),
)
def test_outputs_that_layers_read(mode: str, make: Callable[[], Graph]) -> None:
    """No call reads what it makes, and gradients are the same under every budget."""
    graph, rng = make(), np.random.default_rng(0)
    graph.output(*(n.made for n in graph.nodes if not n.layer.is_loss and n.made not in graph.outputs and rng.random() < 0.4))
    x = rng.standard_normal((BATCH, *graph.shapes["x"])).astype(np.float32)
    dy = {t: rng.standard_normal((BATCH, *graph.shapes[t])).astype(np.float32) for t in graph.outputs}
    asked: dict[str, Any] = {"batch": BATCH, "train": mode, "device": cpu(), "home": "disk", "deterministic": True}
    free = graph.plan(**asked)
    assert not {t for call in free.network.calls for t in {*call.reads} & {*call.makes}} - {*graph.parameters}
    expected: Pass = {}
    for share in (1.0, 0.75, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1):
        plan = graph.plan(**asked, budget=max(int(free.peaks["device"] * share), free.smallest_bytes))
        with plan.session(seed=1) as session:
            if mode == "both":
                session.forward(x)
            gradients = session.backward(x, dy)
        expected = expected or gradients
        assert not odd(gradients, expected), plan.why


def test_a_program_that_misses_a_gradient_is_refused() -> None:
    """It would compute with whatever lies there."""
    net = judge_of(read_twice(), BATCH, None, NetworkRequest(Mode.BACKWARD), cpu()).net
    read = {t for call in net.backward for t in call.reads}
    lost = next(call for call in net.backward if read & {*call.makes})
    with pytest.raises(ooc.UnsupportedError, match="which nobody has kept or stored"):
        program(replace(net, calls=tuple(call for call in net.calls if call is not lost)), Proposal("lost"))


@pytest.mark.parametrize("change", ["refused", "begun"])
def test_parameters_that_change_in_the_pause_end_it(change: str) -> None:
    """What was kept is of others: there are no gradients of both."""
    graph = dropping()
    x, dy = arrays(graph)
    with graph.plan(batch=BATCH, train=False, device=cpu()).session() as session:
        own = session.parameters() | session.statistics()
    lent = change == "refused"
    with graph.plan(batch=BATCH, train="both", device=cpu(), lent=lent, deterministic=True).session() as session:
        operands = {"x": x, **own} if lent else x
        session.forward(operands)
        if lent:
            other = {"x": x, **{name: 3 * value for name, value in own.items()}}
            with pytest.raises(ooc.ShapeError):
                session.forward(other, out=np.empty((1, 1), np.float32))
            session.backward(operands, dy)  # of the first one: nothing was touched
        else:
            session.begin_with({"conv.w": 3 * own["conv.w"]})
            with pytest.raises(ooc.ArgumentError, match="call forward before"):
                session.backward(operands, dy)


def test_gradients_that_no_output_depends_on() -> None:
    """Zeros, as with train="backward"; nothing is computed behind the pause."""
    g = Graph("beside")
    c = g.conv(g.input("x", (3, 8, 8)), 4, 3, name="c")
    g.group_norm(c, 2, name="n")
    g.output(g.linear(g.global_pool(c), 4, name="z"))
    g.loss("cross_entropy", "z")
    x, dy = arrays(g)
    with g.plan(batch=BATCH, train="both", device=cpu(), gradients=["n.scale"]).session() as session:
        for _ in range(2):
            session.forward(x)
            assert not np.any(session.backward(x, dy)["n.scale"])


@pytest.mark.parametrize("budget", [2 << 10, 16 << 10, 256 << 10, None])
@pytest.mark.parametrize("staged", [False, True])
def test_integers_are_exact_and_memory_is_as_predicted(budget: int | None, staged: bool) -> None:
    """Memory held <= predicted <= budget, and the gradients of NumPy to the last bit, in any order of sums."""
    graph, rng = Graph("exact"), np.random.default_rng(5)
    h = graph.conv(graph.input("x", (2, 8, 8)), 2, 1, name="a")
    graph.output(graph.conv(h, 2, 1, name="b"))
    plan = graph.plan(batch=3, train="both", budget=budget, device=cpu(staged), home="disk")
    a, b = (rng.integers(-3, 4, (2, 2, 1, 1)).astype(np.float32) for _ in range(2))
    x, dy = (rng.integers(-4, 5, (3, 2, 8, 8)).astype(np.float32) for _ in range(2))
    with plan.session({"a.w": a, "b.w": b}) as session:
        y, gradients = session.forward(x), session.backward(x, dy)
        held = sum(int(m.nbytes) for m in session._main.machine.memory.values())  # type: ignore[union-attr]
    predicted = sum(plan.peaks[space] for space in ("device", "staging", "pinned"))
    assert held <= predicted <= (budget or predicted)
    ya, dh = np.einsum("nchw,kc->nkhw", x, a[:, :, 0, 0]), np.einsum("nkhw,kc->nchw", dy, b[:, :, 0, 0])
    np.testing.assert_array_equal(y, np.einsum("nchw,kc->nkhw", ya, b[:, :, 0, 0]))
    np.testing.assert_array_equal(gradients["b.w"][:, :, 0, 0], np.einsum("nkhw,nchw->kc", dy, ya))
    np.testing.assert_array_equal(gradients["a.w"][:, :, 0, 0], np.einsum("nkhw,nchw->kc", dh, x))
    np.testing.assert_array_equal(gradients["x"], np.einsum("nkhw,kc->nchw", dh, a[:, :, 0, 0]))


def test_a_wait_that_is_taken_out_is_missed() -> None:
    """In each of the two passes."""
    graph = random_graph(17_003)
    free = graph.plan(batch=BATCH, train="both", device=cpu(True))
    plan = graph.plan(batch=BATCH, train="both", device=cpu(True), budget=max(free.peaks["device"] // 3, free.smallest_bytes))
    steps, layout = plan.steps(), plan.schedule.layout
    turn = next(i for i, step in enumerate(steps) if step.kind == "pause")
    missed = [False, False]
    for i, step in enumerate(steps):
        if step.after and not missed[i > turn]:
            mutant = (*steps[:i], step._replace(after=()), *steps[i + 1 :])
            missed[i > turn] = races(mutant, layout) != []
    assert races(steps, layout) == [] and all(missed)
