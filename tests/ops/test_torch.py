"""The same values as PyTorch on the CPU, for every op that it has; under random small budgets."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases_fused import same_sizes
from cases_ops import KINDS, conv_sizes, fitting, random_shape
from running import sizes_of, under_random_budget

from ooc.ir.op import LAYOUTS, Op, numpy_dtype
from ooc.ops import (
    ACTIVATIONS,
    ActivationBackward,
    AdamUpdate,
    BnApply,
    BnMoments,
    BnPull,
    BnSums,
    ConvDgrad,
    ConvFprop,
    ConvWgrad,
    CrossEntropy,
    CrossEntropyBackward,
    Distance,
    DistanceBackward,
    LrnBackward,
    LrnForward,
    Pointwise,
    PoolBackward,
    RmsPropUpdate,
    Sgd,
    SoftmaxApply,
    SoftmaxDot,
    SoftmaxPull,
    SoftmaxSum,
    UpsampleBackward,
)  # fmt: skip

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]
CLOSE = {"f64": 1e-11, "f32": 2e-5}
EACH = 6


class Setting:
    """A random problem: its dtype and layout, its numbers, its op under a random budget, the comparison."""

    def __init__(self, name: str, index: int, dtype: str) -> None:
        self.rng = random.Random(zlib.crc32(f"{name} {dtype}".encode()) + index)
        self.numbers = np.random.default_rng(self.rng.getrandbits(32))
        self.dtype = dtype
        self.common: dict[str, Any] = {"dtype": dtype, "layout": self.rng.choice(LAYOUTS)}

    def normal(self, shape: tuple[int, ...]) -> Array:
        return self.numbers.standard_normal(shape).astype(numpy_dtype(self.dtype))

    def sizes(self) -> dict[str, Any]:
        n, k, *extent = random_shape(self.rng)
        return {"n": n, "k": k, "extent": tuple(extent)}

    def all(self, op: Op, **arrays: Array) -> dict[str, Array]:
        return under_random_budget(self.rng, op, arrays)

    def only(self, op: Op, **arrays: Array) -> Array:
        (y,) = self.all(op, **arrays).values()
        return y

    def close(self, ours: Array, theirs: Any) -> None:
        wanted = theirs.detach().numpy().reshape(ours.shape)
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=CLOSE[self.dtype] * scale)


def leaf(array: Array) -> Any:
    """A tensor whose gradient is wanted."""
    return torch.tensor(array, requires_grad=True)


def shape_of(sizes: dict[str, Any]) -> tuple[int, ...]:
    return (sizes["n"], sizes["k"], *sizes["extent"])


def padded(x: Any, pads: tuple[tuple[int, int], ...], value: float = 0.0) -> Any:
    return torch.nn.functional.pad(x, [p for pair in reversed(pads) for p in pair], value=value)


def by_rank(name: str, rank: int) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch.nn.functional, f"{name}{rank}d")
    return found


each = pytest.mark.parametrize("index", range(EACH))
dtypes = pytest.mark.parametrize("dtype", ["f32", "f64"])


@pytest.mark.parametrize("index", range(3 * EACH))
@dtypes
def test_conv(index: int, dtype: str) -> None:
    s = Setting("conv", index, dtype)
    op = fitting(lambda: ConvFprop(**conv_sizes(s.rng, random_shape(s.rng)), bias=True, **s.common))
    x, w, b = (s.normal(o.shape) for o in op.inputs)
    dy = s.normal(op.outputs[0].shape)
    tx, tw, tb = leaf(x), leaf(w), leaf(b)
    y = by_rank("conv", op.rank)(padded(tx, op.pad), tw, tb, op.stride, 0, op.dilation, op.groups)
    y.backward(torch.tensor(dy))
    s.close(s.only(op, x=x, w=w, b=b), y)
    s.close(s.only(same_sizes(ConvDgrad, op), dy=dy, w=w), tx.grad)
    s.close(s.only(same_sizes(ConvWgrad, op), x=x, dy=dy), tw.grad)


@pytest.mark.parametrize("index", range(2 * EACH))
@dtypes
def test_conv_transpose(index: int, dtype: str) -> None:
    """A transposed convolution of y with bias is dgrad: its result has as many channels as x."""
    s = Setting("transpose", index, dtype)

    def draw() -> ConvDgrad:
        sizes = conv_sizes(s.rng, random_shape(s.rng))
        pad = tuple(s.rng.randint(0, (t - 1) * d) for t, d in zip(sizes["taps"], sizes["dilation"], strict=True))
        # PyTorch takes one padding for both ends; what is left over at the end is its output_padding.
        return ConvDgrad(**(sizes | {"pad": tuple((p, p) for p in pad)}), bias=True, **s.common)

    op = fitting(draw)
    dy, w, b = (s.normal(o.shape) for o in op.inputs)
    axes = zip(op.extent, op.out, op.stride, op.taps, op.dilation, op.pad, strict=True)
    extra = [e - ((o - 1) * r - 2 * p[0] + (t - 1) * d + 1) for e, o, r, t, d, p in axes]
    theirs = by_rank("conv_transpose", op.rank)(
        torch.tensor(dy), torch.tensor(w), torch.tensor(b), op.stride, [p[0] for p in op.pad], extra, op.groups, op.dilation
    )
    s.close(s.only(op, dy=dy, w=w, b=b), theirs)


@each
@pytest.mark.parametrize("how", ["max", "average"])
@dtypes
def test_pool(index: int, how: str, dtype: str) -> None:
    s = Setting(f"pool.{how}", index, dtype)
    op: Any = KINDS[f"pool.{how}"](s.rng, s.common)
    x, dy = s.normal(op.inputs[0].shape), s.normal(op.outputs[0].shape)
    tx = leaf(x)
    if how == "max":
        y = by_rank("max_pool", op.rank)(padded(tx, op.pad, -np.inf), op.window, op.stride)
    else:
        y = by_rank("avg_pool", op.rank)(padded(tx, op.pad), op.window, op.stride)
    y.backward(torch.tensor(dy))
    given = {"x": x, "dy": dy} if how == "max" else {"dy": dy}
    s.close(s.only(op, x=x), y)
    s.close(s.only(PoolBackward(**sizes_of(op)), **given), tx.grad)


@each
@dtypes
def test_pool_ties(index: int, dtype: str) -> None:
    """Where a window holds its maximum several times, PyTorch too takes the first."""
    s = Setting("ties", index, dtype)
    op: Any = KINDS["pool_backward.max"](s.rng, s.common)
    x = s.numbers.integers(0, 2, op.inputs[0].shape).astype(numpy_dtype(dtype))
    dy, tx = s.normal(op.inputs[1].shape), leaf(x)
    by_rank("max_pool", op.rank)(padded(tx, op.pad, -np.inf), op.window, op.stride).backward(torch.tensor(dy))
    s.close(s.only(op, x=x, dy=dy), tx.grad)


@each
@dtypes
def test_pool_valid(index: int, dtype: str) -> None:
    """count_include_pad=False, for the paddings that PyTorch knows: the same at both ends, at most half a window.

    Its avg_pool3d takes no x smaller than the window.
    """
    s = Setting("valid", index, dtype)
    drawn: Any = KINDS["pool.average_valid"](s.rng, s.common)
    while any(e < w for e, w in zip(drawn.extent, drawn.window, strict=True)):
        drawn = KINDS["pool.average_valid"](s.rng, s.common)
    pads = tuple(w // 2 for w in drawn.window)
    op = type(drawn)(**sizes_of(drawn) | {"pad": tuple((p, p) for p in pads)})
    x, dy = s.normal(op.inputs[0].shape), s.normal(op.outputs[0].shape)
    tx = leaf(x)
    y = by_rank("avg_pool", op.rank)(tx, op.window, op.stride, pads, count_include_pad=False)
    y.backward(torch.tensor(dy))
    s.close(s.only(op, x=x), y)
    s.close(s.only(PoolBackward(**sizes_of(op)), dy=dy), tx.grad)


@each
@dtypes
def test_batch_norm(index: int, dtype: str) -> None:
    s = Setting("bn", index, dtype)
    sizes = s.sizes() | {"n": s.rng.randint(2, 4)}
    own = sizes | s.common
    x, dy = s.normal(shape_of(sizes)), s.normal(shape_of(sizes))
    moments = BnMoments(**own)
    scale, b = (s.numbers.standard_normal(moments.outputs[0].shape) for _ in range(2))
    tx, tscale, tb = leaf(x), leaf(scale.ravel().astype(x.dtype)), leaf(b.ravel().astype(x.dtype))
    y = torch.nn.functional.batch_norm(tx, None, None, tscale, tb, training=True, eps=0.1)
    y.backward(torch.tensor(dy))
    statistics = s.all(moments, x=x)
    sums = s.all(BnSums(**own, eps=0.1), x=x, dy=dy, **statistics)
    s.close(s.only(BnApply(**own, eps=0.1), x=x, scale=scale, b=b, **statistics), y)
    s.close(sums["dscale"], tscale.grad)
    s.close(sums["db"], tb.grad)
    s.close(s.only(BnPull(**own, eps=0.1), x=x, dy=dy, scale=scale, **statistics, **sums), tx.grad)


@each
@pytest.mark.parametrize("how", ["plain", "log"])
@dtypes
def test_softmax(index: int, how: str, dtype: str) -> None:
    s = Setting(f"softmax {how}", index, dtype)
    sizes = s.sizes()
    own = sizes | s.common
    x, dy = 3 * s.normal(shape_of(sizes)), s.normal(shape_of(sizes))
    tx = leaf(x)
    theirs = (torch.log_softmax if how == "log" else torch.softmax)(tx, 1)
    theirs.backward(torch.tensor(dy))
    y = s.only(SoftmaxApply(how, **own), x=x, sums=s.only(SoftmaxSum(**own), x=x))
    total = s.only(SoftmaxDot("sum", **own), dy=dy) if how == "log" else s.only(SoftmaxDot("dot", **own), dy=dy, y=y)
    s.close(y, theirs)
    s.close(s.only(SoftmaxPull(how, **own), y=y, dy=dy, s=total), tx.grad)


@each
@dtypes
def test_cross_entropy(index: int, dtype: str) -> None:
    s = Setting("cross entropy", index, dtype)
    sizes = s.sizes()
    own = sizes | s.common
    x, one = 3 * s.normal(shape_of(sizes)), (sizes["n"], 1, *sizes["extent"])
    labels, dloss, tx = s.numbers.integers(-1, sizes["k"], one), s.normal(one), leaf(x)
    loss = torch.nn.functional.cross_entropy(tx, torch.tensor(labels[:, 0]), ignore_index=-1, reduction="none")
    loss.backward(torch.tensor(dloss[:, 0]))
    sums = s.only(SoftmaxSum(**own), x=x)
    s.close(s.only(CrossEntropy(**own), x=x, labels=labels, sums=sums), loss)
    s.close(s.only(CrossEntropyBackward(**own), x=x, labels=labels, sums=sums, dloss=dloss), tx.grad)


@each
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_cross_entropy_with_weights_and_smoothing(index: int, smoothing: float, weighted: bool) -> None:
    s = Setting("cross entropy of classes", index, "f64")
    sizes = s.sizes()
    own = sizes | s.common | {"smoothing": smoothing, "weighted": weighted}
    x, one = 3 * s.normal(shape_of(sizes)), (sizes["n"], 1, *sizes["extent"])
    labels, dloss, tx = s.numbers.integers(-1, sizes["k"], one), s.normal(one), leaf(x)
    w = s.numbers.random(sizes["k"])
    weights = {"weights": np.append(w, w.sum())} if weighted else {}
    loss = torch.nn.functional.cross_entropy(
        tx, torch.tensor(labels[:, 0]), torch.tensor(w) if weighted else None, ignore_index=-1, reduction="none",
        label_smoothing=smoothing,
    )  # fmt: skip
    loss.backward(torch.tensor(dloss[:, 0]))
    sums = s.only(SoftmaxSum(**own_sizes(own)), x=x)
    s.close(s.only(CrossEntropy(**own), x=x, labels=labels, sums=sums, **weights), loss)
    s.close(s.only(CrossEntropyBackward(**own), x=x, labels=labels, sums=sums, dloss=dloss, **weights), tx.grad)


def own_sizes(sizes: dict[str, Any]) -> dict[str, Any]:
    """Without what the loss alone has."""
    return {name: value for name, value in sizes.items() if name not in ("smoothing", "weighted")}


@each
@pytest.mark.parametrize("how", ["mse", "l1", "bce"])
@dtypes
def test_distances(index: int, how: str, dtype: str) -> None:
    s = Setting(f"distance {how}", index, dtype)
    sizes, weighted = s.sizes(), how == "bce" and index % 2 == 1
    own = sizes | s.common | {"weighted": weighted}
    x, target, share = 3 * s.normal(shape_of(sizes)), s.normal(shape_of(sizes)), np.full((1,) * len(shape_of(sizes)), 0.25)
    w, tx = s.numbers.random(sizes["k"]) + 0.5, leaf(x)
    weights = {"weights": w} if weighted else {}
    f = torch.nn.functional
    if how == "bce":
        along = torch.tensor(w).reshape(-1, *(1,) * len(sizes["extent"])).to(tx.dtype) if weighted else None
        target = np.abs(np.sin(target))
        loss = f.binary_cross_entropy_with_logits(tx, torch.tensor(target), pos_weight=along, reduction="none")
    else:
        loss = {"mse": f.mse_loss, "l1": f.l1_loss}[how](tx, torch.tensor(target), reduction="none")
    loss.backward(torch.full_like(loss, 0.25))
    s.close(s.only(Distance(how, **own), x=x, target=target, **weights), loss.sum(1))
    s.close(s.only(DistanceBackward(how, **own), x=x, target=target, share=share, **weights), tx.grad)


@each
@dtypes
def test_lrn(index: int, dtype: str) -> None:
    s = Setting("lrn", index, dtype)
    sizes, size = s.sizes() | {"k": s.rng.randint(1, 9)}, s.rng.randint(1, 6)
    own = sizes | s.common | {"size": size, "before": size // 2, "alpha": 0.5, "beta": 0.6, "base": 1.5}
    x, dy = s.normal(shape_of(sizes)), s.normal(shape_of(sizes))
    tx = leaf(x)
    y = torch.nn.functional.local_response_norm(tx, size, alpha=0.5, beta=0.6, k=1.5)
    y.backward(torch.tensor(dy))
    s.close(s.only(LrnForward(**own), x=x), y)
    s.close(s.only(LrnBackward(**own), x=x, dy=dy), tx.grad)


@each
@pytest.mark.parametrize("how", ["nearest", "linear", "aligned"])
@dtypes
def test_interpolate(index: int, how: str, dtype: str) -> None:
    s = Setting(f"upsample {how}", index, dtype)
    op: Any = KINDS[f"upsample.{how}"](s.rng, s.common)
    x, dy = s.normal(op.inputs[0].shape), s.normal(op.outputs[0].shape)
    tx = leaf(x)
    mode = "nearest" if how == "nearest" else {1: "linear", 2: "bilinear", 3: "trilinear"}[op.rank]
    corners = {} if how == "nearest" else {"align_corners": how == "aligned"}
    y = torch.nn.functional.interpolate(tx, size=op.size, mode=mode, **corners)
    y.backward(torch.tensor(dy))
    s.close(s.only(op, x=x), y)
    s.close(s.only(UpsampleBackward(**sizes_of(op)), dy=dy), tx.grad)


@pytest.mark.parametrize("act", ACTIVATIONS)
@dtypes
def test_activation(act: str, dtype: str) -> None:
    s = Setting(act, 0, dtype)
    coef = {"clipped_relu": 1.0, "elu": 0.7, "leaky_relu": 0.1}.get(act, 0.0)
    theirs = {
        "identity": lambda x: x * 1,
        "relu": torch.relu,
        "clipped_relu": lambda x: torch.clamp(x, 0, coef),
        "elu": lambda x: torch.nn.functional.elu(x, coef),
        "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, coef),
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
    }[act]
    own = s.sizes() | {"act": act, "coef": coef} | s.common
    x, dy = s.normal(shape_of(own)), s.normal(shape_of(own))
    tx = leaf(x)
    y = theirs(tx)
    y.backward(torch.tensor(dy))
    ours = s.only(Pointwise(**own), x=x)
    s.close(ours, y)
    s.close(s.only(ActivationBackward(**own), y=ours, dy=dy), tx.grad)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@dtypes
def test_sgd(momentum: float, nesterov: bool, dtype: str) -> None:
    """Some steps in place."""
    s = Setting("sgd", 0, dtype)
    kept = {"p": s.normal((1, 1, 70))} | ({"v": np.zeros((1, 1, 70), numpy_dtype(dtype))} if momentum else {})
    tp = leaf(kept["p"])
    theirs = torch.optim.SGD([tp], lr=0.1, momentum=momentum, weight_decay=0.01, nesterov=nesterov and momentum > 0)
    rates = np.array([0.1, momentum, 0.01, nesterov, 0, 0, 0, 0])
    for _ in range(4):
        g = s.normal((1, 1, 70))
        tp.grad = torch.tensor(g)
        theirs.step()
        got = s.all(Sgd(1, 1, (70,), momentum > 0, dtype), **kept, g=g, rates=rates)
        kept = {"p": got["q"]} | ({"v": got["u"]} if momentum else {})
        s.close(kept["p"], tp)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@dtypes
def test_adam(decay: float, apart: bool, dtype: str) -> None:
    s = Setting("adam", 0, dtype)
    p, m, v = s.normal((1, 1, 70)), *np.zeros((2, 1, 1, 70), numpy_dtype(dtype))
    tp = leaf(p)
    kind = torch.optim.AdamW if apart else torch.optim.Adam
    theirs = kind([tp], lr=0.1, betas=(0.8, 0.99), eps=1e-6, weight_decay=decay)
    for t in range(1, 6):
        g = s.normal((1, 1, 70))
        tp.grad = torch.tensor(g)
        theirs.step()
        rates = np.array([0.1, 0.8, 0.99, 1e-6, decay, t, apart, 0])
        got = s.all(AdamUpdate(1, 1, (70,), dtype), p=p, g=g, m=m, v=v, rates=rates)
        p, m, v = got["q"], got["r"], got["s"]
        s.close(p, tp)
        s.close(m, theirs.state[tp]["exp_avg"])
        s.close(v, theirs.state[tp]["exp_avg_sq"])


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@dtypes
def test_rmsprop(momentum: float, centered: bool, dtype: str) -> None:
    s, zeros = Setting("rmsprop", 0, dtype), np.zeros((1, 1, 70), numpy_dtype(dtype))
    kept = {"p": s.normal((1, 1, 70)), "v": zeros} | ({"b": zeros} if momentum else {}) | ({"a": zeros} if centered else {})
    tp = leaf(kept["p"])
    theirs = torch.optim.RMSprop([tp], 0.1, 0.9, 1e-2, weight_decay=0.1, momentum=momentum, centered=centered)
    op = RmsPropUpdate(1, 1, (70,), momentum > 0, centered, dtype)
    for _ in range(5):
        g = s.normal((1, 1, 70))
        tp.grad = torch.tensor(g)
        theirs.step()
        got = s.all(op, **kept, g=g, rates=np.array([0.1, 0.9, 1e-2, 0.1, momentum, 0, 0, 0]))
        kept = {op.follows[name]: values for name, values in got.items()}
        s.close(kept["p"], tp)
        s.close(kept["v"], theirs.state[tp]["square_avg"])
