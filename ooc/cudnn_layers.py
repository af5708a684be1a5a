"""Pooling, activations, softmax and dropout of `ooc.cudnn`."""

from __future__ import annotations

import warnings
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

import ooc.functions as functions
import ooc.gradients as gradients
from ooc.api import activation
from ooc.arguments import Array, on_host
from ooc.cudnn_checks import array, bad, numbers, one_type, told, writable
from ooc.engine import execute
from ooc.errors import ShapeError
from ooc.foreign import empty_beside, known
from ooc.libcudnn import (
    CUDNN_ACTIVATION_CLIPPED_RELU,
    CUDNN_ACTIVATION_ELU,
    CUDNN_ACTIVATION_IDENTITY,
    CUDNN_ACTIVATION_RELU,
    CUDNN_ACTIVATION_SIGMOID,
    CUDNN_ACTIVATION_TANH,
    CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING,
    CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING,
    CUDNN_POOLING_MAX,
    CUDNN_POOLING_MAX_DETERMINISTIC,
    CUDNN_SOFTMAX_ACCURATE,
    CUDNN_SOFTMAX_FAST,
    CUDNN_SOFTMAX_LOG,
    CuDNNError,
)
from ooc.op import Op
from ooc.ops import Pool, PoolBackward

Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]

ACTIVATIONS = {
    CUDNN_ACTIVATION_SIGMOID: "sigmoid", CUDNN_ACTIVATION_RELU: "relu", CUDNN_ACTIVATION_TANH: "tanh",
    CUDNN_ACTIVATION_CLIPPED_RELU: "clipped_relu", CUDNN_ACTIVATION_ELU: "elu", CUDNN_ACTIVATION_IDENTITY: "identity",
}  # fmt: skip
POOLINGS = {
    CUDNN_POOLING_MAX: "max", CUDNN_POOLING_MAX_DETERMINISTIC: "max",
    CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING: "average",
    CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING: "average_valid",
}  # fmt: skip


# ---- pooling


def pooling_forward(x: Array, y: Array, ksize: Shape, stride: Shape, pad: Shape, mode: int) -> Array:
    """y = the maximum or mean of x over windows; returns y, overwritten.

    x: n x c x 1 to 3 spatial axes; y: C-contiguous; its extents may be those of whole windows or one more, whose window
    then ends beyond the padding (Chainer's cover_all). Source: cudnnPoolingForward.
    """
    seen, made = array("x", x), array("y", y)
    windows = pool_windows(ksize, stride, pad)
    writable("y", made, "pooling_forward supports c-contiguous y only")
    try:
        dtype = one_type({"x": seen, "y": made})
        op = _pooling(Pool, seen.shape, made.shape, dtype, windows, mode)
    except (CuDNNError, ShapeError) as error:
        sizes = {"ksize": ksize, "stride": stride, "pad": pad, "mode": mode}
        raise told(error, "cudnnPoolingForward", {"x": x, "y": y}, **sizes) from None
    execute(op, {"x": seen}, {"y": made})
    return y


def pooling_backward(x: Array, y: Array, gy: Array, ksize: Shape, stride: Shape, pad: Shape, mode: int) -> Array:
    """The gradient of `pooling_forward`'s x from the gradient gy of its y; the maximum is the first one of a window.

    Source: cudnnPoolingBackward.
    """
    arrays = {name: array(name, a) for name, a in (("x", x), ("y", y), ("gy", gy))}
    seen, made, gradient = arrays.values()
    windows = pool_windows(ksize, stride, pad)
    try:
        dtype = one_type(arrays)
        if made.shape != gradient.shape:
            raise bad("y and gy differ in shape")
        op = _pooling(PoolBackward, seen.shape, made.shape, dtype, windows, mode)
    except (CuDNNError, ShapeError) as error:
        sizes = {"ksize": ksize, "stride": stride, "pad": pad, "mode": mode}
        raise told(error, "cudnnPoolingBackward", {"x": x, "y": y, "gy": gy}, **sizes) from None
    gx = empty_beside(seen, seen.shape, seen.dtype)
    inputs = {"x": seen, "dy": gradient} if len(op.inputs) == 2 else {"dy": gradient}
    execute(op, inputs, {"dx": known("gx", gx)})
    return gx


