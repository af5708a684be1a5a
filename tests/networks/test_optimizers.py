"""What a trainer needs of optimizers: rules, clipping, frozen parameters, gradients over steps, averages, loss scales, masters.

Against PyTorch where it is there, against formulas in NumPy everywhere; the same bits under any policy and budget, and after a
checkpoint at any step.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.ir.op import numpy_dtype
from ooc.networks import POLICIES, Graph
from ooc.networks.optimizers import Optimizer, optimizer_of
from ooc.ops import Squares
from ooc.ops.pacing import GOOD, LANES, LEAST
from ooc.runtime.engine import execute

BATCH = 4
RULES: dict[str, Optimizer] = {
    "sgd": ooc.SGD(0.1, 0.9, 0.01, nesterov=True),
    "adam": ooc.Adam(0.01, weight_decay=0.1),
    "adamw": ooc.AdamW(0.01, weight_decay=0.1),
    "rmsprop": ooc.RMSprop(0.01),
    "rmsprop, decay": ooc.RMSprop(0.01, 0.9, 1e-6, 0.1),
    "rmsprop, momentum": ooc.RMSprop(0.01, momentum=0.9),
    "rmsprop, centered": ooc.RMSprop(0.01, 0.9, 1e-3, centered=True),
    "rmsprop, all": ooc.RMSprop(0.01, 0.9, 1e-3, 0.1, 0.9, centered=True),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "clip_norm": {"clip_norm": 0.5},
    "frozen": {"frozen": ["first.*", "norm.b"]},
    "accumulate": {"accumulate": 3},
    "ema": {"ema": 0.9},
    "loss_scale": {"loss_scale": 1024},
    "dynamic": {"loss_scale": "dynamic"},
    "all": {"clip_norm": 0.5, "frozen": ["first.w"], "accumulate": 2, "ema": 0.9, "loss_scale": "dynamic"},
}


def graph(dtype: str = "f32", classes: int = 3) -> Graph:
    g = Graph("moved")
    h = g.conv(g.input("x", (3, 8, 8), dtype=dtype), 6, 3, padding=1, bias=True, name="first")
    h = g.conv(g.batch_norm(h, activation="relu", name="norm"), 4, 3, padding=1, bias=True, activation="relu", name="second")
    logits = g.linear(g.flatten(g.pool(h, 2)), classes, bias=True, name="fc")
    g.output(logits)
    g.loss("cross_entropy", logits)
    return g


def plan(optimizer: Any, dtype: str = "f32", **more: Any) -> ooc.NetworkPlan:
    options = {"policy": "keep", "deterministic": True, "device": ooc.device("cpu", threads=1), **more}
    return graph(dtype).plan(batch=BATCH, optimizer=optimizer, **options)


def data(step: int, dtype: str = "f32") -> tuple[Any, Any]:
    rng = np.random.default_rng(step)
    return rng.standard_normal((BATCH, 3, 8, 8)).astype(numpy_dtype(dtype)), rng.integers(0, 3, BATCH)


def steps(session: Any, count: int, dtype: str = "f32") -> list[float]:
    return [session.step(*data(session.steps, dtype)) for _ in range(count)]


def all_of(session: Any) -> dict[str, Any]:
    """All that a session keeps."""
    return {t.name: session._main.get(t) for t in session.plan.network.lasting}


def assert_close(ours: Any, theirs: Any) -> None:
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=2e-5, atol=2e-6, err_msg=name)


# ---- rules


class Rule:
    """A rule as its formula says, with the gradients of a session; in float64."""

    def __init__(self, optimizer: Any, parameters: dict[str, Any]) -> None:
        self.optimizer, self.moves = optimizer, 0
        self.p = {name: values.astype(np.float64) for name, values in parameters.items()}
        self.kept: dict[tuple[str, str], Any] = {}

    def mean(self, name: str, what: str, keep: float, value: Any, take: float | None = None) -> Any:
        before = self.kept.get((name, what), 0.0)
        self.kept[name, what] = keep * before + (1 - keep if take is None else take) * value
        return self.kept[name, what]

    def move(self, gradients: dict[str, Any]) -> None:
        self.moves += 1
        for name, gradient in gradients.items():
            self.p[name] = getattr(self, self.optimizer.kind)(name, self.p[name], gradient)

    def sgd(self, name: str, p: Any, g: Any) -> Any:
        o = self.optimizer
        d = g + o.weight_decay * p
        v = self.mean(name, "v", o.momentum, d, 1)
        return p - o.lr * (d + o.momentum * v if o.nesterov else v)

    def adam(self, name: str, p: Any, g: Any) -> Any:
        o = self.optimizer
        d = g + o.weight_decay * p
        m = self.mean(name, "m", o.betas[0], d) / (1 - o.betas[0] ** self.moves)
        v = self.mean(name, "v", o.betas[1], d**2) / (1 - o.betas[1] ** self.moves)
        return p - o.lr * m / (np.sqrt(v) + o.eps)

    def adamw(self, name: str, p: Any, g: Any) -> Any:
        o = self.optimizer
        m = self.mean(name, "m", o.betas[0], g) / (1 - o.betas[0] ** self.moves)
        v = self.mean(name, "v", o.betas[1], g**2) / (1 - o.betas[1] ** self.moves)
        return p * (1 - o.lr * o.weight_decay) - o.lr * m / (np.sqrt(v) + o.eps)

    def rmsprop(self, name: str, p: Any, g: Any) -> Any:
        o = self.optimizer
        d = g + o.weight_decay * p
        v = self.mean(name, "v", o.alpha, d**2)
        a = self.mean(name, "a", o.alpha, d) if o.centered else 0.0
        step = d / (np.sqrt(np.maximum(v - a**2, 0)) + o.eps)
        return p - o.lr * (self.mean(name, "b", o.momentum, step, 1) if o.momentum else step)


@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_of_the_formula(rule: str) -> None:
    with plan(RULES[rule], "f64").session() as session:
        formula = Rule(RULES[rule], session.parameters())
        for _ in range(5):
            steps(session, 1, "f64")
            formula.move(session.gradients())
        for name, values in session.parameters().items():
            np.testing.assert_allclose(values, formula.p[name], rtol=1e-9, atol=1e-12)


def theirs_of(torch: Any, optimizer: Any, tensors: list[Any]) -> Any:
    """The optimizer of PyTorch that is the same."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
    words = {name: value for name, value in json.loads(json.dumps(optimizer.fields())).items() if name not in OPTIONS}
    return kinds[words.pop("kind")](tensors, **words)


