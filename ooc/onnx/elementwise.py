"""Activations, functions, sums and products with broadcasting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.onnx.translator import OnnxNode, operator
from ooc.translate import parts
from ooc.translate.building import GraphTensor
from ooc.translate.parts import beside, product

ACTIVATIONS = ("Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "Clip")
MOST = float(np.finfo(np.float32).max)


def activation_of(context: OnnxNode) -> tuple[str, float]:
    """The activation behind a node, which it takes in; identity where there is none."""
    return parts.activation_behind(context, ACTIVATIONS, simple)


def simple(context: OnnxNode) -> tuple[str, float] | None:
    """An operator as an activation of ooc's and its coefficient, if it is one."""
    kind = context.op.op_type
    if kind in ("Relu", "Sigmoid", "Tanh"):
        return kind.lower(), 0.0
    if kind in ("LeakyRelu", "Elu"):
        coef = context.attribute("alpha", 0.01 if kind == "LeakyRelu" else 1.0)
        return {"LeakyRelu": "leaky_relu", "Elu": "elu"}[kind], float(coef)
    low, high = limits(context)
    if low == 0 and high > 0:
        return ("clipped_relu", high) if high < MOST else ("relu", 0.0)
    return None


def limits(context: OnnxNode) -> tuple[float, float]:
    """Of Clip: inputs from opset 11 on, attributes before."""
    bounds = []
    for i, (name, default) in enumerate((("min", -math.inf), ("max", math.inf)), 1):
        limit = context.constant(i, name)
        bounds.append(float(context.attribute(name, default)) if limit is None else float(np.asarray(limit).reshape(())))
    return bounds[0], bounds[1]


@operator(*ACTIVATIONS)
def activation(context: OnnxNode) -> GraphTensor:
    x, act = context.tensor(), simple(context)
    if act is None:
        return context.add(x, layers.FunctionLayer("clip", *limits(context)))
    return context.add(x, layers.Act(*act))


@operator("HardSigmoid")
def hard_sigmoid(context: OnnxNode) -> GraphTensor:
    by, more = (float(context.attribute(name, default)) for name, default in (("alpha", 0.2), ("beta", 0.5)))
    return context.add(context.tensor(), layers.FunctionLayer("hard_sigmoid", by, more))


@operator("HardSwish", "Erf", "Softplus", "Reciprocal")
def function(context: OnnxNode) -> GraphTensor:
    how = {"HardSwish": "hard_swish"}.get(context.op.op_type, context.op.op_type.lower())
    return context.add(context.tensor(), layers.FunctionLayer(how))


@operator("Gelu")
def gelu(context: OnnxNode) -> GraphTensor:
    how = "gelu_tanh" if context.attribute("approximate", "none") == "tanh" else "gelu"
    return context.add(context.tensor(), layers.FunctionLayer(how))


@operator("Swish")
def swish(context: OnnxNode) -> GraphTensor:
    if context.attribute("alpha", 1.0) != 1.0:
        raise context.refuse("alpha other than 1")
    return context.add(context.tensor(), layers.FunctionLayer("silu"))


@operator("Mish")
def mish(context: OnnxNode) -> GraphTensor:
    return parts.mish(context, context.tensor())


@operator("PRelu")
def prelu(context: OnnxNode) -> GraphTensor:
    """max(x, 0) + slope * min(x, 0)."""
    x, slope = context.tensor(), context.constant(1, "slope")
    if slope.size == 1:
        return context.add(x, layers.Act("leaky_relu", float(slope.reshape(()))))
    above = context.add(x, layers.Act("relu"), last=False)
    below = context.add(x, layers.FunctionLayer("clip", -math.inf, 0.0), last=False)
    scaled = affine(context, below, "scale", slope, last=False)
    return context.add((above, scaled), layers.Add())


def affine(context: OnnxNode, x: GraphTensor, how: str, values: Any, alpha: float = 1.0, last: bool = True) -> GraphTensor:
    """alpha * x + values, or x * values, with values of the file."""
    per_sample = _per_sample(context, x, np.asarray(values))
    y = context.add(x, layers.Affine(how, per_sample.shape, alpha), last)
    context.own(y, value=per_sample)
    return y


def _per_sample(context: OnnxNode, x: GraphTensor, values: Any) -> Any:
    """Values as they lie beside a sample."""
    if values.ndim > len(x.shape):
        if values.shape[: values.ndim - len(x.shape)] != (1,) * (values.ndim - len(x.shape)):
            raise context.refuse(f"a constant of shape {values.shape} beside a tensor of shape {x.shape}")
        values = values.reshape(values.shape[-len(x.shape) :])
    wide = values.reshape((1,) * (len(x.shape) - values.ndim) + values.shape)
    if wide.shape[0] != 1:
        if (wide != wide[:1]).any():
            raise context.refuse("a constant that differs from sample to sample")
        wide = wide[:1]
    return wide[0]


@operator("Add", "Sub", "Mul", "Div")
def binary(context: OnnxNode) -> GraphTensor:
    kind, a, b = context.op.op_type, context.value(0), context.value(1)
    if isinstance(a, GraphTensor) and isinstance(b, GraphTensor):
        a, b = beside(context, a, b)
        if kind == "Div":
            b = context.add(b, layers.FunctionLayer("reciprocal"), last=False)
        if kind in ("Mul", "Div"):
            return product(context, a, b)
        return context.add((a, b), layers.Add(beta=1.0 if kind == "Add" else -1.0))
    x, values, first = (a, b, True) if isinstance(a, GraphTensor) else (b, a, False)
    assert isinstance(x, GraphTensor) and values is not None and not isinstance(values, GraphTensor)
    return _with_constant(context, kind, x, np.asarray(values), first)


def _with_constant(context: OnnxNode, kind: str, x: GraphTensor, values: Any, first: bool) -> GraphTensor:
    """x in front of a constant (first), or behind it."""
    if kind == "Add":
        return affine(context, x, "shift", values)
    if kind == "Sub":
        return affine(context, x, "shift", -values) if first else affine(context, x, "shift", values, -1.0)
    if kind == "Div" and not first:
        x = context.add(x, layers.FunctionLayer("reciprocal"), last=False)
    if kind == "Div" and first:
        with np.errstate(divide="ignore"):
            values = 1 / values.astype(np.float64)
    return affine(context, x, "scale", values)


@operator("Neg")
def negative(context: OnnxNode) -> GraphTensor:
    return affine(context, context.tensor(), "scale", np.float32(-1))


@operator("Pow")
def power(context: OnnxNode) -> GraphTensor:
    x, by = context.tensor(), context.constant(1, "exponent")
    if by.size != 1 or float(by.reshape(())) not in (1.0, 2.0):
        raise context.refuse("an exponent other than 1 and 2")
    return x if float(by.reshape(())) == 1 else context.add((x, x), layers.MultiplyLayer())


@operator("Sum")
def total(context: OnnxNode) -> GraphTensor:
    y = context.tensor()
    count = len(context.op.input)
    for i in range(1, count):
        y = context.add(beside(context, y, context.tensor(i)), layers.Add(), last=i == count - 1)
    return y


@operator("Softmax", "LogSoftmax")
def softmax(context: OnnxNode) -> GraphTensor:
    x, how = context.tensor(), "plain" if context.op.op_type == "Softmax" else "log"
    axis = context.attribute("axis", -1 if context.version >= 13 else 1) % len(x.shape)
    if context.version < 13 and any(e > 1 for e in x.shape[axis + 1 :]):
        raise context.refuse(f"over axis {axis} and all behind it")
    return parts.softmax(context, x, axis, how)


FLOATS = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}


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
