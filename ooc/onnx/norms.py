"""Normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.onnx.translator import OnnxNode, operator
from ooc.translate.building import GraphTensor, spatial


def factors(context: OnnxNode) -> tuple[Any, Any]:
    """What a batch normalisation multiplies each channel by, and adds, in f64."""
    scale, b, mean, var = (context.constant(i, "statistics").astype(np.float64) for i in range(1, 5))
    by = scale / np.sqrt(var + context.attribute("epsilon", 1e-5))
    return by, b - mean * by


@operator("BatchNormalization")
def batch_norm(context: OnnxNode) -> GraphTensor:
    if context.attribute("training_mode", 0):
        raise context.refuse("a batch normalisation in training", "export the network for inference")
    x, names = context.tensor(), ("scale", "b", "mean", "var")
    y = context.add(x, layers.BatchNormLayer(context.attribute("epsilon", 1e-5)))
    context.own(y, **{name: context.constant(i, name) for i, name in enumerate(names, 1)})
    return y


@operator("InstanceNormalization")
def instance_norm(context: OnnxNode) -> GraphTensor:
    x = context.tensor()
    spatial(context, x)
    y = context.add(x, layers.GroupNorm(0, context.attribute("epsilon", 1e-5)))
    context.own(y, scale=context.constant(1, "scale"), b=context.constant(2, "bias"))
    return y


@operator("GroupNormalization")
def group_norm(context: OnnxNode) -> GraphTensor:
    """Scale and bias are one per channel from opset 21 on, one per group before."""
    x, groups = context.tensor(), context.attribute("num_groups")
    spatial(context, x)
    y = context.add(x, layers.GroupNorm(groups, context.attribute("epsilon", 1e-5)))
    parameters = {name: context.constant(i, name) for i, name in ((1, "scale"), (2, "b"))}
    repeat = x.shape[1] // groups if parameters["scale"].size == groups else 1
    context.own(y, **{name: np.repeat(v, repeat) for name, v in parameters.items()})
    return y


@operator("LRN")
def lrn(context: OnnxNode) -> GraphTensor:
    size, usual = context.attribute("size"), {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    alpha, beta, base = (context.attribute(name, default) for name, default in usual.items())
    return context.add(context.tensor(), layers.LrnLayer(size, alpha, beta, base))