@pytest.mark.parametrize("option", [None, "clip_norm", "accumulate", "ema", "loss_scale", "all"])
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_of_torch(rule: str, option: str | None) -> None:
    """From the same gradients: PyTorch clips, sums, and averages them as its documentation says."""
    torch = pytest.importorskip("torch")
    raw = RULES[rule].fields() | (OPTIONS[option] if option else {})
    optimizer = optimizer_of(json.loads(json.dumps(raw)))
    assert optimizer is not None
    with plan(optimizer).session() as session:
        before = session.parameters()
        module = torch.nn.ParameterDict({n.replace(".", "_"): torch.from_numpy(v.copy()) for n, v in before.items()})
        tensors = {name: module[name.replace(".", "_")] for name in before if optimizer.moves(name)}
        theirs = theirs_of(torch, optimizer, list(tensors.values()))
        ema = torch.optim.swa_utils.AveragedModel(
            module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(optimizer.ema or 0.5)
        )
        ema.update_parameters(module)  # the first time they are copied
        for step in range(6):
            steps(session, 1)
            for name, tensor in tensors.items():
                part = torch.from_numpy(session.gradients()[name].astype(before[name].dtype)) / optimizer.accumulate
                tensor.grad = part if tensor.grad is None else tensor.grad + part
            if (step + 1) % optimizer.accumulate:
                continue
            if optimizer.clip_norm:
                torch.nn.utils.clip_grad_norm_(tensors.values(), optimizer.clip_norm)
            theirs.step()
            theirs.zero_grad()
            ema.update_parameters(module)
        assert_close(session.parameters(), {name: module[name.replace(".", "_")].detach().numpy() for name in before})
        if optimizer.ema:
            averages = {name: ema.module[name.replace(".", "_")].detach().numpy() for name in before}
            assert_close(session.averages(), averages)


