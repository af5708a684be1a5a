"""Activations, functions, sums and products with broadcasting, softmax, dropout."""

from __future__ import annotations

import math
from typing import Any

import torch

from ooc.networks import layers
from ooc.torch.translator import ACTIVATIONS, TorchCall, name_of, operator
from ooc.translate import attention, binary, elementwise, parts
from ooc.translate.building import Constant, GraphTensor, Operand
from ooc.translate.views import through

ALIKE = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "log",
    "reciprocal", "round", "rsqrt", "sign", "silu", "sin", "sinh", "sqrt", "tan",
)  # fmt: skip
FUNCTIONS = {
    **dict(zip(ALIKE, ALIKE, strict=True)), "hardswish": "hard_swish",
}  # fmt: skip
COMPARISONS = {"eq": "equal", "ge": "not_less", "gt": "greater", "le": "not_greater", "lt": "less", "ne": "not_equal"}
LOGARITHMS = {"log2": math.log(2), "log10": math.log(10)}


@operator(*ACTIVATIONS)
def activation(context: TorchCall) -> GraphTensor:
    x, act = context.tensor(), context.as_activation()
    if act is not None:
        return elementwise.activated(context, x, *act)
    limits = context.limits()
    if limits is not None:
        return elementwise.clamped(context, x, *limits)
    for name, how in (("min", "maximum"), ("max", "minimum")):
        if context.argument(name) is not None:
            x = binary.extreme(context, x, context.operand(name), how, last=False)
    return x


@operator(*FUNCTIONS)
def function(context: TorchCall) -> GraphTensor:
    if decimals := context.argument("decimals", 0):
        return _rounded(context, context.tensor(), 10.0**decimals)
    return elementwise.function(context, context.tensor(), FUNCTIONS[name_of(context.node)])


def _rounded(context: TorchCall, x: GraphTensor, parts: float) -> GraphTensor:
    """To multiples of one of so many parts of 1."""
    wide = elementwise.affine(context, x, "scale", context.site.full(parts), last=False)
    whole = elementwise.function(context, wide, "round", last=False)
    return elementwise.affine(context, whole, "scale", context.site.full(1 / parts))


@operator(*LOGARITHMS)
def logarithm(context: TorchCall) -> GraphTensor:
    natural = elementwise.function(context, context.tensor(), "log", last=False)
    return elementwise.affine(context, natural, "scale", context.site.full(1 / LOGARITHMS[name_of(context.node)]))


@operator("expm1")
def exponential_less_one(context: TorchCall) -> GraphTensor:
    power = elementwise.function(context, context.tensor(), "exp", last=False)
    return elementwise.affine(context, power, "shift", context.site.full(-1))


@operator("log1p")
def logarithm_of_one_more(context: TorchCall) -> GraphTensor:
    more = elementwise.affine(context, context.tensor(), "shift", context.site.full(1), last=False)
    return elementwise.function(context, more, "log")


@operator("log_sigmoid", "log_sigmoid_forward")
def log_sigmoid(context: TorchCall) -> Any:
    """-softplus(-x)."""
    turned = elementwise.minus(context, context.tensor(), last=False)
    y = elementwise.minus(context, elementwise.function(context, turned, "softplus", last=False))
    return y if context.shape else [y]


@operator("trunc", "fix", "frac")
def truncated(context: TorchCall) -> GraphTensor:
    """Without what is behind the point, or that alone."""
    x, rest = context.tensor(), name_of(context.node) == "frac"
    whole = elementwise.towards_zero(context, x, last=not rest)
    return elementwise.add(context, x, whole, -1.0) if rest else whole


@operator("exp2")
def power_of_two(context: TorchCall) -> GraphTensor:
    exponent = elementwise.affine(context, context.tensor(), "scale", context.site.full(math.log(2)), last=False)
    return elementwise.function(context, exponent, "exp")


@operator("erfc")
def complement_of_erf(context: TorchCall) -> GraphTensor:
    erf = elementwise.function(context, context.tensor(), "erf", last=False)
    return elementwise.affine(context, erf, "shift", context.site.full(1), alpha=-1.0)


@operator("logit")
def logit(context: TorchCall) -> GraphTensor:
    """log(x / (1 - x)), of x at least eps away from 0 and 1."""
    x, eps = context.tensor(), context.argument("eps")
    if eps is not None:
        x = elementwise.clamped(context, x, float(eps), 1 - float(eps), last=False)
    rest = elementwise.affine(context, x, "shift", context.site.full(1), alpha=-1.0, last=False)
    return elementwise.function(context, elementwise.divide(context, x, rest, last=False), "log")


