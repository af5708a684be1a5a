"""Programs as one writes them against cuDNN's low-level calls, compared with textbook formulas."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import formulas
import numpy as np
import pytest
from emulated_device import on
from emulated_driver import emulated

import ooc
import ooc.libcudnn as cudnn
from ooc.backends.device_array import at
from ooc.libcudnn import CuDNNError

Array = Any
CODES = {
    "f4": cudnn.CUDNN_DATA_FLOAT,
    "f8": cudnn.CUDNN_DATA_DOUBLE,
    "f2": cudnn.CUDNN_DATA_HALF,
    "bf16": cudnn.CUDNN_DATA_BFLOAT16,
}
UNIT = {"f4": 2.0**-23, "f8": 2.0**-52, "f2": 2.0**-10, "bf16": 2.0**-7}
BUDGETS = (None, "16 KiB", "2 KiB")
NAN = float("nan")


def dtype_of(kind: str) -> Any:
    if kind == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(kind)


class Memory:
    """A tensor in memory as a program has it: flat storage, and a descriptor that says how it lies there.

    how: nchw, nhwc, or strided (every second element, rows with gaps). What is between the elements must not change.
    """

    def __init__(self, values: Array, kind: str = "f4", how: str = "nchw", filters: bool = False) -> None:
        values, self.kind, self.dtype = np.asarray(values), kind, dtype_of(kind)
        shape = values.shape
        order = [0, *range(2, len(shape)), 1] if how == "nhwc" else list(range(len(shape)))
        strides, step = [0] * len(shape), 2 if how == "strided" else 1
        for axis in reversed(order):
            strides[axis] = step
            step *= shape[axis]
            step += how == "strided" and axis == order[-1]
        self.shape, self.strides = shape, tuple(strides)
        self.store = np.full(step, -77, self.dtype)
        self.see(self.store)[...] = values.astype(self.dtype)
        self.gaps = np.ones(step, bool)
        np.lib.stride_tricks.as_strided(self.gaps, shape, strides)[...] = False
        if filters:
            self.desc = cudnn.createFilterDescriptor()
            dims, form = np.array(shape, np.int32), cudnn.CUDNN_TENSOR_NHWC if how == "nhwc" else cudnn.CUDNN_TENSOR_NCHW
            cudnn.setFilterNdDescriptor_v4(self.desc, CODES[kind], form, len(shape), dims.ctypes.data)
        else:
            self.desc = cudnn.createTensorDescriptor()
            dims, steps = np.array(shape, np.int32), np.array(strides, np.int32)
            cudnn.setTensorNdDescriptor(self.desc, CODES[kind], len(shape), dims.ctypes.data, steps.ctypes.data)

    def see(self, store: Array) -> Array:
        return np.lib.stride_tricks.as_strided(store, self.shape, [s * self.dtype.itemsize for s in self.strides])

    @property
    def ptr(self) -> int:
        return int(self.store.ctypes.data)

    @property
    def values(self) -> Array:
        assert np.all(self.store[self.gaps].astype(np.float64) == -77), "written between the elements"
        return self.see(self.store).astype(np.float64)

    def agrees(self, wanted: Array, units: float = 8) -> None:
        scale = max(1.0, float(np.max(np.abs(wanted))))
        np.testing.assert_allclose(self.values, wanted, rtol=0, atol=units * UNIT[self.kind] * scale)


def scalar(value: float, kind: str) -> Array:
    """A scaling factor as CuPy's programs keep it: pass its `.ctypes.data`."""
    return np.array(value, np.float64 if kind == "f8" else np.float32)


@pytest.fixture
def handle() -> Iterator[int]:
    found = cudnn.create()
    yield found
    cudnn.destroy(found)


@pytest.fixture(params=BUDGETS, ids=str)
def budget(request: Any) -> Iterator[Any]:
    with ooc.device("cpu", request.param, threads=2):
        yield request.param


def numbers(rng: Any, *shape: int) -> Array:
    return rng.integers(-3, 4, shape).astype(np.float64)


def convolution(rank: int, pad: Any, stride: Any, dilation: Any, mode: int, groups: int, kind: str) -> int:
    desc = cudnn.createConvolutionDescriptor()
    lists = [np.array(np.broadcast_to(v, rank), np.int32) for v in (pad, stride, dilation)]
    compute = CODES["f8" if kind == "f8" else "f4"]
    if rank == 2:
        cudnn.setConvolution2dDescriptor_v5(desc, *(int(v) for pair in lists for v in pair), mode, compute)
    else:
        cudnn.setConvolutionNdDescriptor_v3(desc, rank, *(v.ctypes.data for v in lists), mode, compute)
    cudnn.setConvolutionGroupCount(desc, groups)
    cudnn.setConvolutionMathType(desc, cudnn.CUDNN_FMA_MATH)
    return desc