# ---- options


def test_gradients_are_clipped_to_a_norm() -> None:
    """Plain descent with lr=1 moves by the clipped gradients themselves; one that is short enough stays."""
    for most in (0.25, 100.0):
        with plan(ooc.SGD(1.0, clip_norm=most)).session() as session:
            before = session.parameters()
            steps(session, 1)
            gradients, after = session.gradients(), session.parameters()
            norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
            share = min(1.0, most / (norm + 1e-6))
            assert (share < 1) == (most < 1)
            for name, values in before.items():
                np.testing.assert_allclose(after[name], values - share * gradients[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"clip_norm": 1.0}, {"loss_scale": "dynamic"}, {"loss_scale": 8, "ema": 0.5}])
def test_gradients_that_are_not_finite_move_nothing(options: dict[str, Any]) -> None:
    with plan(ooc.Adam(0.1, **options)).session() as session:
        steps(session, 2)
        before = all_of(session)
        x, labels = data(2)
        x[0, 0, 0, 0] = np.nan
        assert math.isnan(session.step(x, labels))
        after = all_of(session)
        kept = {t.name for t in session.plan.network.lasting if t.role.value in ("parameter", "state")} - {"optimizer/state"}
        assert len(kept) > 20
        for name in kept:
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)
        halved = options.get("loss_scale") == "dynamic"
        assert after["optimizer/state"][0] == before["optimizer/state"][0] / (2 if halved else 1)
        assert after["optimizer/state"][2] == 2  # moves


def test_a_dynamic_loss_scale_rises_and_falls() -> None:
    with plan(ooc.SGD(1e-6, loss_scale="dynamic")).session() as session:
        net = session.plan.network
        state = net.tensors["optimizer/state"]
        session._main.put(state, np.array([4.0, GOOD - 1, 0, 0]))
        steps(session, 1)
        assert session._main.get(state)[:2].tolist() == [8, 0]
        session._main.put(state, np.array([LEAST, 5.0, 0, 0]))
        x, labels = data(0)
        session.step(np.full_like(x, np.inf), labels)
        assert session._main.get(state)[:2].tolist() == [LEAST, 0]


@pytest.mark.parametrize("scale", ["dynamic", 1024, 1])
def test_a_loss_scale_changes_neither_loss_nor_gradients(scale: Any) -> None:
    """A power of two rounds nothing, where nothing overflows."""
    with plan(ooc.SGD(0.1)).session() as plain, plan(ooc.SGD(0.1, loss_scale=scale)).session() as scaled:
        assert steps(plain, 3) == steps(scaled, 3)
        for ours, theirs in ((plain.gradients(), scaled.gradients()), (plain.parameters(), scaled.parameters())):
            for name, values in ours.items():
                np.testing.assert_array_equal(values, theirs[name], err_msg=name)


def test_frozen_parameters_stay_and_their_gradients_are_not_computed() -> None:
    frozen, free = plan(ooc.SGD(0.1, 0.9, 0.1, frozen=("first.*", "norm.*"))), plan(ooc.SGD(0.1, 0.9, 0.1))
    layers = {c.layer for c in frozen.network.calls if c.phase == "backward"}
    assert "first" not in layers and "norm" not in layers and "second" in layers
    assert len(frozen.network.calls) < len(free.network.calls)
    assert not any(name.startswith(("d.first", "d.norm", "first.w/")) for name in frozen.network.tensors)
    with frozen.session() as session, free.session() as other:
        before = session.parameters()
        assert steps(session, 1) == steps(other, 1)
        after, gradients = session.parameters(), session.gradients()
        assert {name for name in before if (before[name] != after[name]).any()} == {"second.w", "second.b", "fc.w", "fc.b"}
        assert not gradients["first.w"].any() and gradients["second.w"].any()
        for name, values in other.statistics().items():
            np.testing.assert_array_equal(session.statistics()[name], values)
            assert values.any()


