"""Backward functions with several results: every subset of them, against formulas and against each other."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import formulas as f
import numpy as np
import pytest

import ooc
from ooc import Conv, Pool

BUDGETS = (None, "256 KiB", "32 KiB", "16 KiB", "4 KiB", "2 KiB")
DEVICES = {budget: ooc.device("cpu", budget, threads=2) for budget in BUDGETS}
NAMES = ("dx", "dw", "db")
SUBSETS = [want for count in (1, 2) for want in itertools.combinations(NAMES, count)]
POISON = -77.0


def numbers(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def small(seed: int, *shape: int) -> Any:
    """Small integers: every sum of them is exact in f32, in any order."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def close(result: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    assert result.shape == wanted.shape
    assert np.abs(np.asarray(result, np.float64) - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


# how the convolution is called; its activation; its pooling: kind and arguments
LAYERS: dict[str, tuple[dict[str, Any], str, tuple[str, dict[str, Any]] | None]] = {
    "plain": ({"padding": 1}, "identity", None),
    "strided, dilated": ({"stride": (2, 1), "padding": ((1, 2), (0, 1)), "dilation": (1, 2)}, "identity", None),
    "grouped": ({"groups": 2, "padding": (0, 1)}, "leaky_relu", None),
    "activation": ({"padding": 1}, "tanh", None),
    "max": ({"padding": 1}, "relu", ("max", {"window": 2})),
    "max, overlapping, padded": ({"padding": 1}, "elu", ("max", {"window": 3, "stride": 2, "padding": 1})),
    "max of no activation": ({"stride": 2}, "identity", ("max", {"window": (2, 3), "stride": (1, 2)})),
    "average": ({"padding": 1}, "sigmoid", ("average", {"window": (3, 2), "stride": (2, 2), "padding": ((1, 0), (0, 1))})),
    "average of no activation": ({}, "identity", ("average_valid", {"window": 3, "stride": 2, "padding": 1})),
}


class Problem:
    """A layer's arrays and the float64 gradients of its input, filters and bias."""

    def __init__(self, name: str, dtype: Any = np.float32) -> None:
        self.how, self.act, pooling = LAYERS[name]
        self.x, self.w = numbers(1, 2, 4, 10, 9, dtype=dtype), numbers(2, 6, 4 // self.how.get("groups", 1), 3, 2, dtype=dtype)
        self.b = numbers(3, 6, dtype=np.float32 if dtype == np.float16 else dtype)
        self.y = f.act(self.act, f.conv(self.x, self.w, self.b, **self.how)).astype(dtype)
        self.z = self.y if pooling is None else f.pool(pooling[0], self.y, **pooling[1])
        self.dy = numbers(4, *self.z.shape, dtype=dtype)
        inner = self.dy if pooling is None else f.pool_dx(pooling[0], self.y, self.dy, **pooling[1])
        inner = f.act_dx(self.act, self.y, inner)
        self.gradients = {
            "dx": f.conv_dx(inner, self.w, self.x.shape, **self.how),
            "dw": f.conv_dw(self.x, inner, self.w.shape, **self.how),
            "db": inner.sum((0, 2, 3)),
        }
        self.options: dict[str, Any] = {**self.how, "pool": pooling and Pool(pooling[0], **pooling[1]), "activation": self.act}

    def check(self, made: ooc.Gradients, want: tuple[str, ...], tolerance: float = 2e-5) -> None:
        for name in NAMES:
            if name in want:
                close(getattr(made, name), self.gradients[name], tolerance)
            else:
                assert getattr(made, name) is None


@pytest.mark.parametrize(
    ("name", "budget"),
    [(name, budget) for name in LAYERS for budget in (None, "2 KiB")]
    + [("plain", "32 KiB"), ("average", "32 KiB"), ("max", "256 KiB")],
)  # fmt: skip
def test_conv_backward(name: str, budget: str | None) -> None:
    p = Problem(name)
    with DEVICES[budget]:
        p.check(ooc.conv_backward(p.x, p.w, p.dy, y=p.y, **p.options), NAMES)
    report = ooc.last_report()
    assert report is not None and report.peak_bytes <= (DEVICES[budget].device_bytes or 1 << 60)


@pytest.mark.parametrize("want", SUBSETS, ids="+".join)
@pytest.mark.parametrize("name", ["activation", "max, overlapping, padded", "average of no activation"])
def test_conv_backward_of_what_is_wanted(name: str, want: tuple[str, ...]) -> None:
    p = Problem(name)
    needed = p.y if p.act != "identity" else None
    with DEVICES["4 KiB"]:
        p.check(ooc.conv_backward(p.x, p.w, p.dy, y=needed, want=want, **p.options), want)
        if "dw" not in want:
            p.check(ooc.conv_backward(None, p.w, p.dy, y=needed, want=want, x_shape=p.x.shape, **p.options), want)


def test_want_may_be_one_name() -> None:
    p = Problem("plain")
    p.check(ooc.conv_backward(p.x, p.w, p.dy, want="db", **p.options), ("db",))


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("name", ["grouped", "average"])
def test_conv_backward_dtypes(name: str, dtype: Any) -> None:
    p = Problem(name, dtype)
    with DEVICES["4 KiB"]:
        made = ooc.conv_backward(p.x, p.w, p.dy, y=p.y, **p.options)
    p.check(made, NAMES, 1e-12 if dtype == np.float64 else 1e-2)
    assert made.dx.dtype == made.dw.dtype == dtype and made.db.dtype == p.b.dtype


@pytest.mark.parametrize("name", ["grouped", "max, overlapping, padded"])
def test_conv_backward_channels_last(name: str) -> None:
    p = Problem(name)
    x, y, dy = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (p.x, p.y, p.dy))
    w = p.w
    with DEVICES["4 KiB"]:
        made = ooc.conv_backward(x, w, dy, y=y, layout="channels_last", **p.options)
        only = ooc.conv_backward(None, w, dy, y=y, want="dx", x_shape=x.shape, layout="channels_last", **p.options).dx
    p.check(ooc.Gradients(np.moveaxis(made.dx, -1, 1), made.dw, made.db), NAMES)
    close(np.moveaxis(only, -1, 1), p.gradients["dx"])


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 3.0), (-2.0, 0.0)])
@pytest.mark.parametrize("name", ["grouped", "max"])
def test_conv_backward_accumulates_everything(name: str, alpha: float, beta: float) -> None:
    """dx, dw and db alike become alpha * gradient + beta * what they held."""
    p = Problem(name)
    held = {k: numbers(5, *g.shape) for k, g in p.gradients.items()}
    outs = {k: a.copy() if beta else np.full_like(a, np.nan) for k, a in held.items()}
    with DEVICES["4 KiB"]:
        made = ooc.conv_backward(p.x, p.w, p.dy, y=p.y, alpha=alpha, beta=beta, **outs, **p.options)
    for k in NAMES:
        assert getattr(made, k) is outs[k]
        close(outs[k], alpha * p.gradients[k] + (beta * held[k] if beta else 0))


