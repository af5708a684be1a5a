"""From a graph to a module of PyTorch: a function for each kind of layer."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from ooc.networks.layer_graph import LayerGraph
from ooc.ops.convert import RANGES
from ooc.torch import export_pooling, export_products, tables  # noqa: F401  the first two register what they export
from ooc.torch.assembly import EXPORTS, Assembly, TorchLayer, exporter, padded
from ooc.torch.elementwise import ALIKE
from ooc.translate.leaving import arithmetic, leaving, spreading, wide
from ooc.translate.parts import Pads


def export(graph: LayerGraph, parameters: Mapping[str, Any] | None) -> GraphModule:
    """See `ooc.Graph.to_torch`."""
    assembly = Assembly(graph, leaving(graph, parameters))
    for node in assembly.leaving.nodes:
        context = TorchLayer(assembly, node)
        write = EXPORTS.get(node.layer.kind)
        if write is None:
            raise context.refuse("PyTorch has no such layer")
        assembly.values[node.name] = write(context)
    return assembly.module()


# ---- activations and functions

ACTIVATIONS: dict[str, Callable[[TorchLayer, Node, float], Node]] = {
    "identity": lambda context, x, coef: x,
    "relu": lambda context, x, coef: context.call(torch.relu, x),
    "sigmoid": lambda context, x, coef: context.call(torch.sigmoid, x),
    "tanh": lambda context, x, coef: context.call(torch.tanh, x),
    "clipped_relu": lambda context, x, coef: context.call(F.hardtanh, x, 0.0, coef),
    "elu": lambda context, x, coef: context.call(F.elu, x, coef),
    "leaky_relu": lambda context, x, coef: context.call(F.leaky_relu, x, coef),
}


def activated(context: TorchLayer, x: Node) -> Node:
    """What the activation of a layer makes."""
    return ACTIVATIONS[context.layer.act](context, x, context.layer.coef)


@exporter("activation")
def activation(context: TorchLayer) -> Node:
    return activated(context, context.x)


def _hard_sigmoid(context: TorchLayer, x: Node, a: float, b: float) -> Node:
    if (a, b) == (1 / 6, 0.5):
        return context.call(F.hardsigmoid, x)
    return context.call(F.hardtanh, context.call(operator.add, context.call(operator.mul, x, a), b), 0.0, 1.0)


def _plain(function: Callable[..., Any]) -> Callable[[TorchLayer, Node, float, float], Node]:
    """A function that PyTorch has by this name."""
    return lambda context, x, a, b: context.call(function, x)


FUNCTIONS: dict[str, Callable[[TorchLayer, Node, float, float], Node]] = {
    "clip": lambda context, x, a, b: context.call(F.hardtanh, x, a, b),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda context, x, a, b: context.call(F.hardswish, x),
    "silu": lambda context, x, a, b: context.call(F.silu, x),
    "gelu": lambda context, x, a, b: context.call(F.gelu, x),
    "gelu_tanh": lambda context, x, a, b: context.call(F.gelu, x, approximate="tanh"),
    "softplus": lambda context, x, a, b: context.call(F.softplus, x),
    "above": lambda context, x, a, b: context.to(context.call(torch.gt, x, a), context.dtype),
    "pow": lambda context, x, a, b: context.call(torch.pow, x, a),
    "soft_shrink": lambda context, x, a, b: context.call(F.softshrink, x, a),
    "hard_shrink": lambda context, x, a, b: context.call(F.hardshrink, x, a),
    "softsign": lambda context, x, a, b: context.call(F.softsign, x),
    "celu": lambda context, x, a, b: context.call(F.celu, x, a),
    "zero": lambda context, x, a, b: context.call(torch.zeros_like, x),
    **{name: _plain(getattr(torch, name)) for name in ALIKE if name != "silu"},
}


@exporter("function")
def function(context: TorchLayer) -> Node:
    write = FUNCTIONS.get(context.layer.how)
    if write is None:
        raise context.refuse(f"PyTorch has no function {context.layer.how}")
    return write(context, context.x, context.layer.a, context.layer.b)


@exporter("softmax")
def softmax(context: TorchLayer) -> Node:
    return context.call(F.softmax if context.layer.how == "plain" else F.log_softmax, context.x, dim=1)


@exporter("dropout")
def dropout(context: TorchLayer) -> Node:
    return context.run(nn.Dropout(context.layer.rate), context.x)


# ---- sums and products


def _sum(context: TorchLayer, x: Node, z: Node, by: float) -> Node:
    """x + by * z."""
    return context.call(torch.add, x, z) if by == 1 else context.call(torch.add, x, z, alpha=by)


@exporter("add")
def add(context: TorchLayer) -> Node:
    return activated(context, _sum(context, context.beside(0), context.beside(1), context.layer.beta))


@exporter("multiply")
def multiply(context: TorchLayer) -> Node:
    return activated(context, context.call(torch.mul, context.beside(0), context.beside(1)))


PAIRS: Mapping[str, Callable[..., Any]] = {
    "divide": torch.div, "power": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum,
}  # fmt: skip
COMPARISONS: Mapping[str, Callable[..., Any]] = {"greater": torch.gt, "not_less": torch.ge, "equal": torch.eq}


@exporter("binary")
def binary(context: TorchLayer) -> Node:
    how, x, z = context.layer.how, context.beside(0), context.beside(1)
    if how in PAIRS:
        return context.call(PAIRS[how], x, z)
    if how in COMPARISONS:
        return context.to(context.call(COMPARISONS[how], x, z), context.dtype)
    parts = (x, 0.0) if how == "where" else (0.0, x)
    return context.call(torch.where, context.call(torch.ne, z, 0), *parts)


@exporter("expand")
def expand(context: TorchLayer) -> Node:
    return context.expanded(context.beside(0), -1, *context.layer.size)


@exporter("parameter")
def parameter(context: TorchLayer) -> Node:
    """As many times as there are samples in the first input."""
    holder = nn.Module()
    holder.value = context.parameter("value", context.weight("value").reshape(1, *wide(context.layer.values, context.rank)))
    (value,) = context.hold(holder, "value")
    inputs = context.assembly.leaving.inputs
    if not inputs:
        raise context.refuse("no input says how many samples there are")
    return context.expanded(value, context.samples(context.assembly.values[inputs[0]]), *context.layer.size)


@exporter("affine")
def affine(context: TorchLayer) -> Node:
    holder = nn.Module()
    holder.value = context.parameter("value", context.weight("value").reshape(wide(context.layer.values, context.rank)))
    (value,), x = context.hold(holder, "value"), context.beside(0)
    y = context.call(torch.mul, x, value) if context.layer.how == "scale" else _sum(context, value, x, context.layer.alpha)
    return activated(context, y)


# ---- convolutions and normalisations

CONV: Sequence[Any] = (None, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # by spatial axes
TRANSPOSED: Sequence[Any] = (None, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORM: Sequence[Any] = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORM: Sequence[Any] = (None, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def _symmetric(pads: Pads) -> tuple[int, ...] | None:
    """Padding that is the same on both sides; None where it is not."""
    return tuple(a for a, _ in pads) if all(a == b for a, b in pads) else None


@exporter("conv")
def conv(context: TorchLayer) -> Node:
    layer, c = context.layer, context.shape()[0]
    padding, x = _symmetric(layer.pad), context.x
    if padding is None:
        padding, x = (0,) * len(layer.taps), padded(context, x, layer.pad)
    module = CONV[len(layer.taps)](
        c, layer.k, layer.taps, layer.stride, padding, layer.dilation, layer.groups, layer.bias, device="meta"
    )
    return activated(context, context.run(context.filled(module, weight="w", bias="b"), x))


@exporter("conv_transpose")
def conv_transpose(context: TorchLayer) -> Node:
    """Padding of both sides is the lesser one; what is more is cut off, or left out of the output padding."""
    layer, c = context.layer, context.shape()[0]
    padding = tuple(map(min, layer.pad))
    more = [o - (b - p) for (_, b), p, o in zip(layer.pad, padding, layer.output_padding, strict=True)]
    module = TRANSPOSED[len(layer.taps)](
        c, layer.k, layer.taps, layer.stride, padding, tuple(max(0, m) for m in more), layer.groups, layer.bias, layer.dilation,
        device="meta",
    )  # fmt: skip
    y = activated(context, context.run(context.filled(module, weight="w", bias="b"), context.x))
    return padded(context, y, [(p - a, min(0, m)) for (a, _), p, m in zip(layer.pad, padding, more, strict=True)])


@exporter("linear")
def linear(context: TorchLayer) -> Node:
    layer = context.layer
    module = nn.Linear(context.shape()[0], layer.k, layer.bias, device="meta")
    return activated(context, context.run(context.filled(module, weight="w", bias="b"), context.x))


@exporter("batch_norm")
def batch_norm(context: TorchLayer) -> Node:
    """One that is frozen goes by its running statistics in training, too."""
    layer, names = context.layer, {"weight": "scale", "bias": "b", "running_mean": "mean", "running_var": "var"}
    module = BATCH_NORM[context.rank - 1](context.shape()[0], layer.eps, layer.momentum)
    context.filled(module, wide_type=True, **names)
    if not layer.frozen:
        return activated(context, context.run(module, context.x))
    weight, bias, mean, var = context.hold(module, *names)
    return activated(context, context.call(F.batch_norm, context.x, mean, var, weight, bias, False, 0.0, layer.eps))


@exporter("group_norm")
def group_norm(context: TorchLayer) -> Node:
    layer, k = context.layer, context.shape()[0]
    if layer.groups:
        module: nn.Module = nn.GroupNorm(layer.groups, k, layer.eps, affine=layer.affine)
    else:
        module = INSTANCE_NORM[context.rank - 1](k, layer.eps, affine=layer.affine)
    return activated(context, context.run(context.filled(module, weight="scale", bias="b"), context.x))


@exporter("lrn")
def lrn(context: TorchLayer) -> Node:
    """Of an even number of neighbours PyTorch has the odd one before, ooc behind."""
    layer, x = context.layer, context.x
    turned = layer.size % 2 == 0
    y = context.call(
        F.local_response_norm, context.call(torch.flip, x, [1]) if turned else x, layer.size, layer.alpha, layer.beta, layer.base
    )
    return context.call(torch.flip, y, [1]) if turned else y


# ---- values that move


@exporter("concat")
def concat(context: TorchLayer) -> Node:
    return context.call(torch.cat, [context.beside(i) for i in range(len(context.node.reads))], dim=1)


@exporter("flatten")
def flatten(context: TorchLayer) -> Node:
    return context.call(torch.flatten, context.x, 1)


@exporter("reshape")
def reshape(context: TorchLayer) -> Node:
    return context.reshaped(context.x, context.layer.size)


def _permuted(context: TorchLayer, x: Node, order: Sequence[int]) -> Node:
    return context.call(torch.permute, x, [0, *(axis + 1 for axis in order)])


@exporter("stop")
def stop(context: TorchLayer) -> Node:
    if context.layer.how != "zero":
        raise context.refuse("its gradient is not known")
    return context.call(torch.detach, context.x)


@exporter("permute")
def permute(context: TorchLayer) -> Node:
    return _permuted(context, context.x, context.layer.order)


@exporter("depth_to_space")
def depth_to_space(context: TorchLayer) -> Node:
    """PyTorch has one order of two spatial axes; others are moved by hand."""
    layer, x = context.layer, context.x
    if len(context.extent) == 2 and layer.how == "crd":
        return context.call(F.pixel_shuffle, x, layer.block)
    for view, order in spreading(context.node.shape[0], context.extent, layer.block, layer.how):
        x = _permuted(context, context.reshaped(x, view), order)
    return context.reshaped(x, context.node.shape)


@exporter("pad")
def pad(context: TorchLayer) -> Node:
    return padded(context, context.x, context.layer.around)


@exporter("laid")
def laid(context: TorchLayer) -> Node:
    sizes = zip(context.layer.lead, context.shape(), context.node.shape, strict=True)
    return padded(context, context.x, [(lead, s - e - lead) for lead, e, s in sizes], context.layer.value)


exporter("upsample")(tables.upsample)
exporter("resize")(tables.resize)


# ---- integers


@exporter("convert")
def convert(context: TorchLayer) -> Node:
    layer, wide_type = context.layer, arithmetic(context.dtype, context.layer.dtype)
    y = context.to(context.x, wide_type)
    if layer.scale != 1:
        y = context.call(torch.mul, y, layer.scale)
    if layer.offset:
        y = context.call(torch.add, y, layer.offset)
    return y if wide_type == layer.dtype else context.to(y, layer.dtype)


@exporter("round")
def round_(context: TorchLayer) -> Node:
    """The nearest, halves to even, within the range, 0 for NaN."""
    to, x, wide_type = context.layer.store, context.x, arithmetic(context.layer.store, context.dtype)
    if wide_type != context.dtype:
        x = context.to(x, wide_type)
    whole = context.call(torch.nan_to_num, context.call(torch.round, x), 0.0, math.inf, -math.inf)
    return context.to(context.call(torch.clamp, whole, *RANGES[to]), to)


@exporter("argmax")
def argmax(context: TorchLayer) -> Node:
    return context.to(context.call(torch.argmax, context.x, dim=1, keepdim=True), context.layer.store)
