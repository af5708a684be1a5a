"""Activations, softmax and dropout of `ooc.cudnn`."""

from __future__ import annotations

import warnings
from itertools import count
from operator import index
from typing import Any

import numpy as np

import ooc.api.backward as gradients
import ooc.api.functions as functions
import ooc.api.softmax as softmax
from ooc.api.arguments import Array, on_host
from ooc.api.foreign import empty_beside, known
from ooc.api.forward import activation
from ooc.cudnn.checks import MOST_AXES, Checking, any_array, array, one_type, pieces
from ooc.cudnn.options import documented
from ooc.libcudnn import CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_FAST, CUDNN_SOFTMAX_LOG
from ooc.libcudnn.elementwise import ACTIVATIONS
from ooc.libcudnn.guard import refusal

ALMOST_ALL = float(np.nextafter(1, 0))  # a ratio that drops every element


# ---- activations


@documented
def activation_forward(x: Array, mode: int, coef: float = 0.0) -> Array:
    """y = activation(x), element by element; NaN passes through.

    x: any shape, not empty.

    Returns:
        y: like x, <beside>
    """
    tensor = array("x", x)
    with Checking("cudnnActivationForward", {"x": x}, mode=mode, coef=coef):
        name = activation_name(mode)
        _filled(tensor)
    y = empty_beside(tensor, tensor.shape, tensor.dtype)
    for _, (part, out) in pieces(0, tensor, known("y", y)):
        activation(part, name, float(coef), out=out)
    return y


@documented
def activation_backward(x: Array, y: Array, gy: Array, mode: int, coef: float = 0.0) -> Array:
    """gx = gy * activation'(x): the gradient of an activation's x, found from its result y.

    x: any shape, not empty; it only says where the result lies.
    y: like x, the forward call's result.
    gy: like x, the gradient of y.
    coef: number: the ceiling of clipped ReLU, the alpha of ELU; default 0.0; not looked at by others. ValueError for an ELU's
        that is negative: it cannot be inverted from y.

    Returns:
        gx: like x, <beside>
    """
    arrays = {name: array(name, a) for name, a in (("x", x), ("y", y), ("gy", gy))}
    with Checking("cudnnActivationBackward", {"x": x, "y": y, "gy": gy}, mode=mode, coef=coef):
        name = activation_name(mode)
        one_type(arrays)
        _alike(arrays)
    gx = empty_beside(arrays["x"], arrays["x"].shape, arrays["x"].dtype)
    for _, (part, gradient, out) in pieces(0, arrays["y"], arrays["gy"], known("gx", gx)):
        gradients.activation_backward(part, gradient, name, float(coef), out=out)
    return gx


def activation_name(mode: Any) -> str:
    """ooc's name of an activation mode. Raises CuDNNError, and TypeError for what is no integer."""
    if index(mode) not in range(len(ACTIVATIONS)):
        raise refusal(f"unknown activation mode {mode!r}")
    return ACTIVATIONS[mode]


def _filled(tensor: Any) -> None:
    if not tensor.size:
        raise refusal("an extent is zero")


def _alike(arrays: dict[str, Any]) -> None:
    first, *others = arrays.values()
    _filled(first)
    if any(other.shape != first.shape for other in others):
        raise refusal("shapes differ")


# ---- softmax


@documented
def softmax_forward(x: Array, axis: int, algorithm: int) -> Array:
    """y = exp(x) / (sum of exp(x) along an axis), or its logarithm.

    x: any shape, not empty.

    Returns:
        y: like x, <beside>
    """
    tensor = array("x", x)
    axis = _line(axis, tensor.ndim)
    with Checking("cudnnSoftmaxForward", {"x": x}, axis=axis, algorithm=algorithm):
        _filled(tensor)
        log = _logarithm(algorithm)
    y = empty_beside(tensor, tensor.shape, tensor.dtype)
    for at, (part, out) in pieces(axis, tensor, known("y", y)):
        softmax.softmax(part, at, log=log, out=out)
    return y


@documented
def softmax_backward(y: Array, gy: Array, axis: int, algorithm: int) -> Array:
    """gx = the gradient of softmax's x from its result y and the gradient gy of that.

    y: any shape, not empty: the forward call's result.
    gy: like y, its gradient.

    Returns:
        gx: like y, <beside>
    """
    arrays = {"y": array("y", y), "gy": array("gy", gy)}
    axis = _line(axis, arrays["y"].ndim)
    with Checking("cudnnSoftmaxBackward", {"y": y, "gy": gy}, axis=axis, algorithm=algorithm):
        one_type(arrays)
        _alike(arrays)
        log = _logarithm(algorithm)
    gx = empty_beside(arrays["y"], arrays["y"].shape, arrays["y"].dtype)
    for at, (part, gradient, out) in pieces(axis, *arrays.values(), known("gx", gx)):
        softmax.softmax_backward(part, gradient, at, log=log, out=out)
    return gx


