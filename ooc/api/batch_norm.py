"""Batch normalisation: its statistics, its gradients, and its folding into a convolution."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import numpy as np

from ooc.api.arguments import Array, as_array, as_float, channels_first, check_layout, computed, on_host, put
from ooc.api.dispatch import Output, compute, spatial_result
from ooc.api.foreign import written
from ooc.api.layers import Activation, act_of
from ooc.api.options import ArrayLike, BlendOptions, documented
from ooc.errors import ArgumentError, ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ops import BnApply, BnMoments, BnPull, BnSums
from ooc.runtime.call_options import flag


@documented
class BatchNorm(NamedTuple):
    """The result of `ooc.batch_norm` in training, with what the backward call needs.

    Fields:
        y: the normalised array, of the shape and dtype of x.
        mean: mean of the batch, k values (per_activation: k x spatial), a NumPy array of float64.
        var: biased variance of the batch, like mean.
    """

    y: Array
    mean: Array
    var: Array


@documented
class BatchNormGradients(NamedTuple):
    """The gradients that `ooc.batch_norm_backward` returns.

    Fields:
        dx: gradient of x, of its shape and dtype.
        dscale: gradient of the scale, k values (per_activation: k x spatial), a NumPy array of float64.
        db: gradient of the bias, like dscale.
    """

    dx: Array
    dscale: Array
    db: Array


@documented
def batch_norm(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    b: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    var: ArrayLike | None = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    per_activation: bool = False,
    activation: str | Activation | None = None,
    layout: str = "channels_first",
    out: ArrayLike | None = None,
    **options: Unpack[BlendOptions],
) -> Any:
    """y = activation((x - mean) / sqrt(var + eps) * scale + b), with statistics given (inference) or of the batch (training).

    Training takes the statistics of the whole batch, exact although it is streamed. It moves mean and var, if given, in
    place: (1 - momentum) * old + momentum * batch, with the unbiased variance, as cuDNN and PyTorch do.

    <arrays>

    Parameters:
        x: n x k x spatial.
        scale, b: k values (per_activation: k x spatial in either layout), of any of these dtypes; default None: ones and zeros.
            They are those of the normalisation, after it; an x of integers is read as it is.
        mean, var: like scale. Inference needs both, and reads them; training moves those given, which must be writable arrays;
            default None.
        training: False (default) or True.
        momentum: how far training moves mean and var, a number; default 0.1.
        eps: what is added to the variance, a number not negative; default 1e-5.
        per_activation: True takes statistics per channel and position, False (default) per channel.
        <activation, layout>
        out: an array of the shape and dtype of x to write to, in inference x itself for example; default None: a new one.
        alpha, beta: numbers, default 1.0 and 0.0: y is alpha * (what is said above) + beta * (what out holds before); a beta
            other than 0 needs out. mean and var are not scaled.
        <run>

    Returns:
        y: like x, <beside x>
        In training `ooc.BatchNorm` (y, mean, var), the last two the batch's mean and biased variance: NumPy arrays of float64.

    Raises:
        <errors, before>

    Source: cudnnBatchNormalizationForwardInference, cudnnBatchNormalizationForwardTraining; the statistics are merged as in
    Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    call = _BatchNormSizes(x, per_activation, eps, layout)
    weights = {"scale": call.statistic("scale", scale, 1.0), "b": call.statistic("b", b, 0.0)}
    act, coef = act_of(activation)
    apply = call.op(BnApply, act=act, coef=coef, eps=call.eps)
    if not flag("training", training):
        if mean is None or var is None:
            raise ArgumentError("batch_norm: inference needs mean= and var=; pass training=True to take those of the batch")
        inputs = {"x": call.x, **weights, "mean": call.statistic("mean", mean), "var": call.statistic("var", var)}
        return compute(apply, inputs, [spatial_result(apply.outputs[0], layout, out)], **options)[0]
    step, unbiased = as_float("momentum", momentum), apply.count / max(1, apply.count - 1)
    for name, running in (("mean", mean), ("var", var)):
        if running is not None:
            call.check_running(name, running)
    nodes = (Node(call.op(BnMoments), ("x",), ("mean", "var")),
             Node(apply, tuple(o.name for o in apply.inputs), ("y",)))  # fmt: skip
    both = Fused(nodes, ("mean", "var", "y"))
    statistics = [np.empty(call.shape), np.empty(call.shape)]
    results = [Output(n, call.shape, call.see, a, blends=False) for n, a in zip(("mean", "var"), statistics, strict=True)]
    results.append(spatial_result(apply.outputs[0], layout, out))
    *_, y = compute(both, {"x": call.x, **weights}, results, **options)
    for running, batch in ((mean, statistics[0]), (var, statistics[1] * unbiased)):
        if running is not None:
            array = as_array("running", running)
            put(array, (1 - step) * on_host(array) + step * batch)
    return BatchNorm(y, *statistics)


