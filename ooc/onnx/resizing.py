"""Resize and Upsample, in all their roundings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc.networks import layers
from ooc.onnx.translator import Context, Made, Shape, operator, spatial

ROUNDED = 1e-6  # what f32 leaves of a number
NEAREST = {
    "round_prefer_floor": "prefer_floor", "round_prefer_ceil": "prefer_ceil", "floor": "floor", "ceil": "ceil",
}  # fmt: skip


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


def sizes_of(context: Context, x: Made, scales: Any, sizes: Any) -> tuple[Shape, list[float]]:
    """Extents of the result, and what every axis is scaled by."""
    rank, axes = len(x.shape), context.attribute("axes")
    wanted = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    made, by = list(x.shape), [1.0] * rank
    if sizes is not None and sizes.size:
        given = [int(s) for s in sizes.ravel()]
        policy = context.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            pick = min if policy == "not_larger" else max
            common = pick(s / x.shape[a] for a, s in zip(wanted, given, strict=True))
            given = [math.floor(common * x.shape[a] + 0.5) for a in wanted]
        for a, s in zip(wanted, given, strict=True):
            made[a], by[a] = s, (common if policy != "stretch" else s / x.shape[a])
    else:
        for a, s in zip(wanted, scales.ravel().tolist(), strict=True):
            made[a], by[a] = math.floor(x.shape[a] * np.float32(s)), float(s)
    # A scale that is a quotient of lengths, but for its rounding, is that quotient.
    by = [m / e if abs(b * e / m - 1) < ROUNDED else b for b, e, m in zip(by, x.shape, made, strict=True)]
    if made[:2] != list(x.shape[:2]) or min(made) < 1:
        raise context.refuse(f"from {x.shape} to {tuple(made)}", "batch and channels cannot be resized")
    return tuple(made[2:]), by[2:]


def resized(context: Context, x: Made, size: Shape, by: list[float], how: str, where: str) -> Made:
    extent = spatial(context, x)
    if size == extent and all(b == 1 for b in by):
        return x
    same = (0.0, 1.0, 1.0, 0.0)  # an axis that keeps its length is taken as it is, whatever the mode says
    lines = [same if (e, b) == (s, 1) else line_of(where, e, s, b) for e, s, b in zip(extent, size, by, strict=True)]
    if how.startswith("prefer"):  # halves are halves only where lengths are multiplied and divided as they are
        lines = [
            (a, float(e), float(s), c) if (m, d) == (1, s / e) else (a, m, d, c)
            for (a, m, d, c), e, s in zip(lines, extent, size, strict=True)
        ]
    return context.add(x, layers.Resize(how, size, tuple(v for line in lines for v in line)))


@operator("Resize")
def resize(context: Context) -> Made:
    x, mode = context.tensor(), context.attribute("mode", "nearest")
    first = 1 if context.version < 11 else 2
    scales, sizes = context.constant(first, "scales"), context.constant(3, "sizes")
    size, by = sizes_of(context, x, scales, sizes)
    where = context.attribute("coordinate_transformation_mode", "half_pixel") if context.version >= 11 else "asymmetric"
    how = NEAREST.get(context.attribute("nearest_mode", "round_prefer_floor" if context.version >= 11 else "floor"))
    if mode not in ("nearest", "linear") or how is None:
        raise context.refuse(f"mode {mode}", "ooc resizes by nearest and linear")
    if where == "tf_crop_and_resize" or context.attribute("antialias", 0) or context.attribute("exclude_outside", 0):
        raise context.refuse(f"{where}, antialias or exclude_outside", "export it without")
    return resized(context, x, size, by, how if mode == "nearest" else "linear", where)


@operator("Upsample")
def upsample(context: Context) -> Made:
    x, mode = context.tensor(), context.attribute("mode", "nearest")
    scales = context.constant(1, "scales")
    scales = np.asarray(context.attribute("scales")) if scales is None else scales
    size, by = sizes_of(context, x, scales, None)
    if mode not in ("nearest", "linear"):
        raise context.refuse(f"mode {mode}", "ooc resizes by nearest and linear")
    return resized(context, x, size, by, "floor" if mode == "nearest" else "linear", "asymmetric")