def test_everything_may_be_frozen() -> None:
    with plan(ooc.Adam(frozen=("*",))).session() as session:
        before = session.parameters()
        steps(session, 2)
        assert all(np.array_equal(before[name], values) for name, values in session.parameters().items())
    assert not any(c.phase == "backward" for c in session.plan.network.calls)


def test_gradients_of_several_steps_are_one_mean() -> None:
    """Two steps of half a batch each are one of all of it, but for rounding."""
    g = Graph("plain")
    g.loss("cross_entropy", g.linear(g.input("x", (7,), dtype="f64"), 3, bias=True, name="fc"))
    rng, device = np.random.default_rng(0), ooc.device("cpu", threads=1)
    x, labels = rng.standard_normal((8, 7)), rng.integers(0, 3, 8)
    text = g.to_json()
    half = Graph.from_json(text).plan(batch=4, optimizer=ooc.Adam(0.1, accumulate=2), device=device)
    whole = g.plan(batch=8, optimizer=ooc.Adam(0.1), device=device)
    with half.session() as ours, whole.session() as theirs:
        for _ in range(3):
            before = ours.parameters()
            ours.step(x[:4], labels[:4])
            assert all(np.array_equal(before[name], values) for name, values in ours.parameters().items())
            ours.step(x[4:], labels[4:])
            theirs.step(x, labels)
            for name, values in theirs.parameters().items():
                np.testing.assert_allclose(ours.parameters()[name], values, rtol=1e-9)


def test_the_rate_is_that_of_the_move() -> None:
    moves: list[int] = []

    def rate(move: int) -> float:
        moves.append(move)
        return 0.1

    with plan(ooc.SGD(rate, accumulate=2)).session() as session:
        steps(session, 4)
    assert moves == [0, 0, 1, 1]


def test_averages() -> None:
    with plan(ooc.SGD(0.1, ema=0.75, frozen="fc.b")).session() as session:
        mean = session.parameters()
        for name, values in session.averages().items():
            np.testing.assert_array_equal(values, mean[name])
        for _ in range(4):
            steps(session, 1)
            mean = {name: 0.75 * mean[name] + 0.25 * values for name, values in session.parameters().items()}
        assert_close(session.averages(), mean)
        np.testing.assert_array_equal(session.averages()["fc.b"], session.parameters()["fc.b"])
        session.begin_with({"fc.w": np.ones_like(mean["fc.w"])})
        assert (session.averages()["fc.w"] == 1).all()
    with plan(ooc.SGD(0.1)).session() as session, pytest.raises(ooc.ArgumentError, match="ema="):
        session.averages()


# ---- half types


@pytest.mark.parametrize("optimizer", [ooc.SGD(0.05), ooc.AdamW(2e-3), ooc.RMSprop(5e-4, accumulate=2)], ids=lambda o: o.kind)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_types_learn_as_f32_does(dtype: str, optimizer: Any) -> None:
    """Fifty steps on the same batch, from the same parameters."""
    ends = {}
    for kind in ("f32", dtype):
        x, labels = data(0, kind)
        with plan(optimizer, kind).session(seed=3) as session:
            first, *_, ends[kind] = (session.step(x, labels) for _ in range(50))
        assert ends[kind] < 0.7 * first
    assert ends[dtype] == pytest.approx(ends["f32"], rel=0.02, abs=2e-3)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_small_steps_are_not_lost_in_half_types(dtype: str) -> None:
    """What rounds to nothing adds up in what parameters are rounded from."""
    with plan(ooc.SGD(1e-4), dtype).session() as session:
        before = session.parameters()
        steps(session, 50, dtype)
        kept = all_of(session)
        for name, values in session.parameters().items():
            if values.dtype != numpy_dtype(dtype):
                continue
            master = kept[f"{name}/master"]
            np.testing.assert_array_equal(values, master.astype(values.dtype))
            assert (master != before[name].astype(np.float32)).mean() > 0.9
        assert kept["first.w/master"].dtype == np.float32


