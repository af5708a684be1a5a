"""Random calls of ooc.cudnn against naive float64 formulas, at several budgets, in every kind of array."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import formulas as f
import numpy as np
import pytest
from sweeps import swept

import ooc
import ooc.cudnn as cudnn
from ooc.ir.op import numpy_dtype
from ooc.libcudnn import CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC

BUDGETS = (None, "256 KiB", "16 KiB", "2 KiB")
TOLERANCE = {"f64": 1e-11, "f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}
KINDS = ("plain", "fortran", "sliced", "flipped", "memmap")
NUMBERS = {"auto_tune": True, "tensor_core": "auto"}
MODES = {0: "max", 1: "average", 2: "average_valid", 3: "max"}
ACTS = {0: "sigmoid", 1: "relu", 2: "tanh", 3: "clipped_relu", 4: "elu", 5: "identity"}
COEFS = {3: 6.0, 4: 1.0}


@pytest.fixture(params=BUDGETS, ids=map(str, BUDGETS))
def where(request: pytest.FixtureRequest) -> Iterator[None]:
    with ooc.device("cpu", request.param, threads=1):
        yield
    cudnn.set_max_workspace_size(None)


class Maker:
    """Random arrays of one dtype, stored in random ways, and poisoned outputs."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder, self.files = random.Random(seed), folder, 0
        self.numbers = np.random.default_rng(seed)
        self.name = self.rng.choice(["f32", "f32", "f64", "f16", "bf16"])
        self.dtype = numpy_dtype(self.name)

    def given(self, shape: Any) -> Any:
        values = self.numbers.standard_normal(shape).astype(self.dtype)
        kind = self.rng.choice(KINDS)
        if kind == "fortran":
            return np.asfortranarray(values)
        if kind == "sliced":
            held = np.full([e * 2 + 1 for e in shape], np.nan, self.dtype)
            part = held[tuple(slice(1, None, 2) for _ in shape)]
            part[...] = values
            return part
        if kind == "flipped":
            return np.ascontiguousarray(values[..., ::-1])[..., ::-1]
        if kind == "memmap":
            file = self.mapped(shape)
            file[...] = values
            return file
        return values

    def mapped(self, shape: Any) -> Any:
        self.files += 1
        return np.memmap(self.folder / f"{self.files}.bin", self.dtype, "w+", shape=tuple(shape))

    def poisoned(self, shape: Any) -> Any:
        made = self.mapped(shape) if self.rng.random() < 0.3 else np.empty(shape, self.dtype)
        made[...] = np.nan
        return made

    def agree(self, found: Any, expected: Any, terms: int = 1) -> None:
        assert found.dtype == self.dtype and found.shape == np.shape(expected)
        bound = TOLERANCE[self.name] * max(1.0, float(np.abs(expected).max())) * max(1, terms) ** 0.5
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=0, atol=bound)

    def workspace(self) -> None:
        limit = self.rng.choice([None, None, 0, 1, 4096, 8 << 20])
        cudnn.set_max_workspace_size(limit)


def to_last(a: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(a, 1, -1))


