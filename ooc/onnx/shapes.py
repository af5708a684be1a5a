"""Operators that move values: joining, cutting, padding, other axes and extents."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.onnx.translator import OnnxNode, constant, operator
from ooc.translate import along, attention, parts
from ooc.translate.binary import as_tensor, expanded
from ooc.translate.building import GraphTensor, Shape
from ooc.translate.parts import joined, padded, positions_of_blocks, sliced
from ooc.translate.views import permuted, reshaped


@operator("Shape")
def shape(context: OnnxNode) -> Any:
    x, rank = context.tensor(), len(context.tensor().shape)
    begin, end = context.attribute("start", 0), context.attribute("end", rank)
    return np.asarray(x.shape, np.int64)[begin:end]


@operator("Size")
def size(context: OnnxNode) -> Any:
    return np.asarray(np.prod(context.tensor().shape), np.int64)


@operator("Concat")
def concat(context: OnnxNode) -> GraphTensor:
    """Of tensors; constants are the same for each sample."""
    operands = [context.operand(i) for i in range(len(context.op.input))]
    like = next(o for o in operands if isinstance(o, GraphTensor))
    xs = [as_tensor(context, o, like) for o in operands]
    return joined(context, xs, context.attribute("axis") % len(xs[0].shape))


@operator("Expand")
def expand(context: OnnxNode) -> GraphTensor:
    """Extents of 1 repeated, as beside a tensor of that shape."""
    x, size = context.tensor(), tuple(int(e) for e in context.constant(1, "shape"))
    rank = max(len(x.shape), len(size))
    both = list(zip((1,) * (rank - len(x.shape)) + x.shape, (1,) * (rank - len(size)) + size, strict=True))
    shape = tuple(max(e, f) for e, f in both)
    if rank > len(x.shape) or any(1 not in (e, f) and e != f for e, f in both):
        raise context.refuse(f"from {x.shape} to {size}", "extents of 1 are repeated, and no axes come in front of the batch")
    return expanded(context, x, shape)


@operator("Tile")
def tile(context: OnnxNode) -> GraphTensor:
    return parts.tiled(context, context.tensor(), [int(r) for r in context.constant(1, "repeats")])


@operator("Gather")
def gather(context: OnnxNode) -> GraphTensor:
    """Places that are constant: one, or several along the axis; more axes of them stand in its place. Or rows of a constant table
    at places that the network computes."""
    table, computed = context.value(0), context.value(1)
    if isinstance(computed, GraphTensor) and isinstance(table, np.ndarray):
        if table.ndim != 2 or context.attribute("axis", 0) % 2:
            raise context.refuse(f"of a constant of shape {table.shape}, at places that the network computes")
        return along.looked_up(context, computed, constant(table))
    x, places = context.tensor(), context.constant(1, "indices")
    axis = context.attribute("axis", 0) % len(x.shape)
    if not places.ndim:
        return parts.chosen(context, x, axis, int(places))
    return parts.gathered(context, x, axis, parts.places(context, places.ravel(), x.shape[axis]), places.shape)


@operator("GatherND")
def gather_together(context: OnnxNode) -> GraphTensor:
    """Places of the first axes, or of those behind the first few that both have, that are constant."""
    x, at, shared = context.tensor(), context.constant(1, "indices"), context.attribute("batch_dims", 0)
    if not 0 <= shared < at.ndim or not 0 < at.shape[-1] <= len(x.shape) - shared:
        raise context.refuse(f"places of shape {at.shape} of a tensor of shape {x.shape}, batch_dims={shared}")
    if any(e > 1 and (at != at.take([0], d)).any() for d, e in enumerate(at.shape[:shared])):
        raise context.refuse("at other places of each sample", "the places are the same for all")
    return along.gathered_together(context, x, shared, at[(0,) * shared])


@operator("Slice")
def slice_(context: OnnxNode) -> GraphTensor:
    x = context.tensor()
    if context.version >= 10:
        begins, ends, axes, steps = (context.constant(i, name) for i, name in enumerate(("starts", "ends", "axes", "steps"), 1))
    else:
        begins, ends, axes = (context.attribute(name) for name in ("starts", "ends", "axes"))
        steps = None
    over = range(len(begins)) if axes is None else axes
    by = [1] * len(begins) if steps is None else steps
    for axis, begin, end, step in zip(over, begins, ends, by, strict=True):
        x = sliced(context, x, int(axis) % len(x.shape), slice(int(begin), int(end), int(step)))
    return x


@operator("Split")
def split(context: OnnxNode) -> list[GraphTensor]:
    x, rank = context.tensor(), len(context.tensor().shape)
    axis, count = context.attribute("axis", 0) % rank, len(context.op.output)
    sizes = context.constant(1, "split")
    sizes = context.attribute("split") if sizes is None else sizes.tolist()
    if sizes is None:
        each = -(-x.shape[axis] // count)
        sizes = [min(each, x.shape[axis] - each * i) for i in range(count)]
    return parts.split(context, x, axis, sizes)


@operator("Trilu")
def triangle(context: OnnxNode) -> GraphTensor:
    offset = context.constant(1, "k")
    upper = bool(context.attribute("upper", 1))
    return along.triangle(context, context.tensor(), upper, 0 if offset is None else int(offset.reshape(())))


@operator("Pad")
def pad(context: OnnxNode) -> GraphTensor:
    x, mode, rank = context.tensor(), context.attribute("mode", "constant"), len(context.tensor().shape)
    pads, value, axes = (context.constant(i, name) for i, name in enumerate(("pads", "value", "axes"), 1))
    pads = [int(p) for p in (context.attribute("pads") if pads is None else pads.ravel())]
    fill = float(context.attribute("value", 0.0)) if value is None or not value.size else float(value.reshape(()))
    over = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    before, after = [0] * rank, [0] * rank
    for a, lo, hi in zip(over, pads[: len(over)], pads[len(over) :], strict=True):
        before[a], after[a] = lo, hi
    return padded(context, x, before, after, mode, fill)


@operator("DepthToSpace")
def depth_to_space(context: OnnxNode) -> GraphTensor:
    how = context.attribute("mode", "DCR").lower()
    return context.add(context.tensor(), layers.DepthToSpace(context.attribute("blocksize"), how))


@operator("SpaceToDepth")
def space_to_depth(context: OnnxNode) -> GraphTensor:
    how = context.attribute("mode", "DCR").lower()
    return positions_of_blocks(context, context.tensor(), context.attribute("blocksize"), how)


@operator("Transpose")
def transpose(context: OnnxNode) -> GraphTensor:
    x = context.tensor()
    return permuted(context, x, context.attribute("perm", list(range(len(x.shape)))[::-1]))


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(context: OnnxNode) -> GraphTensor:
    """The same bytes, where the batch stays in front."""
    waits = context.waiting(0)
    if isinstance(waits, GraphTensor) and (y := attention.apart(context, waits, _extents(context, waits))) is not None:
        return y
    x = context.tensor()
    return reshaped(context, x, _extents(context, x))


def _extents(context: OnnxNode, x: GraphTensor) -> Shape:
    kind, rank = context.op.op_type, len(x.shape)
    if kind == "Flatten":
        axis = context.attribute("axis", 1)
        axis += rank * (axis < 0)
        return int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64))
    constant = context.constant(1, "shape or axes")
    if kind == "Reshape":
        entries = [int(e) for e in (context.attribute("shape") if constant is None else constant)]
        zero = context.attribute("allowzero", 0)
        extents = [x.shape[i] if e == 0 and not zero and i < rank else e for i, e in enumerate(entries)]
        if extents.count(-1) == 1:
            rest = int(np.prod([e for e in extents if e != -1], dtype=np.int64))
            extents[extents.index(-1)] = int(np.prod(x.shape, dtype=np.int64)) // max(1, rest)
        return tuple(extents)
    axes = context.attribute("axes") if constant is None else constant.tolist()
    if kind == "Squeeze":
        gone = {i for i, e in enumerate(x.shape) if e == 1 and i} if axes is None else {a % rank for a in axes}
        return tuple(e for i, e in enumerate(x.shape) if i not in gone)
    new = {a % (rank + len(axes)) for a in axes}
    old = iter(x.shape)
    return tuple(1 if i in new else next(old) for i in range(rank + len(axes)))
