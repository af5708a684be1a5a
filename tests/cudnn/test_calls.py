"""What calls of ooc.cudnn promise: CuPy v13's rules for arguments, and each error before anything is written."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import formulas as f
import numpy as np
import pytest

import ooc
import ooc.cudnn as cudnn
from ooc import cupy_compat
from ooc.libcudnn import (
    CUDNN_ACTIVATION_CLIPPED_RELU,
    CUDNN_ACTIVATION_ELU,
    CUDNN_ACTIVATION_RELU,
    CUDNN_BATCHNORM_PER_ACTIVATION,
    CUDNN_BATCHNORM_SPATIAL,
    CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING,
    CUDNN_POOLING_MAX,
    CUDNN_SOFTMAX_ACCURATE,
    CUDNN_TENSOR_NCHW,
    CUDNN_TENSOR_NHWC,
    CuDNNError,
)

RNG = np.random.default_rng(7)
X, W, B = (RNG.standard_normal(s).astype(np.float32) for s in ((2, 4, 7, 6), (6, 4, 3, 3), (6,)))
Y = (2, 6, 5, 4)
PLACE = ((0, 0), (1, 1), (1, 1), 1)
FORWARD: dict[str, Any] = {"auto_tune": False, "tensor_core": "auto"}
BACKWARD: dict[str, Any] = {**FORWARD, "deterministic": False}
BUDGETS = (None, "16 KiB")


@pytest.fixture(params=BUDGETS, ids=map(str, BUDGETS), autouse=True)
def where(request: pytest.FixtureRequest) -> Iterator[None]:
    with ooc.device("cpu", request.param, threads=1):
        yield
    cudnn.set_max_workspace_size(None)


def poisoned(shape: Any = Y, dtype: Any = np.float32) -> Any:
    return np.full(shape, np.nan, dtype)


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, tolerance, tolerance)


def like(a: Any, **changes: Any) -> Any:
    return np.ones(changes.get("shape", a.shape), changes.get("dtype", a.dtype))


# ---- the call: what is required, and what tuples are


def test_numbers_by_keyword_are_required() -> None:
    y = poisoned()
    for left_out in FORWARD:
        given = {k: v for k, v in FORWARD.items() if k != left_out}
        with pytest.raises(TypeError, match=left_out):
            cudnn.convolution_forward(X, W, None, y, *PLACE, **given)
    with pytest.raises(TypeError, match="deterministic"):
        cudnn.convolution_backward_filter(X, y, W.copy(), *PLACE, **FORWARD)
    with pytest.raises(TypeError, match="positional"):
        cudnn.convolution_forward(X, W, None, y, *PLACE, False, "auto")
    assert np.isnan(y).all()


def test_arguments_by_name_and_no_dilation() -> None:
    y = poisoned()
    made = cudnn.convolution_forward(
        x=X, W=W, b=B, y=y, pad=(0, 0), stride=(1, 1), dilation=None, groups=1, auto_tune=True, tensor_core="never"
    )
    assert made is None
    close(y, f.conv(X, W, B))


@pytest.mark.parametrize("mode", ["auto", "always", "never"])
def test_tensor_core_modes(mode: str) -> None:
    y = poisoned()
    cudnn.convolution_forward(X, W, None, y, *PLACE, auto_tune=False, tensor_core=mode)
    close(y, f.conv(X, W))
    assert not cudnn.is_tensor_core_available(np.dtype("e"))


# ---- outputs and what is given


def test_backward_data_is_a_deconvolution_with_a_bias() -> None:
    b, x = B[:4].copy(), RNG.standard_normal(Y).astype(np.float32)
    y = poisoned(X.shape)
    cudnn.convolution_backward_data(W, x, b, y, *PLACE, **BACKWARD)
    close(y, f.conv_dx(x, W, X.shape) + f.channels(b, 4))


@pytest.mark.parametrize(
    "b", [B.reshape(1, 6, 1, 1), np.repeat(B, 2)[::2], B[::-1], B[:1]], ids=["4-D", "strided", "back", "one"]
)
def test_a_bias_of_any_shape(b: Any) -> None:
    y = poisoned()
    cudnn.convolution_forward(X, W, b, y, *PLACE, **FORWARD)
    close(y, f.conv(X, W, np.broadcast_to(b.reshape(-1), (6,))))


@pytest.mark.parametrize("d_layout", [CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC])
@pytest.mark.parametrize("w_layout", [CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC])
def test_layouts_of_data_and_filters(d_layout: int, w_layout: int) -> None:
    def stored(a: Any, layout: int) -> Any:
        return np.ascontiguousarray(np.moveaxis(a, 1, -1)) if layout == CUDNN_TENSOR_NHWC else a

    layouts = {"d_layout": d_layout, "w_layout": w_layout}
    x, w, y = stored(X, d_layout), stored(W, w_layout), stored(poisoned(), d_layout)
    cudnn.convolution_forward(x, w, B, y, *PLACE, **FORWARD, **layouts)
    close(y, stored(f.conv(X, W, B), d_layout))
    gw = np.full_like(w, np.nan)
    cudnn.convolution_backward_filter(x, y, gw, *PLACE, **BACKWARD, **layouts)
    close(gw, stored(f.conv_dw(X, f.conv(X, W, B), W.shape), w_layout), 1e-3)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_layout_says_nothing_where_there_are_not_four_axes(rank: int) -> None:
    x, w = np.ones((1, 2, *(5,) * rank), np.float32), np.ones((3, 2, *(2,) * rank), np.float32)
    y, one = poisoned((1, 3, *(4,) * rank)), (1,) * rank
    cudnn.convolution_forward(x, w, None, y, (0,) * rank, one, one, 1, **FORWARD, d_layout=CUDNN_TENSOR_NHWC)
    close(y, f.conv(x, w))


def test_bfloat16_is_accepted() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x, w = X.astype(ml_dtypes.bfloat16), W.astype(ml_dtypes.bfloat16)
    y = np.ones(Y, ml_dtypes.bfloat16)
    cudnn.convolution_forward(x, w, None, y, *PLACE, **FORWARD)
    close(y, f.conv(x, w), 5e-2)
    assert [cudnn.get_data_type(np.dtype(d)) for d in "fde"] == [0, 1, 2] and cudnn.get_data_type(x.dtype) == 9


def test_files_as_arrays(tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    x[...] = X
    x = np.memmap(tmp_path / "x", np.float32, "r", shape=X.shape)
    y = np.memmap(tmp_path / "y", np.float32, "w+", shape=Y)
    cudnn.convolution_forward(x, W, None, y, *PLACE, **FORWARD)
    close(y, f.conv(X, W))


# ---- errors of convolutions: nothing is written


def forward(x: Any = X, w: Any = W, b: Any = None, place: Any = PLACE, **rest: Any) -> Callable[[Any], Any]:
    return lambda y: cudnn.convolution_forward(x, w, b, y, *place, **{**FORWARD, **rest})


TYPE_ERRORS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "x a list": (forward(X.tolist()), "Argument 'x' has incorrect type .*list"),
    "x nothing": (forward(None), "Argument 'x' has incorrect type .*NoneType"),
    "x masked": (forward(np.ma.ones(X.shape, np.float32)), "Argument 'x' has incorrect type .*MaskedArray"),
    "x int": (forward(like(X, dtype=np.int32)), "^Dtype int32 is not supported in cuDNN$"),
    "x complex64": (forward(like(X, dtype=np.complex64)), "^Dtype complex64 is not supported in cuDNN$"),
    "x complex128": (forward(like(X, dtype=np.complex128)), "^Dtype complex128 is not supported in cuDNN$"),
    "x swapped": (forward(like(X, dtype=">f4")), "^Dtype >f4 is not supported in cuDNN$"),
    "W bool": (forward(w=like(W, dtype=bool)), "^Dtype bool is not supported in cuDNN$"),
    "b int": (forward(b=like(B, dtype=np.int64)), "^Dtype int64 is not supported in cuDNN$"),
    "b a number": (forward(b=1.0), "Argument 'b' has incorrect type"),
    "pad a list": (forward(place=([0, 0], (1, 1), (1, 1), 1)), "Argument 'pad' has incorrect type .expected tuple, got list"),
    "pad a number": (forward(place=(0, (1, 1), (1, 1), 1)), "Argument 'pad' .*got int"),
    "stride a list": (forward(place=((0, 0), [1, 1], (1, 1), 1)), "Argument 'stride' .*got list"),
    "dilation a list": (forward(place=((0, 0), (1, 1), [1, 1], 1)), "Argument 'dilation' .*got list"),
    "pad of floats": (forward(place=((0.0, 0.0), (1, 1), (1, 1), 1)), "float"),
    "groups a float": (forward(place=((0, 0), (1, 1), (1, 1), 1.0)), "float"),
}
VALUE_ERRORS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "pad longer": (forward(place=((0, 0, 0), (1, 1), (1, 1), 1)), "^pad and stride must be of same length$"),
    "dilation shorter": (forward(place=((0, 0), (1, 1), (1,), 1)), "same length"),
    "tensor_core": (forward(tensor_core="maybe"), '^tensor_code_mode must be either of "always", "auto", or "never".$'),
    "d_layout": (forward(d_layout=7), "^unknown cudnnTensorFormat: 7$"),
    "w_layout": (forward(w_layout=2), "^unknown cudnnTensorFormat: 2$"),
}
BAD_PARAMS: dict[str, Callable[[Any], Any]] = {
    "x other dtype": forward(X.astype(np.float64)),
    "W other dtype": forward(w=W.astype(np.float16)),
    "b other dtype": forward(b=B.astype(np.float64)),
    "b too long": forward(b=like(B, shape=(7,))),
    "x other rank": forward(X[0]),
    "W other rank": forward(w=W[0]),
    "six axes": forward(like(X, shape=(1,) * 6)),
    "two axes": forward(like(X, shape=(2, 4))),
    "x other batch": forward(X[:1]),
    "W other channels": forward(w=W[:, :3]),
    "W other filters": forward(w=W[:5]),
    "W too large": forward(w=like(W, shape=(6, 4, 9, 9))),
    "no batch": forward(X[:0]),
    "no channels": forward(X[:, :0], W[:, :0]),
    "no taps": forward(w=W[..., :0]),
    "groups 0": forward(place=(*PLACE[:3], 0)),
    "groups 3": forward(place=(*PLACE[:3], 3)),
    "groups negative": forward(place=(*PLACE[:3], -1)),
    "pad negative": forward(place=((-1, 0), (1, 1), (1, 1), 1)),
    "stride 0": forward(place=((0, 0), (1, 0), (1, 1), 1)),
    "dilation 0": forward(place=((0, 0), (1, 1), (0, 1), 1)),
    "another result": forward(place=((1, 0), (1, 1), (1, 1), 1)),
    "1-D sizes": forward(place=((0,), (1,), (1,), 1)),
    "layout NHWC": forward(d_layout=CUDNN_TENSOR_NHWC),
    "W a number, NHWC": forward(w=like(W, shape=()), d_layout=CUDNN_TENSOR_NHWC, w_layout=CUDNN_TENSOR_NHWC),
}


@pytest.mark.parametrize("name", TYPE_ERRORS)
def test_type_errors(name: str) -> None:
    call, says = TYPE_ERRORS[name]
    y = poisoned()
    with pytest.raises(TypeError, match=says):
        call(y)
    assert np.isnan(y).all()


@pytest.mark.parametrize("name", VALUE_ERRORS)
def test_value_errors(name: str) -> None:
    call, says = VALUE_ERRORS[name]
    y = poisoned()
    with pytest.raises(ValueError, match=says):
        call(y)
    assert np.isnan(y).all()


@pytest.mark.parametrize("name", BAD_PARAMS)
def test_bad_params(name: str) -> None:
    y = poisoned()
    with pytest.raises(CuDNNError) as caught:
        BAD_PARAMS[name](y)
    assert caught.value.status == 2000 and np.isnan(y).all()
    lines = str(caught.value).split("\n  ")
    assert lines[0] == "cuDNN Error: CUDNN_STATUS_BAD_PARAM"
    assert "func: cudnnConvolutionForward" in lines
    assert "y: shape=(2, 6, 5, 4), dtype=float32, strides=(480, 80, 16, 4)" in lines
    assert any(line.startswith("pad=") and "d_layout=" in line for line in lines)


@pytest.mark.parametrize("y", [poisoned().transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2), poisoned((2, 6, 5, 8))[..., ::2]])
def test_outputs_are_c_contiguous(y: Any) -> None:
    gw = np.asfortranarray(W)
    for call in (
        lambda: cudnn.convolution_forward(X, W, None, y, *PLACE, **FORWARD),
        lambda: cudnn.convolution_backward_data(W, poisoned(), None, np.asfortranarray(X), *PLACE, **BACKWARD),
        lambda: cudnn.convolution_backward_filter(X, poisoned(), gw, *PLACE, **BACKWARD),
    ):
        with pytest.raises(ValueError, match=r"^cupyx.cudnn supports c-contiguous arrays only$"):
            call()
    with pytest.raises(ValueError, match=r"^pooling_forward supports c-contiguous y only$"):
        cudnn.pooling_forward(X, y, (3, 3), (1, 1), (0, 0), CUDNN_POOLING_MAX)
    assert np.isnan(y).all() and (gw == W).all()


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    poisoned().tofile(tmp_path / "y")
    y = poisoned()
    y.flags.writeable = False
    for out in (y, np.memmap(tmp_path / "y", np.float32, "r", shape=Y)):
        with pytest.raises(ValueError, match="read-only"):
            forward()(out)


def test_outputs_that_overlap_an_input(tmp_path: Path) -> None:
    held = np.zeros(1000, np.float32)
    x, y = held[: X.size].reshape(X.shape), held[100 : 100 + 240].reshape(Y)
    with pytest.raises(ValueError, match="overlaps"):
        forward(x)(y)
    mapped = [np.memmap(tmp_path / "both", np.float32, mode, shape=X.shape) for mode in ("w+", "r+")]
    with pytest.raises(ValueError, match="overlaps"):
        cudnn.convolution_forward(mapped[0], like(W, shape=(4, 4, 1, 1)), None, mapped[1], *PLACE, **FORWARD)
    assert not held.any()


def test_dtypes_are_checked_with_equal_sizes_remembered() -> None:
    """What is remembered of a good call does not let a bad one pass."""
    y = poisoned()
    forward()(y)
    with pytest.raises(TypeError):
        forward(place=((0.0, 0.0), (1.0, 1.0), (1, 1), 1))(y)
    with pytest.raises(CuDNNError):
        forward(w=W.astype(np.float64))(y)
    y64 = poisoned(dtype=np.float64)
    cudnn.convolution_forward(X.astype(np.float64), W.astype(np.float64), None, y64, *PLACE, **FORWARD)
    close(y64, f.conv(X, W), 1e-6)


# ---- the workspace limit


def test_workspace_limit() -> None:
    assert cudnn.get_max_workspace_size() == 8 << 20
    for size in (0, 1, 1 << 20, np.int64(77)):
        cudnn.set_max_workspace_size(size)
        assert cudnn.get_max_workspace_size() == size
        y = poisoned()
        forward()(y)
        close(y, f.conv(X, W))
    for wrong, error in ((-1, OverflowError), (1 << 64, OverflowError), ("1", TypeError), (1.5, TypeError)):
        with pytest.raises(error):
            cudnn.set_max_workspace_size(wrong)  # type: ignore[arg-type]
    assert cudnn.get_max_workspace_size() == 77
    found = []
    thread = threading.Thread(target=lambda: found.append(cudnn.get_max_workspace_size()))
    thread.start()
    thread.join()
    assert found == [77]  # of the whole process


def test_the_limit_reaches_the_plan() -> None:
    x, w, y = np.ones((1, 16, 20, 20), np.float32), np.ones((32, 16, 3, 3), np.float32), poisoned((1, 32, 18, 18))
    sizes = {}
    for limit in (0, 1 << 24):
        cudnn.set_max_workspace_size(limit)
        forward(x, w)(y)
        report = ooc.last_report()
        assert report is not None
        buffers = [b for part in report.parts for b in part.schedule.layout.offsets]
        sizes[limit] = max((b.nbytes for b in buffers if b.name == "workspace"), default=0)
    assert sizes[0] == 0 and sizes[1 << 24] <= 1 << 24


def test_a_budget_that_is_too_small_is_a_memory_error() -> None:
    y = poisoned()
    cudnn.set_max_workspace_size(0)
    with ooc.device("cpu", 64, threads=1), pytest.raises(MemoryError):
        forward()(y)
    assert np.isnan(y).all()


# ---- pooling


def test_pooling_returns_its_output() -> None:
    y = poisoned((2, 4, 3, 3))
    assert cudnn.pooling_forward(X, y, (3, 2), (2, 2), (0, 0), CUDNN_POOLING_MAX) is y
    close(y, f.pool("max", X, (3, 2), stride=2))


@pytest.mark.parametrize("mode", [CUDNN_POOLING_MAX, CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING])
def test_pooling_covers_all_where_y_says_so(mode: int) -> None:
    kind = "max" if mode == CUDNN_POOLING_MAX else "average"
    x = np.ascontiguousarray(X[..., :6, :])
    y = poisoned((2, 4, 3, 3))
    cudnn.pooling_forward(x, y, (3, 3), (2, 2), (0, 0), mode)
    close(y, f.pool(kind, x, 3, stride=2, padding=((0, 1), (0, 1))))
    gx = cudnn.pooling_backward(x, y, y, (3, 3), (2, 2), (0, 0), mode)
    close(gx, f.pool_dx(kind, x, y, 3, stride=2, padding=((0, 1), (0, 1))))


@pytest.mark.parametrize(
    ("y", "sizes", "mode"),
    [
        ((2, 4, 9, 9), ((3, 3), (2, 2), (0, 0)), 0),
        ((2, 4, 1, 1), ((3, 3), (2, 2), (0, 0)), 0),
        ((2, 5, 3, 2), ((3, 3), (2, 2), (0, 0)), 0),
        ((2, 4, 3, 2), ((3, 3), (2, 2), (0, 0)), 9),
        ((2, 4, 3, 2), ((3, 3), (0, 2), (0, 0)), 0),
        ((2, 4, 3, 2), ((3, 3), (2, 2), (-1, 0)), 0),
        ((2, 4, 3, 2), ((3, 3), (2, 2), (3, 0)), 0),
        ((2, 4, 3), ((3,), (2,), (0,)), 0),
    ],
)
def test_pooling_that_does_not_fit(y: Any, sizes: Any, mode: int) -> None:
    out = poisoned(y)
    with pytest.raises(CuDNNError) as caught:
        cudnn.pooling_forward(X, out, *sizes, mode)
    assert caught.value.status == 2000 and np.isnan(out).all() and "cudnnPoolingForward" in str(caught.value)
    with pytest.raises(CuDNNError):
        cudnn.pooling_backward(X, out, out, *sizes, mode)


def test_pooling_arguments() -> None:
    y = poisoned((2, 4, 3, 2))
    with pytest.raises(ValueError, match=r"^ksize, stride, and pad must be of same length$"):
        cudnn.pooling_forward(X, y, (3, 3), (2,), (0, 0), 0)
    with pytest.raises(TypeError, match="Argument 'ksize'"):
        cudnn.pooling_forward(X, y, 3, (2, 2), (0, 0), 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="overlaps"):
        cudnn.pooling_forward(X, X, (1, 1), (1, 1), (0, 0), 0)


def test_max_pooling_lets_nan_win() -> None:
    """A deliberate difference: v13 asked cuDNN not to propagate it."""
    y = poisoned((1, 1, 1, 1))
    cudnn.pooling_forward(np.array([[[[np.nan, 3.0]]]], np.float32), y, (1, 2), (1, 2), (0, 0), CUDNN_POOLING_MAX)
    assert np.isnan(y).all()


# ---- activations, softmax, dropout


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 1, 2, 2, 2, 2)])
def test_activations_of_any_shape(shape: Any) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    x = np.asarray(x)
    y = cudnn.activation_forward(x, CUDNN_ACTIVATION_RELU)
    assert y.shape == shape and y.dtype == x.dtype
    close(y, np.maximum(x, 0))
    close(cudnn.activation_backward(x, y, x, CUDNN_ACTIVATION_RELU), np.where(y > 0, x, 0))


def test_coefficients_of_activations() -> None:
    x = np.array([-2.0, 1.0, 9.0])
    close(cudnn.activation_forward(x, CUDNN_ACTIVATION_CLIPPED_RELU, 3.0), [0, 1, 3])
    close(cudnn.activation_forward(x, CUDNN_ACTIVATION_CLIPPED_RELU), [0, 0, 0])  # v13's default ceiling is 0
    close(cudnn.activation_forward(x, CUDNN_ACTIVATION_ELU, 2.0), [2 * np.expm1(-2), 1, 9])
    close(cudnn.activation_forward(x, CUDNN_ACTIVATION_ELU), [0, 1, 9])


@pytest.mark.parametrize("axis", range(-7, 7))
def test_softmax_along_any_axis_of_seven(axis: int) -> None:
    x = RNG.standard_normal((2, 1, 3, 2, 2, 3, 2))
    y = cudnn.softmax_forward(x, axis, CUDNN_SOFTMAX_ACCURATE)
    close(y, f.softmax(x, axis))
    close(cudnn.softmax_backward(y, x, axis, CUDNN_SOFTMAX_ACCURATE), f.softmax_dx(y, x, axis))


@pytest.mark.parametrize("see", [lambda a: a.T, lambda a: a[::-1, ..., ::-1], lambda a: a[:, :, :1]], ids=["T", "back", "cut"])
def test_six_axes_and_any_strides(see: Callable[[Any], Any]) -> None:
    x = see(RNG.standard_normal((2, 3, 2, 2, 3, 2)))
    other = np.ascontiguousarray(x[::-1])
    close(cudnn.activation_forward(x, CUDNN_ACTIVATION_RELU), np.maximum(x, 0))
    close(cudnn.activation_backward(x, x, other, CUDNN_ACTIVATION_RELU), np.where(x > 0, other, 0))
    for axis in range(6):
        y = cudnn.softmax_forward(x, axis, CUDNN_SOFTMAX_ACCURATE)
        close(y, f.softmax(x, axis))
        close(cudnn.softmax_backward(x, other, axis, CUDNN_SOFTMAX_ACCURATE), f.softmax_dx(x, other, axis))
    states = cudnn.DropoutStates(None, 3)
    reserve, y = states.forward(None, x, 0.5)
    np.testing.assert_array_equal(y / x, states.backward(None, np.ones(x.shape), 0.5, reserve))


@pytest.mark.parametrize("mode", [None, 1.0, "1"])
def test_modes_are_integers(mode: Any) -> None:
    y = poisoned((2, 4, 3, 3))
    for call in (
        lambda: cudnn.activation_forward(X, mode),
        lambda: cudnn.activation_backward(X, X, X, mode),
        lambda: cudnn.softmax_forward(X, 1, mode),
        lambda: cudnn.softmax_forward(X, mode, 1),
        lambda: cudnn.pooling_forward(X, y, (3, 2), (2, 2), (0, 0), mode),
        lambda: cudnn.convolution_forward(X, W, None, y, *PLACE, **FORWARD, d_layout=mode),
        lambda: cudnn.batch_normalization_forward_inference(X, *batch(), 1e-3, True, mode),
    ):
        with pytest.raises(TypeError):
            call()
    assert np.isnan(y).all()


def test_no_dtype_is_no_dtype() -> None:
    with pytest.raises(TypeError, match=r"^Dtype None is not supported in cuDNN$"):
        cudnn.get_data_type(None)


def test_dropping_everything_drops_infinity_too() -> None:
    x = np.array([np.inf, np.nan, -np.inf, 1.0], np.float32)
    _, y = cudnn.DropoutStates(None, 1).forward(None, x, 1.0)
    np.testing.assert_array_equal(y, np.zeros(4))


@pytest.mark.parametrize(
    "call",
    [
        lambda: cudnn.activation_forward(X[:0], 1),
        lambda: cudnn.activation_forward(X, 77),
        lambda: cudnn.activation_backward(X, X, X[:1], 1),
        lambda: cudnn.activation_backward(X, X, X.astype(np.float64), 1),
        lambda: cudnn.softmax_forward(X, 1, 5),
        lambda: cudnn.softmax_forward(X[:0], 1, 1),
        lambda: cudnn.softmax_backward(X, X[:1], 1, 1),
        lambda: cudnn.softmax_backward(X, X.astype(np.float64), 1, 1),
        lambda: cudnn.DropoutStates(None, 1).forward(None, X, 1.5),
        lambda: cudnn.DropoutStates(None, 1).forward(None, X[:0], 0.5),
    ],
)
def test_what_allocates_refuses_with_cudnn_s_error(call: Callable[[], Any]) -> None:
    with pytest.raises(CuDNNError) as caught:
        call()
    assert caught.value.status == 2000 and "func: cudnn" in str(caught.value)


def test_softmax_s_axis() -> None:
    for axis in (4, -5):
        with pytest.raises(ValueError, match="axis"):
            cudnn.softmax_forward(X, axis, 1)


def test_dropout_states() -> None:
    x = np.ones((50, 40), np.float32)
    states, again = cudnn.DropoutStates(None, 5), cudnn.DropoutStates(cudnn.get_handle(), 5)
    reserve, y = states.forward(None, x, 0.25)
    assert reserve.dtype == np.int8 and set(np.unique(y)) <= {np.float32(0), np.float32(1 / 0.75)}
    assert 0.7 < (y != 0).mean() < 0.8
    np.testing.assert_array_equal(states.backward(None, x, 0.25, reserve), y)
    np.testing.assert_array_equal(again.forward(None, x, 0.25)[1], y)
    assert (states.forward(None, x, 0.25)[1] != y).any()
    assert not states.forward(None, x, 1.0)[1].any() and (states.forward(None, x, 0.0)[1] == 1).all()
    states.set_dropout_ratio(0.5)
    with pytest.raises(CuDNNError):
        states.backward(None, x, 0.25, np.zeros(3, np.int8))
    with pytest.raises(CuDNNError):
        states.backward(None, x, 0.25, np.zeros(1))
    with pytest.raises(TypeError, match="Argument 'reserve_space'"):
        states.backward(None, x, 0.25, None)  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="DropoutStates"):
        cudnn.create_dropout_states(None)


# ---- batch normalisation


def batch(shape: Any = (4,), dtype: Any = np.float32) -> list[Any]:
    return [RNG.uniform(0.5, 1.5, shape).astype(dtype) for _ in range(4)]


def normed(x: Any, axes: Any, gamma: Any, beta: Any, eps: float = 1e-3) -> Any:
    x = np.asarray(x, np.float64)
    return f.batch_norm(x, gamma, beta, x.mean(axes, keepdims=True), x.var(axes, keepdims=True), eps)


def test_batch_norm_of_what_is_no_image() -> None:
    """The last axis has the channels."""
    x, (gamma, beta, mean, var) = RNG.standard_normal((7, 3, 4)).astype(np.float32), batch()
    for shape in ((21, 4), (7, 3, 4), (7, 3, 1, 1, 1, 4)):
        y, *_ = cudnn.batch_normalization_forward_training(
            x.reshape(shape), gamma, beta, mean, var, None, None, 1e-3, 0.9, False, CUDNN_BATCHNORM_PER_ACTIVATION, False
        )
        assert y.shape == shape
        close(y.reshape(x.shape), normed(x, (0, 1), gamma, beta))


def test_batch_norm_of_nhwc() -> None:
    for mode, axes, shape in ((CUDNN_BATCHNORM_SPATIAL, (0, 2, 3), (4,)), (CUDNN_BATCHNORM_PER_ACTIVATION, (0,), (7, 6, 4))):
        gamma, beta, mean, var = batch(shape)
        x = np.ascontiguousarray(np.moveaxis(X, 1, -1))
        y, saved, inverse = cudnn.batch_normalization_forward_training(
            x, gamma, beta, mean, var, None, None, 1e-3, 0.9, True, mode, False, CUDNN_TENSOR_NHWC
        )
        g, b = (a if a.ndim == 3 else a[None, None] for a in (gamma, beta))
        close(np.moveaxis(y, -1, 1), normed(X, axes, np.moveaxis(g, -1, 0), np.moveaxis(b, -1, 0)))
        assert saved.shape == inverse.shape == shape
        gx, ggamma, _ = cudnn.batch_normalization_backward(
            x, gamma, x, saved, inverse, 1e-3, True, mode, False, CUDNN_TENSOR_NHWC
        )
        expected = f.batch_norm_dx(X, X, np.moveaxis(g, -1, 0)[None], axes == (0,), 1e-3)
        close(np.moveaxis(gx, -1, 1), expected[0], 1e-3)
        close(np.moveaxis(ggamma.reshape(g.shape), -1, 0), expected[1][0], 1e-3)


def test_batch_norm_saves_where_it_is_told() -> None:
    gamma, beta, mean, var = batch((1, 4, 1, 1))
    saved, inverse = poisoned((1, 4, 1, 1)), poisoned((1, 4, 1, 1))
    given = (X, gamma, beta, mean, var)
    y = cudnn.batch_normalization_forward_training(*given, saved, inverse, 1e-3, 0.9, True, 1, False)
    close(y, normed(X, (0, 2, 3), gamma, beta))
    close(saved, X.mean((0, 2, 3), keepdims=True))
    close(inverse, 1 / np.sqrt(X.var((0, 2, 3), keepdims=True) + 1e-3))
    reserve, y = cudnn.batch_normalization_forward_training_ex(*given, saved, inverse, 1e-3, 0.9, True, 2, True)
    assert reserve is None
    assert len(cudnn.batch_normalization_forward_training_ex(*given, None, None, 1e-3, 0.9, True, 1, False)) == 4
    assert len(cudnn.batch_normalization_forward_training(*given, None, None, 1e-3, 0.9, True, 1, False)) == 3
    with pytest.raises(ValueError, match=r"^Both mean and inv_std must be None if one is.$"):
        cudnn.batch_normalization_forward_training(*given, saved, None, 1e-3, 0.9, True, 1, False)


def test_batch_norm_of_half_type_computes_and_saves_in_f32() -> None:
    x, (gamma, beta, mean, var) = X.astype(np.float16), batch(dtype=np.float16)
    before = mean.copy()
    y, saved, inverse = cudnn.batch_normalization_forward_training(
        x, gamma, beta, mean, var, None, None, 1e-3, 0.5, True, 1, False
    )
    assert (y.dtype, saved.dtype, inverse.dtype, mean.dtype) == (np.float16, np.float32, np.float32, np.float16)
    close(mean, (before + x.astype(np.float64).mean((0, 2, 3))) / 2, 2e-3)
    gx, ggamma, gbeta = cudnn.batch_normalization_backward(x, gamma, x, saved, inverse, 1e-3, True, 1, False)
    assert {a.dtype for a in (gx, ggamma, gbeta)} == {np.dtype(np.float16)}
    wide = cudnn.batch_normalization_backward(x, gamma.astype(np.float32), x, saved, inverse, 1e-3, True, 1, False)
    assert [a.dtype for a in wide] == [np.float16, np.float32, np.float32]


def test_batch_norm_refuses_before_it_writes() -> None:
    gamma, beta, mean, var = batch()
    kept = mean.copy(), var.copy()

    def train(x: Any = X, gamma: Any = gamma, mean: Any = mean, eps: float = 1e-3, mode: int = 1) -> None:
        cudnn.batch_normalization_forward_training(x, gamma, beta, mean, var, None, None, eps, 0.9, True, mode, False)

    for wrong in (
        {"gamma": gamma[:3]},
        {"mean": np.ones(5, np.float32)},
        {"eps": -1.0},
        {"mode": 9},
        {"x": X[0, 0]},
        {"x": X[:0]},
    ):
        with pytest.raises(CuDNNError, match="cudnnBatchNormalizationForwardTraining"):
            train(**wrong)  # type: ignore[arg-type]
    with pytest.raises(CuDNNError, match="gy"):
        cudnn.batch_normalization_backward(X, gamma, X[:1], mean, var, 1e-3, True, 1, False)
    with pytest.raises(TypeError, match="is not supported in cuDNN"):
        train(x=X.astype(np.complex64))
    still = mean.copy()
    still.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        train(mean=still)
    np.testing.assert_array_equal((mean, var), kept)


# ---- fused calls


def test_residual_and_deconvolution() -> None:
    z, y = RNG.standard_normal(Y).astype(np.float32), poisoned()
    cudnn.convolution_bias_activation_forward(X, W, B, y, *PLACE, CUDNN_ACTIVATION_RELU, z=z)
    close(y, np.maximum(f.conv(X, W, B) + z, 0))
    x = poisoned((2, 4, 11, 8))  # stride 2 makes 9 x 7 of it, or 10 x 8
    place = ((1, 1), (2, 1), (1, 1), 1)
    cudnn.deconvolution_bias_activation_forward(W, np.ones((2, 6, 6, 8), np.float32), None, x, *place, CUDNN_ACTIVATION_RELU)
    close(x, np.maximum(f.conv_dx(np.ones((2, 6, 6, 8)), W, x.shape, stride=(2, 1), padding=1), 0), 1e-4)


def test_gradients_that_are_wanted() -> None:
    gy = RNG.standard_normal(Y).astype(np.float32)
    gb = poisoned((1, 6, 1, 1))
    cudnn.convolution_backward_data_filter_bias(X, W, gy, None, None, gb, *PLACE)
    close(gb.reshape(-1), gy.sum((0, 2, 3)), 1e-4)
    half = poisoned((6,), np.float16)
    args = [a.astype(np.float16) for a in (X, W, gy)]
    cudnn.convolution_backward_data_filter_bias(*args, None, None, half, *PLACE, deterministic=True)
    close(half, args[2].astype(np.float64).sum((0, 2, 3)), 2e-2)
    with pytest.raises(ValueError, match="none of gx, gW and gb"):
        cudnn.convolution_backward_data_filter_bias(X, W, gy, None, None, None, *PLACE)


@pytest.mark.parametrize(
    "call",
    [
        lambda y: cudnn.convolution_bias_activation_forward(X, W, B, y, *PLACE, 99),
        lambda y: cudnn.convolution_bias_activation_forward(X, W, B[:5], y, *PLACE, 1),
        lambda y: cudnn.convolution_bias_activation_forward(X, W[:, :3], B, y, *PLACE, 1),
        lambda y: cudnn.convolution_bias_activation_forward(X, W, B, y, *PLACE, 1, z=X),
        lambda y: cudnn.convolution_bias_activation_pooling_forward(
            X, W, B, None, y, *PLACE, 1, 0.0, (2, 2), (2, 2), (0, 0), 0),
        lambda y: cudnn.deconvolution_bias_activation_forward(W, X, None, y, *PLACE, 1),
        lambda y: cudnn.convolution_backward_data_filter_bias(X, W, np.ones(Y, np.float32), y, None, None, *PLACE),
        lambda y: cudnn.convolution_backward_data_filter_bias(X, W, X, None, None, y, *PLACE),
    ],
)  # fmt: skip
def test_fused_calls_refuse_before_they_write(call: Callable[[Any], Any]) -> None:
    y = poisoned()
    with pytest.raises(CuDNNError) as caught:
        call(y)
    assert caught.value.status == 2000 and "func: ooc_cudnn" in str(caught.value) and np.isnan(y).all()


# ---- the module


def test_handles_and_descriptors() -> None:
    handle = cudnn.get_handle()
    assert isinstance(handle, int) and handle and cudnn.get_handle() == handle
    cudnn.reset_handles()
    assert cudnn.get_handle()
    made = []
    cudnn.Descriptor(5, made.append)
    assert made == [5] and cudnn.Descriptor(0, None).value == 0
    assert cudnn.create_tensor_nd_descriptor(X[:0]).value == 0
    with pytest.raises(ValueError, match="c-contiguous"):
        cudnn.create_tensor_descriptor(X.T)
    with pytest.raises(ValueError, match=r"^pad and stride must be of same length$"):
        cudnn.create_convolution_descriptor((0,), (1, 1), np.float32)
    with pytest.raises(ValueError, match=r"^pad and dilation must be of same length$"):
        cudnn.create_convolution_descriptor((0, 0), (1, 1), np.float32, dilation=(1,))


@pytest.mark.parametrize("lists", ((1,), np.ones(2, np.int32)), ids=("tuple", "array"))
def test_lists_are_no_numbers_of_descriptors(lists: Any) -> None:
    for call, arguments in (
        (cudnn.create_activation_descriptor, (lists,)),
        (cudnn.create_activation_descriptor, (1, 0, lists)),
        (cudnn.create_convolution_descriptor, ((1, 2, 3), (1, 1, 1), np.float32, lists)),
        (cudnn.create_pooling_descriptor, ((2, 2), (2, 2), (0, 0), lists)),
    ):
        with pytest.raises(TypeError):
            call(*arguments)


def test_descriptors_are_set_by_the_low_level_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def integers(address: int, count: int) -> list[int]:
        return list((ctypes.c_int * count).from_address(address))

    def heard(name: str, of: tuple[int, ...] = ()) -> Callable[..., None]:
        def call(*given: Any) -> None:
            calls.append((name, *(integers(g, 3) if i in of else g for i, g in enumerate(given))))

        return call

    for kind in ("Tensor", "Filter", "Convolution", "Pooling", "Activation"):
        monkeypatch.setattr(ooc.libcudnn, f"create{kind}Descriptor", lambda: 11, raising=False)
        monkeypatch.setattr(ooc.libcudnn, f"destroy{kind}Descriptor", lambda number: None, raising=False)
    arrays = {"TensorNd": (3, 4), "FilterNd": (4,), "ConvolutionNd": (2, 3, 4), "PoolingNd": (4, 5, 6)}
    versions = ("", "", "_v4", "_v4", "_v5", "_v3", "_v4", "_v4", "")
    kinds = (
        "Tensor4d",
        "TensorNd",
        "Filter4d",
        "FilterNd",
        "Convolution2d",
        "ConvolutionNd",
        "Pooling2d",
        "PoolingNd",
        "Activation",
    )
    for kind, version in zip(kinds, versions, strict=True):
        monkeypatch.setattr(ooc.libcudnn, f"set{kind}Descriptor{version}", heard(kind, arrays.get(kind, ())), raising=False)
    cudnn.create_tensor_descriptor(X, CUDNN_TENSOR_NHWC)
    cudnn.create_tensor_descriptor(X[0])
    cudnn.create_tensor_descriptor(np.lib.stride_tricks.as_strided(X, (1, 4, 1), (0, 4, 0)))
    cudnn.create_filter_descriptor(W)
    cudnn.create_filter_descriptor(W[0])
    cudnn.create_convolution_descriptor((1, 2), (3, 4), np.float16)
    cudnn.create_convolution_descriptor((1, 2, 3), (4, 5, 6), np.float64, dilation=(7, 8, 9))
    cudnn.create_pooling_descriptor((3, 4), (1, 2), (0, 1), 2)
    cudnn.create_pooling_descriptor((3, 4, 5), (1, 2, 3), (0, 1, 2), 2)
    made = cudnn.create_activation_descriptor(4, coef=1.5)
    assert made.value == 11 and calls == [
        ("Tensor4d", 11, 1, 0, 2, 6, 4, 7),
        ("TensorNd", 11, 0, 3, [4, 7, 6], [42, 6, 1]),
        ("TensorNd", 11, 0, 3, [1, 4, 1], [4, 1, 1]),
        ("Filter4d", 11, 0, 0, 6, 4, 3, 3),
        ("FilterNd", 11, 0, 0, 3, [4, 3, 3]),
        ("Convolution2d", 11, 1, 2, 3, 4, 1, 1, 1, 0),
        ("ConvolutionNd", 11, 3, [1, 2, 3], [4, 5, 6], [7, 8, 9], 1, 1),
        ("Pooling2d", 11, 2, 0, 3, 4, 0, 1, 1, 2),
        ("PoolingNd", 11, 2, 0, 3, [3, 4, 5], [0, 1, 2], [1, 2, 3]),
        ("Activation", 11, 4, 1, 1.5),
    ]


def test_functions_are_looked_up_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "convolution_forward", lambda *a, **k: "patched")
    assert cudnn.convolution_forward() == "patched"  # type: ignore[call-arg]


def test_registration_under_cupy_s_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] in ("cupy", "cupyx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.warns(UserWarning, match="import ooc.cudnn instead"):
        assert not cupy_compat.install()
    packages = {name: types.ModuleType(name) for name in ("cupy", "cupyx", "cupy.cuda")}
    for name, package in packages.items():
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    packages["cupy"].cuda = packages["cupy.cuda"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cupy_compat.install() and cupy_compat.install()
    from cupy.cuda import cudnn as low

    assert low.available and low.CUDNN_BN_MIN_EPSILON == 0.0
    assert importlib.util.find_spec("cupy.cuda.cudnn") is not None
    assert packages["cupy"].cudnn.pooling_forward is packages["cupyx"].cudnn.pooling_forward is cudnn.pooling_forward
    assert not hasattr(packages["cupy"].cudnn, "ctc_loss")
    cupy_compat.uninstall()
    assert "cupy.cudnn" not in sys.modules and not hasattr(packages["cupy"], "cudnn")
    low.available = True
    monkeypatch.setitem(sys.modules, "cupy.cuda.cudnn", low)
    assert not cupy_compat.install()
    assert cupy_compat.install(force=True) and sys.modules["cupy.cuda.cudnn"] is not low
    cupy_compat.uninstall()
    assert sys.modules["cupy.cuda.cudnn"] is low


@pytest.mark.parametrize("where", [None], indirect=True)  # a process of its own knows no budget of ours
def test_running_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thing.py").write_text("import sys\nprint(__name__, sys.argv[1:])\nsys.exit(3)\n")
    for start in (["thing.py"], ["-m", "thing"]):
        done = subprocess.run(
            [sys.executable, "-m", "ooc.run", *start, "--flag", "a"], capture_output=True, text=True, cwd=tmp_path, env=here()
        )
        assert (done.stdout, done.returncode) == ("__main__ ['--flag', 'a']\n", 3), done.stderr
    assert cupy_compat.main([]) == 2 and cupy_compat.main(["--help"]) == 0
    assert "python -m ooc.run program.py" in capsys.readouterr().out


@pytest.mark.parametrize("where", [None], indirect=True)
def test_no_program_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "empty").mkdir()
    for start, says in (
        ([], "no program; expected: python -m ooc.run program.py"),
        (["-m"], "no program"),
        (["missing.py"], "missing.py: No such file"),
        (["empty"], "empty: a directory without a __main__.py"),
        (["-m", "no_such_module.at_all"], "-m no_such_module.at_all: no such module"),
    ):
        assert cupy_compat.main(start) == 2
        told = capsys.readouterr()
        assert not told.out and told.err.startswith(f"ooc.run: {says}") and told.err.count("\n") == 1
    done = subprocess.run([sys.executable, "-m", "ooc.run"], capture_output=True, text=True, cwd=tmp_path, env=here())
    assert (done.stdout, done.returncode) == ("", 2) and done.stderr.startswith("ooc.run: no program")
    (tmp_path / "empty" / "__main__.py").write_text("print(__name__)\n")
    done = subprocess.run([sys.executable, "-m", "ooc.run", "empty"], capture_output=True, text=True, cwd=tmp_path, env=here())
    assert (done.stdout, done.returncode) == ("__main__\n", 0)


def here() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(ooc.__file__).parent.parent)}