@operator("rrelu")
def leaking_by_chance(context: TorchCall) -> GraphTensor:
    """In evaluation by the middle slope."""
    if context.argument("training"):
        raise context.refuse("slopes that are drawn")
    slope = (float(context.argument("lower")) + float(context.argument("upper"))) / 2
    return elementwise.activated(context, context.tensor(), "leaky_relu", slope)


@operator("isnan", "isinf", "isfinite")
def kind_of_number(context: TorchCall) -> GraphTensor:
    x, name = context.tensor(), name_of(context.node)
    if name == "isnan":
        return binary.binary(context, x, x, "not_equal")
    size = elementwise.function(context, x, "abs", last=False)
    return binary.binary(context, size, context.site.full(math.inf), "equal" if name == "isinf" else "less")


@operator("nan_to_num")
def numbers(context: TorchCall) -> GraphTensor:
    """With numbers instead of what is none, by default 0 and the largest of the type."""
    x, limit = context.tensor(), torch.finfo(context.node.meta["val"].dtype).max
    nothing, above, below = (context.argument(name) for name in ("nan", "posinf", "neginf"))
    values = {math.inf: limit if above is None else above, -math.inf: -limit if below is None else below}
    y = x
    for infinite in (i for i, value in values.items() if value != i):
        at = binary.binary(context, x, context.site.full(infinite), "equal", last=False)
        y = binary.where(context, at, context.site.full(values[infinite]), y, last=False)
    no_number = binary.binary(context, x, x, "not_equal", last=False)
    return binary.where(context, no_number, context.site.full(nothing or 0.0), y)


@operator("celu")
def celu(context: TorchCall) -> GraphTensor:
    return elementwise.function(context, context.tensor(), "celu", float(context.argument("alpha")))


@operator("softshrink", "hardshrink")
def shrink(context: TorchCall) -> GraphTensor:
    how = "soft_shrink" if "soft" in name_of(context.node) else "hard_shrink"
    return elementwise.function(context, context.tensor(), how, float(context.argument("lambd")))


@operator("threshold")
def threshold(context: TorchCall) -> GraphTensor:
    x, limit, value = context.tensor(), *(context.operand(name) for name in ("threshold", "value"))
    return binary.where(context, binary.binary(context, x, limit, "greater", last=False), x, value)


