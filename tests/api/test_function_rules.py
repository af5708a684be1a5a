"""What functions promise beyond their formula: work in place, statistics, reductions, the same mask for every tiling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import formulas as f
import numpy as np
import pytest

import ooc

BUDGETS = (None, "256 KiB", "32 KiB", "2 KiB")
DEVICES = {budget: ooc.device("cpu", budget, threads=2) for budget in BUDGETS}
SHAPE = (2, 6, 17, 13)


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(result: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    assert np.shape(result) == np.shape(wanted)
    assert np.abs(np.asarray(result, np.float64) - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


# ---- in place

IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "activation": lambda x, **o: ooc.activation(x, "tanh", **o),
    "activation_backward, into y": lambda x, **o: ooc.activation_backward(x, numbers(1, *SHAPE), "relu", **o),
    "activation_backward, into dy": lambda x, **o: ooc.activation_backward(numbers(1, *SHAPE), x, "relu", **o),
    "dropout": lambda x, **o: ooc.dropout(x, 0.3, 5, **o),
    "scale": lambda x, **o: ooc.scale(x, 3.0, **o),
    "add, into x": lambda x, **o: ooc.add(x, numbers(1, *SHAPE), **o),
    "add, into z": lambda x, **o: ooc.add(numbers(1, *SHAPE), x, **o),
    "add, x to itself": lambda x, **o: ooc.add(x, x, **o),
    "add per channel": lambda x, **o: ooc.add(x, numbers(1, 1, 6, 1, 1), **o),
    "batch_norm": lambda x, **o: ooc.batch_norm(x, mean=np.arange(6.0), var=np.ones(6), **o),
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str, budget: str | None, tmp_path: Path) -> None:
    call, x = IN_PLACE[name], numbers(0, *SHAPE)
    wanted, file = call(x), np.memmap(tmp_path / "x", np.float32, "w+", 0, SHAPE)
    for target in (x.copy(), np.asfortranarray(x), file):
        target[...] = x
        with DEVICES[budget]:
            assert call(target, out=target) is target
        np.testing.assert_array_equal(target, wanted)


NOT_IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: ooc.conv(x, numbers(1, 6, 6, 3, 3), padding=1, out=x),
    "pointwise conv": lambda x: ooc.conv(x, numbers(1, 6, 6, 1, 1), out=x),
    "conv_transpose": lambda x: ooc.conv_transpose(x, numbers(1, 6, 6, 3, 3), padding=1, out=x),
    "max_pool": lambda x: ooc.max_pool(x, 3, 1, 1, out=x),
    "lrn": lambda x: ooc.lrn(x, out=x),
    "conv_backward": lambda x: ooc.conv_backward(x, numbers(1, 6, 6, 3, 3), x, padding=1, dx=x),
    "upsample": lambda x: ooc.upsample(x, SHAPE[2:], out=x),
    "reversed": lambda x: ooc.activation(x, "relu", out=x[::-1]),
    "transposed": lambda x: ooc.scale(x[..., :13, :], 2.0, out=x[..., :13, :].swapaxes(2, 3)),
    "shifted": lambda x: ooc.activation(x[:, 1:], "relu", out=x[:, :-1]),
    "residual": lambda x: ooc.conv(x, numbers(1, 6, 6, 3, 3), padding=1, residual=x, out=x),
}


@pytest.mark.parametrize("budget", [None, "2 KiB"])
@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_not_in_place(name: str, budget: str | None) -> None:
    x = numbers(0, *SHAPE)
    before = x.copy()
    with DEVICES[budget], pytest.raises(ooc.ShapeError, match="overlap"):
        NOT_IN_PLACE[name](x)
    np.testing.assert_array_equal(x, before)


# ---- dropout


@pytest.mark.parametrize("shape", [(9001,), (70, 130), SHAPE, (2, 3, 4, 5, 6, 7)], ids=str)
def test_dropout_drops_the_same_elements_for_every_tiling(shape: tuple[int, ...]) -> None:
    x = np.abs(numbers(0, *shape)) + 1
    wanted = ooc.dropout(x, 0.25, 99)
    kept = wanted != 0
    np.testing.assert_allclose(wanted[kept], x[kept] / 0.75, rtol=1e-6)
    assert abs(1 - kept.mean() - 0.25) < 5 * (0.25 * 0.75 / x.size) ** 0.5
    for budget in BUDGETS:
        with DEVICES[budget]:
            np.testing.assert_array_equal(ooc.dropout(x, 0.25, 99), wanted)
            if x.ndim < 6:
                np.testing.assert_array_equal(ooc.dropout(np.asfortranarray(x), 0.25, 99), wanted)
            np.testing.assert_array_equal(ooc.dropout(x.astype(np.float64), 0.25, 99) != 0, kept)
            np.testing.assert_array_equal(ooc.dropout(x.reshape(-1), 0.25, 99).reshape(shape) != 0, kept)
            dy = -x
            np.testing.assert_allclose(ooc.dropout(dy, 0.25, 99), np.where(kept, dy / np.float32(0.75), 0), rtol=1e-6)
    assert (ooc.dropout(x, 0.25, 100) != wanted).any()
    np.testing.assert_array_equal(ooc.dropout(x, 0.0, 99), x)


def test_dropout_rates() -> None:
    x = np.ones(40000, np.float32)
    for seed, rate in enumerate((0.05, 0.5, 0.9)):
        y = ooc.dropout(x, rate, seed)
        assert abs((y == 0).mean() - rate) < 5 * (rate * (1 - rate) / x.size) ** 0.5
        assert abs(y.mean() - 1) < 0.05


# ---- batch normalisation


@pytest.mark.parametrize("per_activation", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
def test_batch_norm_training(budget: str | None, per_activation: bool) -> None:
    """Statistics of the whole batch, running statistics moved with the unbiased variance, gradients of all three."""
    shape = (5, *SHAPE[1:])
    x, dy = numbers(0, *shape) + 100, numbers(1, *shape)
    stat = SHAPE[1:] if per_activation else (6,)
    scale, b = numbers(2, *stat), numbers(3, *stat)
    mean, var = numbers(4, *stat), np.abs(numbers(5, *stat)).astype(np.float64)
    old_mean, old_var, axes = mean.copy(), var.copy(), f.batch_axes(x, per_activation)
    see = (lambda a: a[None]) if per_activation else (lambda a: f.channels(a, 4))
    with DEVICES[budget]:
        made = ooc.batch_norm(x, scale, b, mean, var, training=True, momentum=0.25, per_activation=per_activation)
        back = ooc.batch_norm_backward(x, dy, scale, made.mean, made.var, per_activation=per_activation)
        again = ooc.batch_norm(x, scale, b, made.mean, made.var, per_activation=per_activation)
    wide = x.astype(np.float64)
    batch_mean, batch_var = wide.mean(axis=axes), wide.var(axis=axes)
    count = x.size // batch_mean.size
    assert made.mean.dtype == made.var.dtype == np.float64
    close(made.mean, batch_mean, 1e-12)
    close(made.var, batch_var, 1e-9)
    close(mean, 0.75 * old_mean + 0.25 * batch_mean, 1e-6)
    close(var, 0.75 * old_var + 0.25 * batch_var * count / (count - 1), 1e-9)
    wanted = f.batch_norm(x, see(scale), see(b), see(batch_mean), see(batch_var))
    close(made.y, wanted)
    np.testing.assert_array_equal(again, made.y)
    dx, dscale, db = f.batch_norm_dx(x, dy, see(scale), per_activation)
    close(back.dx, dx)
    close(back.dscale, dscale.reshape(stat))
    close(back.db, db.reshape(stat))


def test_batch_norm_of_files_without_running_statistics(tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", np.float32, "w+", 0, SHAPE)
    y = np.memmap(tmp_path / "y", np.float32, "w+", 0, SHAPE)
    x[...] = numbers(0, *SHAPE)
    with DEVICES["2 KiB"]:
        made = ooc.batch_norm(x, training=True, out=y, alpha=2, beta=0)
    axes = (0, 2, 3)
    assert made.y is y
    close(y, 2 * f.batch_norm(x, 1, 0, np.mean(x, axes, np.float64, keepdims=True), np.var(x, axes, np.float64, keepdims=True)))


# ---- softmax and loss


@pytest.mark.parametrize("shape", [(500,), (9, 70), (4, 20, 9), (3, 8, 7, 5), (2, 7, 3, 4, 5)], ids=str)
def test_softmax_of_every_axis(shape: tuple[int, ...]) -> None:
    """Of any rank, huge values and all; axes that do not fit the budget are folded."""
    x = numbers(0, *shape) * 30
    x.flat[:3] = (1e38, -1e38, 88.0)
    dy = numbers(1, *shape)
    for axis in range(-len(shape), len(shape)):
        for log in (False, True):
            wanted = f.softmax(x, axis, log)
            for budget in (None, "2 KiB") if axis >= 0 else ("32 KiB",):
                with DEVICES[budget]:
                    y = ooc.softmax(x, axis, log=log)
                    dx = ooc.softmax_backward(y, dy, axis, log=log)
                assert np.isfinite(y).all()
                np.testing.assert_allclose(y, wanted, rtol=2e-5, atol=1e-5)
                close(dx, f.softmax_dx(y, dy, axis, log))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("shape", [(40, 90), (3, 9, 31), (2, 7, 9, 8), (2, 5, 3, 4, 5)], ids=str)
def test_cross_entropy_reductions(shape: tuple[int, ...], budget: str | None) -> None:
    x, rng = numbers(0, *shape), np.random.default_rng(1)
    labels = rng.integers(-2, shape[1], (shape[0], *shape[2:]))
    loss, count = f.cross_entropy(x, labels), np.count_nonzero(labels >= 0)
    each = rng.standard_normal(labels.shape)
    with DEVICES[budget]:
        assert abs(ooc.cross_entropy(x, labels) - loss.sum() / count) < 1e-5
        assert abs(ooc.cross_entropy(x, labels.astype(np.int16), reduction="sum") - loss.sum()) < 1e-3
        one = ooc.cross_entropy(x, labels, reduction="none")
        assert one.dtype == np.float32
        close(one, loss)
        close(ooc.cross_entropy_backward(x, labels), f.cross_entropy_dx(x, labels, np.full(labels.shape, 1 / count)))
        close(ooc.cross_entropy_backward(x, labels, each, reduction="none"), f.cross_entropy_dx(x, labels, each))
        close(
            ooc.cross_entropy_backward(x, labels, 3.0, reduction="sum"), f.cross_entropy_dx(x, labels, np.full(labels.shape, 3))
        )


def test_cross_entropy_without_any_label() -> None:
    x, labels = numbers(0, 3, 5), np.full(3, -1)
    assert np.isnan(ooc.cross_entropy(x, labels)) and ooc.cross_entropy(x, labels, reduction="sum") == 0
    assert not ooc.cross_entropy_backward(x, labels).any()


# ---- joining


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_into_files(axis: int, tmp_path: Path) -> None:
    parts = [numbers(i, *(3 + i if a == axis % 4 else e for a, e in enumerate(SHAPE))) for i in range(3)]
    wanted = np.concatenate(parts, axis)
    out = np.memmap(tmp_path / "y", np.float32, "w+", 0, wanted.shape)
    with DEVICES["2 KiB"]:
        assert ooc.concat(parts, axis, out=out) is out
    np.testing.assert_array_equal(out, wanted)


def test_producers_write_into_slices_of_the_joined_array() -> None:
    x, w, v = numbers(0, *SHAPE), numbers(1, 4, 6, 3, 3), numbers(2, 3, 6, 1, 1)
    out = np.empty((2, 7, 17, 13), np.float32)
    with DEVICES["2 KiB"]:
        ooc.conv(x, w, padding=1, out=out[:, :4])
        ooc.conv(x, v, out=out[:, 4:])
    close(out, np.concatenate([f.conv(x, w, padding=1), f.conv(x, v)], 1))


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_a_batch_norm_folded_into_a_convolution(layout: str) -> None:
    """One pass with folded filters gives what the convolution and the inference batch norm give."""
    rng = np.random.default_rng(3)
    x, w, b = (rng.standard_normal(s).astype(np.float64) for s in ((2, 3, 7, 6), (4, 3, 3, 3), (4,)))
    if layout == "channels_last":
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    scale, bias, mean, var = rng.standard_normal(4), rng.standard_normal(4), rng.standard_normal(4), rng.random(4) + 0.1
    with ooc.device("cpu", "16 KiB"):
        apart = ooc.batch_norm(ooc.conv(x, w, b, layout=layout), scale, bias, mean, var, layout=layout)
        folded = ooc.fold_batch_norm(w, b, scale, bias, mean, var)
        np.testing.assert_allclose(ooc.conv(x, *folded, layout=layout), apart, rtol=1e-12, atol=1e-12)
    with pytest.raises(ooc.ShapeError, match="mean must have shape"):
        ooc.fold_batch_norm(w, b, scale, bias, mean[:2], var)
