"""Activations, functions, sums and products with broadcasting."""

from __future__ import annotations

import numpy as np

from ooc.networks import layers
from ooc.onnx.translator import ACTIVATIONS, OnnxNode, operator
from ooc.translate import elementwise
from ooc.translate.building import GraphTensor

FUNCTIONS = {"Erf": "erf", "HardSwish": "hard_swish", "Reciprocal": "reciprocal", "Softplus": "softplus"}
FLOATS = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}


@operator(*ACTIVATIONS)
def activation(context: OnnxNode) -> GraphTensor:
    x, act = context.tensor(), context.as_activation()
    return elementwise.clamped(context, x, *context.limits()) if act is None else context.add(x, layers.Act(*act))


@operator("HardSigmoid")
def hard_sigmoid(context: OnnxNode) -> GraphTensor:
    by, more = (float(context.attribute(name, default)) for name, default in (("alpha", 0.2), ("beta", 0.5)))
    return elementwise.function(context, context.tensor(), "hard_sigmoid", by, more)


@operator(*FUNCTIONS)
def function(context: OnnxNode) -> GraphTensor:
    return elementwise.function(context, context.tensor(), FUNCTIONS[context.op.op_type])


@operator("Gelu")
def gelu(context: OnnxNode) -> GraphTensor:
    return elementwise.gelu(context, context.tensor(), context.attribute("approximate", "none"))


@operator("Swish")
def swish(context: OnnxNode) -> GraphTensor:
    if context.attribute("alpha", 1.0) != 1.0:
        raise context.refuse("alpha other than 1")
    return elementwise.function(context, context.tensor(), "silu")


@operator("Mish")
def mish(context: OnnxNode) -> GraphTensor:
    return elementwise.mish(context, context.tensor())


@operator("PRelu")
def prelu(context: OnnxNode) -> GraphTensor:
    x, slope = context.tensor(), context.constant(1, "slope")
    if slope.size == 1:
        return context.add(x, layers.Act("leaky_relu", float(slope.reshape(()))))
    operand = context.weight(1, "slope")
    assert operand is not None
    return elementwise.prelu(context, x, operand)


@operator("Add", "Sub")
def add(context: OnnxNode) -> GraphTensor:
    return elementwise.add(context, context.operand(0), context.operand(1), 1.0 if context.op.op_type == "Add" else -1.0)


@operator("Mul")
def multiply(context: OnnxNode) -> GraphTensor:
    return elementwise.multiply(context, context.operand(0), context.operand(1))


@operator("Div")
def divide(context: OnnxNode) -> GraphTensor:
    return elementwise.divide(context, context.operand(0), context.operand(1))


@operator("Neg")
def negative(context: OnnxNode) -> GraphTensor:
    return elementwise.affine(context, context.tensor(), "scale", context.site.full(-1))


@operator("Pow")
def power(context: OnnxNode) -> GraphTensor:
    x, by = context.tensor(), context.constant(1, "exponent")
    if by.size != 1:
        raise context.refuse("an exponent for each value")
    return elementwise.power(context, x, float(by.reshape(())))


@operator("Sum")
def total(context: OnnxNode) -> GraphTensor:
    first, *rest = sorted(map(context.operand, range(len(context.op.input))), key=lambda o: not isinstance(o, GraphTensor))
    assert isinstance(first, GraphTensor)
    for i, operand in enumerate(rest, 1):
        first = elementwise.add(context, first, operand, last=i == len(rest))
    return first


@operator("Softmax", "LogSoftmax")
def softmax(context: OnnxNode) -> GraphTensor:
    x, how = context.tensor(), "plain" if context.op.op_type == "Softmax" else "log"
    axis = context.attribute("axis", -1 if context.version >= 13 else 1) % len(x.shape)
    if context.version < 13 and any(e > 1 for e in x.shape[axis + 1 :]):
        raise context.refuse(f"over axis {axis} and all behind it")
    return elementwise.softmax(context, x, axis, how)


@operator("Cast")
def cast(context: OnnxNode) -> GraphTensor:
    x, to = context.tensor(), FLOATS.get(context.attribute("to"))
    if to is None or (x.dtype != to and x.dtype in FLOATS.values()):
        raise context.refuse(f"from {x.dtype} to another type", "export the network in one floating type")
    return x if x.dtype == to else context.add(x, layers.Convert(dtype=to))


@operator("Identity", "Dropout")
def identity(context: OnnxNode) -> GraphTensor:
    if context.op.op_type == "Dropout" and np.any(context.constant(2, "training_mode")):
        raise context.refuse("a dropout in training", "export the network for inference")
    return context.tensor()
