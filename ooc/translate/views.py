"""Exchanges of axes and other extents of other libraries' tensors: they are noted, and done where a layer must have them done."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc.networks import layers
from ooc.networks.layers.base import Layer
from ooc.translate.building import Building, Constant, GraphTensor, Shape
from ooc.translate.tensors import BATCH, MOST_AXES, AxisView


def permuted(b: Building, x: GraphTensor, order: Sequence[int], last: bool = True) -> GraphTensor:
    """Axes in another order, the batch among them; what only goes back is not done at all."""
    return viewed(b, b.site.view(x).exchanged(order), last)


def reshaped(b: Building, x: GraphTensor, shape: Shape, last: bool = True) -> GraphTensor:
    """The same bytes with other extents."""
    if shape == x.shape:
        return x
    view = b.site.view(x).split(shape) if math.prod(shape) == math.prod(x.shape) else None
    if view is None and shape[:1] == x.shape[:1] and 2 <= len(shape) <= MOST_AXES:  # an axis ends within another
        return b.add(x, layers.Reshape(shape[1:]), last)
    if view is None and shape[:1] == x.shape[:1] and math.prod(shape) == math.prod(x.shape):
        view = AxisView.of(b.settled(reshaped(b, x, _common(x.shape, shape), last=False))).split(shape)
    if view is None:
        raise b.refuse(f"from {x.shape} to {shape}", "extents split those before or join them; is a size baked into the network?")
    return viewed(b, view, last)


def with_an_axis(b: Building, x: GraphTensor) -> GraphTensor:
    """One number of each sample, as a channel: layers read no less; others as they are."""
    return reshaped(b, x, (*x.shape, 1), last=False) if len(x.shape) == 1 else x


def _common(x: Shape, shape: Shape) -> Shape:
    """Extents that end where axes of both end, none of 1 but the batch; not more than a tensor of the graph has."""
    both = set(itertools.accumulate(x, operator.mul)) & set(itertools.accumulate(shape, operator.mul))
    ends = sorted(both)
    if len(ends) > MOST_AXES:
        ends = [*ends[: MOST_AXES - 1], ends[-1]]
    return x[0], *(end // begin for begin, end in itertools.pairwise((x[0], *(e for e in ends if e > x[0]))))


def clear_of_batch(b: Building, x: GraphTensor, axis: int) -> GraphTensor:
    """x, where a batch of one is in an axis beside one of extent 1, with the batch there."""
    view = b.site.view(x)
    free = next((i for i in (axis + 1, axis - 1) if 0 <= i < len(x.shape) and x.shape[i] == 1), None)
    if view.batch_axis != axis or view.factors[BATCH] > 1 or free is None:
        return x
    axes = [*view.axes]
    axes[axis], axes[free] = view.beside_batch(axis), (BATCH, *axes[free])
    return viewed(b, view._replace(axes=tuple(axes)), last=False)


def viewed(b: Building, view: AxisView, last: bool) -> GraphTensor:
    """A view as a tensor: the source itself where nothing is changed."""
    if view.still and view.shape == view.source.shape:
        return view.source
    return b.site.viewed(view, b.made if last else "")


class Changed(NamedTuple):
    """An axis, alone in a group, to which a layer gave another extent."""

    group: int
    axis: int
    extent: int


class Arrangement:
    """A tensor whose factors were brought into another order and joined for a layer, the batch in front.

    Parameters:
        b: the operator.
        x: the tensor.
        groups: numbers of the factors of its view that are one axis each behind the batch; those that are in none are 1.
    """

    def __init__(self, b: Building, x: GraphTensor, groups: Sequence[Shape]) -> None:
        self.b, self.view, self.groups = b, b.site.view(x), groups

    @property
    def tensor(self) -> GraphTensor:
        """Of the graph: moved now, if it is not yet."""
        return self.b.settled(viewed(self.b, self.view._replace(axes=((BATCH,), *self.groups)), last=False))

    def back(self, y: GraphTensor, *changed: Changed, last: bool = True) -> GraphTensor:
        """What a layer made of it, seen as x was, but for axes that have other extents."""
        others = {c.group: c for c in changed}
        parts, numbers, axes = [self.view.factors[:1]], {BATCH: BATCH}, dict[int, Shape]()
        for g, group in enumerate(self.groups):
            first = sum(map(len, parts))
            if (other := others.get(g)) is not None:
                parts.append((other.extent,))
                axes[other.axis] = (BATCH, first) if other.axis == self.view.batch_axis else (first,)
            else:
                parts.append(tuple(self.view.factors[i] for i in group) or (1,))
                numbers |= {i: first + at for at, i in enumerate(group)}
        for axis, factors in enumerate(self.view.axes):
            axes.setdefault(axis, tuple(numbers[i] for i in factors if i in numbers))
        return viewed(self.b, AxisView(y, tuple(parts), tuple(axes[axis] for axis in range(len(axes)))), last)


def in_channels(b: Building, x: GraphTensor, axis: int) -> Arrangement:
    """A tensor with one axis as its channels, and its positions behind in the order of the bytes."""
    view = b.site.view(x)
    channels = view.beside_batch(axis)
    rest = [tuple(i for i in part if i not in channels and view.factors[i] > 1) for part in view.of_source[1:]]
    rest = [part for part in rest if part]
    if len(rest) > MOST_AXES - 2:
        rest = [tuple(itertools.chain(*rest))]
    return Arrangement(b, x, (channels, *(rest or [()])))


def in_space(b: Building, x: GraphTensor) -> Arrangement:
    """A tensor of samples joined with something else, channels and positions: what is joined as the first axis of space."""
    view = b.site.view(x)
    if view.batch_axis:
        raise b.refuse(f"a tensor of shape {x.shape}", "the batch is in front of channels and positions")
    return Arrangement(b, x, [view.beside_batch(axis) for axis in (1, 0, *range(2, len(x.shape)))])


def in_axes(b: Building, x: GraphTensor, axis: int) -> Arrangement:
    """A tensor with one axis as its channels, and the others behind as one, in their order."""
    view = b.site.view(x)
    others = (view.beside_batch(i) for i in range(len(view.axes)) if i != axis)
    return Arrangement(b, x, (view.beside_batch(axis), tuple(itertools.chain(*others))))


def in_rows(b: Building, x: GraphTensor, axes: Sequence[int]) -> tuple[Arrangement, Arrangement]:
    """A tensor with some axes as positions of channels that all the others are, in the order of the bytes; and the same without
    these positions, as what is made of each row is seen."""
    view = b.site.view(x)
    rows = tuple(itertools.chain(*(view.beside_batch(axis) for axis in axes)))
    rest = tuple(i for i in range(1, len(view.factors)) if i not in rows and view.factors[i] > 1)
    return Arrangement(b, x, (rest, rows)), Arrangement(b, x, (rest,))


class Matrices(NamedTuple):
    """A tensor as heads, rows and columns.

    Fields:
        tensor: of the graph.
        turned: rows and columns are exchanged in it.
        plain: how its parts follow each other if they are not.
    """

    tensor: GraphTensor
    turned: bool
    plain: Arrangement


def in_matrices(b: Building, x: GraphTensor, may_turn: bool = True) -> Matrices:
    """A tensor as heads, rows and columns: its axes but the last two, and these, exchanged where that saves moving them."""
    view, rank = b.site.view(x), len(x.shape)
    heads = tuple(itertools.chain(*(view.beside_batch(axis) for axis in range(rank - 2))))
    rows, columns = (view.beside_batch(axis) for axis in (rank - 2, rank - 1))
    turned = view._replace(axes=((BATCH,), heads, columns, rows))
    if may_turn and turned.still and not view._replace(axes=((BATCH,), heads, rows, columns)).still:
        return Matrices(b.settled(viewed(b, turned, last=False)), True, Arrangement(b, x, (heads, rows, columns)))
    plain = Arrangement(b, x, (heads, rows, columns))
    return Matrices(plain.tensor, False, plain)


def through(
    b: Building, x: GraphTensor, layer: Layer, parameters: Mapping[str, Constant | None] | None = None, last: bool = True
) -> GraphTensor:
    """A layer that treats all values alike, whatever axes they are seen with."""
    view = b.site.views.get(x.name)
    if view is None:
        return b.layer(x, layer, parameters or {}, last)
    return viewed(b, view._replace(source=b.layer(view.source, layer, parameters or {}, last, named=False)), last)


def constant_beside(b: Building, x: GraphTensor, values: Constant) -> Constant:
    """Values that repeat extents of 1 beside a tensor, as they lie beside a sample of the source of its view."""
    view, shape = b.site.view(x), (1,) * (len(x.shape) - len(values.shape)) + values.shape
    if len(shape) > len(x.shape) or (shape[view.batch_axis] > 1 and view.factors[BATCH] > 1):
        raise b.refuse(f"a constant of shape {values.shape} beside a tensor of shape {x.shape}")
    extents = {i: view.factors[i] if e > 1 else 1 for e, axis in zip(shape, view.axes, strict=True) for i in axis}
    extents = {i: extents.get(i, 1) for i in range(len(view.factors))}
    order = sorted(range(len(view.order)), key=lambda at: view.order[at])
    split = tuple(extents[i] for i in view.order)
    wide, laid = [], []
    for part in view.of_source[1:]:
        full = any(extents[i] > 1 for i in part)
        wide += [view.factors[i] if full else 1 for i in part if i in view.order]
        laid.append(view.extent(part) if full else 1)

    def beside(held: Any) -> Any:
        placed = exchanged(held.reshape(split), order)
        return broadcast(placed, (1, *wide)).reshape(tuple(laid))

    return values.through(beside, tuple(laid))._replace(number=values.number)


def exchanged(values: Any, order: Sequence[int]) -> Any:
    """An array or a tensor of PyTorch with its axes in another order."""
    return values.transpose(order) if isinstance(values, np.ndarray) else values.permute(*order)


def broadcast(values: Any, shape: Shape) -> Any:
    """An array or a tensor of PyTorch with extents of 1 repeated."""
    return np.broadcast_to(values, shape) if isinstance(values, np.ndarray) else values.expand(*shape)


class Aligned(NamedTuple):
    """Two tensors as layers of two take them, which repeat extents of 1.

    Fields:
        x, z: of the graph.
        view: how the result is seen; None: as it is.
    """

    x: GraphTensor
    z: GraphTensor
    view: AxisView | None

    def back(self, b: Building, y: GraphTensor, last: bool) -> GraphTensor:
        """The result as it is seen."""
        return y if self.view is None else viewed(b, self.view._replace(source=y), last)


def aligned(b: Building, x: GraphTensor, z: GraphTensor) -> Aligned:
    """Two tensors with as many axes, one brought to the other's order of bytes, the one that is as large as the result."""
    if x.name not in b.site.views and z.name not in b.site.views:
        return Aligned(x, z, None)
    shape = tuple(map(max, x.shape, z.shape))
    tried = []
    for base, other in ((x, z), (z, x)):
        view = _along(b, base, other) if base.shape == shape else None
        if view is not None:
            tried.append((not view.still, base.name in b.site.views, base is not x, base, view))
    if not tried:
        full = [_full(b, one, shape) for one in (x, z)]
        return aligned(b, *full) if full != [x, z] else Aligned(b.settled(x), b.settled(z), None)
    *_, swapped, base, view = min(tried, key=lambda one: one[:3])
    moved = b.settled(viewed(b, view, last=False))
    of_base = b.site.views.get(base.name)
    source = base if of_base is None else of_base.source
    return Aligned(*((moved, source) if swapped else (source, moved)), of_base)


