"""Gradients are gradients: adjoint identities of the linear passes, central differences for the others; in float64."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases_fused import same_sizes
from cases_ops import KINDS, conv_sizes, fitting, random_shape
from running import sizes_of, under_random_budget

from ooc.ir.op import LAYOUTS, Op
from ooc.ops import (
    ACTIVATIONS,
    ActivationBackward,
    BnApply,
    BnMoments,
    BnPull,
    BnSums,
    ConvDgrad,
    ConvFprop,
    ConvWgrad,
    CrossEntropy,
    CrossEntropyBackward,
    DiceDot,
    DicePull,
    DiceScore,
    DiceSums,
    Embed,
    LrnBackward,
    LrnForward,
    Multiply,
    Pointwise,
    PoolBackward,
    Reduce,
    SoftmaxApply,
    SoftmaxDot,
    SoftmaxPull,
    SoftmaxSum,
    Upsample,
    UpsampleBackward,
)  # fmt: skip

Array = np.ndarray[Any, Any]
EACH = 6


def setting(name: str, index: int) -> tuple[random.Random, np.random.Generator, dict[str, Any]]:
    """Generators of problems and of numbers, and a layout for float64."""
    seed = zlib.crc32(name.encode()) + index
    rng = random.Random(seed)
    return rng, np.random.default_rng(seed), {"dtype": "f64", "layout": rng.choice(LAYOUTS)}


def normal(numbers: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return numbers.standard_normal(shape)


def only(rng: random.Random, op: Op, **arrays: Array) -> Array:
    """The only output of an op under a random small budget."""
    (y,) = under_random_budget(rng, op, arrays).values()
    return np.asarray(y)


# ---- adjoints: <A x, dy> = <x, A' dy>


def assert_adjoint(*products: tuple[Array, Array]) -> None:
    """All inner products are the same, relative to the size of their terms."""
    dots = [float(np.sum(a * b)) for a, b in products]
    size = max(float(np.sum(np.abs(a * b))) for a, b in products)
    assert max(dots) - min(dots) <= 1e-12 * max(size, 1e-3), dots


@pytest.mark.parametrize("index", range(3 * EACH))
def test_convolution(index: int) -> None:
    rng, numbers, common = setting("conv", index)
    fprop = fitting(lambda: ConvFprop(**conv_sizes(rng, random_shape(rng)), **common))
    x, w = (normal(numbers, o.shape) for o in fprop.inputs)
    dy = normal(numbers, fprop.outputs[0].shape)
    y = only(rng, fprop, x=x, w=w)
    dx = only(rng, same_sizes(ConvDgrad, fprop), dy=dy, w=w)
    dw = only(rng, same_sizes(ConvWgrad, fprop), x=x, dy=dy)
    assert_adjoint((y, dy), (x, dx), (w, dw))


@pytest.mark.parametrize("index", range(EACH))
@pytest.mark.parametrize("how", ["average", "average_valid"])
def test_pooling(how: str, index: int) -> None:
    rng, numbers, common = setting(f"pool.{how}", index)
    pool: Any = KINDS[f"pool.{how}"](rng, common)
    x, dy = normal(numbers, pool.inputs[0].shape), normal(numbers, pool.outputs[0].shape)
    assert_adjoint((only(rng, pool, x=x), dy), (x, only(rng, PoolBackward(**sizes_of(pool)), dy=dy)))


@pytest.mark.parametrize("index", range(EACH))
@pytest.mark.parametrize("how", ["nearest", "linear", "aligned"])
def test_resizing(how: str, index: int) -> None:
    rng, numbers, common = setting(f"upsample.{how}", index)
    up: Any = KINDS[f"upsample.{how}"](rng, common)
    assert isinstance(up, Upsample)
    x, dy = normal(numbers, up.inputs[0].shape), normal(numbers, up.outputs[0].shape)
    assert_adjoint((only(rng, up, x=x), dy), (x, only(rng, UpsampleBackward(**sizes_of(up)), dy=dy)))


@pytest.mark.parametrize("index", range(EACH))
@pytest.mark.parametrize("how", ["bias", "positions"])
def test_sums_and_repetition(how: str, index: int) -> None:
    """The adjoint of a sum repeats its result: pointwise with a broadcast x."""
    rng, numbers, common = setting(f"reduce.{how}", index)
    reduce: Any = KINDS[f"reduce.{how}"](rng, common)
    assert isinstance(reduce, Reduce)
    x = normal(numbers, reduce.inputs[0].shape)
    y = only(rng, reduce, x=x)
    dy = normal(numbers, y.shape)
    of = "k" if how == "bias" else "nk"
    repeat = Pointwise(reduce.n, reduce.k, reduce.extent, alpha=reduce.alpha, of=of, **common)
    assert_adjoint((y, dy), (x, only(rng, repeat, x=dy.reshape(repeat.inputs[0].shape))))


@pytest.mark.parametrize("index", range(EACH))
def test_places(index: int) -> None:
    """The adjoint of laying is laying back."""
    rng, numbers, common = setting("place", index)
    op: Any = replace(KINDS["place"](rng, common), value=0.0)
    back = Embed(op.n, op.k, op.size, op.c, op.extent, tuple(-by for by in op.lead), **common)
    x, dy = normal(numbers, op.inputs[0].shape), normal(numbers, op.outputs[0].shape)
    assert_adjoint((only(rng, op, x=x), dy), (x, only(rng, back, x=dy)))


@pytest.mark.parametrize("index", range(EACH))
def test_joined_channels(index: int) -> None:
    """The adjoint of joining takes each part out again."""
    rng, numbers, common = setting("concat", index)
    op: Any = KINDS["concat"](rng, common)
    parts = {o.name: normal(numbers, o.shape) for o in op.inputs}
    dy = normal(numbers, op.outputs[0].shape)
    y = only(rng, op, **parts)
    for (name, x), c, begin in zip(parts.items(), op.channels, op.begins, strict=True):
        back = Embed(op.n, op.k, op.extent, c, op.extent, (-begin, *(0,) * op.rank), **common)
        np.testing.assert_array_equal(only(rng, back, x=dy), dy[:, begin : begin + c], err_msg=name)
        np.testing.assert_array_equal(y[:, begin : begin + c], x)


@pytest.mark.parametrize("index", range(EACH))
def test_products(index: int) -> None:
    """A product with a full tensor is its own adjoint."""
    rng, numbers, common = setting("multiply", index)
    op = Multiply(**small(rng), **common)
    x, z, dy = (normal(numbers, op.outputs[0].shape) for _ in range(3))
    assert_adjoint((only(rng, op, x=x, z=z), dy), (x, only(rng, op, x=dy, z=z)), (z, only(rng, op, x=dy, z=x)))


# ---- central differences


def assert_gradient(loss: Callable[[Array], float], x: Array, dx: Array, numbers: np.random.Generator) -> None:
    """dx is the gradient of the loss at x: along random directions, to a relative 1e-6."""
    for _ in range(3):
        direction = normal(numbers, x.shape)
        step = 1e-5
        slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
        size = float(np.sum(np.abs(dx * direction)))
        assert abs(slope - float(np.sum(dx * direction))) <= 1e-6 * max(size, 1e-2), (slope, np.sum(dx * direction))


def small(rng: random.Random) -> dict[str, Any]:
    n, k, *extent = random_shape(rng)
    return {"n": n, "k": k, "extent": tuple(extent)}


def shape_of(sizes: dict[str, Any]) -> tuple[int, ...]:
    return (sizes["n"], sizes["k"], *sizes["extent"])


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activation(act: str) -> None:
    rng, numbers, common = setting(act, 0)
    sizes = small(rng)
    own: dict[str, Any] = {"act": act, "coef": {"clipped_relu": 1.0, "elu": 0.7, "leaky_relu": 0.1}.get(act, 0.0)}
    x, dy = away_from_kinks(normal(numbers, shape_of(sizes))), normal(numbers, shape_of(sizes))
    forward = Pointwise(**sizes, **own, **common)
    y = only(rng, forward, x=x)
    dx = only(rng, ActivationBackward(**sizes, **own, **common), y=y, dy=dy)
    assert_gradient(lambda x: float(np.sum(only(rng, forward, x=x) * dy)), x, dx, numbers)


def away_from_kinks(x: Array) -> Array:
    """Values at least 0.001 away from 0 and 1."""
    near = (np.abs(x) < 1e-3) | (np.abs(x - 1) < 1e-3)
    return np.where(near, x + 0.01, x)


@pytest.mark.parametrize("index", range(EACH))
def test_pool_max(index: int) -> None:
    rng, numbers, common = setting("pool.max", index)
    pool: Any = KINDS["pool.max"](rng, common)
    shape = pool.inputs[0].shape
    x = numbers.permutation(int(np.prod(shape))).reshape(shape) * 0.1  # no two values are near each other
    dy = normal(numbers, pool.outputs[0].shape)
    dx = only(rng, PoolBackward(**sizes_of(pool)), x=x, dy=dy)
    assert_gradient(lambda x: float(np.sum(only(rng, pool, x=x) * dy)), x, dx, numbers)


@pytest.mark.parametrize("per", ["channel", "activation"])
@pytest.mark.parametrize("index", range(EACH))
def test_batch_norm(index: int, per: str) -> None:
    """The whole forward pass, statistics included, against the sums and what is pulled back with them."""
    rng, numbers, common = setting(f"bn {per}", index)
    sizes = small(rng) | {"n": rng.randint(2, 4)}
    own = sizes | {"per": per} | common
    moments, apply = BnMoments(**own), BnApply(**own, eps=0.1)
    x, dy = normal(numbers, shape_of(sizes)), normal(numbers, shape_of(sizes))
    scale, b = (normal(numbers, moments.outputs[0].shape) for _ in range(2))

    def loss(x: Array, scale: Array, b: Array) -> float:
        statistics = under_random_budget(rng, moments, {"x": x})
        return float(np.sum(only(rng, apply, x=x, scale=scale, b=b, **statistics) * dy))

    statistics = under_random_budget(rng, moments, {"x": x})
    sums = under_random_budget(rng, BnSums(**own, eps=0.1), {"x": x, "dy": dy, **statistics})
    dx = only(rng, BnPull(**own, eps=0.1), x=x, dy=dy, scale=scale, **statistics, **sums)
    assert_gradient(lambda x: loss(x, scale, b), x, dx, numbers)
    assert_gradient(lambda scale: loss(x, scale, b), scale, sums["dscale"], numbers)
    assert_gradient(lambda b: loss(x, scale, b), b, sums["db"], numbers)


@pytest.mark.parametrize("how", ["plain", "log"])
@pytest.mark.parametrize("index", range(EACH))
def test_softmax(index: int, how: str) -> None:
    rng, numbers, common = setting(f"softmax {how}", index)
    sizes = small(rng)
    own = sizes | common
    x, dy = 3 * normal(numbers, shape_of(sizes)), normal(numbers, shape_of(sizes))

    def forward(x: Array) -> Array:
        return only(rng, SoftmaxApply(how, **own), x=x, sums=only(rng, SoftmaxSum(**own), x=x))

    y = forward(x)
    s = only(rng, SoftmaxDot("sum", **own), dy=dy) if how == "log" else only(rng, SoftmaxDot("dot", **own), dy=dy, y=y)
    dx = only(rng, SoftmaxPull(how, **own), y=y, dy=dy, s=s)
    assert_gradient(lambda x: float(np.sum(forward(x) * dy)), x, dx, numbers)


@pytest.mark.parametrize("index", range(EACH))
def test_cross_entropy(index: int) -> None:
    rng, numbers, common = setting("cross entropy", index)
    sizes = small(rng)
    own = sizes | common
    x = 3 * normal(numbers, shape_of(sizes))
    one = (sizes["n"], 1, *sizes["extent"])
    labels, dloss = numbers.integers(-1, sizes["k"], one), normal(numbers, one)

    def sums(x: Array) -> Array:
        return only(rng, SoftmaxSum(**own), x=x)

    dx = only(rng, CrossEntropyBackward(**own), x=x, labels=labels, sums=sums(x), dloss=dloss)
    loss = CrossEntropy(**own)
    assert_gradient(lambda x: float(np.sum(only(rng, loss, x=x, labels=labels, sums=sums(x)) * dloss)), x, dx, numbers)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("index", range(EACH))
def test_dice(index: int, batch: bool) -> None:
    """The whole chain of its ops: sums, score, and back."""
    rng, numbers, common = setting("dice", index)
    sizes = small(rng) | {"k": 1 if index % 3 == 0 else rng.randint(2, 4)}
    own, k = sizes | common, sizes["k"]
    x, one = 2 * normal(numbers, shape_of(sizes)), (sizes["n"], 1, *sizes["extent"])
    labels, share = numbers.integers(-1, max(2, k), one), np.full((1,) * len(one), 0.3)
    scored = {"smooth": 0.5, "background": index % 2 == 0}

    def given(x: Array) -> dict[str, Array]:
        sums = {"sums": only(rng, SoftmaxSum(**own), x=x)} if k > 1 else {}
        return {"x": x, "labels": labels, **sums}

    def totals(x: Array) -> Array:
        return only(rng, DiceSums(**own, batch=batch), **given(x))

    def loss(x: Array) -> float:
        score = DiceScore(1 if batch else sizes["n"], k, (1,) * len(sizes["extent"]), **scored)
        return 0.3 * float(only(rng, score, totals=totals(x)).reshape(()))

    known = {**given(x), "totals": totals(x), "share": share}
    dot = {"s": only(rng, DiceDot(**own, batch=batch, **scored), **known)} if k > 1 else {}
    dx = only(rng, DicePull(**own, batch=batch, **scored), **known, **dot)
    assert_gradient(loss, x, dx, numbers)


@pytest.mark.parametrize("index", range(EACH))
def test_lrn(index: int) -> None:
    rng, numbers, common = setting("lrn", index)
    sizes, size = small(rng) | {"k": rng.randint(1, 9)}, rng.randint(1, 6)
    own = sizes | common | {"size": size, "before": rng.randrange(size), "alpha": 0.5}
    x, dy = normal(numbers, shape_of(sizes)), normal(numbers, shape_of(sizes))
    dx = only(rng, LrnBackward(**own), x=x, dy=dy)
    assert_gradient(lambda x: float(np.sum(only(rng, LrnForward(**own), x=x) * dy)), x, dx, numbers)
