"""Convolutions, linear layers and normalisations."""

from __future__ import annotations

from typing import Any

import torch

from ooc.networks import layers
from ooc.torch.translator import FROZEN_NORMS, MovedStatistic, TorchCall, operator
from ooc.translate import attention, products
from ooc.translate.building import GraphTensor, Shape, spatial
from ooc.translate.parts import Pads

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
    return products.conv(context, x, w, context.parameter("bias"), stride, pads, dilation, context.argument("groups"))


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


@operator("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(context: TorchCall) -> GraphTensor:
    x, w, b = context.tensor("input"), context.parameter("weight"), context.parameter("bias")
    if w is None or len(w.shape) != len(x.shape):
        raise context.refuse(f"a tensor of shape {x.shape}", "put a batch in front")
    rank, groups = len(spatial(context, x)), context.argument("groups")
    stride, padding, more, dilation = (
        context.per_axis(name, rank) for name in ("stride", "padding", "output_padding", "dilation")
    )
    pads = tuple((p, p) for p in padding)
    return products.conv_transpose(context, x, w, b, stride, pads, more, dilation, groups)


# ---- linear layers


@operator("linear")
def linear(context: TorchCall) -> GraphTensor:
    x, w = context.tensor("input"), context.parameter("weight")
    if w is None:
        raise context.refuse("no weight")
    return products.linear(context, x, w, context.parameter("bias"))


@operator("addmm")
def addmm(context: TorchCall) -> GraphTensor:
    """As decomposed programs have a linear layer: the weight is transposed."""
    x, w, b = context.tensor("mat1"), context.parameter("mat2"), context.parameter("self")
    if w is None or context.argument("beta") != 1 or context.argument("alpha") != 1 or b is None or len(b.shape) != 1:
        raise context.refuse("a sum of products that is no linear layer")
    return products.linear(context, x, attention.transposed(w), b)


# ---- normalisations


@operator(*NORMS)
def batch_norm(context: TorchCall) -> Any:
    """The result, and behind it the running statistics as they are afterwards."""
    x, mean, var = context.tensor("input"), context.parameter("running_mean"), context.parameter("running_var")
    if mean is None or var is None:
        raise context.refuse("a batch normalisation without running statistics")
    training = bool(context.argument("training", False))
    context.translator.trains |= training
    if not context.site.view(x).in_front and (norm := context.as_norm()) is not None:
        y = products.frozen_norm(context, x, norm)
        return y if context.shape else [y]
    frozen = context.translator.follows and not training
    several = context.shape == ()  # results: the statistics are among them
    act, coef = ("identity", 0.0) if several and training else context.activation()
    layer = layers.BatchNormLayer(context.argument("eps"), context.argument("momentum"), act, coef, frozen)
    parameters = products.affine_of(context, x.shape[1], context.parameter("weight"), context.parameter("bias"))
    y = context.layer(x, layer, {**parameters, "mean": mean, "var": var})
    if not several:
        return y
    return [y, None, None, MovedStatistic(f"{y.name}.mean"), MovedStatistic(f"{y.name}.var")]


@operator("instance_norm")
def instance_norm(context: TorchCall) -> GraphTensor:
    if not context.argument("use_input_stats"):
        norm = context.as_norm()
        if norm is None:
            raise context.refuse("no statistics, neither running ones nor of the input")
        return products.frozen_norm(context, context.tensor("input"), norm)
    if context.parameter("running_mean") is not None:
        raise context.refuse("an instance normalisation that moves running statistics")
    return _group_norm(context, 0)


@operator("group_norm")
def group_norm(context: TorchCall) -> GraphTensor:
    return _group_norm(context, context.argument("num_groups"))


def _group_norm(context: TorchCall, groups: int) -> GraphTensor:
    x, scale, b = context.tensor("input"), context.parameter("weight"), context.parameter("bias")
    return products.group_norm(context, x, groups, context.argument("eps"), scale, b)


@operator("rms_norm")
def rms_norm(context: TorchCall) -> GraphTensor:
    x, eps = context.tensor("input"), context.argument("eps")
    small = torch.finfo(context.node.meta["val"].dtype).eps if eps is None else float(eps)
    return products.rms_norm(context, x, len(context.argument("normalized_shape")), small, context.parameter("weight"))


@operator("layer_norm", "native_layer_norm")
def layer_norm(context: TorchCall) -> Any:
    x, scale, b = context.tensor("input"), context.parameter("weight"), context.parameter("bias")
    y = products.layer_norm(context, x, len(context.argument("normalized_shape")), context.argument("eps"), scale, b)
    return y if context.shape else [y, None, None]