class Convolution(Maker):
    """Sizes and arrays of a random convolution, as the caller stores them and channels first."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        rng = self.rng
        rank, self.groups = rng.randint(1, 3), rng.choice((1, 1, 2, 3))
        most = 8 if rank < 3 else 5
        c, k, n = self.groups * rng.randint(1, 3), self.groups * rng.randint(1, 3), rng.randint(1, 3)
        self.taps, self.stride, self.dilation, self.pad = (
            tuple(rng.randint(*span) for _ in range(rank)) for span in ((1, 3), (1, 3), (1, 2), (0, 2))
        )
        extent = tuple(d * (t - 1) + 1 + rng.randint(0, most) for t, d in zip(self.taps, self.dilation))
        axes = zip(extent, self.taps, self.stride, self.dilation, self.pad)
        out = tuple((e + 2 * p - d * (t - 1) - 1) // s + 1 for e, t, s, d, p in axes)
        self.x, self.w, self.y = (n, c, *extent), (k, c // self.groups, *self.taps), (n, k, *out)
        self.last, self.w_last = (rank == 2 and rng.random() < 0.4 for _ in range(2))
        self.layouts = {
            "d_layout": CUDNN_TENSOR_NHWC if self.last else CUDNN_TENSOR_NCHW,
            "w_layout": CUDNN_TENSOR_NHWC if self.w_last else CUDNN_TENSOR_NCHW,
        }
        self.call = (self.pad, self.stride, None if set(self.dilation) == {1} else self.dilation, self.groups)
        self.how = {"stride": self.stride, "padding": self.pad, "dilation": self.dilation, "groups": self.groups}
        self.deterministic = rng.random() < 0.3

    def stored(self, shape: Any, filters: bool = False) -> Any:
        return (shape[0], *shape[2:], shape[1]) if (self.w_last if filters else self.last) else shape

    def seen(self, array: Any, filters: bool = False) -> Any:
        return np.moveaxis(array, -1, 1) if (self.w_last if filters else self.last) else array

    def bias(self, count: int) -> Any:
        return self.given((count,)) if self.rng.random() < 0.6 else None


@pytest.mark.parametrize("seed", swept(range(40), suite=8, quick=1))
def test_convolution_forward(where: None, tmp_path: Path, seed: int) -> None:
    c = Convolution(seed, tmp_path)
    x, w, b = c.given(c.stored(c.x)), c.given(c.stored(c.w, True)), c.bias(c.y[1])
    y = c.poisoned(c.stored(c.y))
    c.workspace()
    assert cudnn.convolution_forward(x, w, b, y, *c.call, **NUMBERS, **c.layouts) is None
    c.agree(c.seen(y), f.conv(c.seen(x), c.seen(w, True), b, **c.how), c.w[1] * 9)


@pytest.mark.parametrize("seed", swept(range(40), suite=8, quick=1))
def test_convolution_backward_data(where: None, tmp_path: Path, seed: int) -> None:
    c = Convolution(seed, tmp_path)
    x, w, b = c.given(c.stored(c.y)), c.given(c.stored(c.w, True)), c.bias(c.x[1])
    y = c.poisoned(c.stored(c.x))
    c.workspace()
    cudnn.convolution_backward_data(w, x, b, y, *c.call, deterministic=c.deterministic, **NUMBERS, **c.layouts)
    expected = f.conv_dx(c.seen(x), c.seen(w, True), c.x, **c.how)
    c.agree(c.seen(y), expected if b is None else expected + f.channels(b, len(c.x)), c.w[0] * 9)


@pytest.mark.parametrize("seed", swept(range(40), suite=8, quick=1))
def test_convolution_backward_filter(where: None, tmp_path: Path, seed: int) -> None:
    c = Convolution(seed, tmp_path)
    x, gy, gw = c.given(c.stored(c.x)), c.given(c.stored(c.y)), c.poisoned(c.stored(c.w, True))
    c.workspace()
    cudnn.convolution_backward_filter(x, gy, gw, *c.call, deterministic=c.deterministic, **NUMBERS, **c.layouts)
    c.agree(c.seen(gw, True), f.conv_dw(c.seen(x), c.seen(gy), c.w, **c.how), c.y[0] * int(np.prod(c.y[2:])))


@pytest.mark.parametrize("seed", swept(range(30), suite=5, quick=1))
def test_fused(where: None, tmp_path: Path, seed: int) -> None:
    """Forward and backward, pooling included."""
    c = Convolution(seed, tmp_path)
    c.name, c.dtype = ("f32", np.dtype(np.float32)) if c.name in ("f16", "bf16") else (c.name, c.dtype)
    x, w, b = c.given(c.stored(c.x)), c.given(c.stored(c.w, True)), c.bias(c.y[1])
    mode, pooling = c.rng.choice(list(ACTS)), c.rng.choice(list(MODES))
    coef, name, how = COEFS.get(mode, 0.0), ACTS[mode], c.how
    window = tuple(min(2, e) for e in c.y[2:])
    pool = (window, window, (0,) * len(window), pooling)
    y = f.act(name, f.conv(c.seen(x), c.seen(w, True), b, **how))
    z = f.pool(MODES[pooling], y, window)
    made_y, made_z = c.poisoned(c.stored(c.y)), c.poisoned(c.stored(z.shape))
    c.workspace()
    both = c.rng.random() < 0.7
    cudnn.convolution_bias_activation_pooling_forward(
        x, w, b, made_y if both else None, made_z, *c.call, mode, coef, *pool, **c.layouts)  # fmt: skip
    c.agree(c.seen(made_z), z, c.w[1] * 9)
    cudnn.convolution_bias_activation_forward(x, w, b, made_y, *c.call, mode, coef, **c.layouts) if not both else None
    c.agree(c.seen(made_y), y, c.w[1] * 9)
    gz, own = c.given(c.stored(z.shape)), np.asarray(c.seen(made_y), np.float64)
    gy = f.act_dx(name, own, f.pool_dx(MODES[pooling], own, c.seen(gz), window))
    gx, gw, gb = c.poisoned(c.stored(c.x)), c.poisoned(c.stored(c.w, True)), c.poisoned((c.y[1],))
    cudnn.pooling_activation_convolution_backward_data_filter_bias(
        x, w, made_y, gz, gx, gw, gb, *c.call, mode, coef, *pool, **c.layouts)  # fmt: skip
    count = c.y[0] * int(np.prod(c.y[2:]))
    c.agree(c.seen(gx), f.conv_dx(gy, c.seen(w, True), c.x, **how), c.w[0] * 9)
    c.agree(c.seen(gw, True), f.conv_dw(c.seen(x), gy, c.w, **how), count)
    c.agree(gb, gy.sum(axis=(0, *range(2, gy.ndim))), count)


@pytest.mark.parametrize("seed", swept(range(30), suite=8, quick=1))
def test_pooling(where: None, tmp_path: Path, seed: int) -> None:
    m = Maker(seed, tmp_path)
    rank, mode = m.rng.randint(1, 3), m.rng.choice(list(MODES))
    window = tuple(m.rng.randint(1, 3) for _ in range(rank))
    stride, pad = tuple(m.rng.randint(1, 3) for _ in range(rank)), tuple(m.rng.randrange(k) for k in window)
    extent = tuple(k + m.rng.randint(0, 6) for k in window)
    x = m.given((m.rng.randint(1, 2), m.rng.randint(1, 4), *extent))
    expected = f.pool(MODES[mode], x, window, stride=stride, padding=pad)
    y = m.poisoned(expected.shape)
    assert cudnn.pooling_forward(x, y, window, stride, pad, mode) is y
    m.agree(y, expected)
    gy = m.given(y.shape)
    gx = cudnn.pooling_backward(x, y, gy, window, stride, pad, mode)
    m.agree(gx, f.pool_dx(MODES[mode], x, np.asarray(gy, np.float64), window, stride=stride, padding=pad), int(np.prod(window)))


@pytest.mark.parametrize("seed", swept(range(30), suite=8, quick=1))
def test_activation_and_softmax(where: None, tmp_path: Path, seed: int) -> None:
    m = Maker(seed, tmp_path)
    shape = tuple(m.rng.randint(1, 6) for _ in range(m.rng.randint(1, 5)))
    mode, axis, log = m.rng.choice(list(ACTS)), m.rng.randrange(-len(shape), len(shape)), m.rng.randint(0, 2)
    x, gy, coef = m.given(shape), m.given(shape), COEFS.get(mode, 0.0)
    y = cudnn.activation_forward(x, mode, coef)
    m.agree(y, f.act(ACTS[mode], x))
    m.agree(cudnn.activation_backward(x, y, gy, mode, coef), f.act_dx(ACTS[mode], y, np.asarray(gy, np.float64)))
    y = cudnn.softmax_forward(x, axis, log)
    m.agree(y, f.softmax(x, axis, log == 2))
    m.agree(cudnn.softmax_backward(y, gy, axis, log), f.softmax_dx(y, gy, axis, log == 2), shape[axis])


@pytest.mark.parametrize("seed", swept(range(20), suite=8, quick=1))
def test_batch_normalization(where: None, tmp_path: Path, seed: int) -> None:
    m = Maker(seed, tmp_path)
    spatial = tuple(m.rng.randint(2, 5) for _ in range(m.rng.randint(1, 3)))
    shape, mode = (m.rng.randint(2, 4), m.rng.randint(1, 5), *spatial), m.rng.randint(0, 2)
    axes: Any = (0,) if mode == 0 else (0, *range(2, len(shape)))
    per = tuple(1 if i in axes else e for i, e in enumerate(shape))
    wide = np.float64 if m.name == "f64" else np.float32
    x, gy = m.given(shape), m.given(shape)
    gamma, beta, mean, var = (m.numbers.uniform(0.5, 1.5, per).astype(wide) for _ in range(4))
    seen, eps = np.asarray(x, np.float64), 1e-3
    own, spread = seen.mean(axes, keepdims=True), seen.var(axes, keepdims=True)
    count = seen.size // gamma.size
    m.agree(cudnn.batch_normalization_forward_inference(x, gamma, beta, mean, var, eps, True, mode),
            f.batch_norm(seen, gamma, beta, mean, var, eps), 9)  # fmt: skip
    moved = [0.75 * mean + 0.25 * own, 0.75 * var + 0.25 * spread * count / (count - 1)]
    y, saved, inverse = cudnn.batch_normalization_forward_training(
        x, gamma, beta, mean, var, None, None, eps, 0.75, True, mode, False)  # fmt: skip
    m.agree(y, f.batch_norm(seen, gamma, beta, own, spread, eps), 9)
    for found, expected in ((saved, own), (inverse, 1 / np.sqrt(spread + eps)), (mean, moved[0]), (var, moved[1])):
        assert found.dtype == wide and found.shape == per
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
    gx, ggamma, gbeta = cudnn.batch_normalization_backward(x, gamma, gy, saved, inverse, eps, True, mode, False)
    grads = f.batch_norm_dx(seen, np.asarray(gy, np.float64), gamma, mode == 0, eps)
    for found, expected in zip((ggamma, gbeta), grads[1:]):
        np.testing.assert_allclose(found, expected.reshape(per), 1e-3, 1e-4)
    m.agree(gx, grads[0], 9)
