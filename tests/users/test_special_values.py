"""NaN, infinities and zeros with a sign: the same on every kernel, at every budget and on every device, and as PyTorch has
them but for what docs/functions.md ("Special values") lists."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from emulated import EmulatedBackend
from running import PoisonedBackend, single_tile

import ooc
from ooc import native
from ooc.errors import ShapeError
from ooc.ir.op import DTYPES, Op, numpy_dtype
from ooc.ops import (
    ActivationBackward,
    BnApply,
    ConvDgrad,
    ConvFprop,
    Convolution,
    ConvWgrad,
    Dropout,
    Pointwise,
    PoolBackward,
    PoolForward,
)

Array = Any
INF, NAN = np.inf, np.nan
BUDGETS = (None, "8 KiB")
X = [-0.0, 0.0, NAN, INF, -INF, -1.0, 3.0, 6.0, 7.0]
COEF = {"clipped_relu": 6.0, "elu": 0.5, "leaky_relu": 0.25}
FORWARD = {  # of X; as torch.relu, relu6, elu, leaky_relu, sigmoid and tanh of PyTorch 2.13
    "relu": [-0.0, 0.0, NAN, INF, 0, 0, 3, 6, 7],
    "clipped_relu": [-0.0, 0.0, NAN, 6, 0, 0, 3, 6, 6],
    "elu": [-0.0, 0.0, NAN, INF, -0.5, 0.5 * np.expm1(-1), 3, 6, 7],
    "leaky_relu": [-0.0, 0.0, NAN, INF, -INF, -0.25, 3, 6, 7],
    "sigmoid": [0.5, 0.5, NAN, 1, 0, *(1 / (1 + np.exp([1.0, -3, -6, -7])))],
    "tanh": [-0.0, 0.0, NAN, 1, -1, *np.tanh([-1.0, 3, 6, 7])],
}
NEXT_TO_1 = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def kernels(op: Op) -> Iterator[tuple[str, Any]]:
    """Every kernel that this machine has for an op, and its backend: those of the CPU, and the CUDA source on the host."""
    for backend in (PoisonedBackend(threads=2), EmulatedBackend(grids=(7,))):
        for offer in backend.offers(op):
            yield offer.name, backend
    yield "reference", PoisonedBackend(threads=1)


def results(op: Op, **arrays: Array) -> dict[str, Array]:
    """What each kernel makes of an op."""
    made = {}
    with np.errstate(all="ignore"):
        for name, backend in kernels(op):
            (made[f"{type(backend).__name__} {name}"],) = single_tile(op, arrays, backend, name).values()
    return made


def like(values: Any, dtype: str) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float64).astype(numpy_dtype(dtype))


def row(values: Any, dtype: str, times: int = 5) -> Array:
    """Values as an n x k x w tensor, often enough for whole vectors and a rest."""
    return np.tile(like(values, dtype), (1, 1, times))


def assert_same(have: Array, wanted: Array, note: str, error: float) -> None:
    """The same zeros, with their sign, infinities and NaN; other numbers within a relative error."""
    have, wanted = have.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(have, wanted, rtol=error, atol=0, err_msg=note)
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(have)[known], np.signbit(wanted)[known], err_msg=note)


# ---- activations


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", FORWARD)
def test_activations(act: str, dtype: str) -> None:
    x = row(X, dtype)
    op = Pointwise(1, 1, x.shape[2:], act=act, coef=COEF.get(act, 0.0), dtype=dtype)
    for name, y in results(op, x=x).items():
        assert_same(y, row(FORWARD[act], dtype), name, NEXT_TO_1[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", FORWARD)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_epilogues(act: str, dtype: str, layout: str) -> None:
    """After convolutions; where their sums are 0, its sign is not said. A tap of 0 makes NaN of an infinity."""
    x, k = np.repeat(row(X, dtype, 4), 16, axis=1), 32
    w, b = np.zeros((k, 16, 1), x.dtype), np.zeros(k, np.float64 if dtype == "f64" else np.float32)
    w[np.arange(k), np.arange(k) % 16] = 1
    wanted = row([y + 0.0 if np.isfinite(x) else NAN for x, y in zip(X, FORWARD[act], strict=True)], dtype, 4)
    for bias in (False, True):
        op = ConvFprop(1, 16, x.shape[2:], k, (1,), bias=bias, act=act, coef=COEF.get(act, 0.0), dtype=dtype, layout=layout)
        for name, y in results(op, x=x, w=w, **({"b": b} if bias else {})).items():
            assert_same(y.astype(np.float64) + 0.0, np.repeat(wanted, k, axis=1), name, NEXT_TO_1[dtype])


@pytest.mark.parametrize("act", FORWARD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_depthwise_epilogues_keep_infinities(act: str, dtype: str) -> None:
    x, w = np.repeat(row(X, dtype, 4), 16, axis=1), np.ones((16, 1, 1), numpy_dtype(dtype))
    wanted = np.repeat(row([y + 0.0 for y in FORWARD[act]], dtype, 4), 16, axis=1)
    for layout in ("channels_first", "channels_last"):
        op = ConvFprop(1, 16, x.shape[2:], 16, (1,), act=act, coef=COEF.get(act, 0.0), groups=16, dtype=dtype, layout=layout)
        for name, y in results(op, x=x, w=w).items():
            assert_same(y.astype(np.float64) + 0.0, wanted, name, NEXT_TO_1[dtype])


GRADIENT = {  # of the outputs Y, for dy = 1, NaN and infinity
    "relu": ([0, 0, 1, 1, 1, 1], [0, 0, NAN, NAN, NAN, NAN], [0, 0, INF, INF, INF, INF]),
    "clipped_relu": ([0, 0, 1, 1, 0, 0], [0, 0, NAN, NAN, 0, 0], [0, 0, INF, INF, 0, 0]),
    "elu": ([0.5, 0.5, 1, 1, 1, 1], [NAN] * 6, [INF] * 6),
    "leaky_relu": ([0.25, 0.25, 0.25, 1, 1, 1], [NAN] * 6, [INF] * 6),
}
Y = [-0.0, 0.0, NAN, 3.0, 6.0, INF]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", GRADIENT)
def test_gradients_of_activations(act: str, dtype: str) -> None:
    """A unit that is shut passes nothing, not even NaN; one that holds NaN is not shut, as in PyTorch."""
    y = row(Y, dtype)
    op = ActivationBackward(1, 1, y.shape[2:], act=act, coef=COEF.get(act, 0.0), dtype=dtype)
    for given, wanted in zip((1.0, NAN, INF), GRADIENT[act], strict=True):
        for name, dx in results(op, y=y, dy=np.full_like(y, given)).items():
            assert_same(dx, row(wanted, dtype), f"{name}, dy = {given}", NEXT_TO_1[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ["sigmoid", "tanh"])
def test_slopes_where_units_are_almost_flat(act: str, dtype: str) -> None:
    """All digits, down to the last y below 1."""
    step = NEXT_TO_1[dtype]
    near = 1 - step / 2 * np.concatenate([np.arange(1, 60), 2.0 ** np.arange(6, 1 - np.log2(step))])
    tiny = 2.0 ** np.arange(np.log2(step), 0)
    y = like(np.concatenate([near, tiny, 1 - tiny, [0.5, 1.0]]), dtype)
    y = (y if act == "sigmoid" else np.concatenate([y, -y]))[None, None]
    dy = like(np.random.default_rng(0).uniform(1, 2, y.shape), dtype)
    exact, given = y.astype(np.longdouble), dy.astype(np.longdouble)
    slope = exact * (1 - exact) if act == "sigmoid" else (1 - exact) * (1 + exact)
    for name, dx in results(ActivationBackward(1, 1, y.shape[2:], act=act, dtype=dtype), y=y, dy=dy).items():
        have = dx.astype(np.longdouble)
        normal = slope * given >= float(2.0**-14 if dtype == "f16" else 0)  # below, f16 has fewer digits
        assert np.all((np.abs(have - slope * given) <= 2 * step * slope * given)[normal]), name
        assert np.all(have[y == 1] == 0), name


# ---- convolutions


def pattern(a: Array) -> Array:
    """Where numbers, infinities (and of which sign) and NaN are."""
    a = a.astype(np.float64)
    return np.where(np.isnan(a), "n", np.where(np.isposinf(a), "+", np.where(np.isneginf(a), "-", ".")))


def naive(op: Convolution, first: Array, second: Array) -> Array:
    """The sum over all pairs of an element of x and one of y that meet under a tap: padding takes no part."""
    g, rank = op.groups, op.rank
    own_c, own_k = op.c // g, op.k // g
    x_shape, y_shape, w_shape = (op.n, op.c, *op.extent), (op.n, op.k, *op.out), (op.k, own_c, *op.taps)
    made = np.zeros({"conv.fprop": y_shape, "conv.dgrad": x_shape, "conv.wgrad": w_shape}[op.kind])
    first, second = first.astype(np.float64), second.astype(np.float64)
    for tap in itertools.product(*map(range, op.taps)):
        meets = []
        for t, o, e, s, u, (pad, _) in zip(tap, op.out, op.extent, op.stride, op.dilation, op.pad, strict=True):
            at = [(p * s - pad + t * u, p) for p in range(o) if 0 <= p * s - pad + t * u < e]
            meets.append(([i for i, _ in at], [p for _, p in at]))
        if not all(x for x, _ in meets):
            continue
        x_at, y_at = (np.ix_(*(m[i] for m in meets)) for i in (0, 1))
        for i in range(g):
            c, k = slice(i * own_c, (i + 1) * own_c), slice(i * own_k, (i + 1) * own_k)
            ab = "uvz"[:rank]
            if op.kind == "conv.fprop":
                part = np.einsum(f"nc{ab},kc->nk{ab}", first[:, c][(..., *x_at)], second[k][(..., *tap)])
                made[:, k][(..., *y_at)] += part
            elif op.kind == "conv.dgrad":
                part = np.einsum(f"nk{ab},kc->nc{ab}", first[:, k][(..., *y_at)], second[k][(..., *tap)])
                made[:, c][(..., *x_at)] += part
            else:
                part = np.einsum(f"nc{ab},nk{ab}->kc", first[:, c][(..., *x_at)], second[:, k][(..., *y_at)])
                made[k][(..., *tap)] += part
    return made


def sprinkled(rng: random.Random, op: Op) -> dict[str, Array]:
    """Small positive integers, and in one of the two operands a few infinities or NaN, at its ends for preference."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    arrays = {o.name: numbers.integers(1, 3, o.shape).astype(numpy_dtype(o.dtype)) for o in op.inputs}
    special = arrays[rng.choice(op.inputs).name]
    for _ in range(rng.randint(1, 3)):
        special[tuple(rng.choice((0, s - 1, rng.randrange(s))) for s in special.shape)] = rng.choice((NAN, INF, -INF))
    return arrays