@operator("glu")
def glu(context: TorchCall) -> GraphTensor:
    x = context.tensor()
    axis = context.argument("dim") % len(x.shape)
    values, gates = parts.split(context, x, axis, [x.shape[axis] // 2] * 2)
    return elementwise.multiply(context, values, elementwise.activated(context, gates, "sigmoid", last=False))


@operator("hardsigmoid")
def hard_sigmoid(context: TorchCall) -> GraphTensor:
    return elementwise.function(context, context.tensor(), "hard_sigmoid", 1 / 6, 0.5)


@operator("gelu")
def gelu(context: TorchCall) -> GraphTensor:
    return elementwise.gelu(context, context.tensor(), context.argument("approximate"))


@operator("softplus")
def softplus(context: TorchCall) -> GraphTensor:
    """softplus(beta * x) / beta, and x where beta * x is above a threshold."""
    x, beta, threshold = context.tensor(), *(float(context.argument(name)) for name in ("beta", "threshold"))
    plain = beta == 1 and threshold >= 20
    wide = x if beta == 1 else elementwise.affine(context, x, "scale", context.site.full(beta), last=False)
    y = elementwise.function(context, wide, "softplus", last=plain)
    if beta != 1:
        y = elementwise.affine(context, y, "scale", context.site.full(1 / beta), last=False)
    if plain:
        return y
    return binary.where(context, binary.binary(context, wide, context.site.full(threshold), "greater", last=False), x, y)


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
    by, name = float(context.argument("alpha", 1)), name_of(context.node)
    a, b = context.waiting("self"), context.waiting("other")
    if name == "add" and by == 1 and (y := attention.biased(context, a, b)):
        return y
    a, b = context.operand("self"), context.operand("other")
    return elementwise.add(context, *((b, a) if name == "rsub" else (a, b)), by if name == "add" else -by)


@operator("mul")
def multiply(context: TorchCall) -> GraphTensor:
    waiting = attention.scaled(context, context.waiting("self"), context.waiting("other"))
    return waiting or elementwise.multiply(context, context.operand("self"), context.operand("other"))


@operator("div", "floor_divide")
def divide(context: TorchCall) -> GraphTensor:
    how = "floor" if "floor" in name_of(context.node) else context.argument("rounding_mode")
    if how is None and (y := attention.scaled(context, context.waiting("self"), context.waiting("other"), divided=True)):
        return y
    share = elementwise.divide(context, context.operand("self"), context.operand("other"), last=how is None)
    if how == "trunc":
        return elementwise.towards_zero(context, share)
    return share if how is None else elementwise.function(context, share, "floor")


@operator("hypot")
def length(context: TorchCall) -> GraphTensor:
    """Of the vector of both."""

    def squared(one: Operand) -> Operand:
        if isinstance(one, Constant):
            return one.through(lambda held: held * held)
        return elementwise.multiply(context, one, one, last=False)

    both = elementwise.add(context, squared(context.operand("self")), squared(context.operand("other")), last=False)
    return elementwise.function(context, both, "sqrt")


@operator("maximum", "minimum")
def extreme(context: TorchCall) -> GraphTensor:
    return binary.extreme(context, context.operand("self"), context.operand("other"), name_of(context.node))


@operator(*COMPARISONS)
def comparison(context: TorchCall) -> GraphTensor:
    """1 where it holds, else 0."""
    return binary.binary(context, context.operand("self"), context.operand("other"), COMPARISONS[name_of(context.node)])


@operator(*(f"{kind}_{how}" for kind in ("logical", "bitwise") for how in ("and", "or", "xor")), "__and__", "__or__", "__xor__")
def both(context: TorchCall) -> GraphTensor:
    how = name_of(context.node).strip("_").split("_")[-1]
    _check_conditions(context)
    return binary.both(context, context.operand("self"), context.operand("other"), how)


def _check_conditions(context: TorchCall) -> None:
    """Raises UnsupportedError for bits of numbers."""
    if context.node.meta["val"].dtype is not torch.bool:
        raise context.refuse("bits of whole numbers")


@operator("logical_not", "bitwise_not")
def negated(context: TorchCall) -> GraphTensor:
    _check_conditions(context)
    return binary.negated(context, context.tensor())


@operator("where")
def where(context: TorchCall) -> GraphTensor:
    condition, x, z = (context.operand(name) for name in ("condition", "self", "other"))
    return binary.where(context, condition, x, z)


@operator("masked_fill")
def masked_fill(context: TorchCall) -> GraphTensor:
    mask, value, x = (context.operand(name) for name in ("mask", "value", "self"))
    return binary.where(context, mask, value, x)


@operator("addcmul", "addcdiv")
def add_product(context: TorchCall) -> GraphTensor:
    """x + value * a * b, or value * a / b."""
    x, a, b = (context.operand(name) for name in ("self", "tensor1", "tensor2"))
    join = elementwise.multiply if name_of(context.node) == "addcmul" else elementwise.divide
    return elementwise.add(context, x, join(context, a, b, last=False), float(context.argument("value")))


@operator("lerp")
def lerp(context: TorchCall) -> GraphTensor:
    """x + weight * (end - x)."""
    x, end, weight = (context.operand(name) for name in ("self", "end", "weight"))
    apart = elementwise.add(context, end, x, -1.0, last=False)
    return elementwise.add(context, x, elementwise.multiply(context, apart, weight, last=False))


@operator("neg")
def negative(context: TorchCall) -> GraphTensor:
    return elementwise.minus(context, context.tensor())


@operator("pow", "square")
def power(context: TorchCall) -> GraphTensor:
    exponent = context.site.full(2) if "square" in name_of(context.node) else context.operand("exponent")
    return binary.power(context, context.operand("self"), exponent)


# ---- softmax, dropout


@operator("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(context: TorchCall) -> GraphTensor:
    x, axis = context.waiting("self"), context.argument("dim")
    if isinstance(x, GraphTensor) and "log" not in name_of(context.node) and (y := attention.softened(context, x, axis)):
        return y
    x = context.tensor()
    how = "log" if "log_softmax" in name_of(context.node) else "plain"
    return elementwise.softmax(context, x, context.argument("dim") % len(x.shape), how)


@operator("dropout", "native_dropout")
def dropout(context: TorchCall) -> Any:
    if not context.argument("train"):
        return context.waiting("input")
    x = context.tensor("input")
    context.translator.trains = True
    y = through(context, x, layers.DropoutLayer(float(context.argument("p"))))
    return y if context.shape else [y, None]