@documented
def batch_norm_backward(
    x: ArrayLike,
    dy: ArrayLike,
    scale: ArrayLike | None,
    mean: ArrayLike,
    var: ArrayLike,
    *,
    eps: float = 1e-5,
    per_activation: bool = False,
    layout: str = "channels_first",
    dx: ArrayLike | None = None,
    **options: Unpack[BlendOptions],
) -> BatchNormGradients:
    """Gradients of y = (x - mean) / sqrt(var + eps) * scale + b, a training batch norm without activation.

    With h = (x - mean) / sqrt(var + eps) and m values behind each statistic: db = sum of dy, dscale = sum of dy * h,
    dx = scale / sqrt(var + eps) * (dy - db/m - h * dscale/m).

    <arrays>

    Parameters:
        x: n x k x spatial, the forward call's.
        dy: like x, the gradient of its y.
        scale: k values (per_activation: k x spatial in either layout), of any of these dtypes; None: ones.
        mean, var: like scale, the batch's mean and biased variance as the forward call returned them.
        eps: as in the forward call; default 1e-5.
        per_activation: as in the forward call; default False.
        <layout>
        dx: an array of the shape and dtype of x to write to; default None: a new one.
        alpha, beta: numbers, default 1.0 and 0.0: the returned dx is alpha * dx + beta * (what the array dx holds before); a beta
            other than 0 needs dx. dscale and db are not scaled.
        <run>

    Returns:
        `ooc.BatchNormGradients` (dx, dscale, db): dx like x, the array given or a new one (of NumPy, or where x lies in a
            device's memory one there, of PyTorch if x is, else of CuPy); dscale and db like mean, NumPy arrays of float64.

    Raises:
        <errors, before>

    Source: cudnnBatchNormalizationBackward.
    """
    dy = as_array("dy", dy)
    call = _BatchNormSizes(x, per_activation, eps, layout, dy.dtype)
    sums, pull = call.op(BnSums, eps=call.eps), call.op(BnPull, eps=call.eps)
    nodes = (Node(sums, tuple(o.name for o in sums.inputs), ("dscale", "db")),
             Node(pull, tuple(o.name for o in pull.inputs), ("dx",)))  # fmt: skip
    both = Fused(nodes, ("dscale", "db", "dx"))
    inputs = {
        "x": call.x, "dy": channels_first(dy, layout, "dy"), "mean": call.statistic("mean", mean),
        "var": call.statistic("var", var), "scale": call.statistic("scale", scale, 1.0),
    }  # fmt: skip
    totals = [np.empty(call.shape), np.empty(call.shape)]
    results = [Output(n, call.shape, call.see, a, blends=False) for n, a in zip(("dscale", "db"), totals, strict=True)]
    *_, gradient = compute(both, inputs, [*results, spatial_result(pull.outputs[0], layout, dx, "dx")], **options)
    return BatchNormGradients(gradient, *totals)


