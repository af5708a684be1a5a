"""Sums, products and functions of other libraries, element by element, with broadcasting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.translate.building import Building, Constant, GraphTensor, Operand, Shape, exact
from ooc.translate.views import aligned, constant_beside, in_channels, repeated, through

MOST = float(np.finfo(np.float32).max)


def function(b: Building, x: GraphTensor, how: str, *coefs: float, last: bool = True) -> GraphTensor:
    """One of `ooc.ops.function`, with its coefficients."""
    return through(b, x, layers.FunctionLayer(how, *coefs), last=last)


def activated(b: Building, x: GraphTensor, act: str, coef: float = 0.0, last: bool = True) -> GraphTensor:
    """An activation of a tensor."""
    return through(b, x, layers.Act(act, coef), last=last)


def towards_zero(b: Building, x: GraphTensor, last: bool = True) -> GraphTensor:
    """Without what is behind the point."""
    size = function(b, function(b, x, "abs", last=False), "floor", last=False)
    return multiply(b, size, function(b, x, "sign", last=False), last)


def gelu(b: Building, x: GraphTensor, approximate: str) -> GraphTensor:
    """x * Phi(x), or what tanh makes of it."""
    return function(b, x, "gelu_tanh" if approximate == "tanh" else "gelu")


def mish(b: Building, x: GraphTensor) -> GraphTensor:
    """x * tanh(softplus(x)). Source: Misra, "Mish: a self regularized non-monotonic activation function", BMVC 2020."""
    return multiply(b, x, activated(b, function(b, x, "softplus", last=False), "tanh", last=False))


def selu(b: Building, x: GraphTensor, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> GraphTensor:
    """gamma * elu(x) of alpha. Source: Klambauer et al., "Self-normalizing neural networks", NIPS 2017."""
    return affine(b, activated(b, x, "elu", alpha, last=False), "scale", b.site.full(gamma))


def prelu(b: Building, x: GraphTensor, slope: Constant) -> GraphTensor:
    """max(x, 0) + slope * min(x, 0); slope: as it lies beside x."""
    above = activated(b, x, "relu", last=False)
    bent = affine(b, function(b, x, "clip", -math.inf, 0.0, last=False), "scale", slope, last=False)
    return add(b, above, bent)


def clamping(low: float, high: float) -> tuple[str, float] | None:
    """The activation that limits are, if they are one."""
    if low != 0 or high <= 0:
        return None
    return ("clipped_relu", high) if high < MOST else ("relu", 0.0)


def clamped(b: Building, x: GraphTensor, low: float, high: float, last: bool = True) -> GraphTensor:
    """x between limits."""
    act = clamping(low, high)
    return function(b, x, "clip", low, high, last=last) if act is None else activated(b, x, *act, last=last)


def softmax(b: Building, x: GraphTensor, axis: int, how: str, last: bool = True) -> GraphTensor:
    """Softmax (how: plain) or its logarithm (log) over any axis but the batch."""
    if axis == b.site.view(x).batch_axis:
        raise b.refuse("over the batch")
    if axis == 1 and x.name not in b.site.views:
        return b.add(x, layers.Softmax(how), last)
    arranged = in_channels(b, x, axis)
    return arranged.back(b.add(arranged.tensor, layers.Softmax(how), last=False), last=last)


# ---- of two operands, one of which may be constant


def affine(b: Building, x: GraphTensor, how: str, values: Constant, alpha: float = 1.0, last: bool = True) -> GraphTensor:
    """alpha * x + values (how: shift), or x * values (scale), with the activation behind where it is the last layer."""
    x = _as_wide(b, x, values.shape)
    is_view = x.name in b.site.views
    operand: Operand = b.beside(x, values) if not is_view or b.differs(x, values) else values
    if is_view and isinstance(operand, Constant):
        operand = constant_beside(b, x, operand)
    act, coef = b.activation() if last else ("identity", 0.0)
    if isinstance(operand, Constant):
        return through(b, x, layers.Affine(how, operand.shape, alpha, act, coef), {"value": operand}, last)
    if how == "scale":
        return _product(b, x, operand, act, coef, last)
    return _sum(b, operand, x, act, coef, alpha, last)


def _as_wide(b: Building, x: GraphTensor, shape: Shape) -> GraphTensor:
    """A tensor whose extents of 1 are repeated to those of a constant beside it."""
    axis = b.site.view(x).batch_axis
    wide = tuple(map(max, x.shape, (1,) * (len(x.shape) - len(shape)) + shape))
    is_less = len(shape) <= len(x.shape) and wide != x.shape and wide[axis] == x.shape[axis]
    return repeated(b, x, wide, last=False) if is_less else x


def minus(b: Building, x: GraphTensor, last: bool = True) -> GraphTensor:
    """-x."""
    return affine(b, x, "scale", b.site.full(-1), last=last)


def add(b: Building, x: Operand, z: Operand, by: float = 1.0, last: bool = True) -> GraphTensor:
    """x + by * z, one of them a tensor."""
    if isinstance(x, Constant):
        assert isinstance(z, GraphTensor)
        return affine(b, z, "shift", x, by, last)
    if isinstance(z, Constant):
        return affine(b, x, "shift", z if by == 1 else z.through(lambda values: by * values), last=last)
    _check_ranks(b, x, z)
    act, coef = b.activation() if last else ("identity", 0.0)
    return _sum(b, x, z, act, coef, by, last)


def multiply(b: Building, x: Operand, z: Operand, last: bool = True) -> GraphTensor:
    """x * z, one of them a tensor."""
    if isinstance(x, Constant):
        x, z = z, x
    assert isinstance(x, GraphTensor)
    if isinstance(z, Constant):
        return affine(b, x, "scale", z, last=last)
    _check_ranks(b, x, z)
    return _product(b, x, z, *(b.activation() if last else ("identity", 0.0)), last)


def divide(b: Building, x: Operand, z: Operand, last: bool = True) -> GraphTensor:
    """x / z, one of them a tensor."""
    if isinstance(z, Constant):
        return multiply(b, x, z.through(reciprocal), last)
    if isinstance(x, Constant):
        return multiply(b, x, function(b, z, "reciprocal", last=False), last)
    _check_ranks(b, x, z)
    return paired(b, x, z, "divide", last)


def reciprocal(values: Any) -> Any:
    """1 / values, in f64."""
    with np.errstate(divide="ignore"):
        return 1 / exact(values)


def _check_ranks(b: Building, x: GraphTensor, z: GraphTensor) -> None:
    """Raises UnsupportedError where the batch of one would meet the channels of the other."""
    if len(x.shape) != len(z.shape):
        raise b.refuse(f"tensors of shapes {x.shape} and {z.shape}", "reshape one of them first")


def _sum(b: Building, x: GraphTensor, z: GraphTensor, act: str, coef: float, by: float, last: bool) -> GraphTensor:
    """x + by * z."""
    pair = aligned(b, x, z)
    return pair.back(b, b.add((pair.x, pair.z), layers.Add(act, coef, by), last, named=pair.view is None), last)


def _product(b: Building, x: GraphTensor, z: GraphTensor, act: str, coef: float, last: bool) -> GraphTensor:
    """x * z, the one that is full in front."""
    pair = aligned(b, x, z)
    (x, z), shape = pair[:2], tuple(map(max, pair.x.shape, pair.z.shape))
    if shape not in (x.shape, z.shape):
        x = b.add(x, layers.ExpandLayer(shape[1:]), last=False)
    reads = (x, z) if x.shape == shape else (z, x)
    return pair.back(b, b.add(reads, layers.MultiplyLayer(act, coef), last, named=pair.view is None), last)


def paired(b: Building, x: GraphTensor, z: GraphTensor, how: str, last: bool) -> GraphTensor:
    """One of `ooc.ops.binary`."""
    pair = aligned(b, x, z)
    (x, z), shape = pair[:2], tuple(map(max, pair.x.shape, pair.z.shape))
    whole = x if x.shape == shape else b.add(x, layers.ExpandLayer(shape[1:]), last=False)
    return pair.back(b, b.add((whole, z), layers.BinaryLayer(how), last, named=pair.view is None), last)