def _full(b: Building, x: GraphTensor, shape: Shape) -> GraphTensor:
    axis = b.site.view(x).batch_axis
    return repeated(b, x, shape, last=False) if x.shape != shape and x.shape[axis] == shape[axis] else x


def _along(b: Building, base: GraphTensor, other: GraphTensor) -> AxisView | None:
    """Another tensor, which repeats extents of 1, in the order of the bytes of the first one's source; None: it cannot be so."""
    view, held = b.site.view(base), b.site.view(other)
    extents: dict[int, int] = {}
    for axis, of_other in enumerate(held.axes):
        plain = other.shape[axis] == base.shape[axis]
        if not plain and held.extent(held.beside_batch(axis)) > 1:
            return None
        extents |= {i: view.factors[i] if plain or i == BATCH else 1 for i in view.axes[axis]}
        if (BATCH in of_other) != (BATCH in view.axes[axis]) and view.factors[BATCH] > 1:
            return None
    split = held.split(tuple(extents[i] for i in view.order))
    if split is None:
        return None
    of_factor = {i: split.beside_batch(at) for at, i in enumerate(view.order)}
    axes: list[Shape] = [(BATCH,)]
    for part in view.of_source[1:]:
        counts = {extents[i] == view.factors[i] for i in part if i in extents and view.factors[i] > 1}
        if len(counts) > 1:
            return None
        axes.append(tuple(itertools.chain(*(of_factor.get(i, ()) for i in part))))
    return split._replace(axes=tuple(axes))


