"""Functions of two operands of other libraries, one perhaps constant: quotients, extremes, powers, comparisons, choices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ooc.networks import layers
from ooc.translate.building import Building, Constant, GraphTensor, Operand, Shape, floating
from ooc.translate.elementwise import add, affine, function, multiply, paired
from ooc.translate.tensors import MOST_AXES
from ooc.translate.views import constant_beside, repeated, viewed

SWAPPED = {"less": "greater", "not_greater": "not_less"}


def binary(b: Building, x: Operand, z: Operand, how: str, last: bool = True) -> GraphTensor:
    """One of `ooc.ops.binary` (or less, not_greater, not_equal); one of them is a tensor."""
    if how == "not_equal":
        return negated(b, binary(b, x, z, "equal", last=False), last)
    if how in SWAPPED:
        return binary(b, z, x, SWAPPED[how], last)
    like = x if isinstance(x, GraphTensor) else z
    assert isinstance(like, GraphTensor)
    first, second = as_tensor(b, x, like), as_tensor(b, z, like)
    together(b, (first, second))
    return paired(b, first, second, how, last)


def as_tensor(b: Building, x: Operand, like: GraphTensor, size: Shape = ()) -> GraphTensor:
    """An operand as a tensor of the graph. like: a tensor beside it; size: per sample, what it is repeated to."""
    if isinstance(x, GraphTensor):
        return x
    if len(like.shape) > MOST_AXES:  # more than a parameter may have: it is seen as the other is
        view = b.site.view(like)
        source = as_tensor(b, constant_beside(b, like, x), view.source, view.source.shape[1:])
        return viewed(b, view._replace(source=source), last=False)
    laid = b.beside(like, x)
    if isinstance(laid, GraphTensor):
        return laid
    shape = laid.shape or (1,)
    layer = layers.ParameterLayer(shape, size or shape, like.dtype)
    return b.layer((), layer, {"value": laid.reshaped(shape).through(floating)}, last=False)


def together(b: Building, xs: Sequence[GraphTensor]) -> Shape:
    """The shape of what tensors make together, extents of 1 repeated."""
    ranks = {len(x.shape) for x in xs}
    shape = tuple(map(max, zip(*(x.shape for x in xs), strict=True))) if len(ranks) == 1 else ()
    if not shape or any(e not in (1, f) for x in xs for e, f in zip(x.shape, shape, strict=True)):
        raise b.refuse(f"tensors of shapes {' and '.join(str(x.shape) for x in xs)}", "reshape one of them first")
    return shape


def expanded(b: Building, x: GraphTensor, shape: Shape, last: bool = True) -> GraphTensor:
    """A tensor with extents of 1 repeated."""
    if x.shape == shape:
        return x
    if x.name in b.site.views and len(x.shape) == len(shape):
        axis = b.site.view(x).batch_axis
        if x.shape[axis] == shape[axis] and all(e == 1 or e == f for e, f in zip(x.shape, shape, strict=True)):
            return repeated(b, x, shape, last)
    if x.shape[0] != shape[0]:
        raise b.refuse(f"from {x.shape} to {shape}", "the batch stays as it is")
    if len(x.shape) < len(shape):  # axes are put in front of all of a sample's
        x = b.add(x, layers.Reshape((*(1,) * (len(shape) - len(x.shape)), *x.shape[1:])), last=False)
    return x if x.shape == shape else b.add(x, layers.ExpandLayer(shape[1:]), last)


def extreme(b: Building, x: Operand, z: Operand, how: str, last: bool = True) -> GraphTensor:
    """The larger (how: maximum) or smaller value of two."""
    if isinstance(x, Constant):
        x, z = z, x
    assert isinstance(x, GraphTensor)
    if isinstance(z, Constant) and (limit := z.number) is not None:
        low, high = (limit, math.inf) if how == "maximum" else (-math.inf, limit)
        return function(b, x, "clip", low, high, last=last)
    return binary(b, x, z, how, last)


def power(b: Building, x: Operand, z: Operand) -> GraphTensor:
    """x to the power of z, one of them a tensor."""
    exponent = z.number if isinstance(z, Constant) and isinstance(x, GraphTensor) else None
    if exponent is None or not isinstance(x, GraphTensor):
        return binary(b, x, z, "power")
    if exponent == 1:
        return x
    if exponent == 2:
        return multiply(b, x, x)
    plain = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(exponent)
    return function(b, x, plain) if plain else function(b, x, "pow", exponent)


def negated(b: Building, x: GraphTensor, last: bool = True) -> GraphTensor:
    """1 where a condition does not hold, else 0."""
    return affine(b, x, "shift", b.site.full(1), alpha=-1.0, last=last)


def both(b: Building, x: Operand, z: Operand, how: str) -> GraphTensor:
    """Two conditions: and, or, xor."""
    if how == "and":
        return multiply(b, x, z)
    return binary(b, x, z, "not_equal") if how == "xor" else binary(b, x, z, "maximum")


def where(b: Building, condition: Operand, x: Operand, z: Operand, last: bool = True) -> GraphTensor:
    """x where a condition holds, else z; one of the three a tensor."""
    tensors = [v for v in (condition, x, z) if isinstance(v, GraphTensor)]
    like = max(tensors, key=lambda t: (len(t.shape), math.prod(t.shape)))
    chosen = as_tensor(b, condition, like)
    parts: list[GraphTensor] = []
    for value, how in ((x, "where"), (z, "unless")):
        if not (isinstance(value, Constant) and value.number == 0):
            tensor = as_tensor(b, value, like)
            together(b, (tensor, chosen))
            parts.append(paired(b, tensor, chosen, how, last=False))
    if not parts:
        raise b.refuse("a choice between zero and zero")
    shape = together(b, (*tensors, *parts))
    if len(parts) == 1:
        return expanded(b, parts[0], shape, last)
    return add(b, parts[0], parts[1], last=last)