def pool_windows(ksize: Any, stride: Any, pad: Any) -> tuple[Shape, Shape, Shape]:
    """Window, stride and padding. Raises TypeError and ValueError."""
    found = numbers("ksize", ksize), numbers("stride", stride), numbers("pad", pad)
    if not len(found[0]) == len(found[1]) == len(found[2]):
        raise ValueError("ksize, stride, and pad must be of same length")
    return found


@lru_cache(4096)
def _pooling(kind: Any, x: Shape, y: Shape, dtype: str, windows: tuple[Shape, Shape, Shape], mode: int) -> Op:
    pads = pool_pads(x, y, *windows)
    op: Op = kind(pool_name(mode), x[0], x[1], x[2:], windows[0], windows[1], pads, dtype=dtype)
    return op


def pool_name(mode: Any) -> str:
    """ooc's name of a pooling mode. Raises CuDNNError."""
    if mode not in POOLINGS:
        raise bad(f"unknown pooling mode {mode!r}")
    return POOLINGS[mode]


@lru_cache(4096)
def pool_pads(x: Shape, y: Shape, ksize: Shape, stride: Shape, pad: Shape) -> Pads:
    """(before, after) per axis for a pooling from x to y, both channels first. Raises CuDNNError where they do not fit."""
    rank = len(x) - 2
    if rank not in (1, 2, 3) or not rank == len(y) - 2 == len(ksize) == len(stride) == len(pad):
        raise bad(f"expected 1 to 3 spatial axes, the same for all arrays, and {len(ksize)} of them as ksize says")
    if not all((*x, *y)) or min(ksize) < 1 or min(stride) < 1 or min(pad) < 0 or x[:2] != y[:2]:
        raise bad("an extent is zero or of the other array, ksize or stride less than 1, or pad negative")
    found = []
    for e, o, k, s, p in zip(x[2:], y[2:], ksize, stride, pad, strict=True):
        whole = (e + 2 * p - k) // s + 1
        after = max(p, (o - 1) * s + k - e - p)
        if p >= k or after >= k or not whole <= o <= whole + 1:
            raise bad(f"windows of {k} at steps of {s} over {e} with padding {p} make {max(0, whole)} or one more, not {o}")
        found.append((p, after))
    return tuple(found)


# ---- activations


def activation_forward(x: Array, mode: int, coef: float = 0.0) -> Array:
    """An activation of an array of any shape; coef: the ceiling of clipped ReLU, the alpha of ELU.

    Source: cudnnActivationForward.
    """
    seen = array("x", x)
    try:
        name = activation_name(mode)
        _filled(seen)
    except CuDNNError as error:
        raise told(error, "cudnnActivationForward", {"x": x}, mode=mode, coef=coef) from None
    return activation(x, name, float(coef))


def activation_backward(x: Array, y: Array, gy: Array, mode: int, coef: float = 0.0) -> Array:
    """The gradient of an activation's x from its result y and the gradient gy of that; all of one shape.

    Source: cudnnActivationBackward.
    """
    arrays = {name: array(name, a) for name, a in (("x", x), ("y", y), ("gy", gy))}
    try:
        name = activation_name(mode)
        one_type(arrays)
        _alike(arrays)
    except CuDNNError as error:
        raise told(error, "cudnnActivationBackward", {"x": x, "y": y, "gy": gy}, mode=mode, coef=coef) from None
    gx = empty_beside(arrays["x"], arrays["x"].shape, arrays["x"].dtype)
    return gradients.activation_backward(arrays["y"], arrays["gy"], name, float(coef), out=gx)


def activation_name(mode: Any) -> str:
    """ooc's name of an activation mode. Raises CuDNNError."""
    if mode not in ACTIVATIONS:
        raise bad(f"unknown activation mode {mode!r}")
    return ACTIVATIONS[mode]


def _filled(seen: Any) -> None:
    if not seen.size:
        raise bad("an extent is zero")


def _alike(arrays: dict[str, Any]) -> None:
    first, *others = arrays.values()
    _filled(first)
    if any(other.shape != first.shape for other in others):
        raise bad("shapes differ")


# ---- softmax


def softmax_forward(x: Array, axis: int, algorithm: int) -> Array:
    """Softmax along an axis, or its logarithm (CUDNN_SOFTMAX_LOG); never overflows. Source: cudnnSoftmaxForward."""
    seen = array("x", x)
    try:
        _filled(seen)
        log = _logarithm(algorithm)
    except CuDNNError as error:
        raise told(error, "cudnnSoftmaxForward", {"x": x}, axis=axis, algorithm=algorithm) from None
    y = empty_beside(seen, seen.shape, seen.dtype)
    target, at = _merged(known("y", y), axis)
    functions.softmax(_merged(seen, axis)[0], at, log=log, out=target)
    return y


