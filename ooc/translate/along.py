"""What is computed along axes by place: running sums, triangles of matrices, windows as axes, maxima of uneven parts, rows of a
table, places of several axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.translate.binary import binary, where
from ooc.translate.building import Building, Constant, GraphTensor, Shape
from ooc.translate.parts import cut, gathered, joined, over, places
from ooc.translate.views import Changed, exchanged, in_channels, permuted, reshaped


def running(b: Building, x: GraphTensor, axis: int, exclusive: bool = False, reverse: bool = False) -> GraphTensor:
    """Sums of all values up to each place of an axis: of stretches of 1, 2, 4 and so on places. exclusive: without that place.
    reverse: of those from there on."""
    if axis == b.site.view(x).batch_axis:
        raise b.refuse("over the batch")
    arranged, ahead = in_channels(b, x, axis), -1 if reverse else 1
    y = arranged.tensor

    def moved(y: GraphTensor, by: int) -> GraphTensor:
        return b.add(y, layers.Laid((by * ahead, *(0,) * (len(y.shape) - 2)), y.shape[1:]), last=False)

    reach = 1
    while reach < x.shape[axis]:
        y = b.add((y, moved(y, reach)), layers.Add(), last=False)
        reach *= 2
    return arranged.back(moved(y, 1) if exclusive else y)


def triangle(b: Building, x: GraphTensor, upper: bool, offset: int) -> GraphTensor:
    """Matrices of the last two axes with zeros below a diagonal (upper), or above it; offset: which one."""
    if b.site.view(x).batch_axis >= len(x.shape) - 2:
        raise b.refuse(f"a tensor of shape {x.shape}", "the batch is in front of rows and columns")
    kept = np.triu(np.ones(x.shape[-2:]), offset) if upper else np.tril(np.ones(x.shape[-2:]), offset)
    return where(b, b.site.array(kept), x, b.site.full(0))


def looked_up(b: Building, places: GraphTensor, table: Constant) -> GraphTensor:
    """The row of a table (rows x c) at each place, as a last axis more: the product of the table with ones where places are."""
    rows, c = table.shape
    rank = len(places.shape)
    arranged = in_channels(b, reshaped(b, places, (*places.shape, 1), last=False), rank)
    extent = arranged.tensor.shape[2:]
    ones = (1,) * len(extent)
    each = b.add(arranged.tensor, layers.ExpandLayer((rows, *extent)), last=False)
    one_hot = binary(b, each, b.site.array(np.arange(rows, dtype=np.float64).reshape(rows, *ones)), "equal", last=False)
    layer = layers.ConvLayer(c, ones, ones, ((0, 0),) * len(ones), ones)
    filters = table.through(lambda values: exchanged(values, (1, 0)), (c, rows)).reshaped((c, rows, *ones))
    return arranged.back(b.layer(one_hot, layer, {"w": filters}, last=False), Changed(0, rank, c))


def windowed(b: Building, x: GraphTensor, axis: int, size: int, step: int) -> GraphTensor:
    """Windows along an axis, whose places are a new last axis."""
    count = (x.shape[axis] - size) // step + 1
    if axis == b.site.view(x).batch_axis:
        raise b.refuse("windows of samples")
    if step == size:  # which lie one beside the other
        stretch = cut(b, x, axis, 0, count * size, last=False)
        split, places = reshaped(b, stretch, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]), last=False), axis + 1
    else:
        each = [at + i * step for at in range(size) for i in range(count)]
        split, places = gathered(b, x, axis, each, (size, count)), axis
    return permuted(b, split, (*(i for i in range(len(split.shape)) if i != places), places))


def uneven_maxima(b: Building, x: GraphTensor, size: Shape) -> GraphTensor:
    """The largest of parts of space, which are as even as they may be and overlap where they are not, axis by axis."""
    for axis, count in enumerate(size, 2):
        extent = x.shape[axis]
        ends = [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]
        each = [over(b, cut(b, x, axis, lo, hi - lo, last=False), [axis], "max", True) for lo, hi in ends]
        x = joined(b, each, axis, last=axis == len(x.shape) - 1)
    return x


def gathered_together(b: Building, x: GraphTensor, axis: int, at: Any) -> GraphTensor:
    """Values at places of neighbouring axes, from `axis` on. at: for each value the place along each of them, on its last axis;
    its other axes stand in their stead. Where each of these decides about one axis alone, axes are gathered one by one."""
    *shape, count = at.shape
    axes = range(axis, axis + count)
    along = [places(b, at[..., i].ravel(), x.shape[a]) for i, a in enumerate(axes)]
    shares = _shares(at)
    if shares is None:
        extents = x.shape[axis : axis + count]
        flat = reshaped(b, x, (*x.shape[:axis], math.prod(extents), *x.shape[axis + count :]), last=False)
        return gathered(b, flat, axis, np.ravel_multi_index(along, extents).tolist(), tuple(shape))
    for i, a in reversed(list(enumerate(axes))):
        begin, end = shares[i]
        grid = np.reshape(along[i], shape)[tuple(slice(None) if begin <= d < end else 0 for d in range(len(shape)))]
        x = gathered(b, x, a, grid.ravel().tolist(), grid.shape)
    return x


def _shares(at: Any) -> list[tuple[int, int]] | None:
    """Of places along several axes: which axes of theirs each of them depends on, where they have axes of their own, in order."""
    *shape, count = at.shape
    varies = [[d for d, e in enumerate(shape) if e > 1 and (at[..., i] != at[..., i].take([0], d)).any()] for i in range(count)]
    shares, begin = [], 0
    for i, these in enumerate(varies):
        if these and these[0] < begin:
            return None
        end = len(shape) if i == count - 1 else max([begin, *(d + 1 for d in these)])
        shares.append((begin, end))
        begin = end
    return shares