# rank, pad, stride, dilation, groups, flipped, kind, layout of data, alpha, beta
PROBLEMS = {
    "plain": (2, 1, 1, 1, 1, False, "f4", "nchw", 1.0, 0.0),
    "strided, dilated": (2, (2, 1), (2, 1), (1, 2), 1, False, "f4", "nchw", 1.0, 0.0),
    "grouped, blended": (2, 1, 1, 1, 2, False, "f4", "nchw", 2.0, -0.5),
    "flipped": (2, (1, 0), (1, 2), 1, 1, True, "f4", "nchw", 1.0, 0.0),
    "flipped, blended, grouped": (2, 1, 1, 2, 2, True, "f8", "nchw", -1.0, 1.0),
    "nhwc": (2, 1, 2, 1, 1, False, "f4", "nhwc", 1.0, 0.0),
    "nhwc, flipped, blended": (2, 1, 1, 1, 1, True, "f4", "nhwc", 0.5, 1.0),
    "gaps": (2, 1, 1, 1, 2, False, "f4", "strided", 1.0, 1.0),
    "half": (2, 1, 1, 1, 1, False, "f2", "nchw", 1.0, 0.0),
    "half, nhwc, blended": (2, 1, 1, 1, 1, False, "f2", "nhwc", 1.0, 2.0),
    "bfloat16": (2, 1, 2, 1, 1, False, "bf16", "nchw", 1.0, 0.0),
    "volumes": (3, 1, (1, 2, 1), 1, 1, False, "f4", "nchw", 1.0, 0.0),
    "volumes, flipped, channels last": (3, (1, 0, 1), 1, (1, 1, 2), 2, True, "f8", "nhwc", 1.0, 0.5),
    "rows": (1, 2, 1, 2, 1, True, "f4", "nchw", 1.0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("by", ("pointers", "arrays"))
@pytest.mark.parametrize("what", PROBLEMS)
def test_training_step_of_a_convolution(handle: int, budget: Any, what: str, by: str) -> None:
    """Forward, both gradients and the bias', as a program does them: query, workspace, call."""
    rank, pad, stride, dilation, groups, flipped, kind, how, alpha, beta = PROBLEMS[what]
    rng, taps = np.random.default_rng(len(what)), (3, 2, 3)[-rank:]
    extent = (4, 7, 6)[-rank:]
    given = {"stride": stride, "padding": pad, "dilation": dilation, "groups": groups}
    x0, w0 = numbers(rng, 2, 4, *extent), numbers(rng, 6, 4 // groups, *taps)
    turned = w0[(..., *(slice(None, None, -1),) * rank)] if flipped else w0
    y0 = formulas.conv(x0, turned, **given)
    dy0 = numbers(rng, *y0.shape)
    before = {"y": numbers(rng, *y0.shape), "dx": numbers(rng, *x0.shape), "dw": numbers(rng, *w0.shape)}
    if not beta:
        before = {name: np.full(a.shape, NAN) for name, a in before.items()}
    x, dy, y, dx = (Memory(a, kind, how) for a in (x0, dy0, before["y"], before["dx"]))
    formed = "nhwc" if how == "nhwc" else "nchw"
    w, dw = Memory(w0, kind, formed, filters=True), Memory(before["dw"], kind, formed, filters=True)
    mode = cudnn.CUDNN_CONVOLUTION if flipped else cudnn.CUDNN_CROSS_CORRELATION
    conv = convolution(rank, pad, stride, dilation, mode, groups, kind)
    assert cudnn.getConvolutionNdForwardOutputDim(conv, x.desc, w.desc, rank + 2) == y0.shape

    one, other = scalar(alpha, kind), scalar(beta, kind)
    a, b = (one.ctypes.data, other.ctypes.data) if by == "pointers" else (alpha, beta)

    def data(held: Memory) -> Any:
        return held.ptr if by == "pointers" else held.store

    # forward
    (perf,) = cudnn.getConvolutionForwardAlgorithm_v7(handle, x.desc, w.desc, conv, y.desc, 8)
    assert (perf.status, perf.determinism, perf.mathType) == (0, cudnn.CUDNN_DETERMINISTIC, cudnn.CUDNN_FMA_MATH)
    size = cudnn.getConvolutionForwardWorkspaceSize(handle, x.desc, w.desc, conv, y.desc, perf.algo)
    space = np.empty(size, np.uint8)
    args = (handle, a, x.desc, data(x), w.desc, data(w), conv, perf.algo, space.ctypes.data, size, b, y.desc, data(y))
    cudnn.convolutionForward(*args)
    old = (lambda name: beta * before[name]) if beta else (lambda name: 0.0)
    y.agrees(alpha * y0 + old("y"))

    # the gradient of the data
    algo = cudnn.getConvolutionBackwardDataAlgorithm_v7(handle, w.desc, dy.desc, conv, dx.desc, 4)[0].algo
    size = cudnn.getConvolutionBackwardDataWorkspaceSize(handle, w.desc, dy.desc, conv, dx.desc, algo)
    cudnn.convolutionBackwardData_v3(handle, a, w.desc, data(w), dy.desc, data(dy), conv, algo, 0, size, b, dx.desc, data(dx))
    dx.agrees(alpha * formulas.conv_dx(dy0, turned, x0.shape, **given) + old("dx"))

    # the gradient of the filters
    algo = cudnn.getConvolutionBackwardFilterAlgorithm_v7(handle, x.desc, dy.desc, conv, dw.desc, 4)[0].algo
    size = cudnn.getConvolutionBackwardFilterWorkspaceSize(handle, x.desc, dy.desc, conv, dw.desc, algo)
    cudnn.convolutionBackwardFilter_v3(handle, a, x.desc, data(x), dy.desc, data(dy), conv, algo, 0, size, b, dw.desc, data(dw))
    wanted = formulas.conv_dw(x0, dy0, w0.shape, **given)
    wanted = wanted[(..., *(slice(None, None, -1),) * rank)] if flipped else wanted
    dw.agrees(alpha * wanted + old("dw"))

    # the gradient of the bias
    start = numbers(rng, 1, 6, *(1,) * rank) if beta else np.full((1, 6, *(1,) * rank), NAN)
    db = Memory(start, kind)
    cudnn.convolutionBackwardBias(handle, a, dy.desc, data(dy), b, db.desc, data(db))
    total = alpha * dy0.sum(axis=(0, *range(2, rank + 2)), keepdims=True)
    db.agrees(total + (beta * start if beta else 0))

    for held, values in ((x, x0), (w, w0), (dy, dy0)):
        np.testing.assert_array_equal(held.values, values)


@pytest.mark.parametrize("how", ("nchw", "nhwc"))
@pytest.mark.parametrize("one, two, in_place", ((1.0, 0.0, False), (1.0, 1.0, False), (2.0, -0.5, False), (0.5, 1.0, True)))
@pytest.mark.parametrize("kind", ("f4", "f8", "f2"))
def test_fused_convolution(handle: int, budget: Any, how: str, one: float, two: float, in_place: bool, kind: str) -> None:
    rng = np.random.default_rng(3)
    x0, w0, b0 = numbers(rng, 2, 3, 6, 5), numbers(rng, 4, 3, 3, 3), numbers(rng, 1, 4, 1, 1)
    y0 = formulas.conv(x0, w0, padding=1)
    z0 = numbers(rng, *y0.shape)
    x, w, b, z = Memory(x0, kind, how), Memory(w0, kind, how, True), Memory(b0, kind), Memory(z0, kind, how)
    y = z if in_place else Memory(np.full(y0.shape, NAN), kind, how)
    conv = convolution(2, 1, 1, 1, cudnn.CUDNN_CROSS_CORRELATION, 1, kind)
    act = cudnn.createActivationDescriptor()
    cudnn.setActivationDescriptor(act, cudnn.CUDNN_ACTIVATION_RELU, cudnn.CUDNN_NOT_PROPAGATE_NAN, 0.0)
    factor = scalar(one, kind)
    cudnn.convolutionBiasActivationForward(
        handle, factor.ctypes.data, x.desc, x.ptr, w.desc, w.ptr, conv, 1, 0, 0, two, z.desc,
        z.ptr, b.desc, b.ptr, act, y.desc, y.ptr,
    )  # fmt: skip
    y.agrees(np.maximum(one * y0 + two * z0 + b0, 0))


KINDS = {
    cudnn.CUDNN_POOLING_MAX: "max",
    cudnn.CUDNN_POOLING_MAX_DETERMINISTIC: "max",
    cudnn.CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING: "average",
    cudnn.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING: "average_valid",
}


@pytest.mark.parametrize(
    "how, kind, alpha, beta",
    (("nchw", "f4", 1.0, 0.0), ("nhwc", "f4", 2.0, 1.0), ("strided", "f8", 1.0, -1.0), ("nchw", "f2", 1.0, 0.0)),
)
@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("rank", (2, 3))
def test_pooling(handle: int, budget: Any, rank: int, mode: int, how: str, kind: str, alpha: float, beta: float) -> None:
    rng, extent = np.random.default_rng(mode), (5, 6, 7)[-rank:]
    window, pad, stride = (2, 3, 3)[-rank:], (0, 1, 1)[-rank:], (2, 1, 2)[-rank:]
    x0 = rng.permutation(np.arange(2 * 3 * np.prod(extent)) % 251).reshape(2, 3, *extent) / 4.0
    y0 = formulas.pool(KINDS[mode], x0, window, stride=stride, padding=pad)
    dy0, old_y, old_dx = (numbers(rng, *s) for s in (y0.shape, y0.shape, x0.shape))
    if not beta:
        old_y, old_dx = np.full(y0.shape, NAN), np.full(x0.shape, NAN)
    pooling = cudnn.createPoolingDescriptor()
    if rank == 2:
        sizes = (*window, *pad, *stride)
        cudnn.setPooling2dDescriptor_v4(pooling, mode, cudnn.CUDNN_NOT_PROPAGATE_NAN, *sizes)
    else:
        lists = [np.array(v, np.int32) for v in (window, pad, stride)]
        cudnn.setPoolingNdDescriptor_v4(pooling, mode, cudnn.CUDNN_NOT_PROPAGATE_NAN, rank, *(v.ctypes.data for v in lists))
    x, y, dy, dx = (Memory(a, kind, how) for a in (x0, old_y, dy0, old_dx))
    cudnn.poolingForward(handle, pooling, alpha, x.desc, x.ptr, beta, y.desc, y.ptr)
    y.agrees(alpha * y0 + (beta * old_y if beta else 0))
    cudnn.poolingBackward(handle, pooling, alpha, y.desc, y.ptr, dy.desc, dy.ptr, x.desc, x.ptr, beta, dx.desc, dx.ptr)
    gradient = formulas.pool_dx(KINDS[mode], x0, dy0, window, stride=stride, padding=pad)
    dx.agrees(alpha * gradient + (beta * old_dx if beta else 0))


@pytest.mark.parametrize("how", ("nchw", "nhwc"))
@pytest.mark.parametrize("mode", (cudnn.CUDNN_POOLING_MAX, cudnn.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING))
def test_pooling_to_a_result_that_covers_all(handle: int, budget: Any, mode: int, how: str) -> None:
    """A last window may end beyond the padding, as Chainer's do: y is then one larger than whole windows make it."""
    rng = np.random.default_rng(mode)
    x0 = rng.permutation(np.arange(2 * 3 * 8 * 6) % 251).reshape(2, 3, 8, 6) / 4.0
    given = {"stride": 2, "padding": [(1, 2), (0, 1)]}
    y0 = formulas.pool(KINDS[mode], x0, 3, **given)
    assert y0.shape == (2, 3, 5, 3)
    dy0 = numbers(rng, *y0.shape)
    pooling = cudnn.createPoolingDescriptor()
    cudnn.setPooling2dDescriptor_v4(pooling, mode, cudnn.CUDNN_NOT_PROPAGATE_NAN, 3, 3, 1, 0, 2, 2)
    x, y, dy, dx = (Memory(a, "f4", how) for a in (x0, y0 * NAN, dy0, x0 * NAN))
    cudnn.poolingForward(handle, pooling, 1.0, x.desc, x.ptr, 0.0, y.desc, y.ptr)
    y.agrees(y0)
    cudnn.poolingBackward(handle, pooling, 1.0, y.desc, y.ptr, dy.desc, dy.ptr, x.desc, x.ptr, 0.0, dx.desc, dx.ptr)
    dx.agrees(formulas.pool_dx(KINDS[mode], x0, dy0, 3, **given))
    for wrong in ((2, 3, 6, 3), (2, 3, 3, 2), (3, 3, 5, 3), (2, 4, 5, 3)):
        other = Memory(np.zeros(wrong))
        with pytest.raises(CuDNNError, match="the pooling's result is"):
            cudnn.poolingForward(handle, pooling, 1.0, x.desc, x.ptr, 0.0, other.desc, other.ptr)


MODES = {
    cudnn.CUDNN_ACTIVATION_SIGMOID: ("sigmoid", 0.0), cudnn.CUDNN_ACTIVATION_RELU: ("relu", 0.0),
    cudnn.CUDNN_ACTIVATION_TANH: ("tanh", 0.0), cudnn.CUDNN_ACTIVATION_CLIPPED_RELU: ("clipped_relu", 6.0),
    cudnn.CUDNN_ACTIVATION_ELU: ("elu", 1.0), cudnn.CUDNN_ACTIVATION_IDENTITY: ("identity", 0.0),
}  # fmt: skip


@pytest.mark.parametrize(
    "how, kind, alpha, beta", (("nchw", "f4", 1.0, 0.0), ("nhwc", "f8", 2.0, 1.0), ("strided", "f2", 1.0, 0.0))
)
@pytest.mark.parametrize("mode", MODES)
def test_activation(handle: int, budget: Any, mode: int, how: str, kind: str, alpha: float, beta: float) -> None:
    rng, (name, coef) = np.random.default_rng(mode), MODES[mode]
    x0 = rng.integers(-40, 41, (3, 4, 5, 6)) / 4.0
    y0 = formulas.act(name, x0)
    dy0, old = numbers(rng, *x0.shape), numbers(rng, *x0.shape) if beta else np.full(x0.shape, NAN)
    act = cudnn.createActivationDescriptor()
    cudnn.setActivationDescriptor(act, mode, cudnn.CUDNN_NOT_PROPAGATE_NAN, coef)
    x, y, dy, dx = (Memory(a, kind, how) for a in (x0, old, dy0, old))
    cudnn.activationForward_v4(handle, act, alpha, x.desc, x.ptr, beta, y.desc, y.ptr)
    y.agrees(alpha * y0 + (beta * old if beta else 0))
    y = Memory(y0, kind, how)
    cudnn.activationBackward_v4(handle, act, alpha, y.desc, y.ptr, dy.desc, dy.ptr, x.desc, x.ptr, beta, dx.desc, dx.ptr)
    dx.agrees(alpha * formulas.act_dx(name, y.values, dy0) + (beta * old if beta else 0))
    if not beta:  # in place
        cudnn.activationForward_v4(handle, act, 1.0, x.desc, x.ptr, 0.0, x.desc, x.ptr)
        x.agrees(y0)


@pytest.mark.parametrize("ceiling", (0.1, 1.1, 2.4, 6.0, 1 / 3))
@pytest.mark.parametrize("kind", CODES)
def test_at_its_ceiling_a_unit_is_shut(handle: int, kind: str, ceiling: float) -> None:
    """Also where the ceiling is rounded up or down in the type of the tensors."""
    act = cudnn.createActivationDescriptor()
    cudnn.setActivationDescriptor(act, cudnn.CUDNN_ACTIVATION_CLIPPED_RELU, cudnn.CUDNN_NOT_PROPAGATE_NAN, ceiling)
    x, dy = (Memory(np.reshape(v, (1, 3, 1, 1)), kind) for v in ([ceiling / 2, ceiling * 2, 9.0], np.ones(3)))
    cudnn.activationForward_v4(handle, act, 1.0, x.desc, x.ptr, 0.0, x.desc, x.ptr)
    cudnn.activationBackward_v4(handle, act, 1.0, x.desc, x.ptr, dy.desc, dy.ptr, x.desc, x.ptr, 0.0, dy.desc, dy.ptr)
    assert dy.values.ravel().tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("how, kind, alpha, beta", (("nchw", "f4", 1.0, 0.0), ("nhwc", "f8", 2.0, 1.0), ("nchw", "f2", 1.0, 0.0)))
@pytest.mark.parametrize("mode", (cudnn.CUDNN_SOFTMAX_MODE_INSTANCE, cudnn.CUDNN_SOFTMAX_MODE_CHANNEL))
@pytest.mark.parametrize("algorithm", (cudnn.CUDNN_SOFTMAX_FAST, cudnn.CUDNN_SOFTMAX_ACCURATE, cudnn.CUDNN_SOFTMAX_LOG))
def test_softmax(handle: int, budget: Any, algorithm: int, mode: int, how: str, kind: str, alpha: float, beta: float) -> None:
    rng, log = np.random.default_rng(algorithm), algorithm == cudnn.CUDNN_SOFTMAX_LOG
    x0 = rng.integers(-12, 13, (3, 5, 4, 6)) / 4.0
    axes = (1,) if mode == cudnn.CUDNN_SOFTMAX_MODE_CHANNEL else (1, 2, 3)
    merged = x0 if len(axes) == 1 else x0.reshape(3, -1)
    y0 = formulas.softmax(merged, log=log).reshape(x0.shape)
    dy0, old = numbers(rng, *x0.shape), numbers(rng, *x0.shape) if beta else np.full(x0.shape, NAN)
    x, y, dy, dx = (Memory(a, kind, how) for a in (x0, old, dy0, old))
    cudnn.softmaxForward(handle, algorithm, mode, alpha, x.desc, x.ptr, beta, y.desc, y.ptr)
    y.agrees(alpha * y0 + (beta * old if beta else 0))
    y = Memory(y0, kind, how)
    cudnn.softmaxBackward(handle, algorithm, mode, alpha, y.desc, y.ptr, dy.desc, dy.ptr, beta, dx.desc, dx.ptr)
    wanted = formulas.softmax_dx(y.values.reshape(merged.shape), dy0.reshape(merged.shape), log=log).reshape(x0.shape)
    dx.agrees(alpha * wanted + (beta * old if beta else 0), 64)
    before = dy0 if beta else 0
    cudnn.softmaxBackward(handle, algorithm, mode, alpha, y.desc, y.ptr, dy.desc, dy.ptr, beta, dy.desc, dy.ptr)  # in place
    dy.agrees(alpha * wanted + beta * before, 64)
    cudnn.softmaxForward(handle, algorithm, mode, alpha, x.desc, x.ptr, beta, x.desc, x.ptr)
    x.agrees(alpha * y0 + (beta * x0 if beta else 0))


def derived(x: Memory, mode: int) -> int:
    desc = cudnn.createTensorDescriptor()
    cudnn.deriveBNTensorDescriptor(desc, x.desc, mode)
    return desc


@pytest.mark.parametrize(
    "how, kind, alpha, beta",
    (("nchw", "f4", 1.0, 0.0), ("nhwc", "f4", 2.0, 1.0), ("strided", "f8", 1.0, 0.0), ("nchw", "f2", 1.0, 0.0)),
)
@pytest.mark.parametrize(
    "mode", (cudnn.CUDNN_BATCHNORM_PER_ACTIVATION, cudnn.CUDNN_BATCHNORM_SPATIAL, cudnn.CUDNN_BATCHNORM_SPATIAL_PERSISTENT)
)
@pytest.mark.parametrize("extended", (False, True))
def test_batch_norm(
    handle: int, budget: Any, mode: int, how: str, kind: str, alpha: float, beta: float, extended: bool
) -> None:  # fmt: skip
    rng, each = np.random.default_rng(mode), mode == cudnn.CUDNN_BATCHNORM_PER_ACTIVATION
    x0 = rng.integers(-20, 21, (6, 3, 4, 5)) / 4.0
    axes = formulas.batch_axes(x0, each)
    mean0, var0 = x0.mean(axes, keepdims=True), x0.var(axes, keepdims=True)
    small = "f8" if kind == "f8" else "f4"
    scale0, b0, run0, runv0 = (rng.uniform(0.5, 1.5, mean0.shape).astype(small).astype("f8") for _ in range(4))
    dy0, old = numbers(rng, *x0.shape), numbers(rng, *x0.shape) if beta else np.full(x0.shape, NAN)
    x, y, dy, dx = (Memory(a, kind, how) for a in (x0, old, dy0, old))
    desc = derived(x, mode)
    scale, b, run, runv = (Memory(a, small) for a in (scale0, b0, run0, runv0))
    saved, inv, dscale, db = (Memory(np.full(mean0.shape, NAN), small) for _ in range(4))
    eps, factor, count = 1e-3, 0.25, x0.size / mean0.size
    y0 = formulas.batch_norm(x0, scale0, b0, mean0, var0, eps)
    tail = (desc, scale.ptr, b.ptr, factor, run.ptr, runv.ptr, eps, saved.ptr, inv.ptr)
    if extended:
        ops = cudnn.CUDNN_BATCHNORM_OPS_BN
        size = cudnn.getBatchNormalizationForwardTrainingExWorkspaceSize(handle, mode, ops, x.desc, 0, y.desc, desc, 0)
        kept = cudnn.getBatchNormalizationTrainingExReserveSpaceSize(handle, mode, ops, 0, x.desc)
        cudnn.batchNormalizationForwardTrainingEx(
            handle, mode, ops, alpha, beta, x.desc, x.ptr, 0, 0, y.desc, y.ptr, *tail, 0, 0, size, 0, kept
        )
    else:
        cudnn.batchNormalizationForwardTraining(handle, mode, alpha, beta, x.desc, x.ptr, y.desc, y.ptr, *tail)
    y.agrees(alpha * y0 + (beta * old if beta else 0))
    saved.agrees(mean0)
    inv.agrees(1 / np.sqrt(var0 + eps))
    run.agrees(0.75 * run0 + 0.25 * mean0)
    runv.agrees(0.75 * runv0 + 0.25 * var0 * count / (count - 1))

    given = (scale.ptr, dscale.ptr, db.ptr, eps)
    middle = (x.desc, x.ptr, dy.desc, dy.ptr, dx.desc, dx.ptr, desc)
    if extended:
        size = cudnn.getBatchNormalizationBackwardExWorkspaceSize(handle, mode, 0, x.desc, 0, dy.desc, 0, dx.desc, desc, 0)
        cudnn.batchNormalizationBackwardEx(
            handle, mode, 0, alpha, beta, 1.0, 0.0, x.desc, x.ptr, 0, 0, dy.desc, dy.ptr, 0, 0, dx.desc, dx.ptr, desc,
            scale.ptr, 0, dscale.ptr, db.ptr, eps, 0, 0, 0, 0, size, 0, 0,
        )  # fmt: skip
    else:
        cudnn.batchNormalizationBackward(handle, mode, alpha, beta, 1.0, 0.0, *middle, *given, saved.ptr, inv.ptr)
    dx0, dscale0, db0 = formulas.batch_norm_dx(x0, dy0, scale0, each, eps)
    dx.agrees(alpha * dx0 + (beta * old if beta else 0), 32)
    dscale.agrees(dscale0, 32)
    db.agrees(db0, 32)
    cudnn.batchNormalizationBackward(handle, mode, alpha, 0.0, 2.0, 1.0, *middle, *given, 0, 0)
    dscale.agrees(3 * dscale0, 64)

    cudnn.batchNormalizationForwardInference(
        handle, mode, alpha, 0.0, x.desc, x.ptr, y.desc, y.ptr, desc, scale.ptr, b.ptr, run.ptr, runv.ptr, eps
    )
    y.agrees(alpha * formulas.batch_norm(x0, scale0, b0, run.values, runv.values, eps))


def test_running_statistics_that_were_never_set(handle: int) -> None:
    """A factor of 1 does not read them; results that are null are left out."""
    x0 = np.random.default_rng(0).standard_normal((4, 2, 3, 3))
    x, y = Memory(x0, "f8"), Memory(x0 * NAN, "f8")
    desc, ones = derived(x, 1), Memory(np.ones((1, 2, 1, 1)), "f8")
    mean, var = (Memory(np.full((1, 2, 1, 1), NAN), "f8") for _ in range(2))
    args = (handle, 1, 1.0, 0.0, x.desc, x.ptr, y.desc, y.ptr, desc, ones.ptr, ones.ptr, 1.0)
    cudnn.batchNormalizationForwardTraining(*args, mean.ptr, var.ptr, 1e-5, 0, 0)
    mean.agrees(x0.mean((0, 2, 3), keepdims=True))
    var.agrees(x0.var((0, 2, 3), keepdims=True, ddof=1))
    cudnn.batchNormalizationForwardTraining(*args, 0, 0, 1e-5, None, None)
    with pytest.raises(CuDNNError, match="resultRunningVariance"):
        cudnn.batchNormalizationForwardTraining(*args, mean.ptr, 0, 1e-5, 0, 0)


@pytest.mark.parametrize("small", list(itertools.product((1, 3), (1, 4), (1, 5), (1, 6))))
def test_add_tensor(handle: int, budget: Any, small: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(small))
    b0, y0 = numbers(rng, *small), numbers(rng, 3, 4, 5, 6)
    for how, kind, alpha, beta in (("nchw", "f4", 1.0, 1.0), ("nhwc", "f2", 2.0, -1.0), ("strided", "f8", 3.0, 0.0)):
        b, y = Memory(b0, kind), Memory(y0 if beta else np.full(y0.shape, NAN), kind, how)
        one, other = scalar(alpha, kind), scalar(beta, kind)
        cudnn.addTensor_v3(handle, one.ctypes.data, b.desc, b.ptr, other.ctypes.data, y.desc, y.ptr)
        y.agrees(alpha * b0 + beta * y0)


@pytest.mark.parametrize("shape", ((3, 4), (3, 4, 5), (3, 4, 5, 6), (2, 3, 2, 3, 2), (2, 2, 2, 2, 2, 2, 2)))
def test_set_and_scale_tensors(handle: int, budget: Any, shape: tuple[int, ...]) -> None:
    y0 = numbers(np.random.default_rng(1), *shape)
    for how, kind in (("nchw", "f4"), ("nhwc", "f8"), ("nchw", "f2"), ("nchw", "bf16")):
        y = Memory(y0, kind, how)
        cudnn.scaleTensor(handle, y.desc, y.ptr, -2.0)
        y.agrees(-2 * y0)
        value = np.array(1.5, y.dtype)  # of the tensor's own type
        cudnn.setTensor(handle, y.desc, y.ptr, value.ctypes.data)
        np.testing.assert_array_equal(y.values, 1.5)
        cudnn.setTensor(handle, y.desc, y.store, 0.25)
        np.testing.assert_array_equal(y.values, 0.25)


def test_dropout(handle: int, budget: Any) -> None:
    x0 = np.random.default_rng(1).uniform(1, 2, (4, 5, 6, 7))
    drop, states = cudnn.createDropoutDescriptor(), np.empty(cudnn.dropoutGetStatesSize(handle), np.uint8)
    cudnn.setDropoutDescriptor(drop, handle, 0.25, states.ctypes.data, states.size, 42)
    x, dy = Memory(x0, "f8"), Memory(np.ones(x0.shape), "f8", "nhwc")
    masks = []
    for how in ("nchw", "nhwc", "strided"):
        y, dx = Memory(x0 * NAN, "f8", how), Memory(x0 * NAN, "f8")
        reserve = np.empty(cudnn.getDropoutReserveSpaceSize(x.desc), np.uint8)
        cudnn.dropoutForward(handle, drop, x.desc, x.ptr, y.desc, y.ptr, reserve.ctypes.data, reserve.size)
        cudnn.setDropoutDescriptor(drop, handle, 0.25, 0, 0, 0)  # as CuPy changes the rate: the seed stays
        cudnn.dropoutBackward(handle, drop, dy.desc, dy.ptr, dx.desc, dx.ptr, reserve.view("f4"), reserve.size)
        kept = y.values != 0
        y.agrees(np.where(kept, x0 / 0.75, 0))
        dx.agrees(np.where(kept, 1 / 0.75, 0))
        assert 0.65 < kept.mean() < 0.85
        masks.append(kept)
    assert all(0.4 < (one == two).mean() < 0.85 for one, two in itertools.combinations(masks, 2))
    cudnn.setDropoutDescriptor(drop, handle, 0.25, states.ctypes.data, states.size, 42)  # the same seed, the same masks
    y = Memory(x0 * NAN, "f8")
    cudnn.dropoutForward(handle, drop, x.desc, x.ptr, y.desc, y.ptr, reserve, reserve.size)
    np.testing.assert_array_equal(y.values != 0, masks[0])
    cudnn.setDropoutDescriptor(drop, handle, 1.0, 0, 0, 0)
    cudnn.dropoutForward(handle, drop, x.desc, x.ptr, y.desc, y.ptr, reserve, reserve.size)
    np.testing.assert_array_equal(y.values, 0)
    with pytest.raises(CuDNNError, match="at least 8 bytes"):
        cudnn.dropoutForward(handle, drop, x.desc, x.ptr, y.desc, y.ptr, reserve, 7)


# ---- queries, arguments -----------------------------------------------------------------------


def small_problem(kind: str = "f4") -> tuple[Memory, Memory, Memory, int]:
    rng = np.random.default_rng(0)
    x, w = Memory(numbers(rng, 2, 3, 6, 5), kind), Memory(numbers(rng, 4, 3, 3, 3), kind, filters=True)
    return x, w, Memory(np.full((2, 4, 6, 5), 9.0), kind), convolution(2, 1, 1, 1, cudnn.CUDNN_CROSS_CORRELATION, 1, kind)


def test_queries_have_the_forms_of_cupy(handle: int) -> None:
    x, w, y, conv = small_problem()
    ends = (0, 0)
    asked = {
        "Forward": ((x.desc, w.desc, conv, y.desc), (x.desc, x.ptr, w.desc, w.ptr, conv, y.desc, y.ptr)),
        "BackwardFilter": ((x.desc, y.desc, conv, w.desc), (x.desc, x.ptr, y.desc, y.ptr, conv, w.desc, w.ptr)),
        "BackwardData": ((w.desc, y.desc, conv, x.desc), (w.desc, w.ptr, y.desc, y.ptr, conv, x.desc, x.ptr)),
    }
    for which, (forms, full) in asked.items():
        (found,) = getattr(cudnn, f"findConvolution{which}Algorithm")(handle, *forms, 5)
        assert set(found) == {"algo", "status", "time", "memory"} and found["status"] == 0
        (plain,) = getattr(cudnn, f"findConvolution{which}AlgorithmEx")(handle, *full, 5, *ends)
        (seven,) = getattr(cudnn, f"findConvolution{which}AlgorithmEx_v7")(handle, *full, 5, *ends)
        (guess,) = getattr(cudnn, f"getConvolution{which}Algorithm_v7")(handle, *forms, 5)
        algo = getattr(cudnn, f"getConvolution{which}Algorithm_v6")(handle, *forms, 2, 0)
        assert plain.algo == seven.algo == guess.algo == algo == found["algo"]
        assert (plain.determinism, plain.mathType) == (-1, -1) and seven.mathType == cudnn.CUDNN_FMA_MATH
        assert getattr(cudnn, f"getConvolution{which}WorkspaceSize")(handle, *forms, algo) == 0
        with pytest.raises(CuDNNError, match="requestedAlgoCount"):
            getattr(cudnn, f"getConvolution{which}Algorithm_v7")(handle, *forms, 0)
        with pytest.raises(CuDNNError, match="algo: expected"):
            getattr(cudnn, f"getConvolution{which}WorkspaceSize")(handle, *forms, 8)
    y.agrees(np.full(y.shape, 9.0))


@pytest.mark.parametrize("kind", ("f4", "f8", "f2"))
def test_ways_to_give_a_factor(handle: int, kind: str) -> None:
    x, w, y, conv = small_problem(kind)
    whole = formulas.conv(x.values, w.values, padding=1)
    own = ctypes.c_double if kind == "f8" else ctypes.c_float
    cell = own(2.0)
    for alpha in (2.0, np.float32(2), np.float64(2), own(2), np.array(2.0), scalar(2, kind).reshape(1), ctypes.addressof(cell),
                  np.int64(ctypes.addressof(cell)), ctypes.c_void_p(ctypes.addressof(cell))):  # fmt: skip
        cudnn.convolutionForward(handle, alpha, x.desc, x.ptr, w.desc, w.ptr, conv, 0, 0, 0, 0.0, y.desc, y.ptr)
        y.agrees(2 * whole)
    for wrong in (1, 0, True, None, "1", np.ones(2), -5, ctypes.c_void_p()):
        with pytest.raises(CuDNNError, match="alpha: expected a float, or the address of one") as error:
            cudnn.convolutionForward(handle, wrong, x.desc, x.ptr, w.desc, w.ptr, conv, 0, 0, 0, 0.0, y.desc, y.ptr)
        assert error.value.status == cudnn.CUDNN_STATUS_BAD_PARAM


class Pointer:
    """What CuPy's MemoryPointer looks like."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class Held:
    """What an array with `.data.ptr` looks like."""

    def __init__(self, ptr: int) -> None:
        self.data = Pointer(ptr)


def test_ways_to_give_data(handle: int, tmp_path: Path) -> None:
    x, w, y, conv = small_problem()
    whole = formulas.conv(x.values, w.values, padding=1)
    mapped = np.memmap(tmp_path / "x", "f4", "w+", shape=x.store.shape)
    mapped[...] = x.store
    out = np.memmap(tmp_path / "y", "f4", "w+", shape=y.store.shape)
    ways: list[Callable[[Memory], Any]] = [
        lambda m: m.ptr, lambda m: np.int64(m.ptr), lambda m: ctypes.c_void_p(m.ptr), lambda m: m.store,
        lambda m: m.store.view("u1"), lambda m: Pointer(m.ptr), lambda m: Held(m.ptr),
        lambda m: (ctypes.c_float * m.store.size).from_buffer(m.store),
        lambda m: m.see(m.store), lambda m: mapped if m is x else out if m is y else m.store,
    ]  # fmt: skip
    for way in ways:
        y.store[...] = NAN
        cudnn.convolutionForward(handle, 1.0, x.desc, way(x), w.desc, way(w), conv, 0, 0, 0, 0.0, y.desc, way(y))
        if way is ways[-1]:
            y.store[...] = out
            assert {place.name for plan in ooc.last_report().plans for name, place in plan.places if name != "w"} == {"DISK"}
        y.agrees(whole)


def refusals() -> dict[str, tuple[int, Callable[[int, Memory, Memory, Memory, int], Any]]]:
    """Calls that are refused: the status, and the call."""
    bad, unsupported = cudnn.CUDNN_STATUS_BAD_PARAM, cudnn.CUDNN_STATUS_NOT_SUPPORTED

    def forward(**change: Any) -> Callable[..., None]:
        def call(handle: int, x: Memory, w: Memory, y: Memory, conv: int) -> None:
            given = {
                "handle": handle, "alpha": 1.0, "srcDesc": x.desc, "srcData": x.ptr, "filterDesc": w.desc, "filterData": w.ptr,
                "convDesc": conv, "algo": 0, "workSpace": 0, "workSpaceSizeInBytes": 0, "beta": 0.0, "destDesc": y.desc,
                "destData": y.ptr,
            }  # fmt: skip
            cudnn.convolutionForward(**(given | {k: v(x, w, y) if callable(v) else v for k, v in change.items()}))

        return call

    def tensor(*dims: int, code: int = 0) -> Callable[..., int]:
        def make(*_: Any) -> int:
            desc = cudnn.createTensorDescriptor()
            cudnn.setTensorNdDescriptor(desc, code, len(dims), dims, dense(dims))
            return desc

        return make

    def read_only(x: Memory, w: Memory, y: Memory) -> Any:
        y.store.flags.writeable = False
        return y.store

    return {
        "no handle": (bad, forward(handle=12345)),
        "a descriptor in the handle's place": (bad, forward(handle=lambda x, w, y: x.desc)),
        "a null descriptor": (bad, forward(srcDesc=0)),
        "a filter in a tensor's place": (bad, forward(srcDesc=lambda x, w, y: w.desc)),
        "a descriptor never set": (bad, forward(srcDesc=lambda *_: cudnn.createTensorDescriptor())),
        "a destroyed descriptor": (bad, forward(destDesc=_destroyed)),
        "a convolution never set": (bad, forward(convDesc=lambda *_: cudnn.createConvolutionDescriptor())),
        "null data": (bad, forward(srcData=0)),
        "no data": (bad, forward(destData=None)),
        "null filters": (bad, forward(filterData=ctypes.c_void_p())),
        "a small array": (bad, forward(srcData=lambda x, w, y: x.store[:-1])),
        "an empty array": (bad, forward(srcData=np.empty(0, "f4"))),
        "an array of another type": (bad, forward(srcData=lambda x, w, y: x.store.astype("f8"))),
        "a backwards array": (bad, forward(srcData=lambda x, w, y: x.store[::-1])),
        "a read-only output": (bad, forward(destData=read_only)),
        "other channels": (bad, forward(srcDesc=tensor(2, 2, 6, 5))),
        "another result": (bad, forward(destDesc=tensor(2, 4, 5, 6))),
        "another batch": (bad, forward(destDesc=tensor(1, 4, 6, 5))),
        "other axes": (bad, forward(srcDesc=tensor(2, 3, 6, 5, 1))),
        "another type of result": (bad, forward(destDesc=tensor(2, 4, 6, 5, code=1))),
        "an unknown algorithm": (bad, forward(algo=8)),
        "no beta": (bad, forward(beta=0)),
        "the output over the input": (bad, forward(destData=lambda x, w, y: x.ptr)),
        "integers": (unsupported, lambda h, x, w, y, c: cudnn.scaleTensor(h, tensor(2, 2, 2, 2, code=4)(), y.ptr, 1.0)),
        "adding what does not repeat": (bad, lambda h, x, w, y, c: cudnn.addTensor_v3(h, 1.0, x.desc, x.ptr, 1.0, y.desc, y.ptr)),
        "softmax of another kind": (bad, lambda h, x, w, y, c: cudnn.softmaxForward(h, 3, 1, 1.0, y.desc, y.ptr, 0.0, y.desc, 0)),
        "softmax over images with gaps": (unsupported, _softmax_with_gaps),
        "batch norm with other statistics": (
            bad,
            lambda h, x, w, y, c: cudnn.batchNormalizationForwardInference(
                h, 1, 1.0, 0.0, y.desc, y.ptr, y.desc, y.ptr, derived(x, 1), x.ptr, x.ptr, x.ptr, x.ptr, 1e-5
            ),
        ),
        "batch norm with an activation": (
            unsupported,
            lambda h, x, w, y, c: cudnn.getBatchNormalizationForwardTrainingExWorkspaceSize(
                h, 1, 1, y.desc, 0, y.desc, derived(y, 1), 0
            ),
        ),
    }  # fmt: skip


def _destroyed(x: Memory, w: Memory, y: Memory) -> int:
    cudnn.destroyTensorDescriptor(y.desc)
    return y.desc


def _softmax_with_gaps(handle: int, x: Memory, w: Memory, y: Memory, conv: int) -> None:
    held = Memory(np.ones((2, 3, 4, 5)), how="strided")
    cudnn.softmaxForward(handle, 0, 0, 1.0, held.desc, held.ptr, 0.0, held.desc, held.ptr)


def dense(dims: tuple[int, ...]) -> list[int]:
    return [int(np.prod(dims[i + 1 :])) for i in range(len(dims))]


@pytest.mark.parametrize("what", refusals())
def test_nothing_is_written_before_an_error(handle: int, what: str) -> None:
    status, call = refusals()[what]
    x, w, y, conv = small_problem()
    held = [m.store.copy() for m in (x, w, y)]
    with pytest.raises(CuDNNError) as error:
        call(handle, x, w, y, conv)
    assert error.value.status == status
    assert len(str(error.value).splitlines()) > 1
    for m, before in zip((x, w, y), held):
        np.testing.assert_array_equal(m.store, before)


def test_what_is_no_data_at_all(handle: int) -> None:
    x, w, y, conv = small_problem()
    with pytest.raises(TypeError, match="expected a pointer or an array, got list"):
        cudnn.convolutionForward(handle, 1.0, x.desc, [1.0], w.desc, w.ptr, conv, 0, 0, 0, 0.0, y.desc, y.ptr)


# ---- a device ---------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", (None, "64 KiB"))
@pytest.mark.parametrize("places", list(itertools.product(("device", "host"), repeat=3)))
def test_device_pointers(handle: int, places: tuple[str, ...], budget: str | None) -> None:
    """Pointers to device memory and to the host, mixed."""
    x, w, y, conv = small_problem()
    backend = emulated(5, cudnn=True)
    kept = [backend.place_copy(m.store, "device") if p == "device" else m.store for m, p in zip((x, w, y), places)]
    px, pw, py = (int(at(k)) for k in kept)
    with on(backend, budget):
        cudnn.convolutionForward(handle, 1.0, x.desc, px, w.desc, pw, conv, 0, 0, 0, 0.0, y.desc, py)
    if places[2] == "device":
        y.store[...] = backend.peek(kept[2])
    y.agrees(formulas.conv(x.values, w.values, padding=1))


def test_a_device_program(handle: int) -> None:
    """The other calls, on pointers to device memory."""
    rng, backend = np.random.default_rng(8), emulated(6, cudnn=True)
    x0, dy0 = numbers(rng, 2, 4, 6, 6), numbers(rng, 2, 4, 6, 6)

    def there(held: Memory) -> int:
        kept.append(backend.place_copy(held.store, "device"))
        return int(at(kept[-1]))

    def back(held: Memory, i: int) -> Memory:
        held.store[...] = backend.peek(kept[i])
        return held

    kept: list[Any] = []
    x, y, dy, b = Memory(x0), Memory(x0), Memory(dy0, "f4", "nhwc"), Memory(numbers(rng, 1, 4, 1, 1))
    px, py, pdy, pb = (there(m) for m in (x, y, dy, b))
    with on(backend, "64 KiB"):
        cudnn.addTensor_v3(handle, 1.0, b.desc, pb, 1.0, y.desc, py)
        back(y, 1).agrees(x0 + b.values)
        cudnn.addTensor_v3(handle, 2.0, b.desc, pb, 0.0, y.desc, py)
        back(y, 1).agrees(2 * b.values + 0 * x0)
        cudnn.setTensor(handle, y.desc, py, 3.0)
        back(y, 1).agrees(3 + 0 * x0)
        cudnn.softmaxForward(handle, 1, 0, 1.0, x.desc, px, 0.0, y.desc, py)
        back(y, 1).agrees(formulas.softmax(x0.reshape(2, -1)).reshape(x0.shape))
        cudnn.softmaxForward(handle, 1, 1, 1.0, dy.desc, pdy, 0.0, y.desc, py)
        back(y, 1).agrees(formulas.softmax(dy0))
        cudnn.convolutionBackwardBias(handle, 1.0, dy.desc, pdy, 1.0, b.desc, pb)
        wanted = b.values + dy0.sum((0, 2, 3), keepdims=True)
        back(b, 3).agrees(wanted)
        drop, reserve = cudnn.createDropoutDescriptor(), Memory(np.zeros((1, 1, 1, 8)))
        cudnn.setDropoutDescriptor(drop, handle, 0.5, reserve.ptr, 8, 7)
        pr = there(reserve)
        cudnn.dropoutForward(handle, drop, x.desc, px, y.desc, py, pr, 8)
        first = back(y, 1).values
        cudnn.dropoutBackward(handle, drop, x.desc, px, y.desc, py, pr, 8)
        back(y, 1).agrees(first)
        statistics = [there(Memory(np.ones((1, 4, 1, 1)))) for _ in range(6)]
        one, run, runv, saved, inv, zero = statistics
        args = (one, zero, 0.5, run, runv, 1e-5, saved, inv)
        cudnn.batchNormalizationForwardTraining(handle, 1, 1.0, 0.0, x.desc, px, y.desc, py, derived(x, 1), *args)
        mean, var = x0.mean((0, 2, 3), keepdims=True), x0.var((0, 2, 3), keepdims=True)
        back(y, 1).agrees(formulas.batch_norm(x0, 1, 1, mean, var))
        np.testing.assert_allclose(backend.peek(kept[6]), (0.5 + 0.5 * mean).ravel(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("budget", (None, "64 KiB"))
@pytest.mark.parametrize("how", ("nchw", "nhwc"))
@pytest.mark.parametrize("flipped", (False, True))
def test_gradients_and_pooling_on_a_device(handle: int, flipped: bool, how: str, budget: str | None) -> None:
    """Everything in device memory, filters flipped or not."""
    rng, backend = np.random.default_rng(9), emulated(7, cudnn=True)
    x0, w0 = numbers(rng, 2, 4, 6, 8), numbers(rng, 6, 2, 3, 3)
    turned, how_conv = w0[..., ::-1, ::-1] if flipped else w0, {"padding": 1, "groups": 2}
    y0 = formulas.conv(x0, turned, **how_conv)
    dy0, z0, b0 = numbers(rng, *y0.shape), numbers(rng, *y0.shape), numbers(rng, 1, 6, 1, 1)
    x, dy, dx, y, z, b = (Memory(a, "f4", how) for a in (x0, dy0, x0 * NAN, y0 * NAN, z0, b0))
    w, dw = Memory(w0, "f4", how, True), Memory(w0, "f4", how, True)
    half = formulas.pool("max", y0, 2)
    p, dp = Memory(half * NAN, "f4", how), Memory(numbers(rng, *half.shape), "f4", how)
    every = {m.desc: (m, backend.place_copy(m.store, "device")) for m in (x, dy, dx, y, z, b, w, dw, p, dp)}

    def there(held: Memory) -> int:
        return int(at(every[held.desc][1]))

    def back(held: Memory) -> Memory:
        held.store[...] = backend.peek(every[held.desc][1])
        return held

    conv = convolution(2, 1, 1, 1, cudnn.CUDNN_CONVOLUTION if flipped else cudnn.CUDNN_CROSS_CORRELATION, 2, "f4")
    act, pooling = cudnn.createActivationDescriptor(), cudnn.createPoolingDescriptor()
    cudnn.setActivationDescriptor(act, cudnn.CUDNN_ACTIVATION_RELU, 0, 0.0)
    cudnn.setPooling2dDescriptor_v4(pooling, cudnn.CUDNN_POOLING_MAX, 0, 2, 2, 0, 0, 2, 2)
    with on(backend, budget):
        cudnn.convolutionBackwardData_v3(
            handle, 1.0, w.desc, there(w), dy.desc, there(dy), conv, 0, 0, 0, 0.0, dx.desc, there(dx)
        )
        back(dx).agrees(formulas.conv_dx(dy0, turned, x0.shape, **how_conv))
        cudnn.convolutionBackwardFilter_v3(
            handle, 1.0, x.desc, there(x), dy.desc, there(dy), conv, 0, 0, 0, 1.0, dw.desc, there(dw)
        )
        wanted = formulas.conv_dw(x0, dy0, w0.shape, **how_conv)
        back(dw).agrees(w0 + (wanted[..., ::-1, ::-1] if flipped else wanted))
        cudnn.convolutionBiasActivationForward(
            handle, 1.0, x.desc, there(x), w.desc, there(w), conv, 0, 0, 0, 2.0, z.desc, there(z), b.desc, there(b), act,
            y.desc, there(y),
        )  # fmt: skip
        full = back(y).values
        y.agrees(np.maximum(y0 + 2 * z0 + b0, 0))
        cudnn.poolingForward(handle, pooling, 1.0, y.desc, there(y), 0.0, p.desc, there(p))
        back(p).agrees(formulas.pool("max", full, 2))
        dp0 = dp.values
        cudnn.poolingBackward(handle, pooling, 1.0, p.desc, there(p), dp.desc, there(dp), y.desc, there(y), 0.0, z.desc, there(z))
        pulled = formulas.pool_dx("max", full, dp0, 2)
        back(z).agrees(pulled)
        cudnn.activationBackward_v4(handle, act, 1.0, y.desc, there(y), z.desc, there(z), y.desc, there(y), 0.0, z.desc, there(z))
        back(z).agrees(pulled * (full > 0))


def test_channels_last_memory_is_computed_as_such(handle: int) -> None:
    """Not as a strided view, which the kernels would have to gather."""
    for how, wanted in (("nchw", "channels_first"), ("nhwc", "channels_last"), ("strided", "channels_first")):
        x, y = Memory(np.ones((2, 3, 6, 6)), how=how), Memory(np.ones((2, 4, 6, 6)), how=how)
        w = Memory(np.ones((4, 3, 3, 3)), how="nhwc" if how == "nhwc" else "nchw", filters=True)
        conv = convolution(2, 1, 1, 1, cudnn.CUDNN_CROSS_CORRELATION, 1, "f4")
        cudnn.convolutionForward(handle, 1.0, x.desc, x.ptr, w.desc, w.ptr, conv, 0, 0, 0, 0.0, y.desc, y.ptr)
        report = ooc.last_report()
        assert report is not None
        assert {plan.op.layout for plan in report.plans} == {wanted}  # type: ignore[attr-defined]
