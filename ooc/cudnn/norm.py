"""Batch normalisation of `ooc.cudnn`."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

import ooc.api.batch_norm as normal
from ooc.api.arguments import Array, on_host, put
from ooc.api.foreign import empty_beside, known
from ooc.cudnn.checks import TYPES, Checking, array, channels_last, one_type
from ooc.cudnn.options import documented
from ooc.errors import ShapeError
from ooc.ir.op import compute_dtype, numpy_dtype
from ooc.libcudnn import (
    CUDNN_BATCHNORM_PER_ACTIVATION,
    CUDNN_BATCHNORM_SPATIAL,
    CUDNN_BATCHNORM_SPATIAL_PERSISTENT,
    CUDNN_BN_MIN_EPSILON,
    CUDNN_TENSOR_NCHW,
)
from ooc.libcudnn.guard import refusal

MODES = (CUDNN_BATCHNORM_PER_ACTIVATION, CUDNN_BATCHNORM_SPATIAL, CUDNN_BATCHNORM_SPATIAL_PERSISTENT)


@documented
def batch_normalization_forward_training(
    x: Array, gamma: Array, beta: Array, running_mean: Array, running_var: Array, mean: Array | None, inv_std: Array | None,
    eps: float, decay: float, is_for_conv2d: bool, cudnn_mode: int, debug: bool, d_layout: int = CUDNN_TENSOR_NCHW,
) -> Any:  # fmt: skip
    """y = (x - mean) / sqrt(var + eps) * gamma + beta, with the mean and biased variance of the batch.

    x: see is_for_conv2d; not empty.

    Returns:
        y: like x, <beside>
        (y, mean, inv_std): where mean and inv_std are None; the last two new arrays beside x of gamma's shape, of float32, or
            float64 where x is.
    """
    _, *outputs = batch_normalization_forward_training_ex(
        x, gamma, beta, running_mean, running_var, mean, inv_std, eps, decay, is_for_conv2d, cudnn_mode, debug, d_layout
    )
    return tuple(outputs) if mean is None else outputs[0]


@documented
def batch_normalization_forward_training_ex(
    x: Array, gamma: Array, beta: Array, running_mean: Array, running_var: Array, mean: Array | None, inv_std: Array | None,
    eps: float, decay: float, is_for_conv2d: bool, cudnn_mode: int, debug: bool, d_layout: int = CUDNN_TENSOR_NCHW,
) -> Any:  # fmt: skip
    """y = (x - mean) / sqrt(var + eps) * gamma + beta, with the mean and biased variance of the batch, and a reserve space.

    x: see is_for_conv2d; not empty.

    Returns:
        (reserve_space, y): the reserve space is None, there is none; y is like x, <beside>
        (reserve_space, y, mean, inv_std): where mean and inv_std are None; the last two new arrays beside x of gamma's shape, of
            float32, or float64 where x is.
    """
    if (mean is None) != (inv_std is None):
        raise ValueError("Both mean and inv_std must be None if one is.")
    parameters = {"gamma": gamma, "beta": beta, "running_mean": running_mean, "running_var": running_var}
    saved = {} if mean is None else {"mean": mean, "inv_std": inv_std}
    call = _NormCall("ForwardTraining", x, {**parameters, **saved}, eps, is_for_conv2d, cudnn_mode, d_layout)
    call.check_outputs("running_mean", "running_var", *saved)
    running = {name: call.values(name) for name in ("running_mean", "running_var")}
    y = empty_beside(call.x, call.x.shape, call.x.dtype)
    _, own_mean, own_var = normal.batch_norm(
        call.see(call.x), call.values("gamma"), call.values("beta"), *running.values(), training=True,
        momentum=1.0 - decay, eps=eps, out=call.see(known("y", y)), **call.options,
    )  # fmt: skip
    for name, values in running.items():
        call.store(call.arrays[name], values)
    batch = {"mean": own_mean, "inv_std": 1 / np.sqrt(own_var + eps)}
    if saved:
        for name, values in batch.items():
            call.store(call.arrays[name], values)
        return None, y
    return None, y, *(call.new(values, call.wide) for values in batch.values())


@documented
def batch_normalization_forward_inference(
    x: Array, gamma: Array, beta: Array, mean: Array, var: Array, eps: float, is_for_conv2d: bool, cudnn_mode: int,
    d_layout: int = CUDNN_TENSOR_NCHW,
) -> Array:  # fmt: skip
    """y = (x - mean) / sqrt(var + eps) * gamma + beta, with the mean and variance given.

    x: see is_for_conv2d; not empty.
    gamma, beta, mean, var: scale, bias, mean and variance: as many values as x has channels, of any shape and dtype.

    Returns:
        y: like x, <beside>
    """
    parameters = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    call = _NormCall("ForwardInference", x, parameters, eps, is_for_conv2d, cudnn_mode, d_layout)
    y = empty_beside(call.x, call.x.shape, call.x.dtype)
    normal.batch_norm(
        call.see(call.x), *(call.values(name) for name in parameters), eps=eps, out=call.see(known("y", y)), **call.options
    )
    return y


@documented
def batch_normalization_backward(
    x: Array, gamma: Array, gy: Array, mean: Array, inv_std: Array, eps: float, is_for_conv2d: bool, cudnn_mode: int,
    debug: bool, d_layout: int = CUDNN_TENSOR_NCHW, *, reserve_space: Any = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The gradients of a training batch norm's x, gamma and beta from the gradient gy of its y.

    x: the forward call's; see is_for_conv2d.
    gamma: the forward call's: as many values as x has channels, of any shape and dtype.
    gy: like x, the gradient of y.
    mean, inv_std: like gamma, as the forward call saved them.
    eps: at least CUDNN_BN_MIN_EPSILON (0); else not looked at, as inv_std holds it.
    reserve_space: taken and not looked at; default None.

    Returns:
        gx: like x, <beside>
        ggamma, gbeta: new arrays beside x of gamma's shape, of x's dtype, or of float32 where gamma is float32 and x a half type.
    """
    parameters = {"gamma": gamma, "mean": mean, "inv_std": inv_std}
    call = _NormCall("Backward", x, parameters, eps, is_for_conv2d, cudnn_mode, d_layout, {"gy": gy})
    gx = empty_beside(call.x, call.x.shape, call.x.dtype)
    with np.errstate(divide="ignore"):
        var = call.values("inv_std") ** -2.0
    _, ggamma, gbeta = normal.batch_norm_backward(
        call.see(call.x), call.see(call.like_x["gy"]), call.values("gamma"), call.values("mean"), var, eps=0.0,
        dx=call.see(known("gx", gx)), **call.options,
    )  # fmt: skip
    kept = call.wide if call.arrays["gamma"].dtype == call.wide else call.x.dtype
    return gx, call.new(ggamma, kept), call.new(gbeta, kept)


