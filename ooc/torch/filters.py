"""Convolutions, linear layers and normalisations, with a batch normalisation and an activation behind them taken in."""

from __future__ import annotations

from typing import Any

import torch

from ooc.networks import layers
from ooc.torch.elementwise import activation_of
from ooc.torch.translator import MovedStatistic, Own, TorchCall, Values, constant, operator
from ooc.translate.building import GraphTensor, Shape, spatial
from ooc.translate.parts import Pads, permuted

FROZEN_NORMS = ("batch_norm", "_native_batch_norm_legit_no_training")
NORMS = (*FROZEN_NORMS, "native_batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit")

# ---- convolutions


@operator("conv1d", "conv2d", "conv3d")
def conv(context: TorchCall) -> GraphTensor:
    x, w = context.tensor("input"), context.parameter("weight")
    if w is None:
        raise context.refuse("no filters")
    rank = len(w.shape) - 2
    if len(spatial(context, x)) != rank:
        raise context.refuse(f"a filter of shape {w.shape} on a tensor of shape {x.shape}", "put a batch in front")
    stride, dilation = context.per_axis("stride", rank), context.per_axis("dilation", rank)
    how = context.argument("padding")
    if isinstance(how, str):
        pads = _named_pads(how, w.shape[2:], dilation)
    else:
        pads = tuple((p, p) for p in context.per_axis("padding", rank))
    return _conv(context, x, w, stride, pads, dilation, context.argument("groups"))


@operator("convolution")
def convolution(context: TorchCall) -> GraphTensor:
    """As decomposed programs have it, transposed or not."""
    y: GraphTensor = conv_transpose(context) if context.argument("transposed") else conv(context)
    return y