def stretch(b: Building, x: GraphTensor, axis: int, begin: int, count: int) -> GraphTensor | None:
    """So many values along an axis, from one on, where that is one factor of a view; None: it is none, or x is no view."""
    view = b.site.views.get(x.name)
    if view is None or len(view.axes[axis]) != 1 or view.axes[axis] == (BATCH,):
        return None
    (at,) = view.axes[axis]
    before, behind = (math.prod(view.factors[lo:hi]) for lo, hi in ((1, at), (at + 1, None)))
    whole = b.add(view.source, layers.Reshape((before, view.factors[at], behind)), last=False)
    part = b.add(whole, layers.Laid((0, -begin, 0), (before, count, behind)), last=False)
    parts = (view.factors[:1], view.factors[1:at] or (1,), (count,), view.factors[at + 1 :] or (1,))
    shift = int(at == 1)  # a factor of 1 stands for none in front
    axes = tuple(tuple(i if i == BATCH else i + shift for i in numbers) for numbers in view.axes)
    return viewed(b, AxisView(part, parts, axes), last=False)


def repeated(b: Building, x: GraphTensor, shape: Shape, last: bool = True) -> GraphTensor:
    """A tensor with extents of 1, none of them the batch's, repeated."""
    view, groups, changed = b.site.view(x), list[Shape](), list[Changed]()
    joins = False
    for axis, (have, extent) in enumerate(zip(x.shape, shape, strict=True)):
        if have != extent:
            changed.append(Changed(len(groups), axis, extent))
            groups.append(())
        elif joins:
            groups[-1] += view.beside_batch(axis)
        else:
            groups.append(view.beside_batch(axis))
        joins = have == extent
    arranged = Arrangement(b, x, groups)
    size = list(arranged.tensor.shape[1:])
    for one in changed:
        size[one.group] = one.extent
    return arranged.back(b.add(arranged.tensor, layers.ExpandLayer(tuple(size)), last=False), *changed, last=last)