def test_moments_and_averages_of_half_types_are_f32() -> None:
    with plan(ooc.Adam(ema=0.9, accumulate=2), "bf16").session() as session:
        dtypes = {t.name: t.dtype for t in session.plan.network.lasting}
        assert {dtypes[f"first.w/{what}"] for what in ("m", "v", "master", "gradients", "ema")} == {"f32"}
        assert dtypes["d.first.w"] == dtypes["first.w"] == "bf16"
        steps(session, 2, "bf16")
        session.begin_with({"first.w": np.ones(session.parameters()["first.w"].shape)})
        assert (all_of(session)["first.w/master"] == 1).all()


def test_f16_has_a_dynamic_loss_scale_unless_one_is_asked_for() -> None:
    assert plan(ooc.SGD(0.1), "f16").network.optimizer.loss_scale == "dynamic"
    for dtype, optimizer in (("f16", ooc.SGD(0.1, loss_scale=1)), ("bf16", ooc.SGD(0.1)), ("f32", ooc.SGD(0.1))):
        assert not any("squares" in call.op.kind for call in plan(optimizer, dtype).network.calls)


# ---- bits, and what is saved


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("rule", ["sgd", "adamw", "rmsprop, all"])
def test_the_same_bits_under_any_plan(rule: str, dtype: str) -> None:
    optimizer = optimizer_of(RULES[rule].fields() | OPTIONS["all"])
    results = []
    for policy, budget in (("keep", None), ("stream", "12 KiB"), ("stream", "40 KiB"), ("pooch", None), ("auto", None)):
        built = plan(optimizer, dtype, policy=policy, budget=budget)
        with built.session(seed=1) as session:
            results.append((steps(session, 5, dtype), all_of(session)))
    for losses, kept in results[1:]:
        assert losses == results[0][0]
        for name, values in results[0][1].items():
            np.testing.assert_array_equal(values, kept[name], err_msg=name)


@pytest.mark.parametrize("policy", [p for p in POLICIES if p not in ("keep", "modnn")])
def test_the_same_bits_by_any_policy(policy: str) -> None:
    """In the least memory of each."""
    optimizer = ooc.Adam(0.01, **OPTIONS["all"])
    try:
        least = plan(optimizer, policy=policy, budget=1).smallest_bytes
    except ooc.BudgetError as error:
        least = max(error.smallest_bytes or 0, 8 << 10)
    with plan(optimizer).session() as right, plan(optimizer, policy=policy, budget=least).session() as session:
        assert session.plan.peaks["device"] <= least
        assert steps(session, 3) == steps(right, 3)
        for name, values in right.parameters().items():
            np.testing.assert_array_equal(values, session.parameters()[name], err_msg=name)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("before", "after"), [("keep", "stream"), ("stream", "keep")])
def test_a_checkpoint_goes_on_between_moves(before: str, after: str, option: str, tmp_path: Path) -> None:
    optimizer = ooc.AdamW(0.01, **OPTIONS[option])
    with plan(optimizer, "bf16", policy=before).session(seed=2) as session:
        steps(session, 4, "bf16")  # of three or two whose gradients are summed
        session.save(tmp_path / "half")
        losses, kept = steps(session, 4, "bf16"), all_of(session)
    built = plan(optimizer, "bf16", policy=after)
    with graph("bf16").restore(tmp_path / "half", built) as resumed:
        assert steps(resumed, 4, "bf16") == losses
        for name, values in all_of(resumed).items():
            np.testing.assert_array_equal(values, kept[name], err_msg=name)