@documented
def fold_batch_norm(
    w: Array, b: Array | None, scale: Array | None, bias: Array | None, mean: Array, var: Array, *, eps: float = 1e-5
) -> tuple[Array, Array]:
    """Filters and bias of the convolution that equals conv(x, w, b) followed by an inference batch norm:
    `ooc.conv(x, *ooc.fold_batch_norm(w, b, scale, bias, mean, var), activation="relu")` then does both in one pass.

    w' = w * f and b' = (b - mean) * f + bias with f = scale / sqrt(var + eps), per filter; computed whole, in memory.

    Parameters:
        w: k x ..., in either layout: float64, float32, float16 or bfloat16.
        b: k values, the convolution's bias; None: zeros.
        scale, bias: k values, those of the batch norm; None: ones and zeros.
        mean, var: k values, its statistics.
        eps: what is added to the variance, a number not negative; default 1e-5.

    Returns:
        (w, b): new NumPy arrays of the dtype of w, of the shapes of w and k.

    Raises:
        ShapeError: something that has not k values, or a negative eps.
        DtypeError: a dtype that is not listed, a masked array.
        UnsupportedError: an array lies in memory that the device does not reach.

    Source: not in cuDNN; the formula above.
    """
    w = on_host(as_array("w", w, integers=False))
    if w.ndim < 2 or not w.size:
        raise ShapeError(f"fold_batch_norm: w: expected filters, k x ..., got shape {w.shape}")
    k = w.shape[0]
    arrays = {"b": b, "scale": scale, "bias": bias, "mean": mean, "var": var}
    usual = {"b": 0.0, "scale": 1.0, "bias": 0.0}
    values: dict[str, Any] = {}
    for name, array in arrays.items():
        vector = np.full(k, usual[name]) if array is None and name in usual else on_host(as_array(name, array))
        if vector.shape != (k,):
            raise ShapeError(f"fold_batch_norm: {name} must have shape ({k},) like w has filters, got {vector.shape}")
        values[name] = vector.astype(np.float64)
    if not as_float("eps", eps) >= 0:
        raise ArgumentError(f"fold_batch_norm: eps must not be negative, got {eps}")
    factor = values["scale"] / np.sqrt(values["var"] + eps)
    folded = (w * factor.reshape(-1, *(1,) * (w.ndim - 1))).astype(w.dtype)
    return folded, ((values["b"] - values["mean"]) * factor + values["bias"]).astype(w.dtype)


class _BatchNormSizes:
    """What the calls of a batch norm have in common: the sizes, and statistics as operands. others: dtypes of the arrays
    beside x."""

    def __init__(self, x: Array, per_activation: bool, eps: float, layout: str, *others: Any) -> None:
        check_layout(layout)
        self.x = channels_first(as_array("x", x), layout, "x")
        n, k, *extent = self.x.shape
        self.eps = as_float("eps", eps)
        if not self.eps >= 0:
            raise ArgumentError(f"batch_norm: eps must not be negative, got {eps}")
        per = "activation" if flag("per_activation", per_activation) else "channel"
        self.sizes: dict[str, Any] = {
            "n": n, "k": k, "extent": tuple(extent), "per": per, "dtype": computed(self.x.dtype, *others), "layout": layout,
        }  # fmt: skip
        self.shape = (k, *extent) if per_activation else (k,)
        self.rank = len(extent)

    def op(self, kind: Any, **more: Any) -> Any:
        return kind(**self.sizes, **more)

    def see(self, statistic: Array) -> Array:
        """A statistic as an operand: with an axis for n, and positions."""
        return statistic[None, ...] if statistic.ndim > 1 else statistic[(None, slice(None), *(None,) * self.rank)]

    def statistic(self, name: str, values: Array | None, usual: float | None = None) -> Array:
        if values is None and usual is not None:
            return self.see(np.full(self.shape, usual))
        array = as_array(name, values)
        self._check(name, array)
        return self.see(array if array.dtype == np.float64 else on_host(array).astype(np.float64))

    def check_running(self, name: str, running: Array) -> None:
        """Raise unless a running statistic can be moved in place."""
        if isinstance(running, (list, tuple, int, float)) or not written(name, running).flags.writeable:
            raise ArgumentError(f"batch_norm: {name} must be a writable array, to be moved in place")
        self._check(name, as_array(name, running, integers=False))

    def _check(self, name: str, array: Array) -> None:
        if tuple(array.shape) != self.shape:
            raise ShapeError(f"batch_norm: {name} must have shape {self.shape}, got {tuple(array.shape)}")
