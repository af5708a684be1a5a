"""The networks of the papers, narrow, under every policy and budget: the same bits as keeping everything.

On integers, whose sums are exact in any order, at the device's own order of sums; on floats in an order of their own
(deterministic). Batches are so large that activations weigh at least eight times what lasts: there is something to move.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from networks import STREAMING, data, differing

import ooc
from ooc.networks import POLICIES, SGD, Graph, models
from ooc.networks.tensors import Role

BATCH = 64  # a power of two: means are exact
SHARES = (2, 4, 8)
# Below it tiles are so small that a step takes minutes; one tiny network streams at its smallest budget.
LEAST_STREAMED = 64 << 10
GAP = 2.0**13  # of the last layer's weights: the exponential of a difference of logits is 0 or 1

NETS: dict[str, Callable[[], Graph]] = {
    "alexnet": lambda: models.alexnet(side=16, classes=4, width=1 / 64),
    "vgg16": lambda: models.vgg(16, side=32, classes=4, width=1 / 32),
    "resnet18": lambda: models.resnet(18, side=32, classes=4, width=1 / 32),
    "googlenet": lambda: models.googlenet(side=32, classes=4, width=1 / 16, dropout=0.5),
    "unet3d": lambda: models.unet3d(side=8, classes=3, width=1 / 16),
}
NORMED = ("resnet18", "unet3d")
LAST = {"alexnet": "fc8", "vgg16": "fc8", "resnet18": "fc", "googlenet": "fc", "unet3d": "logits", "tiny": "fc"}


@functools.cache
def cpu() -> ooc.Device:
    return ooc.device("cpu", threads=2)


def tiny() -> Graph:
    g = Graph("tiny")
    h = g.pool(g.conv(g.input("x", (2, 4, 4)), 2, 3, padding=1, bias=True, activation="relu"), 2)
    logits = g.linear(g.flatten(h), 3, bias=True, name="fc")
    g.loss("cross_entropy", logits)
    g.output(logits)
    return g


def integral(graph: Graph, dtype: str = "f32") -> Graph:
    """The graph without what makes fractions of integers: response normalisation divides by 1, the activations of batch norms
    stay alone. Dropout at a rate of 1/2 doubles, means are of powers of two."""
    raw = json.loads(graph.to_json())
    for one in raw["inputs"]:
        one["dtype"] = dtype
    for one in raw["layers"]:
        if one["kind"] == "lrn":
            one |= {"alpha": 0.0, "base": 1.0}
        elif one["kind"] == "batch_norm":
            one["kind"] = "activation"
            del one["eps"], one["momentum"], one["frozen"]
    return Graph.from_json(json.dumps(raw))


def doubled(graph: Graph) -> Graph:
    """The graph in float64."""
    raw = json.loads(graph.to_json())
    for one in raw["inputs"]:
        one["dtype"] = "f64"
    return Graph.from_json(json.dumps(raw))


def weights(graph: Graph, last: str) -> dict[str, Any]:
    """-1, 0 and 1: each filter passes a channel on, and has one more that is not 0. Those of the last layer are so large, and its
    biases so far apart, that of all logits one wins by far, whatever x is."""
    found = {}
    for name, own in graph.parameters.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if name == f"{last}.b":
            found[name] = np.arange(own.shape[0]) * GAP / 4
        elif len(own.shape) == 1:
            found[name] = rng.integers(0, 2, own.shape)
        else:
            made = np.zeros(own.shape)
            middle = tuple(e // 2 for e in own.shape[2:])
            for k, row in enumerate(made):
                row.reshape(-1)[rng.integers(row.size)] = rng.choice((-1, 1))
                row[(k % row.shape[0], *middle)] = 1
            found[name] = made * (GAP if name == f"{last}.w" else 1)
    return {name: a.astype(np.float64 if graph.parameters[name].dtype == "f64" else np.float32) for name, a in found.items()}


def integers(graph: Graph, batch: int) -> tuple[Any, Any]:
    x, labels = data(graph, batch)
    kind = np.float64 if graph.dtypes["x"] == "f64" else np.float32
    return np.random.default_rng(5).integers(-2, 3, x.shape).astype(kind), labels


def ran(plan: ooc.NetworkPlan, x: Any, labels: Any, start: Any = None) -> dict[str, Any]:
    """What two steps give, the second with another x."""
    with plan.session(start) as session:
        losses = [session.step(x, labels), session.step(x[::-1], labels)]
        gradients = {f"d {name}": a for name, a in session.gradients().items()}
        return {"losses": losses, **gradients, **session.parameters(), **session.statistics()}


def least_of(make: Callable[[], Graph], policy: str, batch: int, **more: Any) -> int:
    with pytest.raises(ooc.BudgetError) as caught:
        make().plan(batch=batch, budget=1, policy=policy, device=cpu(), **more)
    assert caught.value.smallest_bytes is not None
    return caught.value.smallest_bytes


def assert_same(
    make: Callable[[], Graph], policy: str, compare: Callable[[ooc.NetworkPlan], None], batch: int = BATCH, **more: Any
) -> None:
    """At no limit, at shares of what keeping takes and at the smallest budget; below that an error names it."""
    keep, least = least_of(make, "keep", batch, **more), least_of(make, policy, batch, **more)
    budgets: set[int | None] = {None, least, least - 1, *(keep // share for share in SHARES)}
    for budget in budgets:
        if budget is not None and budget < least:
            with pytest.raises(ooc.BudgetError) as caught:
                make().plan(batch=batch, budget=budget, policy=policy, device=cpu(), **more)
            assert caught.value.smallest_bytes == least and str(least) in str(caught.value)
        elif budget is None or policy not in STREAMING or budget >= LEAST_STREAMED or batch < BATCH:
            plan = make().plan(batch=batch, budget=budget, policy=policy, device=cpu(), **more)
            assert budget is None or sum(plan.peaks[s] for s in ("device", "staging", "pinned")) <= budget
            compare(plan)
    if policy in STREAMING and batch == BATCH:
        compare(make().plan(batch=batch, budget=max(least, LEAST_STREAMED), policy=policy, device=cpu(), **more))


def cases(names: Any) -> list[Any]:
    """Few of them for every day, without those that take longest."""
    pairs = [(name, policy) for name in names for policy in POLICIES]
    brief = [i for i, pair in enumerate(pairs) if i % 20 == 3 and pair not in (("unet3d", "stream"), ("unet3d", "modnn"))]
    return [pytest.param(*pair, marks=() if i in brief else pytest.mark.slow) for i, pair in enumerate(pairs)]


@functools.cache
def exact(name: str) -> Any:
    """What keeping gives on integers. All of it is exact: float64 gives the same numbers."""
    found = []
    for dtype in ("f32", "f64"):
        graph = integral(NETS[name](), dtype)
        plan = graph.plan(batch=BATCH, device=cpu())
        found.append(ran(plan, *integers(graph, BATCH), weights(graph, LAST[name])))
    assert differing(*found) == []
    gradients = [a for n, a in found[0].items() if n.startswith("d ")]
    assert sum(bool(a.any()) for a in gradients) > 0.7 * len(gradients) and found[0]["losses"][0] > 0
    return found[0]


@pytest.mark.parametrize("name", NETS)
def test_activations_outweigh_what_lasts(name: str) -> None:
    net = NETS[name]().plan(batch=BATCH, device=cpu()).network
    lasting = 2 * sum(t.nbytes for t in net.tensors.values() if t.role is Role.PARAMETER)
    assert sum(net.tensors[t].nbytes for t in net.kept) >= 8 * lasting


@pytest.mark.parametrize(("name", "policy"), cases(NETS))
def test_integers_in_any_order_of_sums(name: str, policy: str) -> None:
    graph = integral(NETS[name]())
    x, labels = integers(graph, BATCH)
    start = weights(graph, LAST[name])

    def compare(plan: ooc.NetworkPlan) -> None:
        assert differing(ran(plan, x, labels, start), exact(name)) == [], f"{plan.policy} {plan.budget}: {plan.why}"

    assert_same(lambda: integral(NETS[name]()), policy, compare)


@functools.cache
def kept(name: str) -> Any:
    graph = NETS[name]()
    return ran(graph.plan(batch=BATCH, device=cpu(), deterministic=True, optimizer=SGD(0.01, 0.9)), *data(graph, BATCH))


@pytest.mark.parametrize(("name", "policy"), cases(NETS))
def test_floats_in_an_order_of_their_own(name: str, policy: str) -> None:
    x, labels = data(NETS[name](), BATCH)
    if name in NORMED and policy == "modnn":
        with pytest.raises(ooc.UnsupportedError, match="whole batch"):
            NETS[name]().plan(batch=BATCH, policy=policy, device=cpu())
        return

    def compare(plan: ooc.NetworkPlan) -> None:
        assert differing(ran(plan, x, labels), kept(name)) == [], f"{plan.policy} {plan.budget}: {plan.why}"

    assert_same(NETS[name], policy, compare, deterministic=True, optimizer=SGD(0.01, 0.9))


@functools.cache
def normed(name: str) -> Any:
    graph = doubled(NETS[name]())
    x, labels = integers(graph, BATCH)
    return ran(graph.plan(batch=BATCH, device=cpu()), x, labels)


@pytest.mark.parametrize(("name", "policy"), [c for c in cases(NORMED) if c.values[1] != "modnn"])
def test_statistics_in_any_order_of_sums(name: str, policy: str) -> None:
    """Batch norms divide by roots, so that sums behind them are never exact: in float64 they differ in their last bits alone."""
    x, labels = integers(doubled(NETS[name]()), BATCH)

    def compare(plan: ooc.NetworkPlan) -> None:
        found = ran(plan, x, labels)
        for key, value in normed(name).items():
            scale = np.abs(value).max()
            np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-9 * max(scale, 1e-3), err_msg=f"{policy} {key}")

    assert_same(lambda: doubled(NETS[name]()), policy, compare)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_smallest_budget_of_a_tiny_network(policy: str) -> None:
    x, labels = integers(tiny(), 4)
    start = weights(tiny(), "fc")
    wanted = ran(tiny().plan(batch=4, device=cpu()), x, labels, start)

    def compare(plan: ooc.NetworkPlan) -> None:
        assert differing(ran(plan, x, labels, start), wanted) == []

    assert_same(tiny, policy, compare, batch=4)