def test_conv_backward_between_files_and_slices(tmp_path: Path) -> None:
    p = Problem("max")
    files = {}
    for k, a in {"x": p.x, "dy": p.dy, "y": p.y, "dx": p.x}.items():
        files[k] = np.memmap(tmp_path / k, np.float32, "w+", 12, a.shape)
        files[k][...] = a if k != "dx" else POISON
    room = np.full((6, 5, 6, 4), POISON, np.float32)
    dw, db = room[:, :4, 1:4, ::2], np.full((6, 3), POISON, np.float32)
    with DEVICES["4 KiB"]:
        made = ooc.conv_backward(
            files["x"], np.asfortranarray(p.w), files["dy"], y=files["y"], dx=files["dx"], dw=dw, db=db[:, 1], **p.options
        )
    assert made.dx is files["dx"] and made.dw is dw
    p.check(made, NAMES)
    dw[...] = POISON
    assert (room == POISON).all() and (db[:, ::2] == POISON).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dx", "dy", "x", "y"]


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("budget", [None, "256 KiB", "2 KiB"])
@pytest.mark.parametrize("pool", [2, Pool("average", 3, 2, 1), Pool("max", 3, 2, 1)], ids=["2", "average", "overlapping"])
def test_conv_with_unpooled(pool: Any, budget: str | None, layout: str) -> None:
    """Both results of one pass are those of two calls, and may be written to given arrays, one or both."""
    x, w, b = numbers(1, 2, 4, 13, 10), numbers(2, 6, 4, 3, 3), numbers(3, 6)
    kind, how = ("max", {"window": 2}) if pool == 2 else (pool.kind, {"window": 3, "stride": 2, "padding": 1})
    wanted = f.act("relu", f.conv(x, w, b, padding=1))
    seen = (x if layout == "channels_first" else np.ascontiguousarray(np.moveaxis(x, 1, -1)), w)
    back = (lambda a: a) if layout == "channels_first" else (lambda a: np.moveaxis(a, -1, 1))
    options: dict[str, Any] = {"padding": 1, "activation": "relu", "pool": pool, "with_unpooled": True, "layout": layout}
    with DEVICES[budget]:
        y, z = ooc.conv(*seen, b, **options)
        close(back(y), wanted)
        close(back(z), f.pool(kind, wanted, **how))
        outs = np.full_like(y, POISON), np.full_like(z, POISON)
        assert all(a is o for a, o in zip(ooc.conv(*seen, b, out=outs, **options), outs))
        only = ooc.conv(*seen, b, out=(None, outs[1]), **options)
    assert only[1] is outs[1]
    for a in (outs, only):
        np.testing.assert_array_equal(a[0], y)
        np.testing.assert_array_equal(a[1], z)


