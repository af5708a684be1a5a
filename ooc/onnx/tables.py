"""Layers that resize, mirror and pick by tables, as operators of ONNX: Slice, Pad, a Resize with the same table, or Gather."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc.onnx.own import UPSAMPLED
from ooc.onnx.resizing import NEAREST, settled
from ooc.onnx.writer import OPSET, OnnxLayer
from ooc.ops.resample import samples
from ooc.ops.resize import BORDERS, table
from ooc.translate.building import Shape
from ooc.translate.leaving import Steps, Table, alike, borders, plain, reaches_beyond, steps_of, tables_of
from ooc.translate.parts import axis_line

# Coordinate transformations, with the least opset that has each.
WHERES = {
    "asymmetric": OPSET, "half_pixel": OPSET, "align_corners": OPSET, "pytorch_half_pixel": OPSET, "half_pixel_symmetric": 19,
    "tf_half_pixel_for_nn": OPSET,
}  # fmt: skip
MODES = {how: name for name, how in NEAREST.items()}
BY_SIZES = {how: words for words, how in UPSAMPLED.items()}
WRAP_OPSET = 19  # of Pad
SIZES_OPSET = 18  # from there on sizes may be those of some axes


class Resizing(NamedTuple):
    """What a Resize says: how values are rounded or mixed, as `ooc.ops.resize` has it, where positions lie, and what each spatial
    axis is scaled by."""

    how: str
    where: str
    scales: tuple[float, ...]

    def attributes(self) -> dict[str, Any]:
        """Those of ONNX."""
        nearest = {} if self.how == "linear" else {"nearest_mode": MODES[self.how]}
        mode = "linear" if self.how == "linear" else "nearest"
        return {"mode": mode, "coordinate_transformation_mode": self.where, **nearest}

    def lines(self, extent: Shape, size: Shape) -> tuple[float, ...]:
        """The numbers by which a file with it is read."""
        axes = zip(extent, size, self.scales, strict=True)
        return tuple(v for e, s, by in axes for v in axis_line(self.how, self.where, e, s, settled(e, s, by)))


def upsample(context: OnnxLayer) -> str:
    """By sizes, where ONNX picks what the layer does."""
    how, (_, *extent), size = context.layer.how, context.shape(), context.layer.size
    axes = [samples(how, e, s) for e, s in zip(extent, size, strict=True)]
    mode, where = BY_SIZES[how]
    rounded = "linear" if mode == "linear" else "floor"
    lines = [axis_line(rounded, where, e, s, s / e) for e, s in zip(extent, size, strict=True)]
    tables = [table(rounded, e, s, line) for e, s, line in zip(extent, size, lines, strict=True)]
    if not all(map(alike, axes, tables)):
        return _picked(context, axes, [1.0] * len(size))
    sizes = context.constant("sizes", np.asarray(size, np.int64))
    spatial = list(range(2, 2 + len(size)))
    words = Resizing(rounded, where, ()).attributes()
    return context.op("Resize", context.reads[0], "", "", sizes, opset=SIZES_OPSET, axes=spatial, **words)


def resize(context: OnnxLayer) -> str:
    """By scales, where it is no slice and no border."""
    layer, (_, *extent) = context.layer, context.shape()
    axes = tables_of(layer, tuple(extent))
    if layer.how in BORDERS and not reaches_beyond(layer, tuple(extent)):
        return _bordered(context)
    steps = [step for step in map(steps_of, axes) if step is not None]
    if layer.how == "floor" and len(steps) == len(axes):
        return _sliced(context, steps)
    return _picked(context, axes, [d / m if m else 1.0 for m, d in zip(layer.lines[1::4], layer.lines[2::4], strict=True)])


def _bordered(context: OnnxLayer) -> str:
    """What is put around, then what is cut off."""
    pads, x = borders(context.layer, context.shape()[1:]), context.reads[0]
    around, less = ([(limit(0, a), limit(0, b)) for a, b in pads] for limit in (max, min))
    if any(map(any, around)) or not any(map(any, less)):
        x = context.padded(x, around, mode=context.layer.how, opset=WRAP_OPSET if context.layer.how == "wrap" else OPSET)
    return context.padded(x, less) if any(map(any, less)) else x


def _sliced(context: OnnxLayer, steps: Sequence[Steps]) -> str:
    begins, ends, by = zip(*steps, strict=True)
    bounds = {"starts": begins, "ends": ends, "axes": range(2, 2 + len(steps)), "steps": by}
    return context.op("Slice", context.reads[0], *(context.constant(k, np.asarray(v, np.int64)) for k, v in bounds.items()))


def _picked(context: OnnxLayer, axes: Sequence[Table], scales: Sequence[float]) -> str:
    """By a Resize that has the same tables, at best one that is read as the same layer; by hand where there is none."""
    extent, size = context.shape()[1:], context.node.shape[1:]
    hows = ("linear",) if any(share.any() for _, _, share in axes) else tuple(MODES)
    alternatives = list(_resizings(hows, axes, extent, scales))
    if not alternatives:
        return _gathered(context, axes)
    lines = getattr(context.layer, "lines", ())
    best = min(alternatives, key=lambda one: (one.how != context.layer.how, one.lines(extent, size) != lines))
    by = context.constant("scales", (1.0, 1.0, *best.scales), "f32")
    return context.op("Resize", context.reads[0], "", by, opset=WHERES[best.where], **best.attributes())


def _resizings(hows: Sequence[str], axes: Sequence[Table], extent: Shape, scales: Sequence[float]) -> Iterator[Resizing]:
    for how in hows:
        for where in WHERES:
            each = [_scale(how, where, e, axis, by) for e, axis, by in zip(extent, axes, scales, strict=True)]
            fitting = [by for by in each if by is not None]
            if len(fitting) == len(each):
                yield Resizing(how, where, tuple(fitting))


def _scale(how: str, where: str, extent: int, axis: Table, scale: float) -> float | None:
    """What an axis may be scaled by to have a table; scale: it may be that, beside the quotient of its lengths."""
    size = len(axis[0])
    for by in (np.float32(scale), np.float32(size / extent), np.nextafter(np.float32(size / extent), np.float32(math.inf))):
        if math.floor(extent * by) != size:
            continue
        if alike(axis, table(how, extent, size, axis_line(how, where, extent, size, settled(extent, size, float(by))))):
            return float(by)
    return None


def _gathered(context: OnnxLayer, axes: Sequence[Table]) -> str:
    """Source by source."""
    x = context.reads[0]
    for i, (axis, extent) in enumerate(zip(axes, context.shape()[1:], strict=True)):
        if plain(axis, extent):
            continue
        first, second, share = axis
        near = context.op("Gather", x, context.constant("first", first.astype(np.int64)), axis=i + 2)
        if share.any():
            far = context.op("Gather", x, context.constant("second", second.astype(np.int64)), axis=i + 2)
            weights = context.constant("share", share.reshape(-1, *(1,) * (len(axes) - 1 - i)))
            near = context.op("Add", near, context.op("Mul", context.op("Sub", far, near), weights))
        x = near
    return x