def random_conv(rng: random.Random, kind: type[Any], dtype: str) -> Convolution:
    """Small and large channels, so that kernels pack and do not, and all kinds of borders."""
    while True:
        rank = rng.choice((1, 2, 2, 2, 3))
        groups, c, k = rng.choice((1, 1, 1, 2, 16)), rng.choice((1, 2, 3, 8, 17)), rng.choice((1, 2, 8, 16, 33))
        extent = tuple(rng.randint(1, (60, 20, 7)[rank - 1]) for _ in range(rank))
        taps, stride, dilation = (tuple(rng.randint(1, m) for _ in extent) for m in (4, 3, 3))
        pad = tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in extent)
        try:
            return kind(rng.randint(1, 2), groups * c, extent, groups * k, taps, stride, dilation, pad, groups=groups,
                        dtype=dtype, layout=rng.choice(("channels_first", "channels_last")))  # fmt: skip
        except ShapeError:
            continue


@pytest.mark.parametrize("kind", [ConvFprop, ConvDgrad, ConvWgrad])
@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions(kind: type[Any], dtype: str, count: int = 25) -> None:
    """NaN and infinities come out where a tap takes them in, on every kernel; padding takes no part."""
    rng = random.Random(f"{kind.kind} {dtype}")
    for _ in range(count):
        op = random_conv(rng, kind, dtype)
        arrays = sprinkled(rng, op)
        with np.errstate(invalid="ignore"):
            wanted = pattern(naive(op, *arrays.values()))
        for name, made in results(op, **arrays).items():
            np.testing.assert_array_equal(pattern(made), wanted, err_msg=f"{name}: {op}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ConvFprop, ConvDgrad, ConvWgrad])
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_convolutions(kind: type[Any], dtype: str) -> None:
    test_convolutions(kind, dtype, 600)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_convolutions_in_tiles(dtype: str, deterministic: bool) -> None:
    """A budget moves no NaN; in a fixed order it changes no bit."""
    x = np.random.default_rng(1).standard_normal((2, 16, 20, 21)).astype(dtype)
    w = np.random.default_rng(2).standard_normal((16, 16, 3, 3)).astype(dtype)
    dy = np.random.default_rng(3).standard_normal((2, 16, 20, 21)).astype(dtype)
    w[3, 2, 0, 0], w[5, 7, 2, 1], x[1, 4, 10, 10], dy[0, 3, 0, 0], dy[1, 8, 19, 20] = NAN, INF, NAN, INF, NAN
    made = []
    for budget in (None, "60 KiB", "24 KiB"):
        with ooc.device("cpu", budget=budget, threads=2), np.errstate(all="ignore"):
            y = ooc.conv(x, w, padding=1, activation="relu", deterministic=deterministic)
            tiles = ooc.last_report().tiles
            grads = ooc.conv_backward(x, w, dy, padding=1, want=("dx", "dw"), deterministic=deterministic)
            made.append([y, grads.dx, grads.dw])
        assert tiles > 1 or budget != "24 KiB"
    for other in made[1:]:
        for a, b in zip(made[0], other, strict=True):
            np.testing.assert_array_equal(pattern(a), pattern(b))
            if deterministic and native.kernels is not None:
                assert np.nan_to_num(a).tobytes() == np.nan_to_num(b).tobytes()


# ---- pooling and batch norm


WINDOWS = [[NAN, 1], [2, NAN], [-INF, -INF], [INF, 2], [-INF, 3], [INF, -INF], [-0.0, -1]]
POOLED = {
    "max": [NAN, NAN, -INF, INF, 3, INF, -0.0],
    "average": [NAN, NAN, -INF, INF, -INF, NAN, -0.5],
    "average_valid": [NAN, NAN, -INF, INF, -INF, NAN, -0.5],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", POOLED)
def test_pooling(how: str, dtype: str) -> None:
    x = row(np.ravel(WINDOWS), dtype)
    for name, y in results(PoolForward(how, 1, 1, x.shape[2:], (2,), dtype=dtype), x=x).items():
        assert_same(y, row(POOLED[how], dtype), name, 1e-9)
    padded = PoolForward(how, 1, 1, (3,), (3,), (1,), ((1, 1),), dtype=dtype)
    for name, y in results(padded, x=row([-INF] * 3, dtype, 1)).items():
        assert np.all(np.isneginf(y.astype(np.float64))), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_pooling(dtype: str) -> None:
    """To NaN or to the first maximum, also of a window of -inf beside padding; as PyTorch where a window has one NaN."""
    x = row(np.ravel(WINDOWS), dtype)
    dy = row([1, 2, 3, NAN, INF, 4, 5], dtype)
    wanted = row([1, 0, 0, 2, 3, 0, NAN, 0, 0, INF, 4, 0, 5, 0], dtype)
    for name, dx in results(PoolBackward("max", 1, 1, x.shape[2:], (2,), dtype=dtype), x=x, dy=dy).items():
        assert_same(dx, wanted, name, 1e-9)
    op = PoolBackward("max", 1, 1, (4,), (3,), (1,), ((1, 1),), dtype=dtype)
    for name, dx in results(op, x=row([-INF] * 4, dtype, 1), dy=row([1] * 4, dtype, 1)).items():
        assert_same(dx, row([2, 1, 1, 0], dtype, 1), name, 1e-9)
    for name, dx in results(PoolBackward("average", 1, 1, x.shape[2:], (2,), dtype=dtype), dy=dy).items():
        assert_same(dx, np.repeat(dy.astype(np.float64) / 2, 2, axis=2), name, 1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm_for_inference(dtype: str) -> None:
    x = np.repeat(row(X, dtype), 3, axis=1)
    statistics = {"scale": [2.0, 1, 1], "b": [-0.0] * 3, "mean": [0.0] * 3, "var": [1.0, NAN, INF]}
    op = BnApply(1, 3, x.shape[2:], 0.0, act="relu", dtype=dtype)
    given = {o.name: like(statistics[o.name], o.dtype).reshape(o.shape) for o in op.inputs if o.name != "x"}
    for name, y in results(op, x=x, **given).items():
        assert_same(y[:, :1], row([-0.0, 0, NAN, INF, 0, 0, 6, 12, 14], dtype), name, 1e-3)
        assert np.isnan(y[:, 1].astype(np.float64)).all(), name


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_batch_norm_keeps_channels_apart(dtype: str, budget: str | None) -> None:
    x = np.random.default_rng(4).standard_normal((4, 6, 5, 40)).astype(dtype)
    dy = np.random.default_rng(5).standard_normal(x.shape).astype(dtype)
    scale, b = np.ones(6, "f8" if dtype == "f8" else "f4"), np.zeros(6, "f8" if dtype == "f8" else "f4")
    x[1, 2, 3, 4], x[2, 4, 0, 0], dy[0, 5, 1, 1] = NAN, INF, NAN
    with ooc.device("cpu", budget=budget), np.errstate(all="ignore"):
        y, mean, var = ooc.batch_norm(x, scale, b, training=True)
        dx, dscale, db = ooc.batch_norm_backward(x, dy, scale, mean, var)
    broken = [2, 4]
    assert np.isnan(y[:, broken].astype("f8")).all() and np.isfinite(np.delete(y, broken, 1).astype("f8")).all()
    assert np.isnan(dx[:, [2, 4, 5]].astype("f8")).all() and np.isfinite(np.delete(dx, [2, 4, 5], 1).astype("f8")).all()
    assert np.isnan(np.ravel(dscale)[[2, 4, 5]]).all() and np.isfinite(np.delete(np.ravel(dscale), [2, 4, 5])).all()
    assert np.isnan(np.ravel(db)[[5]]).all() and np.isfinite(np.delete(np.ravel(db), [5])).all()


# ---- whole calls, and what docs/functions.md lists


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_activations_in_tiles(dtype: str, budget: str | None, deterministic: bool) -> None:
    x = row(X, dtype, 2000)
    with ooc.device("cpu", budget=budget):
        for act, wanted in FORWARD.items():
            y = ooc.activation(x, act, COEF.get(act), deterministic=deterministic)
            assert ooc.last_report().tiles > 1 or budget is None
            assert_same(y, row(wanted, dtype, 2000), act, NEXT_TO_1[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_differs_from_pytorch(dtype: str) -> None:
    x, dy = row([1, NAN, NAN, 0], dtype, 1), row([1], dtype, 1)
    for name, dx in results(PoolBackward("max", 1, 1, (4,), (4,), dtype=dtype), x=x, dy=dy).items():
        assert_same(dx, row([0, 1, 0, 0], dtype, 1), name, 0)
    x = row([NAN] * 20, dtype)
    for name, y in results(Dropout(1, 1, x.shape[2:], 0.5, 1, dtype), x=x).items():
        y = y.astype(np.float64)
        assert np.any(y == 0) and np.any(np.isnan(y)) and np.all((y == 0) | np.isnan(y)), name


# ---- PyTorch itself


@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_as_pytorch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    theirs = {
        "relu": torch.relu, "clipped_relu": f.relu6, "elu": lambda x: f.elu(x, 0.5),
        "leaky_relu": lambda x: f.leaky_relu(x, 0.25), "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    }  # fmt: skip
    kind = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    for act, wanted in FORWARD.items():
        y = theirs[act](torch.tensor(X, dtype=kind)).to(torch.float64).numpy()
        assert_same(y, like(wanted, dtype), act, NEXT_TO_1[dtype])


def test_gradients_as_pytorch() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    theirs = {"relu": torch.relu, "elu": lambda x: f.elu(x, 0.5), "leaky_relu": lambda x: f.leaky_relu(x, 0.25)}
    for act, function in theirs.items():
        for given, wanted in zip((1.0, NAN, INF), GRADIENT[act], strict=True):
            x = torch.tensor(Y, dtype=torch.float64, requires_grad=True)
            function(x).backward(torch.full((len(Y),), given, dtype=torch.float64))
            assert_same(x.grad.numpy(), np.array(wanted, np.float64), act, 1e-12)
