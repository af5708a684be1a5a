"""Operators that move values: joining, cutting, padding, other axes and extents."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.onnx.translator import Context, Made, Shape, operator, spatial


@operator("Shape")
def shape(context: Context) -> Any:
    x, rank = context.tensor(), len(context.tensor().shape)
    begin, end = context.attribute("start", 0), context.attribute("end", rank)
    return np.asarray(x.shape, np.int64)[begin:end]


@operator("Size")
def size(context: Context) -> Any:
    return np.asarray(np.prod(context.tensor().shape), np.int64)


@operator("Concat")
def concat(context: Context) -> Made:
    xs = [context.tensor(i) for i in range(len(context.op.input))]
    axis = context.attribute("axis") % len(xs[0].shape)
    if axis == 0:
        raise context.refuse("along the batch")
    if len(xs) == 1:
        return xs[0]
    if axis == 1:
        return context.add(xs, layers.Concat())
    return _joined(context, xs, axis)


def _joined(context: Context, xs: list[Made], axis: int) -> Made:
    """Along a spatial axis: each laid into zeros, and added up."""
    whole = list(xs[0].shape[1:])
    whole[axis - 1] = sum(x.shape[axis] for x in xs)
    found, begin = None, 0
    for i, x in enumerate(xs):
        lead = [0] * len(whole)
        lead[axis - 1] = begin
        part = context.add(x, layers.Laid(tuple(lead), tuple(whole)), last=False)
        found = part if found is None else context.add((found, part), layers.Add(), last=i == len(xs) - 1)
        begin += x.shape[axis]
    assert found is not None
    return found


def cut(context: Context, x: Made, axis: int, begin: int, count: int, last: bool = True) -> Made:
    """`count` values along an axis, from `begin` on."""
    if (begin, count) == (0, x.shape[axis]):
        return x
    lead, made = [0] * (len(x.shape) - 1), list(x.shape[1:])
    lead[axis - 1], made[axis - 1] = -begin, count
    return context.add(x, layers.Laid(tuple(lead), tuple(made)), last)


@operator("Slice")
def slice_(context: Context) -> Made:
    x = context.tensor()
    if context.version >= 10:
        begins, ends, axes, steps = (context.constant(i, name) for i, name in enumerate(("starts", "ends", "axes", "steps"), 1))
    else:
        begins, ends, axes = (context.attribute(name) for name in ("starts", "ends", "axes"))
        steps = None
    over = range(len(begins)) if axes is None else axes
    by = [1] * len(begins) if steps is None else steps
    for axis, begin, end, step in zip(over, begins, ends, by, strict=True):
        x = _sliced(context, x, int(axis) % len(x.shape), slice(int(begin), int(end), int(step)))
    return x


def _sliced(context: Context, x: Made, axis: int, given: slice) -> Made:
    begin, end, step = given.indices(x.shape[axis])
    count = len(range(begin, end, step))
    if (begin, step, count) == (0, 1, x.shape[axis]):
        return x
    if axis == 0 or step < 1 or not count:
        raise context.refuse(f"[{begin}:{end}:{step}] of axis {axis}", "slices go forward, leave something, and leave the batch")
    if step == 1:
        return cut(context, x, axis, begin, count, last=False)
    if axis == 1:
        raise context.refuse("channels in steps", "take them one after the other")
    lines = [(0.0, 1.0, 1.0, 0.0)] * (len(x.shape) - 2)
    made = list(x.shape[2:])
    lines[axis - 2], made[axis - 2] = (0.0, float(step), 1.0, -float(begin)), count
    return context.add(x, layers.Resize("floor", tuple(made), tuple(itertools.chain(*lines))), last=False)


@operator("Split")
def split(context: Context) -> list[Made]:
    x, rank = context.tensor(), len(context.tensor().shape)
    axis, count = context.attribute("axis", 0) % rank, len(context.op.output)
    given = context.constant(1, "split")
    sizes = context.attribute("split") if given is None else given.tolist()
    if axis == 0:
        raise context.refuse("along the batch")
    if sizes is None:
        each = -(-x.shape[axis] // count)
        sizes = [min(each, x.shape[axis] - each * i) for i in range(count)]
    found, begin = [], 0
    for each in sizes:
        found.append(cut(context, x, axis, begin, int(each), last=False))
        begin += int(each)
    return found


@operator("Pad")
def pad(context: Context) -> Made:
    x, mode, rank = context.tensor(), context.attribute("mode", "constant"), len(context.tensor().shape)
    given, value, axes = (context.constant(i, name) for i, name in enumerate(("pads", "value", "axes"), 1))
    pads = [int(p) for p in (context.attribute("pads") if given is None else given.ravel())]
    fill = float(context.attribute("value", 0.0)) if value is None or not value.size else float(value.reshape(()))
    over = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    before, after = [0] * rank, [0] * rank
    for a, lo, hi in zip(over, pads[: len(over)], pads[len(over) :], strict=True):
        before[a], after[a] = lo, hi
    made = tuple(e + a + b for e, a, b in zip(x.shape, before, after, strict=True))
    if made == x.shape and not any(before):
        return x
    if before[0] or after[0] or min(made) < 1:
        raise context.refuse(f"from {x.shape} to {made}", "the batch cannot be padded, and something must be left")
    if mode == "constant":
        return context.add(x, layers.Laid(tuple(before[1:]), made[1:], fill))
    if mode not in ("edge", "reflect") or before[1] or after[1]:
        raise context.refuse(f"mode {mode}", "ooc pads by constant, edge and reflect, the last two along space")
    lines = tuple(itertools.chain(*((-float(b), 1.0, 1.0, 0.0) for b in before[2:])))
    return context.add(x, layers.Resize(mode, made[2:], lines))


@operator("DepthToSpace")
def depth_to_space(context: Context) -> Made:
    how = context.attribute("mode", "DCR").lower()
    return context.add(context.tensor(), layers.DepthToSpace(context.attribute("blocksize"), how))


@operator("SpaceToDepth")
def space_to_depth(context: Context) -> Made:
    """The positions of each place in their block, as channels one behind the other."""
    x, b = context.tensor(), context.attribute("blocksize")
    extent = spatial(context, x)
    if any(e % b for e in extent):
        raise context.refuse(f"extents {extent} are no multiples of {b}")
    size = tuple(e // b for e in extent)
    parts = []
    for at in itertools.product(range(b), repeat=len(extent)):
        lines = tuple(itertools.chain(*((0.0, float(b), 1.0, -float(i)) for i in at)))
        parts.append(context.add(x, layers.Resize("floor", size, lines), last=False))
    made = context.add(parts, layers.Concat(), last=context.attribute("mode", "DCR") == "DCR")
    if context.attribute("mode", "DCR") == "DCR":
        return made
    split = context.add(made, layers.Reshape((b ** len(extent), x.shape[1], int(np.prod(size)))), last=False)
    swapped = context.add(split, layers.Permute((1, 0, 2)), last=False)
    return context.add(swapped, layers.Reshape((x.shape[1] * b ** len(extent), *size)))


@operator("Transpose")
def transpose(context: Context) -> Made:
    x = context.tensor()
    order: Shape = tuple(context.attribute("perm", list(range(len(x.shape)))[::-1]))
    if order[0] != 0:
        raise context.refuse(f"perm {order} moves the batch")
    return permuted(context, x, tuple(i - 1 for i in order[1:]))


def permuted(context: Context, x: Made, order: Shape) -> Made:
    """Axes of a sample in another order; what only goes back is not done at all."""
    known = context.translator.orders
    source, before = known.get(x.name, (x, tuple(range(len(order)))))
    both = tuple(before[i] for i in order)
    if both == tuple(range(len(both))):
        return source
    made = context.add(source, layers.Permute(both))
    known[made.name] = source, both
    return made


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(context: Context) -> Made:
    """The same bytes, where the batch stays in front."""
    x = context.tensor()
    made = _extents(context, x)
    if made[:1] != x.shape[:1] or not 2 <= len(made) <= 5:
        raise context.refuse(
            f"from {x.shape} to {made}", "the batch stays in front, beside 1 to 4 axes; is a size baked into the file?"
        )
    return x if made == x.shape else context.add(x, layers.Reshape(made[1:]))


def _extents(context: Context, x: Made) -> Shape:
    kind, rank = context.op.op_type, len(x.shape)
    if kind == "Flatten":
        axis = context.attribute("axis", 1)
        axis += rank * (axis < 0)
        return int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64))
    given = context.constant(1, "shape or axes")
    if kind == "Reshape":
        wanted = [int(e) for e in (context.attribute("shape") if given is None else given)]
        zero = context.attribute("allowzero", 0)
        found = [x.shape[i] if e == 0 and not zero and i < rank else e for i, e in enumerate(wanted)]
        if found.count(-1) == 1:
            rest = int(np.prod([e for e in found if e != -1], dtype=np.int64))
            found[found.index(-1)] = int(np.prod(x.shape, dtype=np.int64)) // max(1, rest)
        return tuple(found)
    axes = context.attribute("axes") if given is None else given.tolist()
    if kind == "Squeeze":
        gone = {i for i, e in enumerate(x.shape) if e == 1 and i} if axes is None else {a % rank for a in axes}
        return tuple(e for i, e in enumerate(x.shape) if i not in gone)
    new = {a % (rank + len(axes)) for a in axes}
    old = iter(x.shape)
    return tuple(1 if i in new else next(old) for i in range(rank + len(axes)))
