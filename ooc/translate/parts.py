"""What operators of other libraries are made of: cuts, joins, other orders of axes, means over axes, tables, windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ooc.errors import shown
from ooc.networks import layers
from ooc.translate.building import Building, GraphTensor, Shape, spatial
from ooc.translate.tensors import MOST_AXES
from ooc.translate.views import Changed, clear_of_batch, in_axes, in_rows, permuted, reshaped, stretch

Pads = tuple[tuple[int, int], ...]
MOST_RUNS = 64  # stretches of places that are joined


# ---- values that move


def cut(building: Building, x: GraphTensor, axis: int, begin: int, count: int, last: bool = True) -> GraphTensor:
    """`count` values along an axis, from `begin` on."""
    if (begin, count) == (0, x.shape[axis]):
        return x
    if (part := stretch(building, x, axis, begin, count)) is not None:
        return part
    lead, shape = [0] * (len(x.shape) - 1), list(x.shape[1:])
    lead[axis - 1], shape[axis - 1] = -begin, count
    return building.add(x, layers.Laid(tuple(lead), tuple(shape)), last)


def sliced(building: Building, x: GraphTensor, axis: int, bounds: slice) -> GraphTensor:
    """A slice along an axis."""
    begin, end, step = bounds.indices(x.shape[axis])
    return picked(building, x, axis, range(begin, end, step))


def places(building: Building, raw: Iterable[int], count: int) -> list[int]:
    """Places along an axis of so many, those before its beginning counted from its end. Raises UnsupportedError for others."""
    listed = [int(place) for place in raw]
    if beyond := [place for place in listed if not -count <= place < count]:
        raise building.refuse(f"place {beyond[0]} of {count}", "places lie within the axis")
    return [place % count for place in listed]


def picked(building: Building, x: GraphTensor, axis: int, at: Sequence[int]) -> GraphTensor:
    """Values at some places along an axis, in that order."""
    runs = list(_runs(at))
    if list(at) == list(range(x.shape[axis])):
        return x
    if building.site.view(x).batch_axis == axis:
        raise building.refuse(f"samples {shown(list(at))} of {x.shape[0]}", "the batch stays whole")
    if not runs:
        raise building.refuse("nothing of an axis", "leave something")
    if len(runs) > MOST_RUNS:
        raise building.refuse(f"{len(at)} places in no order", "gather fewer")
    return joined(building, [_strided(building, x, axis, run) for run in runs], axis, last=False)


def gathered(building: Building, x: GraphTensor, axis: int, at: Sequence[int], shape: Shape) -> GraphTensor:
    """Values at some places along an axis, in whose stead are axes of a shape."""
    line = picked(building, x, axis, at)
    return reshaped(building, line, (*x.shape[:axis], *shape, *x.shape[axis + 1 :]))


def _runs(places: Sequence[int]) -> Iterator[range]:
    """Places as stretches, one beside the other, or of three and more with steps of their own."""
    at = 0
    while at < len(places):
        step = places[at + 1] - places[at] if at + 1 < len(places) else 1
        end = at + 1
        while step and end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        if step != 1 and end < at + 3:
            step, end = 1, at + 1
        yield range(places[at], places[end - 1] + (1 if step > 0 else -1), step)
        at = end


def _strided(building: Building, x: GraphTensor, axis: int, run: range) -> GraphTensor:
    """Values at places of one step along an axis."""
    if run.step == 1:
        return cut(building, x, axis, run.start, len(run), last=False)
    if axis == 1:  # as positions of one channel
        behind = math.prod(x.shape[2:])
        flat = building.add(x, layers.Reshape((1, x.shape[1], behind)), last=False)
        return building.add(_strided(building, flat, 2, run), layers.Reshape((len(run), *x.shape[2:])), last=False)
    lines = [(0.0, 1.0, 1.0, 0.0)] * (len(x.shape) - 2)
    extent = list(x.shape[2:])
    lines[axis - 2], extent[axis - 2] = (0.0, float(run.step), 1.0, -float(run.start)), len(run)
    return building.add(x, layers.ResizeLayer("floor", tuple(extent), tuple(itertools.chain(*lines))), last=False)


def chosen(building: Building, x: GraphTensor, axis: int, place: int, last: bool = True) -> GraphTensor:
    """The values at one place of an axis, which is gone."""
    rest = tuple(e for i, e in enumerate(x.shape) if i != axis)
    if building.site.view(x).batch_axis == axis:
        raise building.refuse(f"one place of axis {axis} of {x.shape}", "the batch stays")
    return reshaped(building, picked(building, x, axis, places(building, [place], x.shape[axis])), rest, last)


def stacked(building: Building, xs: Sequence[GraphTensor], axis: int, last: bool = True) -> GraphTensor:
    """Tensors beside each other along a new axis."""
    if axis == 0:  # in front of the batch: behind it, and exchanged with it
        y = stacked(building, xs, 1, last=False)
        return permuted(building, y, (1, 0, *range(2, len(y.shape))), last)
    shape = (*xs[0].shape[:axis], 1, *xs[0].shape[axis:])
    if len(shape) > MOST_AXES:  # joined as channels, and only seen so
        y = joined(building, xs, 1, last=False)
        apart = reshaped(building, y, (shape[0], len(xs), *xs[0].shape[1:]), last=False)
        return permuted(building, apart, (0, *range(2, axis + 1), 1, *range(axis + 1, len(shape))), last)
    return joined(building, [reshaped(building, x, shape, last=False) for x in xs], axis, last)


def shuffled(building: Building, x: GraphTensor, groups: int) -> GraphTensor:
    """Channels of so many groups taken in turn."""
    split = reshaped(building, x, (x.shape[0], groups, x.shape[1] // groups, math.prod(x.shape[2:])), last=False)
    return reshaped(building, permuted(building, split, (0, 2, 1, 3), last=False), x.shape)


def rolled(building: Building, x: GraphTensor, axis: int, by: int) -> GraphTensor:
    """Values moved along an axis; what leaves at its end comes in at its beginning."""
    extent = x.shape[axis]
    return picked(building, x, axis, [(i - by) % extent for i in range(extent)])


def tiled(building: Building, x: GraphTensor, times: Sequence[int]) -> GraphTensor:
    """A tensor so many times along each axis, one behind the other."""
    for axis, count in enumerate(times):
        if axis == 0 and count != 1:
            raise building.refuse("the batch several times")
        if count > 1 and x.shape[axis] == 1:
            x = building.add(x, layers.ExpandLayer((*x.shape[1:axis], count, *x.shape[axis + 1 :])), last=False)
        elif count != 1:
            x = picked(building, x, axis, [*range(x.shape[axis])] * count)
    return x


def split(building: Building, x: GraphTensor, axis: int, sizes: Sequence[int]) -> list[GraphTensor]:
    """Parts one after the other along an axis."""
    if building.site.view(x).batch_axis == axis:
        raise building.refuse("along the batch")
    parts, begin = [], 0
    for each in sizes:
        parts.append(cut(building, x, axis, begin, int(each), last=False))
        begin += int(each)
    return parts


def joined(building: Building, xs: Sequence[GraphTensor], axis: int, last: bool = True) -> GraphTensor:
    """Tensors one after the other along an axis."""
    if len(xs) == 1:
        return xs[0]
    xs = [clear_of_batch(building, x, axis) for x in xs]
    if building.site.view(xs[0]).batch_axis == axis:
        raise building.refuse("along the batch")
    if axis == 0 or not all(building.site.view(x).in_front for x in xs):
        each = [in_axes(building, x, axis) for x in xs]
        y = building.add([one.tensor for one in each], layers.ConcatLayer(), last=False)
        return each[0].back(y, Changed(0, axis, sum(x.shape[axis] for x in xs)), last=last)
    if axis == 1:
        return building.add(xs, layers.ConcatLayer(), last)
    whole = list(xs[0].shape[1:])  # along space each is laid into zeros, and they are added up
    whole[axis - 1] = sum(x.shape[axis] for x in xs)
    total, begin = None, 0
    for i, x in enumerate(xs):
        lead = [0] * len(whole)
        lead[axis - 1] = begin
        part = building.add(x, layers.Laid(tuple(lead), tuple(whole)), last=False)
        total = part if total is None else building.add((total, part), layers.Add(), last=last and i == len(xs) - 1)
        begin += x.shape[axis]
    assert total is not None
    return total


def folded(
    building: Building, x: GraphTensor, extent: Shape, taps: Shape, stride: Shape, pads: Pads, dilation: Shape
) -> GraphTensor:  # fmt: skip
    """Sums of what windows hold of each position of a picture, whose channels and places in the window are those of x and whose
    windows are its positions in a line: a transposed convolution of each channel, by ones."""
    each = list(zip(extent, taps, stride, pads, dilation, strict=True))
    size = tuple((e + lo + hi - d * (t - 1) - 1) // s + 1 for e, t, s, (lo, hi), d in each)
    places = math.prod(taps)
    c, rest = divmod(x.shape[1], places)
    if rest or len(x.shape) != 3 or x.shape[2] != math.prod(size):
        raise building.refuse(f"a tensor of shape {x.shape}", f"expected (n, c * {places}, {math.prod(size)})")
    image = reshaped(building, x, (*x.shape[:2], *size), last=False)
    more = tuple(
        e - ((count - 1) * s - lo - hi + d * (t - 1) + 1) for (e, t, s, (lo, hi), d), count in zip(each, size, strict=True)
    )
    layer = layers.ConvTranspose(c, taps, stride, pads, more, dilation, c)
    ones = np.tile(np.eye(places), (c, 1)).reshape(places * c, 1, *taps)
    return building.layer(image, layer, {"w": building.site.array(ones)})


def padded(
    building: Building, x: GraphTensor, before: Sequence[int], after: Sequence[int], mode: str, fill: float
) -> GraphTensor:
    """Values around, of all axes: mode constant, edge or reflect."""
    shape = tuple(e + a + b for e, a, b in zip(x.shape, before, after, strict=True))
    if shape == x.shape and not any(before):
        return x
    if before[0] or after[0] or min(shape) < 1:
        raise building.refuse(f"from {x.shape} to {shape}", "the batch cannot be padded, and something must be left")
    if mode == "constant":
        return building.add(x, layers.Laid(tuple(before[1:]), shape[1:], fill))
    if mode == "wrap":
        for axis, (begin, end) in enumerate(zip(before, after, strict=True)):
            places = [i % x.shape[axis] for i in range(-begin, x.shape[axis] + end)]
            x = picked(building, x, axis, places) if begin or end else x
        return x
    if mode not in ("edge", "reflect") or before[1] or after[1]:
        raise building.refuse(f"mode {mode}", "ooc pads by constant, edge and reflect, the last two along space")
    lines = tuple(itertools.chain(*((-float(b), 1.0, 1.0, 0.0) for b in before[2:])))
    return building.add(x, layers.ResizeLayer(mode, shape[2:], lines))


def positions_of_blocks(building: Building, x: GraphTensor, block: int, how: str) -> GraphTensor:
    """Space to depth: the places in each block as channels, those of one channel together (how "crd"), or those of one place
    ("dcr")."""
    extent = spatial(building, x)
    if any(e % block for e in extent):
        raise building.refuse(f"extents {extent} are no multiples of {block}")
    size, places = tuple(e // block for e in extent), block ** len(extent)
    at = x
    for axis, blocks in enumerate(size):
        before, behind = math.prod(size[:axis]), math.prod(extent[axis + 1 :])
        view = (x.shape[1] * block**axis, before * blocks, block, behind)
        at = building.add(building.add(at, layers.Reshape(view), last=False), layers.PermuteLayer((0, 2, 1, 3)), last=False)
    if how == "dcr":
        flat = (x.shape[1], places, math.prod(size))
        at = building.add(building.add(at, layers.Reshape(flat), last=False), layers.PermuteLayer((1, 0, 2)), last=False)
    return building.add(at, layers.Reshape((x.shape[1] * places, *size)))


# ---- sums


def over(building: Building, x: GraphTensor, axes: Sequence[int], how: str, keep: bool) -> GraphTensor:
    """The mean or maximum over some axes, but the batch; keep: those axes remain, of extent 1."""
    rank = len(x.shape)
    if building.site.view(x).batch_axis in axes:
        raise building.refuse("over the batch")
    if x.name in building.site.views:
        return _over_view(building, x, axes, how, keep)
    if min(axes) >= 2 and keep and list(axes) != list(range(2, rank)):
        window = tuple(x.shape[a] if a in axes else 1 for a in range(2, rank))
        return building.add(x, layers.PoolLayer(how, window, window, ((0, 0),) * (rank - 2)), last=False)
    rest = [a for a in range(1, rank) if a not in axes]  # they become the channels, the others positions
    order = tuple(a - 1 for a in (*rest, *axes))
    channels, positions = (math.prod(x.shape[a] for a in some) for some in (rest, axes))
    front = x if order == tuple(range(len(order))) else building.add(x, layers.PermuteLayer(order), last=False)
    if front.shape[1:] != (channels, positions):
        front = building.add(front, layers.Reshape((channels, positions)), last=False)
    pooled = building.add(front, layers.GlobalPool(how), last=False)
    final = tuple(1 if a in axes else e for a, e in enumerate(x.shape) if a and (keep or a not in axes))
    if not final:
        return reshaped(building, pooled, x.shape[:1], last=False)
    return pooled if final == (channels,) else building.add(pooled, layers.Reshape(final), last=False)


def _over_view(building: Building, x: GraphTensor, axes: Sequence[int], how: str, keep: bool) -> GraphTensor:
    arranged, kept = in_rows(building, x, axes)
    y = kept.back(building.add(arranged.tensor, layers.GlobalPool(how), last=False), last=False)
    return y if keep else reshaped(building, y, tuple(e for a, e in enumerate(x.shape) if a not in axes), last=False)


# ---- windows and tables


def ceiled(extent: Shape, taps: Shape, stride: Shape, pads: Pads) -> Pads:
    """Padding with what is added behind where the number of windows is rounded up: the last one begins inside."""
    more = []
    for e, t, s, (before, after) in zip(extent, taps, stride, pads, strict=True):
        count = -(-(e + before + after - t) // s) + 1
        count -= (count - 1) * s >= e + before
        more.append((before, max(after, (count - 1) * s + t - e - before)))
    return tuple(more)


def average(building: Building, x: GraphTensor, taps: Shape, stride: Shape, pads: Pads, ceil: bool, counted: bool) -> GraphTensor:
    """Means over windows. counted: padding counts; what ceil adds never does."""
    wide = ceiled(x.shape[2:], taps, stride, pads) if ceil else pads
    if not counted:
        return building.add(x, layers.PoolLayer("average_valid", taps, stride, wide))
    if wide == pads:
        return building.add(x, layers.PoolLayer("average", taps, stride, pads))
    around = building.add(x, layers.Pad(pads), last=False)
    rest = tuple((0, after - pad[1]) for (_, after), pad in zip(wide, pads, strict=True))
    return building.add(around, layers.PoolLayer("average_valid", taps, stride, rest))


def maximum(
    building: Building, x: GraphTensor, taps: Shape, stride: Shape, pads: Pads, ceil: bool, dilation: Shape
) -> GraphTensor:
    """Maxima over windows; of windows with gaps, of the values at each place in all windows."""
    reach = tuple((t - 1) * d + 1 for t, d in zip(taps, dilation, strict=True))
    wide = ceiled(x.shape[2:], reach, stride, pads) if ceil else pads
    if set(dilation) == {1}:
        return building.add(x, layers.PoolLayer("max", taps, stride, wide))
    size = (x.shape[1], *(e + a + b for e, (a, b) in zip(x.shape[2:], wide, strict=True)))
    around = building.add(x, layers.Laid((0, *(a for a, _ in wide)), size, -math.inf), last=False)
    counts = [(e - r) // s + 1 for e, r, s in zip(around.shape[2:], reach, stride, strict=True)]
    if min(counts) < 1:
        raise building.refuse(f"windows of {reach} in {around.shape[2:]}", "there is no room for one")
    each = []
    for place in itertools.product(*map(range, taps)):
        part = around
        for axis, (p, d, s, n) in enumerate(zip(place, dilation, stride, counts, strict=True), 2):
            part = picked(building, part, axis, range(p * d, p * d + (n - 1) * s + 1, s))
        each.append(part)
    total = each[0]
    for i, part in enumerate(each[1:], 2):
        total = building.add((total, part), layers.BinaryLayer("maximum"), last=i == len(each))
    return total


class MaximaPlaces(NamedTuple):
    """Where the maxima of a pooling are, as indices of other libraries say it.

    Fields:
        x: what was pooled.
        window, stride, pads: of the pooling.
    """

    x: GraphTensor
    window: Shape
    stride: Shape
    pads: Pads

    def covered(self, values: GraphTensor) -> Shape:
        """Extents that as many windows as there are values cover."""
        axes = zip(values.shape[2:], self.window, self.stride, self.pads, strict=True)
        return tuple((n - 1) * s + w - before - after for n, w, s, (before, after) in axes)

    def unpooled(self, building: Building, values: GraphTensor, extent: Shape) -> GraphTensor:
        """Values at these places, zeros elsewhere. extent: of the result, as the other library has it."""
        if any(s < w for s, w in zip(self.stride, self.window, strict=True)):
            raise building.refuse("places of windows that overlap")
        if extent != self.x.shape[2:]:
            raise building.refuse(f"from places in {self.x.shape[2:]} to {extent}", "name the extents of what was pooled")
        return building.add((self.x, values), layers.MaxUnpool(self.window, self.stride, self.pads))


def line_of(how: str, extent: int, size: int, scale: float) -> tuple[float, float, float, float]:
    """The numbers of `ooc.ops.resize` for a coordinate transformation of ONNX along one axis. Raises KeyError for others."""
    shift = (extent / 2) * (1 - size / (scale * extent))
    return {
        "half_pixel": (0.5, 1.0, scale, 0.5),
        "half_pixel_symmetric": (0.5, 1.0, scale, 0.5 - shift),
        "pytorch_half_pixel": (0.5, 1.0, scale, 0.5) if size > 1 else (0.0, 0.0, 1.0, 0.0),
        "asymmetric": (0.0, 1.0, scale, 0.0),
        "align_corners": (0.0, float(extent - 1), float(size - 1), 0.0) if size > 1 else (0.0, 0.0, 1.0, 0.0),
        "tf_half_pixel_for_nn": (0.5, 1.0, scale, 0.0),
    }[how]


def axis_line(how: str, where: str, extent: int, size: int, scale: float) -> tuple[float, float, float, float]:
    """As `line_of`; an axis that keeps its length is taken as it is, whatever the mode says."""
    same = (0.0, 1.0, 1.0, 0.0)
    a, m, d, b = same if (extent, scale) == (size, 1) else line_of(where, extent, size, scale)
    if how.startswith("prefer") and (m, d) == (1, size / extent):  # halves are halves only where lengths are as they are
        return a, float(extent), float(size), b
    return a, m, d, b


def resized(building: Building, x: GraphTensor, size: Shape, by: Sequence[float], how: str, where: str) -> GraphTensor:
    """Spatial axes resized, each scaled by a number; how: as `ooc.ops.resize`, where: see `line_of`."""
    extent = spatial(building, x)
    if size == extent and all(b == 1 for b in by):
        return x
    lines = [axis_line(how, where, e, s, b) for e, s, b in zip(extent, size, by, strict=True)]
    return building.add(x, layers.ResizeLayer(how, size, tuple(v for line in lines for v in line)))
