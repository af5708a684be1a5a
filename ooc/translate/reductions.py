"""What operators of other libraries make of all values along some axes, but the batch; none of these layers is an operator's
last."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ooc.networks import layers
from ooc.translate.building import Building, GraphTensor
from ooc.translate.elementwise import add, affine, function, minus, multiply
from ooc.translate.parts import over
from ooc.translate.views import Changed, in_channels, reshaped

COUNTED = {"f16": 1 << 11, "bf16": 1 << 8, "f32": 1 << 24, "f64": 1 << 31}  # how many whole numbers a type tells apart
Reduction = Callable[[Building, GraphTensor, Sequence[int], bool], GraphTensor]


def mean(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """Their mean."""
    return over(b, x, axes, "average", keep)


def maximum(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """The largest."""
    return over(b, x, axes, "max", keep)


def minimum(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """The smallest."""
    return minus(b, over(b, minus(b, x, last=False), axes, "max", keep), last=False)


def total(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """Their sum."""
    return affine(b, over(b, x, axes, "average", keep), "scale", b.site.full(counted(x, axes)), last=False)


def squares(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """The sum of their squares."""
    return total(b, multiply(b, x, x, last=False), axes, keep)


def absolute(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """The sum of their absolute values."""
    return total(b, function(b, x, "abs", last=False), axes, keep)


def euclidean(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """The root of the sum of their squares."""
    return function(b, squares(b, x, axes, keep), "sqrt", last=False)


def largest(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """The largest absolute value."""
    return maximum(b, function(b, x, "abs", last=False), axes, keep)


def log_total(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """The logarithm of their sum."""
    return function(b, total(b, x, axes, keep), "log", last=False)


def log_exponentials(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """The logarithm of the sum of their exponentials: of what is above the largest, so that nothing overflows."""
    high = maximum(b, x, axes, True)
    above = function(b, add(b, x, high, -1.0, last=False), "exp", last=False)
    return _kept(b, add(b, function(b, total(b, above, axes, True), "log", last=False), high, last=False), axes, keep)


def variance(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool, less: float = 0.0) -> GraphTensor:
    """The mean of squares around the mean; less: what the number of values is smaller by where it divides."""
    apart = add(b, x, mean(b, x, axes, True), -1.0, last=False)
    around = mean(b, multiply(b, apart, apart, last=False), axes, keep)
    count = counted(x, axes)
    by = count / (count - less) if count > less else math.nan
    return affine(b, around, "scale", b.site.full(by), last=False) if less else around


def place_of_largest(b: Building, x: GraphTensor, axis: int, keep: bool) -> GraphTensor:
    """Which place of an axis is the first that none is larger at, as a floating number."""
    if axis == b.site.view(x).batch_axis:
        raise b.refuse("over the batch")
    if x.shape[axis] > COUNTED[x.dtype]:
        raise b.refuse(f"{x.dtype} does not count {x.shape[axis]} places")
    store = "u8" if x.shape[axis] <= 1 << 8 else "i32"
    arranged = in_channels(b, x, axis)
    place = b.add(b.add(arranged.tensor, layers.ArgMaxLayer(store), last=False), layers.Convert(dtype=x.dtype), last=False)
    place = b.add(place, layers.Stop("zero"), last=False)
    shape = tuple(1 if i == axis else e for i, e in enumerate(x.shape) if keep or i != axis)
    return reshaped(b, arranged.back(place, Changed(0, axis, 1), last=False), shape, last=False)


def place_of_smallest(b: Building, x: GraphTensor, axis: int, keep: bool) -> GraphTensor:
    """Which place of an axis is the first that none is smaller at."""
    return place_of_largest(b, minus(b, x, last=False), axis, keep)


REDUCTIONS: dict[str, Reduction] = {
    "mean": mean, "max": maximum, "min": minimum, "sum": total, "l1": absolute, "l2": euclidean, "linf": largest,
    "sum_square": squares, "log_sum": log_total, "log_sum_exp": log_exponentials, "var": variance,
}  # fmt: skip


def counted(x: GraphTensor, axes: Sequence[int]) -> int:
    """How many values one result is of."""
    return math.prod(x.shape[a] for a in axes)


def _kept(b: Building, x: GraphTensor, axes: Sequence[int], keep: bool) -> GraphTensor:
    """Axes of extent 1 left out, if they are not wanted."""
    if keep:
        return x
    return reshaped(b, x, tuple(e for a, e in enumerate(x.shape) if a not in axes), last=False)
