"""Activations, softmax and dropout of `ooc.cudnn`."""

from __future__ import annotations

import warnings
from itertools import count
from operator import index
from typing import Any

import numpy as np

import ooc.api.backward as gradients
import ooc.api.functions as functions
from ooc.api.arguments import Array, on_host
from ooc.api.foreign import empty_beside, known
from ooc.api.forward import activation
from ooc.cudnn.checks import MOST_AXES, any_array, array, bad, one_type, pieces, told
from ooc.libcudnn import (
    CUDNN_ACTIVATION_CLIPPED_RELU,
    CUDNN_ACTIVATION_ELU,
    CUDNN_ACTIVATION_IDENTITY,
    CUDNN_ACTIVATION_RELU,
    CUDNN_ACTIVATION_SIGMOID,
    CUDNN_ACTIVATION_TANH,
    CUDNN_SOFTMAX_ACCURATE,
    CUDNN_SOFTMAX_FAST,
    CUDNN_SOFTMAX_LOG,
    CuDNNError,
)

ACTIVATIONS = {
    CUDNN_ACTIVATION_SIGMOID: "sigmoid", CUDNN_ACTIVATION_RELU: "relu", CUDNN_ACTIVATION_TANH: "tanh",
    CUDNN_ACTIVATION_CLIPPED_RELU: "clipped_relu", CUDNN_ACTIVATION_ELU: "elu", CUDNN_ACTIVATION_IDENTITY: "identity",
}  # fmt: skip
ALMOST_ALL = float(np.nextafter(1, 0))  # a ratio that drops every element


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
    y = empty_beside(seen, seen.shape, seen.dtype)
    for _, (part, out) in pieces(0, seen, known("y", y)):
        activation(part, name, float(coef), out=out)
    return y


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
    for _, (made, gradient, out) in pieces(0, arrays["y"], arrays["gy"], known("gx", gx)):
        gradients.activation_backward(made, gradient, name, float(coef), out=out)
    return gx


def activation_name(mode: Any) -> str:
    """ooc's name of an activation mode. Raises CuDNNError, and TypeError for what is no integer."""
    if index(mode) not in ACTIVATIONS:
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
    axis = _line(axis, seen.ndim)
    try:
        _filled(seen)
        log = _logarithm(algorithm)
    except CuDNNError as error:
        raise told(error, "cudnnSoftmaxForward", {"x": x}, axis=axis, algorithm=algorithm) from None
    y = empty_beside(seen, seen.shape, seen.dtype)
    for at, (part, out) in pieces(axis, seen, known("y", y)):
        functions.softmax(part, at, log=log, out=out)
    return y


def softmax_backward(y: Array, gy: Array, axis: int, algorithm: int) -> Array:
    """The gradient of softmax's x from its result y and the gradient gy of that. Source: cudnnSoftmaxBackward."""
    arrays = {"y": array("y", y), "gy": array("gy", gy)}
    axis = _line(axis, arrays["y"].ndim)
    try:
        one_type(arrays)
        _alike(arrays)
        log = _logarithm(algorithm)
    except CuDNNError as error:
        raise told(error, "cudnnSoftmaxBackward", {"y": y, "gy": gy}, axis=axis, algorithm=algorithm) from None
    gx = empty_beside(arrays["y"], arrays["y"].shape, arrays["y"].dtype)
    for at, (made, gradient, out) in pieces(axis, *arrays.values(), known("gx", gx)):
        functions.softmax_backward(made, gradient, at, log=log, out=out)
    return gx


def _logarithm(algorithm: Any) -> bool:
    if index(algorithm) not in (CUDNN_SOFTMAX_FAST, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_LOG):
        raise bad(f"unknown softmax algorithm {algorithm!r}")
    return bool(algorithm == CUDNN_SOFTMAX_LOG)


def _line(axis: Any, rank: int) -> int:
    """An axis of an array, counted from the front (-1 for the array without axes). Raises TypeError and ValueError."""
    if not -rank <= index(axis) < max(1, rank):
        raise ValueError(f"axis {axis} of an array of {rank} axes")
    return index(axis) % rank if rank else -1


# ---- dropout


class DropoutStates:
    """The random numbers of dropouts: each forward call draws its own from the seed and the calls before."""

    def __init__(self, handle: int | None, seed: int) -> None:
        self._seed = index(seed) & (1 << 64) - 1
        self._calls = count(1)

    def set_dropout_ratio(self, dropout_ratio: float) -> None:
        """Nothing to do: every call says its own ratio."""

    def forward(self, handle: int | None, x: Array, dropout_ratio: float) -> tuple[Array, Array]:
        """(reserve_space, y): y is x / (1 - ratio) where kept, else 0; backward needs the reserve space."""
        seen = array("x", x)
        _check_dropout("Forward", {"x": x}, seen, dropout_ratio)
        drawn = (self._seed + 0x9E3779B97F4A7C15 * next(self._calls)) % (1 << 64)
        return np.frombuffer(drawn.to_bytes(8, "little"), np.int8).copy(), _dropped(seen, dropout_ratio, drawn)

    def backward(self, handle: int | None, dy: Array, dropout_ratio: float, reserve_space: Array) -> Array:
        """The gradient of forward's x from the gradient dy of its y."""
        seen, held = array("dy", dy), on_host(any_array("reserve_space", reserve_space))
        _check_dropout("Backward", {"dy": dy}, seen, dropout_ratio)
        if (held.dtype, held.size) != (np.int8, 8):
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
    """What is dropped depends on an element's place in the result, which is contiguous, not on the strides of the input."""
    rate = min(float(ratio), ALMOST_ALL)
    y = empty_beside(seen, seen.shape, seen.dtype)
    if seen.ndim <= MOST_AXES:
        return functions.dropout(seen, rate, seed, out=y)
    target = known("y", y)
    for _, (part, out) in pieces(0, seen, target):
        functions.scale(part, 1.0, out=out)
    ((_, (flat,)),) = pieces(0, target)
    functions.dropout(flat, rate, seed, out=flat)
    return y


def create_dropout_states(handle: int | None) -> Array:
    """Deprecated since long: use `DropoutStates`. Returns room for a state, which nothing here reads."""
    warnings.warn("create_dropout_states is deprecated. Please use DropoutStates class instead.", DeprecationWarning, 2)
    return np.zeros(8, np.int8)