def test_conv_with_unpooled_and_residual_accumulates() -> None:
    x, w, r = numbers(1, 2, 4, 12, 10), numbers(2, 6, 4, 3, 3), numbers(3, 2, 6, 12, 10)
    wanted = f.act("tanh", f.conv(x, w, padding=1) + r)
    outs = np.full(r.shape, 2, np.float32), np.full((2, 6, 6, 5), 3, np.float32)
    with DEVICES["4 KiB"]:
        y, z = ooc.conv(
            x, w, residual=r, padding=1, activation="tanh", pool=2, with_unpooled=True, alpha=2, beta=-1, out=outs
        )  # fmt: skip
    close(y, 2 * wanted - 2)
    close(z, 2 * f.pool("max", wanted, 2) - 3)


# ---- chains


def layer_by_layer(x: Any, dy: Any, layers: list[Conv]) -> tuple[Any, list[ooc.Gradients]]:
    """Forward, keeping everything, then `conv_backward` of every layer."""
    kept, found = [x], []
    for layer in layers:
        kept.append(ooc.conv(kept[-1], layer.w, layer.b, padding=layer.padding, stride=layer.stride, activation=layer.activation))
    for layer, before, after in reversed(list(zip(layers, kept, kept[1:]))):
        how = {"padding": layer.padding, "stride": layer.stride, "activation": layer.activation}
        found.append(ooc.conv_backward(before, layer.w, dy, y=after, **how))
        dy = found[-1].dx
    return dy, found[::-1]


@pytest.mark.parametrize("budget", ["16 KiB", "4 KiB"])
def test_chain_backward_of_two_is_layer_by_layer(budget: str | None) -> None:
    x, w, v = small(1, 2, 3, 9, 8), small(2, 4, 3, 3, 3), small(3, 5, 4, 2, 2)
    layers = [Conv(w, small(4, 4), padding=1, activation="relu"), Conv(v, stride=2)]
    dy = small(5, 2, 5, 4, 4)
    wanted_dx, wanted = layer_by_layer(x, dy, layers)
    with DEVICES[budget]:
        dx, made = ooc.chain_backward(x, dy, *layers)
    np.testing.assert_array_equal(dx, wanted_dx)
    for one, other in zip(made, wanted, strict=True):
        assert one.dx is None
        np.testing.assert_array_equal(one.dw, other.dw)
        np.testing.assert_array_equal(one.db, other.db)


@pytest.mark.parametrize("budget", ["4 KiB"])
def test_chain_backward_of_three_filters(budget: str | None) -> None:
    x, dy = small(1, 1, 2, 8, 8), small(5, 1, 2, 8, 8)
    layers = [Conv(small(i, 2, 2, 3, 3), padding=1) for i in range(3)]
    _, wanted = layer_by_layer(x, dy, layers)
    with DEVICES[budget]:
        dx, made = ooc.chain_backward(x, dy, *layers, want="dw")
    assert dx is None
    for one, other in zip(made, wanted, strict=True):
        assert one.db is None
        np.testing.assert_array_equal(one.dw, other.dw)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("budget", [None, "4 KiB"])