class _NormCall:
    """What the calls have in common: x with its channels, and values per channel in the caller's shapes."""

    def __init__(
        self, name: str, x: Any, parameters: dict[str, Any], eps: float, is_for_conv2d: bool, mode: int, d_layout: int,
        like_x: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.x = array("x", x)
        self.arrays = {key: array(key, a) for key, a in parameters.items()}
        self.like_x = {key: array(key, a) for key, a in (like_x or {}).items()}
        self.wide = numpy_dtype(compute_dtype(TYPES[self.x.dtype]))
        self.conv = bool(is_for_conv2d)
        last = channels_last(d_layout, self.x.ndim) if self.conv else True
        self.per_activation = self.conv and mode == CUDNN_BATCHNORM_PER_ACTIVATION
        self.options: dict[str, Any] = {
            "layout": "channels_last" if last else "channels_first",
            "per_activation": self.per_activation,
        }
        sizes = {"eps": eps, "is_for_conv2d": is_for_conv2d, "cudnn_mode": mode, "d_layout": d_layout}
        with Checking(f"cudnnBatchNormalization{name}", {"x": x, **(like_x or {}), **parameters}, **sizes):
            self._check(eps, mode)

    def _check(self, eps: float, mode: int) -> None:
        if index(mode) not in MODES:
            raise refusal(f"unknown batch normalisation mode {mode!r}")
        if not eps >= CUDNN_BN_MIN_EPSILON:
            raise refusal(f"eps must be at least CUDNN_BN_MIN_EPSILON, {CUDNN_BN_MIN_EPSILON}")
        if not self.x.size or (self.conv and self.x.ndim not in (3, 4, 5)):
            raise refusal("expected x with 3 to 5 axes (or any, not for convolutions), none of extent zero")
        one_type({"x": self.x, **self.like_x})
        if any(a.shape != self.x.shape for a in self.like_x.values()):
            raise refusal("gy must have the shape of x")
        shape = self.see(self.x).shape
        self.shape = shape[1:] if self.per_activation else shape[1:2]
        if self.options["layout"] == "channels_last":
            self.shape = shape[1:] if self.per_activation else shape[-1:]
        count = math.prod(self.shape)
        wrong = [key for key, a in self.arrays.items() if a.size != count]
        if wrong:
            raise refusal(f"{', '.join(wrong)}: expected {count} values")

    def see(self, a: Any) -> Any:
        """An array like x with 3 to 5 axes."""
        if self.conv or 3 <= a.ndim <= 5:
            return a
        if a.ndim > 5:
            if not a.flags.c_contiguous:
                raise ShapeError("x of more than five axes must be contiguous")
            return a.reshape(-1, 1, a.shape[-1])
        return a[:, None, :] if a.ndim == 2 else a.reshape(1, 1, -1)

    def values(self, name: str) -> Any:
        """A parameter as a new f64 array, channels first."""
        parameter = np.array(on_host(self.arrays[name]), np.float64).reshape(self.shape)
        return np.ascontiguousarray(np.moveaxis(parameter, -1, 0)) if self._moved() else parameter

    def _moved(self) -> bool:
        return self.per_activation and self.options["layout"] == "channels_last"

    def store(self, target: Any, values: Any) -> None:
        """Values per channel into an array of the caller's shape and dtype."""
        statistic = np.moveaxis(values, 0, -1) if self._moved() else values
        put(target, statistic.reshape(target.shape).astype(target.dtype))

    def new(self, values: Any, dtype: Any) -> Array:
        """Values per channel as a new array beside x, shaped like gamma."""
        statistic = empty_beside(self.x, self.arrays["gamma"].shape, dtype)
        self.store(known("statistic", statistic), values)
        return statistic

    def check_outputs(self, *names: str) -> None:
        """Raise ValueError unless arrays can be written in place."""
        for name in names:
            if not self.arrays[name].flags.writeable:
                raise ValueError(f"{name} is read-only; pass a writable array")