@pytest.mark.parametrize("option", ["clip_norm", "frozen", "accumulate", "ema"])
def test_workers_do_the_same(option: str, tmp_path: Path) -> None:
    """One part is the whole batch: the bits of a session."""
    g = Graph("apart")
    h = g.conv(g.input("x", (3, 8, 8)), 4, 3, bias=True, activation="relu", name="first")
    g.loss("cross_entropy", g.linear(g.flatten(h), 3, name="fc"))
    optimizer = ooc.RMSprop(0.01, momentum=0.5, **(OPTIONS[option] | ({"frozen": "first.*"} if option == "frozen" else {})))
    built = g.plan(batch=BATCH, optimizer=optimizer, device=ooc.device("cpu", threads=1), deterministic=True)
    with built.session() as session, ooc.Training(built, tmp_path / "t", parts=1) as training:
        losses = [training.step(*data(step)) for step in range(3)]
        training.close()
        with ooc.Training(built, tmp_path / "t", parts=1, resume=True) as resumed:
            losses += [resumed.step(*data(step)) for step in range(3, 5)]
            assert losses == steps(session, 5)
            for name, values in session.parameters().items():
                np.testing.assert_array_equal(resumed.parameters()[name], values)
            if option == "ema":
                for name, values in session.averages().items():
                    np.testing.assert_array_equal(resumed.averages()[name], values)


def test_workers_have_no_loss_scale(tmp_path: Path) -> None:
    for dtype, optimizer in (("f32", ooc.SGD(0.1, loss_scale=8)), ("f16", ooc.SGD(0.1))):
        with pytest.raises(ooc.UnsupportedError, match="loss_scale=1"):
            ooc.Training(plan(optimizer, dtype), tmp_path / "t", parts=1)


# ---- words


@pytest.mark.parametrize("option", [None, *OPTIONS])
@pytest.mark.parametrize("rule", RULES)
def test_an_optimizer_returns_from_its_text(rule: str, option: str | None) -> None:
    optimizer = optimizer_of(RULES[rule].fields() | (OPTIONS[option] if option else {}))
    assert optimizer is not None
    raw = json.loads(json.dumps(optimizer.fields()))
    assert optimizer_of(raw) == optimizer and eval(repr(optimizer), vars(ooc).copy()) == optimizer
    assert not option or set(OPTIONS[option]) <= set(raw)
    assert option or not set(OPTIONS["all"]) & set(raw)
    built = plan(optimizer)
    assert ooc.NetworkPlan.from_json(built.to_json(), built.device).network.optimizer == built.network.optimizer


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"clip_norm": 0}, "clip_norm=0"), ({"clip_norm": "1"}, "clip_norm"), ({"ema": 1.0}, "ema=1"), ({"ema": True}, "ema"),
        ({"accumulate": 0}, "accumulate=0"), ({"accumulate": 1.5}, "accumulate"), ({"loss_scale": "static"}, "loss_scale"),
        ({"loss_scale": -1}, "loss_scale"), ({"frozen": (3,)}, "frozen"), ({"lr": float("inf")}, "not negative"),
        ({"weight_decay": -1}, "not negative"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [ooc.SGD, ooc.Adam, ooc.AdamW, ooc.RMSprop])
def test_options_that_make_no_sense(kind: Any, words: dict[str, Any], told: str) -> None:
    with pytest.raises(ooc.ArgumentError, match=told):
        kind(**{"lr": 0.1, **words})


def test_rules_that_make_no_sense() -> None:
    for words in ({"alpha": 1.0}, {"momentum": 1.0}, {"eps": -1}):
        with pytest.raises(ooc.ArgumentError):
            ooc.RMSprop(**words)
    with pytest.raises(ooc.ArgumentError, match="no parameter 'third"):
        plan(ooc.SGD(0.1, frozen=("first.w", "third.*")))
    with pytest.raises(ooc.ArgumentError, match="optimizer='adam'"):
        plan("adam")


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_sums_of_squares_do_not_depend_on_tiles(dtype: str) -> None:
    """More than fits a piece: each lane is the sum of its own elements, one after the other."""
    op, rng = Squares(1, 1, (50_001,), True, dtype), np.random.default_rng(0)
    x, before = rng.standard_normal((1, 1, 50_001)).astype(numpy_dtype(dtype)), rng.random(LANES)
    lanes = before.copy()
    for row in np.split(x.reshape(-1).astype(np.float64), range(LANES, 50_001, LANES)):
        lanes[: len(row)] += row * row
    for budget in (None, "64 KiB", "8 KiB"):
        y = np.zeros(LANES)
        with ooc.device("cpu", budget, threads=2):
            execute(op, {"x": x, "before": before}, {"y": y})
        np.testing.assert_array_equal(y, lanes)
