"""Activations, functions, sums and products with broadcasting, softmax, dropout."""

from __future__ import annotations

import math
from typing import Any

import torch

from ooc.networks import layers
from ooc.torch.translator import Own, TorchCall, constant, name_of, operator
from ooc.translate import parts
from ooc.translate.building import GraphTensor, Shape
from ooc.translate.parts import beside, product

ACTIVATIONS = ("relu", "leaky_relu", "elu", "sigmoid", "tanh", "hardtanh", "clamp", "clamp_min", "relu6")


def activation_of(context: TorchCall) -> tuple[str, float]:
    """The activation behind a call, which it takes in; identity where there is none."""
    return parts.activation_behind(context, ACTIVATIONS, simple)


def simple(context: TorchCall) -> tuple[str, float] | None:
    """A call as an activation of ooc's and its coefficient, if it is one."""
    name = name_of(context.node)
    if name in ("relu", "sigmoid", "tanh"):
        return name, 0.0
    if name == "leaky_relu":
        return name, float(context.argument("negative_slope"))
    if name == "elu":
        plain = context.argument("scale") == 1 and context.argument("input_scale") == 1
        return ("elu", float(context.argument("alpha"))) if plain else None
    low, high = limits(context)
    if low == 0 and high > 0:
        return ("relu", 0.0) if math.isinf(high) else ("clipped_relu", high)
    return None


def limits(context: TorchCall) -> tuple[float, float]:
    """Of clamp, hardtanh and relu6."""
    if "relu6" in name_of(context.node):
        return 0.0, 6.0
    names = ("min_val", "max_val") if "hardtanh" in name_of(context.node) else ("min", "max")
    bounds = []
    for name, default in zip(names, (-math.inf, math.inf), strict=True):
        limit = context.argument(name)
        if isinstance(limit, (GraphTensor, Own)):
            raise context.refuse("limits that are tensors")
        bounds.append(default if limit is None else float(limit))
    return bounds[0], bounds[1]


@operator(*ACTIVATIONS)
def activation(context: TorchCall) -> GraphTensor:
    x, act = context.tensor(), simple(context)
    return context.add(x, layers.FunctionLayer("clip", *limits(context)) if act is None else layers.Act(*act))


@operator("hardswish", "silu", "erf", "reciprocal")
def function(context: TorchCall) -> GraphTensor:
    name = name_of(context.node)
    return context.add(context.tensor(), layers.FunctionLayer({"hardswish": "hard_swish"}.get(name, name)))


@operator("hardsigmoid")
def hard_sigmoid(context: TorchCall) -> GraphTensor:
    return context.add(context.tensor(), layers.FunctionLayer("hard_sigmoid", 1 / 6, 0.5))


@operator("gelu")
def gelu(context: TorchCall) -> GraphTensor:
    how = "gelu_tanh" if context.argument("approximate") == "tanh" else "gelu"
    return context.add(context.tensor(), layers.FunctionLayer(how))


@operator("softplus")
def softplus(context: TorchCall) -> GraphTensor:
    if context.argument("beta") != 1 or context.argument("threshold") < 20:
        raise context.refuse("a beta other than 1, or a threshold below 20")
    return context.add(context.tensor(), layers.FunctionLayer("softplus"))


@operator("mish")
def mish(context: TorchCall) -> GraphTensor:
    return parts.mish(context, context.tensor())


@operator("selu")
def selu(context: TorchCall) -> GraphTensor:
    """Source: Klambauer et al., "Self-normalizing neural networks", NIPS 2017."""
    bent = context.add(context.tensor(), layers.Act("elu", 1.6732632423543772), last=False)
    return scaled(context, bent, constant(1.0507009873554805))


@operator("prelu", "_prelu_kernel")
def prelu(context: TorchCall) -> GraphTensor:
    """max(x, 0) + slope * min(x, 0)."""
    x, slope = context.tensor(), context.parameter("weight")
    if slope is None:
        raise context.refuse("no slope")
    k = math.prod(slope.shape)
    shape: Shape = (k, *(1,) * (len(x.shape) - 2))
    above = context.add(x, layers.Act("relu"), last=False)
    below = context.add(x, layers.FunctionLayer("clip", -math.inf, 0.0), last=False)
    values = reshaped(slope, shape)
    bent = context.layer(below, layers.Affine("scale", shape), {"value": values}, last=False)
    return context.add((above, bent), layers.Add())


# ---- sums and products


def scaled(context: TorchCall, x: GraphTensor, values: Own) -> GraphTensor:
    """x * values."""
    return _affine(context, x, "scale", values)


