"""Losses of networks are their formulas, at any budget, and the same bits under any policy.

In float64 losses and gradients are within 1e-12 of NumPy's on whole arrays. On integers losses are exact. In an order of their
own sums give the bits of keeping everything there.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from emulated_driver import emulated
from losses import ALONE, CLASSES, LOSSES, W, graph_with, targets_for, value
from networks import STREAMING, cpu, differing, smallest
from sweeps import crossed

import ooc
from ooc.errors import OptionError
from ooc.model.calibration import load_device
from ooc.networks import POLICIES, SGD, Graph
from ooc.runtime.device import Device

BATCH = 4
BUDGETS = ("2 KiB", "16 KiB", "256 KiB", None)
DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16}


def numbers(graph: Graph, seed: int = 1) -> tuple[Any, dict[str, Any]]:
    """x and parameters."""
    rng = np.random.default_rng(seed)
    kind = DTYPES[graph.dtypes["x"]]
    x = rng.standard_normal((BATCH, *graph.inputs["x"])).astype(kind)
    return x, {n: rng.standard_normal(w.shape).astype(np.float32) for n, w in graph.parameters.items()}


def stepped(plan: ooc.NetworkPlan, x: Any, targets: Any, parameters: Any, counted: Any = None) -> tuple[float, dict[str, Any]]:
    with plan.session(parameters, seed=1) as session:
        return session.step(x, targets, counted), session.gradients()


def expected(graph: Graph, x: Any, targets: Any, parameters: Any) -> tuple[float, dict[str, Any]]:
    """The loss, and the gradients of a convolution of 1 x 1, by NumPy."""
    w = parameters["y.w"].astype(float)[:, :, 0, 0]
    y = np.einsum("kc,nc...->nk...", w, x.astype(float)) + parameters["y.b"].astype(float)[:, None, None]
    loss, dy = value(y, targets, LOSSES[graph.name][1])
    return loss, {"y.b": dy.sum(axis=(0, 2, 3)), "y.w": np.einsum("nkhw,nchw->kc", dy, x.astype(float))[:, :, None, None]}


def assert_near(have: tuple[float, Any], theirs: tuple[float, Any], error: float, note: str = "") -> None:
    assert have[0] == pytest.approx(theirs[0], rel=error), note
    for name, gradient in theirs[1].items():
        size = np.abs(gradient).max()
        np.testing.assert_allclose(have[1][name], gradient, rtol=0, atol=error * max(size, 1e-3), err_msg=f"{name} {note}")


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", LOSSES)
def test_formulas(name: str, budget: str | None) -> None:
    graph = graph_with(name)
    (x, parameters), targets = numbers(graph), targets_for(graph, BATCH)
    plan = graph.plan(batch=BATCH, policy="stream" if budget else "keep", budget=budget, device=cpu())
    assert_near(stepped(plan, x, targets, parameters), expected(graph, x, targets, parameters), 1e-12, repr(plan))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", LOSSES)
def test_narrow_types(name: str, dtype: str) -> None:
    """Of what was rounded before the loss: gradients of values, not of parameters, are as they are."""
    graph = graph_with(name, dtype)
    (x, parameters), targets = numbers(graph), targets_for(graph, BATCH)
    parameters = {n: np.round(a * 4) / 4 for n, a in parameters.items()}
    x = np.round(x * 4) / 4
    plan = graph.plan(batch=BATCH, device=cpu())
    assert_near(stepped(plan, x, targets, parameters), expected(graph, x, targets, parameters), 1e-5 if dtype == "f32" else 2e-2)


@pytest.mark.parametrize("how", ["mse", "l1"])
def test_squares_that_a_half_type_does_not_hold(how: str) -> None:
    g = Graph("wide")
    y = g.affine(g.input("x", (8, 64), "f16"), "scale", np.ones((8, 1)), name="y")
    g.loss(how, y)
    x, target = np.full((2, 8, 64), 1000, np.float16), np.full((2, 8, 64), -24, np.float16)
    with g.plan(batch=2, device=cpu()).session() as session:
        assert session.step(x, target) == {"mse": 1024.0**2, "l1": 1024.0}[how]
        assert np.isfinite(session.gradients()["y.value"]).all()


# ---- exact


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["mse", "l1", "weights", "dice", "dice of the batch", "dice of one channel"])
def test_integers_are_exact(name: str, budget: str | None) -> None:
    """Differences are integers, and of logits one wins by far, so that probabilities are 0 and 1: sums in any order are exact."""
    graph = graph_with(name, "f32", (8, 8))
    rng, targets = np.random.default_rng(3), targets_for(graph, BATCH)
    large = 1 if name in ("mse", "l1") else 1024
    x = rng.integers(-3, 4, (BATCH, 2, 8, 8)).astype(np.float32)
    parameters = {
        "y.w": large * rng.permutation(np.arange(2.0 * graph.shapes["y"][0])).reshape(-1, 2, 1, 1).astype(np.float32),
        "y.b": large * np.arange(graph.shapes["y"][0], dtype=np.float32) / 4 + large / 8,
    }  # fmt: skip
    targets = np.round(targets * 4).astype(np.float32) if targets.dtype == np.float32 else targets
    plan = graph.plan(batch=BATCH, policy="stream" if budget else "keep", budget=budget, device=cpu())
    kept = stepped(graph.plan(batch=BATCH, device=cpu()), x, targets, parameters)
    have = stepped(plan, x, targets, parameters)
    assert have[0] == kept[0] and not differing(have[1], kept[1])
    assert have[0] == pytest.approx(expected(graph, x, targets, parameters)[0], rel=1e-6)


# ---- bits


def deep(name: str) -> Graph:
    """Some layers, and losses of their last."""
    channels, said = LOSSES[name]
    g = Graph(f"deep {name}")
    h = g.conv(g.input("x", (2, 12, 10)), 6, 3, padding=1, bias=True, activation="relu")
    h = g.conv(g.dropout(h, 0.25), 6, 3, padding=1, activation="leaky_relu")
    y = g.conv(g.conv(h, 6, 3, padding=1, activation="tanh"), channels, 1, bias=True)
    for how, options in said:
        g.loss(how, y, **options)
    g.output(y)
    return g


def ran(plan: ooc.NetworkPlan, x: Any, targets: Any) -> dict[str, Any]:
    with plan.session(seed=1) as session:
        losses = [session.step(x, targets) for _ in range(2)]
        return {"losses": losses, **session.gradients(), **{f"new {n}": p for n, p in session.parameters().items()}}


def planned(graph: Graph, policy: str, budget: Any) -> ooc.NetworkPlan:
    return graph.plan(batch=BATCH, budget=budget, policy=policy, device=cpu(), deterministic=True, optimizer=SGD(0.1, 0.9))


@pytest.mark.parametrize(("name", "policy"), crossed(list(LOSSES), [*POLICIES, "auto"], every=10))
def test_the_same_bits_under_any_policy(name: str, policy: str) -> None:
    """Without a limit, and in little memory."""
    graph = deep(name)
    rng = np.random.default_rng(2)
    x, targets = rng.standard_normal((BATCH, 2, 12, 10)).astype(np.float32), targets_for(graph, BATCH)
    kept = ran(planned(deep(name), "keep", None), x, targets)
    if policy == "modnn" and name == "dice of the batch":
        with pytest.raises(ooc.UnsupportedError, match="whole batch"):
            planned(graph, policy, None)
        return
    least = smallest(deep(name), policy, cpu(), BATCH)
    budgets = (max(least, 4 << 10), 16 << 10, 256 << 10, None)
    for budget in budgets if policy in (*STREAMING, "auto") else (least, None):
        plan = planned(deep(name), policy, budget)
        assert differing(ran(plan, x, targets), kept) == [], f"{policy} {budget}: {plan.why}"


@pytest.mark.parametrize("name", ["weights", "dice", "several"])
def test_parts_of_the_batch(name: str) -> None:
    """A sub-batch at a time: sums go on from one to the next."""
    graph = deep(name)
    x, targets = np.random.default_rng(2).standard_normal((BATCH, 2, 12, 10)).astype(np.float32), targets_for(graph, BATCH)
    plans = planned(deep(name), "keep", None), planned(deep(name), "modnn", smallest(deep(name), "modnn", cpu(), BATCH))
    assert plans[1].peaks["device"] < plans[0].peaks["device"]
    assert differing(ran(plans[1], x, targets), ran(plans[0], x, targets)) == []


# ---- several


def test_the_sum_of_several_is_that_of_each() -> None:
    graph, targets = graph_with("several"), targets_for(graph_with("several"), BATCH)
    x, parameters = numbers(graph)
    total, gradient = 0.0, 0.0
    for i, (how, options) in enumerate(LOSSES["several"][1]):
        g = Graph("one")
        g.loss(how, g.conv(g.input("x", (2, 6, 5), "f64"), CLASSES, 1, bias=True, name="y"), **options)
        loss, gradients = stepped(g.plan(batch=BATCH, device=cpu()), x, targets[f"loss{i + 1}" if i else "loss"], parameters)
        total, gradient = total + loss, gradient + gradients["y.w"]
    loss, gradients = stepped(graph.plan(batch=BATCH, device=cpu()), x, targets, parameters)
    assert loss == pytest.approx(total, rel=1e-13)
    np.testing.assert_allclose(gradients["y.w"], gradient, rtol=1e-12, atol=1e-14)


def test_one_array_for_losses_that_take_the_same() -> None:
    graph = graph_with("dice and cross entropy")
    (x, parameters), labels = numbers(graph), targets_for(graph, BATCH)
    plan = graph.plan(batch=BATCH, device=cpu())
    one = stepped(plan, x, labels, parameters)
    both = stepped(plan, x, {"loss2": labels, "loss": labels.astype(np.int8)}, parameters)
    assert both[0] == one[0] and not differing(both[1], one[1])


def test_losses_of_several_layers() -> None:
    """Of other positions, with layers behind the first."""
    g = Graph("supervised deeply")
    h = g.conv(g.input("x", (2, 8, 8), "f64"), 4, 3, padding=1, activation="tanh", name="h")
    g.loss("cross_entropy", g.conv(h, 3, 1, name="fine"), name="fine loss")
    low = g.conv(g.pool(h, 2), 3, 1, name="coarse")
    g.loss("cross_entropy", low, weight=0.5, name="coarse loss")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, 2, 8, 8))
    labels = {"fine loss": rng.integers(0, 3, (BATCH, 8, 8)), "coarse loss": rng.integers(0, 3, (BATCH, 4, 4))}
    kept = stepped(g.plan(batch=BATCH, device=cpu(), deterministic=True), x, labels, {})
    streamed = g.plan(batch=BATCH, device=cpu(), policy="stream", budget="8 KiB", deterministic=True)
    other = stepped(streamed, x, labels, {})
    assert other[0] == kept[0] and not differing(other[1], kept[1])
    with pytest.raises(ooc.ArgumentError, match="dict by the name of the loss: fine loss, coarse loss"):
        stepped(g.plan(batch=BATCH, device=cpu()), x, labels["fine loss"], {})


# ---- what counts


@pytest.mark.parametrize("name", ["weights and smoothing", "mse", "dice", "several"])
def test_parts_of_a_larger_batch(name: str) -> None:
    """Divided by what counts in all of it, losses and gradients add up."""
    graph, half = graph_with(name), BATCH // 2
    (x, parameters), targets = numbers(graph), targets_for(graph, BATCH)
    loss, gradients = stepped(graph.plan(batch=BATCH, device=cpu()), x, targets, parameters)
    labels = targets if isinstance(targets, dict) else {"loss": targets}
    w = np.append(W, 0.0)[labels["loss"]].sum() if name.startswith("weights") else None
    every = {"loss": w, "loss2": x[:, 0].size * CLASSES, "loss3": BATCH * CLASSES}
    if name == "several":
        every["loss"] = int(np.count_nonzero(labels["loss"] >= 0))
    counted: Any = {"mse": every["loss2"], "dice": every["loss3"], "several": every}.get(name, w)
    total, sums = 0.0, {n: np.zeros(g.shape) for n, g in gradients.items()}
    for part in (slice(0, half), slice(half, None)):
        some = {n: a[part] for n, a in labels.items()}
        own, each = stepped(graph.plan(batch=half, device=cpu()), x[part], some, parameters, counted)
        total += own
        sums = {n: s + each[n] for n, s in sums.items()}
    assert_near((total, sums), (loss, gradients), 1e-12)


@pytest.mark.parametrize("name", [n for n in ALONE if not n.startswith(("mse", "l1", "bce"))])
def test_no_label_counts(name: str) -> None:
    """A loss of 0 and gradients of 0."""
    graph = graph_with(name)
    x, parameters = numbers(graph)
    loss, gradients = stepped(graph.plan(batch=BATCH, device=cpu()), x, np.full((BATCH, 6, 5), -1), parameters)
    assert loss == 0 and not any(g.any() for g in gradients.values())


# ---- graphs as text


@pytest.mark.parametrize("name", LOSSES)
def test_round_trip(name: str) -> None:
    text = graph_with(name).to_json()
    again = Graph.from_json(text)
    assert again.to_json() == text
    assert [n.layer for n in again.nodes] == [n.layer for n in graph_with(name).nodes]


def test_graphs_of_before() -> None:
    """A plain loss is the text that it was."""
    text = graph_with("cross entropy").to_json()
    assert json.loads(text)["layers"][-1] == {"name": "loss", "kind": "cross_entropy", "reads": ["y"]}


# ---- errors

OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("hinge", {}, "expected 'cross_entropy', 'mse', 'l1', 'bce', 'dice'; got 'hinge'"),
    ("mse", {"weights": W}, "mse takes no weights"),
    ("l1", {"smoothing": 0.1, "batch": True}, "l1 takes no smoothing, batch"),
    ("bce", {"smooth": 2.0}, "bce takes no smooth"),
    ("dice", {"weights": W}, "dice takes no weights"),
    ("cross_entropy", {"background": False}, "takes no background"),
    ("cross_entropy", {"weights": W[1:]}, "one for each of 4 channels, got 3"),
    ("cross_entropy", {"weights": [-1, 1, 1, 1]}, "not negative"),
    ("cross_entropy", {"weights": [np.nan, 1, 1, 1]}, "finite"),
    ("cross_entropy", {"weights": 3}, "weights: expected numbers"),
    ("cross_entropy", {"weights": ["a", 1, 1, 1]}, "weights: expected a number"),
    ("cross_entropy", {"smoothing": 1.5}, "smoothing"),
    ("cross_entropy", {"smoothing": np.nan}, "smoothing"),
    ("cross_entropy", {"weight": np.inf}, "weight"),
    ("bce", {"weights": [1, 2]}, "one for each of 4 channels, got 2"),
    ("dice", {"smooth": -1}, "smooth"),
    ("dice", {"batch": 1}, "batch"),
]


@pytest.mark.parametrize(("how", "options", "says"), OPTIONS)
def test_options_that_make_no_sense(how: str, options: dict[str, Any], says: str) -> None:
    g = Graph("wrong")
    y = g.conv(g.input("x", (2, 6, 5)), CLASSES, 1)
    with pytest.raises((ooc.ArgumentError, OptionError), match=says):
        g.loss(how, y, **options)
    assert len(g.nodes) == 1


def test_background_of_one_channel() -> None:
    g = Graph("wrong")
    with pytest.raises(ooc.ArgumentError, match="more than one channel"):
        g.loss("dice", g.conv(g.input("x", (2, 6, 5)), 1, 1), background=False)


LABELS, VALUES = np.zeros((BATCH, 6, 5), int), np.zeros((BATCH, CLASSES, 6, 5), np.float32)
GIVEN: list[tuple[str, Any, Any, str]] = [
    ("mse", VALUES[:, 0], ooc.ShapeError, "labels: expected shape"),
    ("mse", LABELS, ooc.DtypeError, "labels: dtype int64"),
    ("mse", VALUES.astype(float), ooc.DtypeError, "labels: expected float32, got float64"),
    ("bce", {"other": VALUES}, ooc.ArgumentError, "expected the losses loss, got other"),
    ("dice", VALUES, ooc.DtypeError, "integers"),
    ("dice", LABELS + CLASSES, ooc.ArgumentError, "4 is no class; expected less than 4"),
    ("dice of one channel", LABELS + 2, ooc.ArgumentError, "2 is no class; expected less than 2"),
    ("several", LABELS, ooc.ArgumentError, "dict by the name of the loss: loss, loss2, loss3"),
    ("several", {"loss": LABELS, "loss2": VALUES}, ooc.ArgumentError, "expected the losses"),
    ("several", {"loss": LABELS, "loss2": VALUES[:, 1:], "loss3": LABELS}, ooc.ShapeError, "labels: loss2: expected shape"),
    ("several", {"loss": LABELS, "loss2": VALUES, "loss3": LABELS + 9}, ooc.ArgumentError, "labels: loss3: 9 is no class"),
]


@pytest.mark.parametrize(("name", "targets", "kind", "says"), GIVEN)
def test_targets_that_do_not_fit(name: str, targets: Any, kind: Any, says: str) -> None:
    graph = graph_with(name, "f32")
    x, _ = numbers(graph)
    with graph.plan(batch=BATCH, device=cpu()).session() as session:
        with pytest.raises(kind, match=says):
            session.step(x, targets)
        assert session.steps == 0


@pytest.mark.parametrize("counted", [0, -1, 0.0, "many", {"x": 1}, {"loss": 1, "loss2": 0, "loss3": 1}, 5])
def test_counts_that_make_no_sense(counted: Any) -> None:
    graph = graph_with("several" if counted == 5 or isinstance(counted, dict) else "cross entropy")
    x, _ = numbers(graph)
    with graph.plan(batch=BATCH, device=cpu()).session() as session, pytest.raises(ooc.ArgumentError, match="counted"):
        session.step(x, targets_for(graph, BATCH), counted)


# ---- elsewhere


@pytest.mark.parametrize(
    "name", [n if n in ("cross_entropy", "dice") else pytest.param(n, marks=pytest.mark.slow) for n in LOSSES]
)
def test_they_are_walked_on_a_null_device(name: str) -> None:
    graph = deep(name)
    plan = graph.plan(batch=BATCH, device=ooc.device("null", calibration="p100"), optimizer=SGD(0.1), budget="64 KiB")
    with plan.session() as session:
        assert session.step(np.ones((BATCH, 2, 12, 10), np.float32), targets_for(graph, BATCH)) == 0
    assert graph.flops.keys() == {n.name for n in graph.nodes} and "dice" in str(graph_with("dice"))


@pytest.mark.parametrize("name", LOSSES)
def test_kernels_of_a_gpu(name: str) -> None:
    """On a device that is emulated: the formulas, and the same bits in tiles and parts of the batch."""
    gpu = Device(emulated(5, cudnn=False), load_device("p100"), deterministic=True)
    graph = graph_with(name, "f32")
    (x, parameters), targets = numbers(graph), targets_for(graph, BATCH)
    kept = stepped(graph.plan(batch=BATCH, device=gpu, deterministic=True), x, targets, parameters)
    assert_near(kept, expected(graph, x, targets, parameters), 1e-5)
    for policy, budget in (("stream", "8 KiB"), ("layrub", None), ("superneurons", None)):
        plan = graph.plan(batch=BATCH, policy=policy, budget=budget, device=gpu, deterministic=True)
        have = stepped(plan, x, targets, parameters)
        assert have[0] == kept[0] and not differing(have[1], kept[1]), policy


def test_targets_in_files(tmp_path: Any) -> None:
    """Read by region, as inputs are."""
    graph = graph_with("mse", "f32")
    (x, parameters), target = numbers(graph), targets_for(graph, BATCH)
    np.save(tmp_path / "t.npy", target)
    plan = graph.plan(batch=BATCH, device=cpu(), policy="stream", budget="4 KiB")
    kept = stepped(plan, x, target, parameters)
    for there in (np.load(tmp_path / "t.npy", mmap_mode="r"), ooc.open(tmp_path / "t.npy")):
        have = stepped(plan, x, there, parameters)
        assert have[0] == kept[0] and not differing(have[1], kept[1])