def softmax_backward(y: Array, gy: Array, axis: int, algorithm: int) -> Array:
    """The gradient of softmax's x from its result y and the gradient gy of that. Source: cudnnSoftmaxBackward."""
    arrays = {"y": array("y", y), "gy": array("gy", gy)}
    try:
        one_type(arrays)
        _alike(arrays)
        log = _logarithm(algorithm)
    except CuDNNError as error:
        raise told(error, "cudnnSoftmaxBackward", {"y": y, "gy": gy}, axis=axis, algorithm=algorithm) from None
    gx = empty_beside(arrays["y"], arrays["y"].shape, arrays["y"].dtype)
    target, at = _merged(known("gx", gx), axis)
    seen, gradient = (_merged(a, axis)[0] for a in arrays.values())
    functions.softmax_backward(seen, gradient, at, log=log, out=target)
    return gx


def _logarithm(algorithm: Any) -> bool:
    if algorithm not in (CUDNN_SOFTMAX_FAST, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_LOG):
        raise bad(f"unknown softmax algorithm {algorithm!r}")
    return bool(algorithm == CUDNN_SOFTMAX_LOG)


def _merged(seen: Any, axis: int) -> tuple[Any, int]:
    """An array of more than five axes with those before and behind `axis` merged, and where that axis is then."""
    if not -seen.ndim <= index(axis) < max(1, seen.ndim):
        raise ValueError(f"axis {axis} of an array of {seen.ndim} axes")
    axis = axis % seen.ndim if seen.ndim else -1
    if seen.ndim <= 5:
        return seen, axis
    merged = seen.reshape(int(np.prod(seen.shape[:axis])), seen.shape[axis], -1)
    if not np.may_share_memory(merged, seen):
        raise ShapeError(f"an array of shape {seen.shape} cannot be seen with three axes; make it contiguous")
    return merged, 1


# ---- dropout


class DropoutStates:
    """The random numbers of dropouts: each forward call draws its own from the seed and the calls before."""

    def __init__(self, handle: int | None, seed: int) -> None:
        self._seed = index(seed) & (1 << 64) - 1
        self._calls = 0

    def set_dropout_ratio(self, dropout_ratio: float) -> None:
        """Nothing to do: every call says its own ratio."""

    def forward(self, handle: int | None, x: Array, dropout_ratio: float) -> tuple[Array, Array]:
        """(reserve_space, y): y is x / (1 - ratio) where kept, else 0; backward needs the reserve space."""
        seen = array("x", x)
        _check_dropout("Forward", {"x": x}, seen, dropout_ratio)
        drawn = (self._seed + 0x9E3779B97F4A7C15 * (self._calls + 1)) % (1 << 64)
        y = _dropped(seen, dropout_ratio, drawn)
        self._calls += 1
        return np.frombuffer(drawn.to_bytes(8, "little"), np.int8).copy(), y

    def backward(self, handle: int | None, dy: Array, dropout_ratio: float, reserve_space: Array) -> Array:
        """The gradient of forward's x from the gradient dy of its y."""
        seen, held = array("dy", dy), on_host(known("reserve_space", reserve_space))
        _check_dropout("Backward", {"dy": dy}, seen, dropout_ratio)
        if held.nbytes != 8:
            raise bad("reserve_space is not what forward returned", "func: cudnnDropoutBackward")
        return _dropped(seen, dropout_ratio, int.from_bytes(held.tobytes(), "little"))


def _check_dropout(name: str, given: dict[str, Any], seen: Any, ratio: float) -> None:
    try:
        _filled(seen)
        if not 0 <= ratio <= 1:
            raise bad("expected a ratio from 0 to 1")
    except CuDNNError as error:
        raise told(error, f"cudnnDropout{name}", given, dropout_ratio=ratio) from None


def _dropped(seen: Any, ratio: float, seed: int) -> Array:
    if ratio == 1:
        return functions.scale(seen, 0.0)
    return functions.dropout(seen, float(ratio), seed)


def create_dropout_states(handle: int | None) -> Array:
    """Deprecated since long: use `DropoutStates`. Returns room for a state, which nothing here reads."""
    warnings.warn("create_dropout_states is deprecated. Please use DropoutStates class instead.", DeprecationWarning, 2)
    return np.zeros(8, np.int8)
