"""Activations, functions, sums and products with broadcasting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ooc.networks import layers
from ooc.onnx.translator import ACTIVATIONS, BOOLEAN, NARROW, WHOLE, OnnxNode, operator
from ooc.translate import attention, binary, elementwise
from ooc.translate.building import GraphTensor, Operand

FUNCTIONS = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "HardSwish": "hard_swish",
    "Log": "log", "Reciprocal": "reciprocal", "Round": "round", "Sign": "sign", "Sin": "sin", "Sinh": "sinh",
    "Softplus": "softplus", "Softsign": "softsign", "Sqrt": "sqrt", "Tan": "tan",
}  # fmt: skip
COMPARISONS = {
    "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "not_less", "Less": "less", "LessOrEqual": "not_greater",
}  # fmt: skip
FLOATS = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}


@operator(*ACTIVATIONS)
def activation(context: OnnxNode) -> GraphTensor:
    x, act = context.tensor(), context.as_activation()
    return elementwise.clamped(context, x, *context.limits()) if act is None else elementwise.activated(context, x, *act)


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
        return elementwise.activated(context, x, "leaky_relu", float(slope.reshape(())))
    operand = context.weight(1, "slope")
    assert operand is not None
    return elementwise.prelu(context, x, operand)


@operator("Add", "Sub")
def add(context: OnnxNode) -> GraphTensor:
    a, b, plus = context.waiting(0), context.waiting(1), context.op.op_type == "Add"
    waiting = attention.biased(context, a, b) if plus else None
    return waiting or elementwise.add(context, context.operand(0), context.operand(1), 1.0 if plus else -1.0)


@operator("Mul")
def multiply(context: OnnxNode) -> GraphTensor:
    waiting = attention.scaled(context, context.waiting(0), context.waiting(1))
    return waiting or elementwise.multiply(context, context.operand(0), context.operand(1))


@operator("Div")
def divide(context: OnnxNode) -> GraphTensor:
    if not context.translator.whole.isdisjoint(context.op.input):
        return elementwise.towards_zero(context, elementwise.divide(context, context.operand(0), context.operand(1), last=False))
    waiting = attention.scaled(context, context.waiting(0), context.waiting(1), divided=True)
    return waiting or elementwise.divide(context, context.operand(0), context.operand(1))


@operator("Neg")
def negative(context: OnnxNode) -> GraphTensor:
    return elementwise.minus(context, context.tensor())


@operator("Pow")
def power(context: OnnxNode) -> GraphTensor:
    return binary.power(context, context.operand(0), context.operand(1))


@operator("Celu")
def celu(context: OnnxNode) -> GraphTensor:
    return elementwise.function(context, context.tensor(), "celu", float(context.attribute("alpha", 1.0)))


@operator("Selu")
def selu(context: OnnxNode) -> GraphTensor:
    alpha, gamma = context.attribute("alpha", 1.6732632423543772), context.attribute("gamma", 1.0507009873554805)
    return elementwise.selu(context, context.tensor(), float(alpha), float(gamma))


@operator("Shrink")
def shrink(context: OnnxNode) -> GraphTensor:
    x, bias, limit = context.tensor(), float(context.attribute("bias", 0.0)), float(context.attribute("lambd", 0.5))
    if bias == limit:
        return elementwise.function(context, x, "soft_shrink", limit)
    kept = elementwise.function(context, x, "hard_shrink", limit, last=not bias)
    if not bias:
        return kept
    sign = elementwise.function(context, kept, "sign", last=False)  # 0 between the limits
    return elementwise.add(context, kept, sign, -bias)


@operator("ThresholdedRelu")
def thresholded(context: OnnxNode) -> GraphTensor:
    x, limit = context.tensor(), context.site.full(float(context.attribute("alpha", 1.0)))
    return context.add((x, binary.binary(context, x, limit, "greater", last=False)), layers.BinaryLayer("where"))


# ---- of two, comparisons, choices


@operator("Max", "Min")
def extreme(context: OnnxNode) -> GraphTensor:
    how = "maximum" if context.op.op_type == "Max" else "minimum"
    return _joined(context, lambda x, z, last: binary.extreme(context, x, z, how, last))


@operator("Mean")
def mean(context: OnnxNode) -> GraphTensor:
    count = len(context.op.input)
    summed = _joined(context, lambda x, z, _: elementwise.add(context, x, z, last=False))
    return elementwise.affine(context, summed, "scale", context.site.full(1 / count))


def _joined(context: OnnxNode, join: Callable[[GraphTensor, Operand, bool], GraphTensor]) -> GraphTensor:
    """Of any number of inputs, tensors first."""
    first, *rest = sorted(map(context.operand, range(len(context.op.input))), key=lambda o: not isinstance(o, GraphTensor))
    assert isinstance(first, GraphTensor)
    for i, operand in enumerate(rest, 1):
        first = join(first, operand, i == len(rest))
    return first


@operator(*COMPARISONS)
def comparison(context: OnnxNode) -> GraphTensor:
    """1 where it holds, else 0."""
    return binary.binary(context, context.operand(0), context.operand(1), COMPARISONS[context.op.op_type])


@operator("And", "Or", "Xor")
def both(context: OnnxNode) -> GraphTensor:
    return binary.both(context, context.operand(0), context.operand(1), context.op.op_type.lower())


@operator("Not")
def negated(context: OnnxNode) -> GraphTensor:
    return binary.negated(context, context.tensor())


@operator("Where")
def where(context: OnnxNode) -> GraphTensor:
    condition, x, z = map(context.operand, range(3))
    return binary.where(context, condition, x, z)


@operator("Sum")
def total(context: OnnxNode) -> GraphTensor:
    return _joined(context, lambda x, z, last: elementwise.add(context, x, z, last=last))


@operator("Softmax", "LogSoftmax")
def softmax(context: OnnxNode) -> GraphTensor:
    how, x = "plain" if context.op.op_type == "Softmax" else "log", context.waiting(0)
    axis = context.attribute("axis", -1 if context.version >= 13 else 1)
    if isinstance(x, GraphTensor) and how == "plain" and (y := attention.softened(context, x, axis)) is not None:
        return y
    x = context.tensor()
    axis %= len(x.shape)
    if context.version < 13 and any(e > 1 for e in x.shape[axis + 1 :]):
        raise context.refuse(f"over axis {axis} and all behind it")
    return elementwise.softmax(context, x, axis, how)


@operator("Cast")
def cast(context: OnnxNode) -> GraphTensor:
    x, to = context.tensor(), FLOATS.get(context.attribute("to"))
    if context.attribute("to") == BOOLEAN:  # conditions are numbers, 1 and 0
        return binary.binary(context, x, context.site.full(0), "not_equal")
    returned = context.op.output[0] not in context.translator.next  # nothing computes with it
    if context.attribute("to") in (*WHOLE, *(NARROW if returned else ())) and x.dtype in FLOATS.values():
        return elementwise.towards_zero(context, x)
    if to is None or (x.dtype != to and x.dtype in FLOATS.values()):
        raise context.refuse(f"from {x.dtype} to another type", "export the network in one floating type")
    return x if x.dtype == to else context.add(x, layers.Convert(dtype=to))


@operator("Identity", "Dropout")
def identity(context: OnnxNode) -> GraphTensor:
    if context.op.op_type == "Dropout" and np.any(context.constant(2, "training_mode")):
        raise context.refuse("a dropout in training", "export the network for inference")
    x = context.waiting(0)
    return x if isinstance(x, GraphTensor) else context.tensor()