def _logarithm(algorithm: Any) -> bool:
    if index(algorithm) not in (CUDNN_SOFTMAX_FAST, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_LOG):
        raise refusal(f"unknown softmax algorithm {algorithm!r}")
    return bool(algorithm == CUDNN_SOFTMAX_LOG)


def _line(axis: Any, rank: int) -> int:
    """An axis of an array, counted from the front (-1 for the array without axes). Raises TypeError and ValueError."""
    if not -rank <= index(axis) < max(1, rank):
        raise ValueError(f"axis {axis} of an array of {rank} axes")
    return index(axis) % rank if rank else -1


# ---- dropout


@documented
class DropoutStates:
    """The random numbers of dropouts: each forward call draws its own from the seed and the calls before.

    Source: cudnnSetDropoutDescriptor; CuPy v13's cudnn.DropoutStates, with other random numbers.
    """

    def __init__(self, handle: int | None, seed: int) -> None:
        self._seed = index(seed) & (1 << 64) - 1
        self._calls = count(1)

    def set_dropout_ratio(self, dropout_ratio: float) -> None:
        """Nothing to do: every call says its own ratio.

        Parameters:
            dropout_ratio: taken and not looked at.
        """

    @documented
    def forward(self, handle: int | None, x: Array, dropout_ratio: float) -> tuple[Array, Array]:
        """y = x / (1 - dropout_ratio) where an element is kept, 0 where it is dropped.

        x: any shape, not empty.
        dropout_ratio: the probability of being dropped, from 0 to 1 (which drops all).

        Returns:
            reserve_space: a NumPy array of 8 bytes, int8, which `backward` needs.
            y: like x, <beside>

        Source: cudnnDropoutForward.
        """
        tensor = array("x", x)
        _check_dropout("Forward", {"x": x}, tensor, dropout_ratio)
        drawn = (self._seed + 0x9E3779B97F4A7C15 * next(self._calls)) % (1 << 64)
        return np.frombuffer(drawn.to_bytes(8, "little"), np.int8).copy(), _dropped(tensor, dropout_ratio, drawn)

    @documented
    def backward(self, handle: int | None, dy: Array, dropout_ratio: float, reserve_space: Array) -> Array:
        """gx = dy / (1 - dropout_ratio) where the forward call kept, 0 where it dropped.

        dy: like the forward call's y, its gradient.
        dropout_ratio: as in the forward call.
        reserve_space: what the forward call returned.

        Returns:
            gx: like dy, <beside>

        Source: cudnnDropoutBackward.
        """
        tensor, held = array("dy", dy), on_host(any_array("reserve_space", reserve_space))
        _check_dropout("Backward", {"dy": dy}, tensor, dropout_ratio)
        if (held.dtype, held.size) != (np.int8, 8):
            error = refusal("reserve_space is not what forward returned")
            error.add_info("func: cudnnDropoutBackward")
            raise error
        return _dropped(tensor, dropout_ratio, int.from_bytes(held.tobytes(), "little"))


def _check_dropout(name: str, arrays: dict[str, Any], tensor: Any, ratio: float) -> None:
    with Checking(f"cudnnDropout{name}", arrays, dropout_ratio=ratio):
        _filled(tensor)
        if not 0 <= ratio <= 1:
            raise refusal("expected a ratio from 0 to 1")


def _dropped(tensor: Any, ratio: float, seed: int) -> Array:
    """What is dropped depends on an element's place in the result, which is contiguous, not on the strides of the input."""
    rate = min(float(ratio), ALMOST_ALL)
    y = empty_beside(tensor, tensor.shape, tensor.dtype)
    if tensor.ndim <= MOST_AXES:
        return functions.dropout(tensor, rate, seed, out=y)
    target = known("y", y)
    for _, (part, out) in pieces(0, tensor, target):
        functions.scale(part, 1.0, out=out)
    ((_, (flat,)),) = pieces(0, target)
    functions.dropout(flat, rate, seed, out=flat)
    return y


@documented
def create_dropout_states(handle: int | None) -> Array:
    """Room for the state of a dropout, which nothing here reads; deprecated since long: use `DropoutStates`.

    Returns:
        states: a NumPy array of 8 zeros, int8.

    Source: cudnnDropoutGetStatesSize; CuPy v13's cudnn.create_dropout_states.
    """
    warnings.warn("create_dropout_states is deprecated. Please use DropoutStates class instead.", DeprecationWarning, 2)
    return np.zeros(8, np.int8)
