"""What is made of all values along some axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ooc.torch.translator import DTYPES, STORED, TorchCall, name_of, operator
from ooc.translate import along, binary, reductions
from ooc.translate.building import GraphTensor
from ooc.translate.elementwise import add, affine, divide, function, multiply

OF_AXES = {"mean": "mean", "sum": "sum", "amax": "max", "amin": "min", "logsumexp": "log_sum_exp"}
PLACES = {"max": reductions.place_of_largest, "min": reductions.place_of_smallest}
NORMS = {1: "l1", 2: "l2", math.inf: "linf"}


def axes_of(context: TorchCall, x: GraphTensor) -> list[int]:
    """The axes that a call names, in order; all where it names none."""
    dims = context.argument("dim")
    named = range(len(x.shape)) if dims is None or dims == [] else dims if isinstance(dims, Sequence) else [dims]
    return sorted(d % len(x.shape) for d in named)


@operator(*OF_AXES)
def reduction(context: TorchCall) -> GraphTensor:
    x, keep = context.tensor(), bool(context.argument("keepdim", False))
    return reductions.REDUCTIONS[OF_AXES[name_of(context.node)]](context, x, axes_of(context, x), keep)


@operator("cumsum")
def running(context: TorchCall) -> GraphTensor:
    x, dtype = context.tensor(), context.node.meta["val"].dtype
    if dtype not in STORED and DTYPES[dtype] != x.dtype:
        raise context.refuse(f"from {x.dtype} to another type")
    return along.running(context, x, context.argument("dim") % len(x.shape))


@operator("max", "min")
def extreme(context: TorchCall) -> Any:
    """Along one axis, with the places where these are used; or of two tensors."""
    name = name_of(context.node)
    if "other" in context.arguments:
        return binary.extreme(context, context.operand("self"), context.operand("other"), f"{name}imum")
    x, keep = context.tensor(), bool(context.argument("keepdim", False))
    y = reductions.REDUCTIONS[name](context, x, axes_of(context, x), keep)
    if "dim" not in context.arguments:
        return y
    (axis,) = axes_of(context, x)
    return [y, PLACES[name](context, x, axis, keep)] if context.uses(1) else [y]


@operator("argmax", "argmin")
def place_of_extreme(context: TorchCall) -> GraphTensor:
    x, axis = context.tensor(), context.argument("dim")
    if axis is None:
        raise context.refuse("over all axes at once")
    name = name_of(context.node).removeprefix("arg")
    return PLACES[name](context, x, axis % len(x.shape), bool(context.argument("keepdim")))


@operator("any", "all")
def conditions(context: TorchCall) -> GraphTensor:
    """Whether some, or all, are not zero."""
    x, keep = context.tensor(), bool(context.argument("keepdim", False))
    holds = binary.binary(context, x, context.site.full(0), "not_equal", last=False)
    how = reductions.maximum if name_of(context.node) == "any" else reductions.minimum
    return how(context, holds, axes_of(context, x), keep)


@operator("cosine_similarity")
def cosine(context: TorchCall) -> GraphTensor:
    """The sum of products of two tensors, each divided by its length, or by eps where that is more."""
    x, z = _pair(context)
    axes, low = axes_of(context, x), float(context.argument("eps"))
    first, second = (_of_length_one(context, one, axes, low) for one in (x, z))
    return reductions.total(context, multiply(context, first, second, last=False), axes, False)


def _pair(context: TorchCall) -> tuple[GraphTensor, GraphTensor]:
    operands = [context.operand(name) for name in ("x1", "x2")]
    like = next(o for o in operands if isinstance(o, GraphTensor))
    first, second = (binary.as_tensor(context, o, like) for o in operands)
    return first, second


def _of_length_one(context: TorchCall, x: GraphTensor, axes: list[int], low: float) -> GraphTensor:
    length = function(context, reductions.euclidean(context, x, axes, True), "clip", low, math.inf, last=False)
    return divide(context, x, length, last=False)


@operator("pairwise_distance")
def distance(context: TorchCall) -> GraphTensor:
    """A norm of the difference of two tensors, and of eps, over the last axis."""
    (x, z), how = _pair(context), NORMS.get(float(context.argument("p")))
    if how is None:
        raise context.refuse(f"of order {context.argument('p')}")
    apart = add(context, x, z, -1.0, last=False)
    apart = affine(context, apart, "shift", context.site.full(float(context.argument("eps"))), last=False)
    return reductions.REDUCTIONS[how](context, apart, [len(x.shape) - 1], bool(context.argument("keepdim")))


@operator("var", "std", "var_mean", "std_mean")
def deviation(context: TorchCall) -> Any:
    """Around the mean; correction: what the count of values is smaller by where it divides."""
    x, keep, name = context.tensor(), bool(context.argument("keepdim", False)), name_of(context.node)
    correction = context.argument("correction", None)
    if correction is None:
        correction = 1.0 if context.argument("unbiased", True) else 0.0
    axes = axes_of(context, x)
    y = reductions.variance(context, x, axes, keep, float(correction))
    y = function(context, y, "sqrt", last=False) if "std" in name else y
    return [y, reductions.mean(context, x, axes, keep)] if "mean" in name else y


@operator("linalg_vector_norm", "norm")
def norm(context: TorchCall) -> GraphTensor:
    x, keep = context.tensor(), bool(context.argument("keepdim", False))
    order = context.argument("p" if name_of(context.node) == "norm" else "ord")
    how = NORMS.get(2 if order is None else float(order))
    if how is None:
        raise context.refuse(f"of order {order}")
    return reductions.REDUCTIONS[how](context, x, axes_of(context, x), keep)
