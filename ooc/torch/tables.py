"""Layers that resize, mirror and pick by tables, as calls of PyTorch: a slice, a border, interpolation with the same table, or
picking by index."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from ooc.ops.resample import samples
from ooc.ops.resize import BORDERS, table
from ooc.torch.assembly import TorchLayer
from ooc.torch.windows import picking
from ooc.translate.leaving import Table, alike, borders, plain, reaches_beyond, steps_of, tables_of
from ooc.translate.parts import axis_line

LINEAR = (None, "linear", "bilinear", "trilinear")  # by spatial axes
BORDER_MODES = {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}


def upsample(context: TorchLayer) -> Node:
    """By lengths alone, where PyTorch picks what the layer does."""
    how, size = context.layer.how, context.layer.size
    axes = [samples(how, e, s) for e, s in zip(context.extent, size, strict=True)]
    if how != "nearest":
        return context.call(F.interpolate, context.x, size, mode=LINEAR[len(size)], align_corners=how == "aligned")
    return _interpolated(context, axes, [None] * len(size)) or _gathered(context, axes)


def resize(context: TorchLayer) -> Node:
    layer = context.layer
    axes = tables_of(layer, context.extent)
    if layer.how in BORDERS and not reaches_beyond(layer, context.extent):
        return _bordered(context)
    steps = [step for step in map(steps_of, axes) if step is not None]
    if layer.how == "floor" and len(steps) == len(axes):
        return context.call(operator.getitem, context.x, (slice(None), slice(None), *(slice(*step) for step in steps)))
    quotients = [s / e for e, s in zip(context.extent, layer.size, strict=True)]
    scales = [d / m if m else q for m, d, q in zip(layer.lines[1::4], layer.lines[2::4], quotients, strict=True)]
    return _interpolated(context, axes, [None] * len(axes)) or _interpolated(context, axes, scales) or _gathered(context, axes)


def _bordered(context: TorchLayer) -> Node:
    """What is put around, then what is cut off."""
    pads, x = borders(context.layer, context.extent)[::-1], context.x
    around, less = ([limit(0, p) for pair in pads for p in pair] for limit in (max, min))
    if any(around):
        x = context.call(F.pad, x, around, mode=BORDER_MODES[context.layer.how])
    return context.call(F.pad, x, less) if any(less) else x


def _interpolated(context: TorchLayer, axes: Sequence[Table], scales: Sequence[float | None]) -> Node | None:
    """By F.interpolate, where it has these tables. scales: of the axes; None: the quotients of their lengths."""
    size = context.node.shape[1:]
    sizes: dict[str, Any] = {"size": size} if None in scales else {"scale_factor": tuple(scales)}
    if None not in scales and any(math.floor(e * by) != s for e, s, by in zip(context.extent, size, scales, strict=True)):  # type: ignore[operator]
        return None
    if any(share.any() for _, _, share in axes):
        modes: tuple[tuple[str, dict[str, Any]], ...] = (
            (LINEAR[len(size)] or "", {"align_corners": False}), (LINEAR[len(size)] or "", {"align_corners": True}),
        )  # fmt: skip
    else:
        modes = ("nearest", {}), ("nearest-exact", {})
    for mode, more in modes:
        theirs = [_theirs(context, i, mode, more, by) for i, by in enumerate(scales)]
        if all(map(alike, axes, theirs)):
            return context.call(F.interpolate, context.x, **sizes, mode=mode, **more)
    return None


def _theirs(context: TorchLayer, axis: int, mode: str, more: dict[str, Any], scale: float | None) -> Table:
    """The table of F.interpolate for an axis."""
    extent, size, rank = context.extent[axis], context.node.shape[1 + axis], len(context.extent)
    if mode.startswith("nearest"):
        how, line = picking(extent, size, scale, mode == "nearest-exact", rank, context.dtype)
        return table(how, extent, size, line)
    if scale is None or more["align_corners"]:
        return samples("aligned" if more["align_corners"] else "linear", extent, size)
    return table("linear", extent, size, axis_line("linear", "half_pixel", extent, size, scale))


def _gathered(context: TorchLayer, axes: Sequence[Table]) -> Node:
    """Source by source."""
    x = context.x
    for i, (axis, extent) in enumerate(zip(axes, context.extent, strict=True)):
        if plain(axis, extent):
            continue
        first, second, share = axis
        near = context.call(torch.index_select, x, i + 2, context.table(first))
        if share.any():
            far = context.call(torch.index_select, x, i + 2, context.table(second))
            near = context.call(torch.lerp, near, far, context.table(share.reshape(-1, *(1,) * (len(axes) - 1 - i))))
        x = near
    return x
