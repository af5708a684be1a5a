"""Resize and Upsample, in all their roundings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc.onnx.translator import OnnxNode, operator
from ooc.translate.building import GraphTensor, Shape
from ooc.translate.parts import axis_line, resized
from ooc.translate.resampling import interpolated, resampled

ROUNDED = 1e-6  # what f32 leaves of a number
NEAREST = {
    "round_prefer_floor": "prefer_floor", "round_prefer_ceil": "prefer_ceil", "floor": "floor", "ceil": "ceil",
}  # fmt: skip


def settled(extent: int, size: int, scale: float) -> float:
    """A scale that is a quotient of lengths, but for its rounding, is that quotient."""
    return size / extent if size and abs(scale * extent / size - 1) < ROUNDED else scale


def sizes_of(context: OnnxNode, x: GraphTensor, scales: Any, sizes: Any) -> tuple[Shape, list[float]]:
    """Extents of the result, and what every axis is scaled by."""
    rank, axes = len(x.shape), context.attribute("axes")
    axes = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    shape, by = list(x.shape), [1.0] * rank
    if sizes is not None and sizes.size:
        extents = [int(s) for s in sizes.ravel()]
        policy = context.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            pick = min if policy == "not_larger" else max
            common = pick(s / x.shape[a] for a, s in zip(axes, extents, strict=True))
            extents = [math.floor(common * x.shape[a] + 0.5) for a in axes]
        for a, s in zip(axes, extents, strict=True):
            shape[a], by[a] = s, (common if policy != "stretch" else s / x.shape[a])
    else:
        for a, s in zip(axes, scales.ravel().tolist(), strict=True):
            shape[a], by[a] = math.floor(x.shape[a] * np.float32(s)), float(s)
    by = [settled(e, s, b) for e, s, b in zip(x.shape, shape, by, strict=True)]
    if shape[:2] != list(x.shape[:2]) or min(shape) < 1:
        raise context.refuse(f"from {x.shape} to {tuple(shape)}", "batch and channels cannot be resized")
    return tuple(shape[2:]), by[2:]


@operator("Resize")
def resize(context: OnnxNode) -> GraphTensor:
    x, mode = context.tensor(), context.attribute("mode", "nearest")
    first = 1 if context.version < 11 else 2
    scales, sizes = context.constant(first, "scales"), context.constant(3, "sizes")
    size, by = sizes_of(context, x, scales, sizes)
    where = context.attribute("coordinate_transformation_mode", "half_pixel") if context.version >= 11 else "asymmetric"
    how = NEAREST.get(context.attribute("nearest_mode", "round_prefer_floor" if context.version >= 11 else "floor"))
    if mode not in ("nearest", "linear", "cubic") or how is None:
        raise context.refuse(f"mode {mode}", "ooc resizes by nearest, linear and cubic")
    if where == "tf_crop_and_resize":
        raise context.refuse(where, "export it without")
    smooth, inside = bool(context.attribute("antialias", 0)), bool(context.attribute("exclude_outside", 0))
    if mode == "cubic" or (mode == "linear" and (smooth or inside)):
        return _weighted(context, x, size, by, mode, where, smooth, inside)
    return resized(context, x, size, by, how if mode == "nearest" else "linear", where)


def _weighted(
    context: OnnxNode, x: GraphTensor, size: Shape, by: list[float], mode: str, where: str, smooth: bool, inside: bool
) -> GraphTensor:  # fmt: skip
    """By sums of sources. smooth: of as many as an axis shrinks by; inside: of those alone that there are."""
    axes = []
    for extent, made, scale in zip(x.shape[2:], size, by, strict=True):
        shift, times, over, less = axis_line(mode, where, extent, made, scale)
        positions = (np.arange(made) + shift) * times / over - less
        wide = max(1 / scale, 1.0) if smooth else 1.0
        axes.append(interpolated(positions, extent, mode, float(context.attribute("cubic_coeff_a", -0.75)), wide, inside))
    return resampled(context, x, axes)


@operator("Upsample")
def upsample(context: OnnxNode) -> GraphTensor:
    x, mode = context.tensor(), context.attribute("mode", "nearest")
    scales = context.constant(1, "scales")
    scales = np.asarray(context.attribute("scales")) if scales is None else scales
    size, by = sizes_of(context, x, scales, None)
    if mode not in ("nearest", "linear"):
        raise context.refuse(f"mode {mode}", "ooc resizes by nearest and linear")
    return resized(context, x, size, by, "floor" if mode == "nearest" else "linear", "asymmetric")
