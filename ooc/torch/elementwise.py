"""Activations, functions, sums and products with broadcasting, softmax, dropout."""

from __future__ import annotations

import math
from typing import Any

from ooc.networks import layers
from ooc.torch.translator import ACTIVATIONS, TorchCall, name_of, operator
from ooc.translate import elementwise
from ooc.translate.building import GraphTensor

FUNCTIONS = {"hardswish": "hard_swish", "silu": "silu", "erf": "erf", "reciprocal": "reciprocal"}


@operator(*ACTIVATIONS)
def activation(context: TorchCall) -> GraphTensor:
    x, act = context.tensor(), context.as_activation()
    return elementwise.clamped(context, x, *context.limits()) if act is None else context.add(x, layers.Act(*act))


@operator(*FUNCTIONS)
def function(context: TorchCall) -> GraphTensor:
    return elementwise.function(context, context.tensor(), FUNCTIONS[name_of(context.node)])


@operator("hardsigmoid")
def hard_sigmoid(context: TorchCall) -> GraphTensor:
    return elementwise.function(context, context.tensor(), "hard_sigmoid", 1 / 6, 0.5)


@operator("gelu")
def gelu(context: TorchCall) -> GraphTensor:
    return elementwise.gelu(context, context.tensor(), context.argument("approximate"))


@operator("softplus")
def softplus(context: TorchCall) -> GraphTensor:
    if context.argument("beta") != 1 or context.argument("threshold") < 20:
        raise context.refuse("a beta other than 1, or a threshold below 20")
    return elementwise.function(context, context.tensor(), "softplus")


@operator("mish")
def mish(context: TorchCall) -> GraphTensor:
    return elementwise.mish(context, context.tensor())


@operator("selu")
def selu(context: TorchCall) -> GraphTensor:
    return elementwise.selu(context, context.tensor())


@operator("prelu", "_prelu_kernel")
def prelu(context: TorchCall) -> GraphTensor:
    x, slope = context.tensor(), context.parameter("weight")
    if slope is None:
        raise context.refuse("no slope")
    return elementwise.prelu(context, x, slope.reshaped((math.prod(slope.shape), *(1,) * (len(x.shape) - 2))))


# ---- sums and products


@operator("add", "sub", "rsub")
def add(context: TorchCall) -> GraphTensor:
    """a + alpha * b; of rsub b - alpha * a."""
    a, b, by = context.operand("self"), context.operand("other"), float(context.argument("alpha", 1))
    name = name_of(context.node)
    return elementwise.add(context, *((b, a) if name == "rsub" else (a, b)), by if name == "add" else -by)


@operator("mul")
def multiply(context: TorchCall) -> GraphTensor:
    return elementwise.multiply(context, context.operand("self"), context.operand("other"))


@operator("div")
def divide(context: TorchCall) -> GraphTensor:
    if context.argument("rounding_mode") is not None:
        raise context.refuse("a division that rounds")
    return elementwise.divide(context, context.operand("self"), context.operand("other"))


@operator("neg")
def negative(context: TorchCall) -> GraphTensor:
    return elementwise.affine(context, context.tensor(), "scale", context.site.full(-1))


@operator("pow", "square")
def power(context: TorchCall) -> GraphTensor:
    exponent = 2 if "square" in name_of(context.node) else context.argument("exponent")
    if not isinstance(exponent, (int, float)):
        raise context.refuse("an exponent for each value")
    return elementwise.power(context, context.tensor(), float(exponent))


# ---- softmax, dropout


@operator("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    how = "log" if "log_softmax" in name_of(context.node) else "plain"
    return elementwise.softmax(context, x, context.argument("dim") % len(x.shape), how)


@operator("dropout", "native_dropout")
def dropout(context: TorchCall) -> Any:
    x = context.tensor("input")
    if not context.argument("train"):
        return x
    context.translator.trains = True
    y = context.add(x, layers.DropoutLayer(float(context.argument("p"))))
    return y if context.shape else [y, None]
