"""Normalisations."""

from __future__ import annotations

import numpy as np

from ooc.networks import layers
from ooc.onnx.translator import OnnxNode, operator
from ooc.translate import products
from ooc.translate.building import GraphTensor


@operator("BatchNormalization")
def batch_norm(context: OnnxNode) -> GraphTensor:
    if context.attribute("training_mode", 0):
        raise context.refuse("a batch normalisation in training", "export the network for inference")
    x, norm = context.tensor(), context.as_norm()
    if norm is not None and not context.site.view(x).in_front:
        return products.frozen_norm(context, x, norm)
    values = {name: context.weight(i, name) for i, name in enumerate(("scale", "b", "mean", "var"), 1)}
    return context.layer(x, layers.BatchNormLayer(context.attribute("epsilon", 1e-5)), values)


@operator("InstanceNormalization")
def instance_norm(context: OnnxNode) -> GraphTensor:
    eps, scale, bias = context.attribute("epsilon", 1e-5), context.weight(1, "scale"), context.weight(2, "bias")
    return products.group_norm(context, context.tensor(), 0, eps, scale, bias)


@operator("GroupNormalization")
def group_norm(context: OnnxNode) -> GraphTensor:
    """Scale and bias are one per channel from opset 21 on, one per group before."""
    x, groups = context.tensor(), context.attribute("num_groups")
    scale, bias = (context.weight(i, name) for i, name in ((1, "scale"), (2, "bias")))
    k = x.shape[1]
    if scale is not None and bias is not None and scale.shape == (groups,):
        scale, bias = (v.through(lambda values: np.repeat(values, k // groups), (k,)) for v in (scale, bias))
    return products.group_norm(context, x, groups, context.attribute("epsilon", 1e-5), scale, bias)


@operator("LRN")
def lrn(context: OnnxNode) -> GraphTensor:
    size, usual = context.attribute("size"), {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    alpha, beta, base = (context.attribute(name, default) for name, default in usual.items())
    return context.add(context.tensor(), layers.LrnLayer(size, alpha, beta, base))


@operator("RMSNormalization")
def rms_norm(context: OnnxNode) -> GraphTensor:
    x = context.tensor()
    count = len(x.shape) - context.attribute("axis", -1) % len(x.shape)
    return products.rms_norm(context, x, count, context.attribute("epsilon", 1e-5), context.weight(1, "scale"))


@operator("LayerNormalization")
def layer_norm(context: OnnxNode) -> GraphTensor:
    x = context.tensor()
    count = len(x.shape) - context.attribute("axis", -1) % len(x.shape)
    eps, scale, bias = context.attribute("epsilon", 1e-5), context.weight(1, "scale"), context.weight(2, "bias")
    return products.layer_norm(context, x, count, eps, scale, bias)
