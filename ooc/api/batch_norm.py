"""Batch normalisation. Arrays, layouts, options and errors are as in `ooc.api`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooc.api.arguments import Array, as_array, as_float, channels_first, check_layout, on_host, put
from ooc.api.dispatch import Result, compute, spatial_result
from ooc.api.layers import Activation, act_of
from ooc.errors import ShapeError
from ooc.ir.bounds import Node
from ooc.ir.fused import Fused
from ooc.ir.op import dtype_name
from ooc.ops import BnApply, BnMoments, BnPull, BnSums


class BatchNorm(NamedTuple):
    """The result of a training batch norm, and the batch's mean and (biased) variance, f64, for the backward call."""

    y: Array
    mean: Array
    var: Array


class BatchNormGradients(NamedTuple):
    """Gradients of a batch norm's input, scale and bias (the last two f64)."""

    dx: Array
    dscale: Array
    db: Array


def batch_norm(
    x: Array,
    scale: Array | None = None,
    b: Array | None = None,
    mean: Array | None = None,
    var: Array | None = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    per_activation: bool = False,
    activation: str | Activation | None = None,
    layout: str = "channels_first",
    out: Array | None = None,
    **options: Any,
) -> Any:
    """activation((x - mean) / sqrt(var + eps) * scale + b); scale, b, mean and var have a value per channel (k), or per
    channel and position (k x spatial, per_activation).

    Inference (training False) uses the mean and var given and returns y. Training takes the statistics of the whole
    batch, exact although it is streamed, returns BatchNorm(y, mean, var), and moves the mean and var given, if any, in
    place: (1 - momentum) * old + momentum * batch, with the unbiased variance, as cuDNN and PyTorch do.
    """
    call = _Call(x, per_activation, eps, layout)
    weights = {"scale": call.statistic("scale", scale, 1.0), "b": call.statistic("b", b, 0.0)}
    act, coef = act_of(activation)
    apply = call.op(BnApply, act=act, coef=coef, eps=call.eps)
    if not training:
        if mean is None or var is None:
            raise ShapeError("batch_norm: inference needs mean= and var=; pass training=True to take those of the batch")
        inputs = {"x": call.x, **weights, "mean": call.statistic("mean", mean), "var": call.statistic("var", var)}
        return compute(apply, inputs, [spatial_result(apply.outputs[0], layout, out)], **options)[0]
    step, unbiased = as_float("momentum", momentum), apply.count / max(1, apply.count - 1)
    for name, running in (("mean", mean), ("var", var)):
        if running is not None:
            call.check_running(name, running)
    nodes = (Node(call.op(BnMoments), ("x",), ("mean", "var")),
             Node(apply, tuple(o.name for o in apply.inputs), ("y",)))  # fmt: skip
    both = Fused(nodes, ("mean", "var", "y"))
    made = [np.empty(call.shape), np.empty(call.shape)]
    results = [Result(n, call.shape, call.see, a, blends=False) for n, a in zip(("mean", "var"), made, strict=True)]
    results.append(spatial_result(apply.outputs[0], layout, out))
    *_, y = compute(both, {"x": call.x, **weights}, results, **options)
    for running, batch in ((mean, made[0]), (var, made[1] * unbiased)):
        if running is not None:
            seen = as_array("running", running)
            put(seen, (1 - step) * on_host(seen) + step * batch)
    return BatchNorm(y, *made)


def batch_norm_backward(
    x: Array,
    dy: Array,
    scale: Array | None,
    mean: Array,
    var: Array,
    *,
    eps: float = 1e-5,
    per_activation: bool = False,
    layout: str = "channels_first",
    dx: Array | None = None,
    **options: Any,
) -> BatchNormGradients:
    """Gradients of a training batch norm (without activation), from its x, the gradient dy of its result, and the batch's
    mean and var as the forward call returned them. Source: cudnnBatchNormalizationBackward."""
    call = _Call(x, per_activation, eps, layout)
    sums, pull = call.op(BnSums, eps=call.eps), call.op(BnPull, eps=call.eps)
    nodes = (Node(sums, tuple(o.name for o in sums.inputs), ("dscale", "db")),
             Node(pull, tuple(o.name for o in pull.inputs), ("dx",)))  # fmt: skip
    both = Fused(nodes, ("dscale", "db", "dx"))
    inputs = {
        "x": call.x, "dy": channels_first(as_array("dy", dy), layout), "mean": call.statistic("mean", mean),
        "var": call.statistic("var", var), "scale": call.statistic("scale", scale, 1.0),
    }  # fmt: skip
    made = [np.empty(call.shape), np.empty(call.shape)]
    results = [Result(n, call.shape, call.see, a, blends=False) for n, a in zip(("dscale", "db"), made, strict=True)]
    *_, gradient = compute(both, inputs, [*results, spatial_result(pull.outputs[0], layout, dx)], **options)
    return BatchNormGradients(gradient, *made)


def fold_batch_norm(
    w: Array, b: Array | None, scale: Array | None, bias: Array | None, mean: Array, var: Array, *, eps: float = 1e-5
) -> tuple[Array, Array]:
    """Filters and bias of the convolution that equals conv(x, w, b) followed by an inference batch norm:
    `ooc.conv(x, *ooc.fold_batch_norm(w, b, scale, bias, mean, var), activation="relu")` then does both in one pass.

    w: k x ..., in either layout; the others have k values. Returns (w, b) in the type of w. Raises ShapeError.
    """
    w = on_host(as_array("w", w))
    k = w.shape[0] if w.ndim else 0
    given = {"b": b, "scale": scale, "bias": bias, "mean": mean, "var": var}
    usual = {"b": 0.0, "scale": 1.0, "bias": 0.0}
    values: dict[str, Any] = {}
    for name, array in given.items():
        seen = np.full(k, usual[name]) if array is None and name in usual else on_host(as_array(name, array))
        if seen.shape != (k,):
            raise ShapeError(f"fold_batch_norm: {name} must have shape ({k},), got {seen.shape}")
        values[name] = seen.astype(np.float64)
    if not as_float("eps", eps) >= 0:
        raise ShapeError(f"fold_batch_norm: eps must not be negative, got {eps}")
    factor = values["scale"] / np.sqrt(values["var"] + eps)
    folded = (w * factor.reshape(-1, *(1,) * (w.ndim - 1))).astype(w.dtype)
    return folded, ((values["b"] - values["mean"]) * factor + values["bias"]).astype(w.dtype)


class _Call:
    """What the calls of a batch norm have in common: the sizes, and statistics as operands."""

    def __init__(self, x: Array, per_activation: bool, eps: float, layout: str) -> None:
        check_layout(layout)
        self.x = channels_first(as_array("x", x), layout)
        n, k, *extent = self.x.shape
        self.eps = as_float("eps", eps)
        if not self.eps >= 0:
            raise ShapeError(f"batch_norm: eps must not be negative, got {eps}")
        per = "activation" if per_activation else "channel"
        self.sizes: dict[str, Any] = {
            "n": n, "k": k, "extent": tuple(extent), "per": per, "dtype": dtype_name(self.x.dtype), "layout": layout,
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
        if isinstance(running, (list, tuple, int, float)) or not as_array(name, running).flags.writeable:
            raise ShapeError(f"batch_norm: {name} must be a writable array, to be moved in place")
        self._check(name, running)

    def _check(self, name: str, array: Array) -> None:
        if tuple(array.shape) != self.shape:
            raise ShapeError(f"batch_norm: {name} must have shape {self.shape}, got {tuple(array.shape)}")