def _named_pads(how: str, taps: Shape, dilation: Shape) -> Pads:
    """PyTorch's "same" leaves the odd one behind."""
    if how == "valid":
        return ((0, 0),) * len(taps)
    total = [d * (t - 1) for t, d in zip(taps, dilation, strict=True)]
    return tuple((e // 2, e - e // 2) for e in total)


def _conv(context: TorchCall, x: GraphTensor, w: Own, stride: Shape, pads: Pads, dilation: Shape, groups: int) -> GraphTensor:
    b = context.parameter("bias")
    w, b = folded(context, w, b, 0) if context.translator.fold else (w, b)
    act, coef = activation_of(context)
    k, taps = w.shape[0], w.shape[2:]
    return context.layer(x, layers.ConvLayer(k, taps, stride, pads, dilation, groups, b is not None, act, coef), {"w": w, "b": b})


@operator("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(context: TorchCall) -> GraphTensor:
    x, w, b = context.tensor("input"), context.parameter("weight"), context.parameter("bias")
    if w is None or len(w.shape) != len(x.shape):
        raise context.refuse(f"a tensor of shape {x.shape}", "put a batch in front")
    rank, groups = len(spatial(context, x)), context.argument("groups")
    stride, padding, more, dilation = (
        context.per_axis(name, rank) for name in ("stride", "padding", "output_padding", "dilation")
    )
    if groups == 1 and context.translator.fold:
        w, b = folded(context, w, b, 1)
    act, coef = activation_of(context)
    pads = tuple((p, p) for p in padding)
    k, taps = w.shape[1] * groups, w.shape[2:]
    layer = layers.ConvTranspose(k, taps, stride, pads, more, dilation, groups, b is not None, act, coef)
    return context.layer(x, layer, {"w": w, "b": b})


def folded(context: TorchCall, w: Own, b: Own | None, axis: int) -> tuple[Own, Own | None]:
    """Filters and bias with the batch normalisation behind them, whose channels are an axis of the filters."""
    behind = context.takes_in(*FROZEN_NORMS)
    if behind is None or behind.argument("training", False):
        return w, b
    names = ("weight", "bias", "running_mean", "running_var")
    scale, shift, mean, var = (behind.parameter(name) for name in names)
    if mean is None or var is None:
        return w, b
    eps = behind.argument("eps")
    context.take_in(behind)
    shape = [1] * len(w.shape)
    shape[axis] = -1

    def factor(values: Values) -> torch.Tensor:
        unit = torch.rsqrt(var.value(values).double() + eps)
        return unit if scale is None else scale.value(values).double() * unit

    def filters(values: Values) -> torch.Tensor:
        weight = w.value(values)
        return (weight.double() * factor(values).reshape(shape)).to(weight.dtype)

    def bias(values: Values) -> torch.Tensor:
        before = mean.value(values).double() if b is None else mean.value(values).double() - b.value(values)
        offset = -before * factor(values)
        return offset if shift is None else offset + shift.value(values)

    return Own(filters, w.shape), Own(bias, mean.shape)


# ---- linear layers


@operator("linear")
def linear(context: TorchCall) -> GraphTensor:
    return _linear(context, context.tensor("input"), context.parameter("weight"), context.parameter("bias"))


@operator("addmm")
def addmm(context: TorchCall) -> GraphTensor:
    """As decomposed programs have a linear layer: the weight is transposed."""
    x, w, b = context.tensor("mat1"), context.parameter("mat2"), context.parameter("self")
    if w is None or context.argument("beta") != 1 or context.argument("alpha") != 1 or b is None or len(b.shape) != 1:
        raise context.refuse("a sum of products that is no linear layer")
    return _linear(context, x, Own(lambda values: w.value(values).mT, w.shape[::-1]), b)


@operator("mm")
def mm(context: TorchCall) -> GraphTensor:
    x, w = context.tensor(), context.parameter("mat2")
    if w is None:
        raise context.refuse("a product of two tensors of the network")
    return _linear(context, x, Own(lambda values: w.value(values).mT, w.shape[::-1]), None)


def _linear(context: TorchCall, x: GraphTensor, w: Own | None, b: Own | None) -> GraphTensor:
    """Of vectors; of the last of several axes, as a pointwise convolution."""
    if w is None:
        raise context.refuse("no weight")
    act, coef = activation_of(context)
    if len(x.shape) == 2:
        return context.layer(x, layers.Linear(w.shape[0], b is not None, act, coef), {"w": w, "b": b})
    rank = len(x.shape) - 2
    front = permuted(context, x, (rank, *range(rank)))
    ones, none = (1,) * rank, ((0, 0),) * rank
    filters = Own(lambda values: w.value(values).reshape(*w.shape, *ones), (*w.shape, *ones))
    layer = layers.ConvLayer(w.shape[0], ones, ones, none, ones, 1, b is not None, act, coef)
    y = context.layer(front, layer, {"w": filters, "b": b}, last=False)
    return permuted(context, y, (*range(1, rank + 1), 0))


# ---- normalisations


def _affine(context: TorchCall, k: int) -> dict[str, Own]:
    """Scale and bias of a normalisation, ones and zeros where it has none."""
    scale, b = context.parameter("weight"), context.parameter("bias")
    return {"scale": scale or constant(1, (k,)), "b": b or constant(0, (k,))}


@operator(*NORMS)
def batch_norm(context: TorchCall) -> Any:
    """The result, and behind it the running statistics as they are afterwards."""
    x, mean, var = context.tensor("input"), context.parameter("running_mean"), context.parameter("running_var")
    if mean is None or var is None:
        raise context.refuse("a batch normalisation without running statistics")
    training = bool(context.argument("training", False))
    context.translator.trains |= training
    frozen = context.translator.follows and not training
    several = context.shape == ()  # results: the statistics are among them
    act, coef = ("identity", 0.0) if several and training else activation_of(context)
    layer = layers.BatchNormLayer(context.argument("eps"), context.argument("momentum"), act, coef, frozen)
    y = context.layer(x, layer, {**_affine(context, x.shape[1]), "mean": mean, "var": var})
    if not several:
        return y
    return [y, None, None, MovedStatistic(f"{y.name}.mean"), MovedStatistic(f"{y.name}.var")]


@operator("instance_norm")
def instance_norm(context: TorchCall) -> GraphTensor:
    x = context.tensor("input")
    spatial(context, x)
    if not context.argument("use_input_stats"):
        raise context.refuse("an instance normalisation by running statistics")
    act, coef = activation_of(context)
    return context.layer(x, layers.GroupNorm(0, context.argument("eps"), act, coef), _affine(context, x.shape[1]))


@operator("group_norm")
def group_norm(context: TorchCall) -> GraphTensor:
    x = context.tensor("input")
    spatial(context, x)
    act, coef = activation_of(context)
    layer = layers.GroupNorm(context.argument("num_groups"), context.argument("eps"), act, coef)
    return context.layer(x, layer, _affine(context, x.shape[1]))
