"""Tensors of other libraries seen with other axes: views and exchanges of axes are noted, and done together once there are few
axes enough."""

from __future__ import annotations

import itertools
import math

from ooc.networks import layers
from ooc.translate.building import AxisView, Building, GraphTensor, Shape

MOST_AXES = 5  # batch, channels, three of space


def permuted(building: Building, x: GraphTensor, order: Shape, last: bool = True) -> GraphTensor:
    """Axes of a sample in another order; what only goes back is not done at all."""
    if x.name in building.site.views:
        return _seen(building, _exchanged(building.site.views[x.name], order), last)
    known = building.site.orders
    source, before = known.get(x.name, (x, tuple(range(len(order)))))
    both = tuple(before[i] for i in order)
    if both == tuple(range(len(both))):
        return source
    y = building.add(source, layers.PermuteLayer(both), last)
    known[y.name] = source, both
    return y


def reshaped(building: Building, x: GraphTensor, shape: Shape, last: bool = True) -> GraphTensor:
    """The same bytes with other extents, where the batch stays in front."""
    held = building.site.views.get(x.name)
    if shape[:1] != x.shape[:1] or len(shape) < 2:
        raise building.refuse(
            f"from {x.shape} to {shape}", "the batch stays in front, beside one axis at least; is a size baked into the network?"
        )
    if held is None and len(shape) <= MOST_AXES:
        return x if shape == x.shape else building.add(x, layers.Reshape(shape[1:]), last)
    rank = len(x.shape) - 1
    view = _split(held or AxisView(x, x.shape[1:], tuple(range(rank)), (1,) * rank), shape[1:])
    if view is None:
        raise building.refuse(f"from {x.shape} to {shape}", "with more than 5 axes, extents split those before or join them")
    return _seen(building, view, last)


def _seen(building: Building, view: AxisView, last: bool) -> GraphTensor:
    """A view as a tensor: one of the graph where it has few axes enough."""
    source, shape = view.source, (view.source.shape[0], *view.shape)
    if len(shape) <= MOST_AXES:
        return _moved(building, view, last)
    name = f"{source.name} seen as {len(building.site.views)}"
    building.site.views[name] = view
    return GraphTensor(name, shape, source.dtype)


def _exchanged(view: AxisView, order: Shape) -> AxisView:
    """Axes in another order."""
    ends = [0, *itertools.accumulate(view.groups)]
    each = [view.order[lo:hi] for lo, hi in itertools.pairwise(ends)]
    return view._replace(order=tuple(itertools.chain(*(each[i] for i in order))), groups=tuple(view.groups[i] for i in order))


def _split(view: AxisView, shape: Shape) -> AxisView | None:
    """The same values with other extents: factors are split where an axis ends within one. None: an end divides none."""
    extents = [view.factors[i] for i in view.order]
    borders = list(itertools.accumulate(shape, lambda a, b: a * b))
    pieces: list[list[int]] = []  # of each factor
    begin = 1
    for extent in extents:
        cuts = sorted({end for end in borders if begin < end < begin * extent} | {begin * extent})
        pieces.append([])
        for end in cuts:
            if end % begin:
                return None
            pieces[-1].append(end // begin)
            begin = end
    parts = dict(zip(view.order, pieces, strict=True))
    begins = [0, *itertools.accumulate(len(parts[i]) for i in range(len(view.factors)))]
    factors = tuple(itertools.chain(*(parts[i] for i in range(len(view.factors)))))
    order = tuple(itertools.chain(*(range(begins[i], begins[i + 1]) for i in view.order)))
    ends = list(itertools.accumulate((factors[i] for i in order), lambda a, b: a * b))
    upto = [sum(end <= most for end in ends) for most in borders]
    groups = tuple(hi - lo for lo, hi in itertools.pairwise([0, *upto]))
    split = view._replace(factors=factors, order=order, groups=groups)
    return split if split.shape == shape else None


def _moved(building: Building, view: AxisView, last: bool) -> GraphTensor:
    """A view as a tensor of the graph: stretches of factors are exchanged until all are in their places."""
    x, held, n = view.source, list(range(len(view.factors))), len(view.order)
    for place in range(n):
        at = held.index(view.order[place])
        if at == place:
            continue
        count = next((i for i in range(1, n - at) if held[at + i] != view.order[place + i]), n - at)
        ends = (0, place, at, at + count, n)
        extents = tuple(math.prod(view.factors[i] for i in held[lo:hi]) for lo, hi in itertools.pairwise(ends))
        x = building.add(building.add(x, layers.Reshape(extents), last=False), layers.PermuteLayer((0, 2, 1, 3)), last=False)
        held = [*held[:place], *held[at : at + count], *held[place:at], *held[at + count :]]
    return x if x.shape[1:] == view.shape else building.add(x, layers.Reshape(view.shape), last)