def test_chain_backward_of_the_input_alone(depth: int, budget: str | None) -> None:
    x, dy = small(1, 2, 3, 9, 8), small(5, 2, 3, 9, 8)
    layers = [Conv(small(i, 3, 3, 3, 3), padding=1) for i in range(depth)]
    with DEVICES[budget]:
        dx, made = ooc.chain_backward(x, dy, *layers, want="dx")
    np.testing.assert_array_equal(dx, layer_by_layer(x, dy, layers)[0])
    assert made == [ooc.Gradients(None, None, None)] * depth


@pytest.mark.parametrize("budget", ["4 KiB"])
def test_chain_backward_through_pooling_and_activations(budget: str) -> None:
    """Everything is recomputed: the gradients are those of the formulas, and go to named outputs."""
    x, w, b = numbers(1, 2, 3, 10, 9), numbers(2, 4, 3, 3, 3), numbers(3, 4)
    y = f.act("tanh", f.conv(x, w, b, padding=1))
    how = {"window": 3, "stride": 2, "padding": 1}
    z = f.pool("max", y, **how)
    last = f.act("sigmoid", z)
    dy = numbers(4, *z.shape)
    inner = f.act_dx("tanh", y, f.pool_dx("max", y, f.act_dx("sigmoid", last, dy), **how))
    outs = {"dx": np.full(x.shape, POISON, np.float32), "dw": np.full(w.shape, POISON, np.float32)}
    layers = (Conv(w, b, padding=1, activation="tanh", pool=Pool("max", **how)), ooc.Activation("sigmoid"))
    with DEVICES[budget]:
        dx, made = ooc.chain_backward(x, dy, *layers, outs=outs)
    assert dx is outs["dx"] and made[0].dw is outs["dw"]
    assert len(made) == 3 and made[1:] == [ooc.Gradients(None, None, None)] * 2  # flattened: convolution, pooling, activation
    close(dx, f.conv_dx(inner, w, x.shape, padding=1))
    close(made[0].dw, f.conv_dw(x, inner, w.shape, padding=1))
    close(made[0].db, inner.sum((0, 2, 3)))


# ---- linear


@pytest.mark.parametrize("budget", [None, "32 KiB", "2 KiB"])
@pytest.mark.parametrize("rows", [(), (1,), (23,), (3, 7), (2, 3, 4)], ids=str)
def test_linear_and_its_gradients(rows: tuple[int, ...], budget: str | None) -> None:
    x, w, b, dy = numbers(1, *rows, 31), numbers(2, 17, 31), numbers(3, 17), numbers(4, *rows, 17)
    wanted = np.tanh(x.astype(np.float64) @ w.T + b)
    inner = (dy * (1 - wanted * wanted)).reshape(-1, 17)
    with DEVICES[budget]:
        close(ooc.linear(x, w), x.astype(np.float64) @ w.T)
        y = ooc.linear(x, w, b, activation="tanh")
        close(y, wanted)
        made = ooc.linear_backward(x, w, dy, y=y, activation="tanh")
        only = ooc.linear_backward(x, w, dy, want=("dw",))
    close(made.dx, (inner @ w).reshape(x.shape))
    close(made.dw, inner.T @ x.reshape(-1, 31))
    close(made.db, inner.sum(0))
    assert only.dx is None and only.db is None
    close(only.dw, dy.reshape(-1, 17).T.astype(np.float64) @ x.reshape(-1, 31))


def test_linear_backward_into_given_arrays() -> None:
    x, w, dy = numbers(1, 3, 7, 31), numbers(2, 17, 31), numbers(4, 3, 7, 17)
    room = np.full((3, 7, 40), POISON, np.float32)
    outs = {"dx": room[..., 4:35], "dw": np.ones_like(w), "db": np.ones(17, np.float32)}
    with DEVICES["2 KiB"]:
        ooc.linear_backward(x, w, dy, **outs, alpha=2, beta=1)
    rows = dy.reshape(-1, 17).astype(np.float64)
    close(outs["dx"], (2 * rows @ w + POISON).reshape(x.shape))
    close(outs["dw"], 2 * rows.T @ x.reshape(-1, 31) + 1)
    close(outs["db"], 2 * rows.sum(0) + 1)
    assert (room[..., :4] == POISON).all() and (room[..., 35:] == POISON).all()