def _affine(context: TorchCall, x: GraphTensor, how: str, values: Own, alpha: float = 1.0) -> GraphTensor:
    if len(values.shape) == len(x.shape) and values.shape[0] == x.shape[0] > 1:  # another one for each sample
        operand = context.translator.feed(values, x.dtype)
        act, coef = activation_of(context)
        if how == "scale":
            return product(context, x, operand, act, coef)
        return context.add((operand, x), layers.Add(act, coef, alpha))
    shape = _per_sample(context, x, values.shape)
    parameter = reshaped(values, shape)
    act, coef = activation_of(context)
    return context.layer(x, layers.Affine(how, shape, alpha, act, coef), {"value": parameter})


def reshaped(parameter: Own, shape: Shape) -> Own:
    """The same values with other extents."""
    return Own(lambda values: parameter.value(values).reshape(shape), shape)


def _per_sample(context: TorchCall, x: GraphTensor, shape: Shape) -> Shape:
    """The shape of values as they lie beside a sample."""
    wide = (1,) * (len(x.shape) - len(shape)) + shape
    if len(wide) > len(x.shape) or wide[0] != 1:
        raise context.refuse(f"a parameter of shape {shape} beside a tensor of shape {x.shape}")
    return wide[1:]


def _own(value: Any) -> Own:
    return value if isinstance(value, Own) else constant(value)


@operator("add", "sub", "rsub")
def add(context: TorchCall) -> GraphTensor:
    """a + alpha * b; of rsub b - alpha * a."""
    a, b, by = context.argument("self"), context.argument("other"), float(context.argument("alpha", 1))
    name = name_of(context.node)
    if name == "rsub":
        a, b = b, a
    by = by if name == "add" else -by
    if isinstance(a, GraphTensor) and isinstance(b, GraphTensor):
        act, coef = activation_of(context)
        return context.add(beside(context, a, b), layers.Add(act, coef, by))
    if isinstance(a, GraphTensor):
        addend = _own(b)
        return _affine(context, a, "shift", Own(lambda v: by * addend.value(v), addend.shape))
    return _affine(context, b, "shift", _own(a), by)


@operator("mul")
def multiply(context: TorchCall) -> GraphTensor:
    a, b = context.argument("self"), context.argument("other")
    if isinstance(a, GraphTensor) and isinstance(b, GraphTensor):
        a, b = beside(context, a, b)
        return product(context, a, b, *activation_of(context))
    return scaled(context, a, _own(b)) if isinstance(a, GraphTensor) else scaled(context, b, _own(a))


@operator("div")
def divide(context: TorchCall) -> GraphTensor:
    a, b = context.argument("self"), context.argument("other")
    if context.argument("rounding_mode") is not None:
        raise context.refuse("a division that rounds")
    if isinstance(a, GraphTensor) and not isinstance(b, GraphTensor):
        divisor = _own(b)
        return scaled(context, a, Own(lambda v: torch.reciprocal(divisor.value(v).double()), divisor.shape))
    below = context.add(b, layers.FunctionLayer("reciprocal"), last=False)
    if isinstance(a, GraphTensor):
        return product(context, *beside(context, a, below))
    return scaled(context, below, _own(a))


@operator("layer_norm", "native_layer_norm")
def layer_norm(context: TorchCall) -> Any:
    """Over the last axes: the positions of an instance normalisation whose channels are the axes before."""
    x, scale, b = context.tensor("input"), context.parameter("weight"), context.parameter("bias")
    count, rank = len(context.argument("normalized_shape")), len(x.shape)
    if count >= rank:
        raise context.refuse("over the batch")
    channels, positions = math.prod(x.shape[1 : rank - count]), math.prod(x.shape[rank - count :])
    flat = context.add(x, layers.Reshape((channels, positions)), last=False)
    ones = {"scale": constant(1, (channels,)), "b": constant(0, (channels,))}
    unit = context.layer(flat, layers.GroupNorm(0, context.argument("eps")), ones, last=False)
    y = context.add(unit, layers.Reshape(x.shape[1:]), last=False)
    shape: Shape = (*(1,) * (rank - 1 - count), *x.shape[rank - count :])
    for how, parameter in (("scale", scale), ("shift", b)):
        if parameter is not None:
            value = reshaped(parameter, shape)
            y = context.layer(y, layers.Affine(how, shape), {"value": value}, last=False)
    return y if context.shape else [y, None, None]


@operator("neg")
def negative(context: TorchCall) -> GraphTensor:
    return scaled(context, context.tensor(), constant(-1))


@operator("pow", "square")
def power(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    if "square" not in name_of(context.node) and context.argument("exponent") != 2:
        raise context.refuse("an exponent other than 2")
    return context.add((x, x), layers.MultiplyLayer())


# ---- softmax, dropout


@operator("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    how = "log" if "log_softmax" in name_of(context.node) else "plain"
    return parts.softmax(context, x, context.argument("dim") % len(x.shape), how)


@operator("dropout", "native_dropout")
def dropout(context: TorchCall) -> Any:
    x = context.tensor("input")
    if not context.argument("train"):
        return x
    context.translator.trains = True
    y = context.add(x, layers.DropoutLayer(float(context.argument("p"))))
    return y if context.shape else [y, None]
