"""Coarser levels of a picture or a volume, each made of the one before: means of boxes, of labels every other position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc.ir.region import Span, extents, whole
from ooc.sources.geometry import METERS, Spacing
from ooc.sources.protocol import Array, Source
from ooc.sources.units import batches

SPACE = "zyx"
COARSEST = 256  # positions along axes of space, at most, of the last level
PIECE = 1 << 20  # elements that are averaged at a time


def coarser(
    axes: str, shape: Sequence[int], spacings: Sequence[Spacing], factors: Sequence[int], space: str = SPACE
) -> list[int] | None:
    """What the next level has 1 position of, along every axis: of space 2, but where positions lie twice as far apart as along
    others; None: there is none. spacings: of the finest level. factors: of this one. space: letters of axes that are halved."""
    halved = {a: e for a, e in zip(axes, shape, strict=True) if a in space and e > 1}
    if max(halved.values(), default=0) <= COARSEST:
        return None
    lies = zip(axes, spacings, factors, strict=True)
    steps = {a: s.step * METERS.get(s.unit, 1.0) * f for a, s, f in lies if a in halved}
    least = min(steps.values())
    return [2 if a in steps and steps[a] < 2 * least else 1 for a in axes]


def coarse_shape(shape: Sequence[int], along: Sequence[int]) -> tuple[int, ...]:
    """The extents of the next level."""
    return tuple(-(-e // f) for e, f in zip(shape, along, strict=True))


def fill(sink: Source, source: Source, unit: tuple[int, ...], along: Sequence[int], labels: bool = False) -> None:
    """Write a level of the one before, unit by unit. labels: numbers are names, which have no mean."""
    for region in batches(whole(sink.shape), unit, 0):
        finer = tuple(Span(s.lo * f, min(s.hi * f, e)) for s, f, e in zip(region, along, source.shape, strict=True))
        block, out = np.empty(extents(finer), source.dtype), np.empty(extents(region), sink.dtype)
        source.read(finer, block)
        if labels or source.dtype.kind == "b":
            out[...] = block[tuple(slice(None, None, f) for f in along)]
        else:
            _average(block, out, along)
        sink.write(region, out)


def _average(block: Array, out: Array, along: Sequence[int]) -> None:
    """Means of boxes of a block, those at the end of an odd axis of what there is."""
    wide = np.result_type(block.dtype, np.float32)
    for part in batches(whole(out.shape), (1,) * out.ndim, PIECE):
        finer: Any = tuple(slice(s.lo * f, s.hi * f) for s, f in zip(part, along, strict=True))
        values = block[finer].astype(wide)
        for axis, factor in enumerate(along):
            if factor > 1:
                extent = values.shape[axis]
                counts = np.minimum(factor, extent - np.arange(extent) // factor * factor).astype(wide)
                values /= counts.reshape(-1, *[1] * (values.ndim - axis - 1))  # before they are summed: sums may be too large
                values = np.add.reduceat(values, range(0, extent, factor), axis=axis)
        at: Any = tuple(slice(s.lo, s.hi) for s in part)
        out[at] = _rounded(values, out.dtype) if out.dtype.kind in "ui" else values


def _rounded(values: Array, dtype: Any) -> Array:
    """Integers of a type, the nearest that it has."""
    info = np.iinfo(dtype)
    top = np.nextafter(values.dtype.type(info.max), 0) if info.bits > 32 else info.max  # which floating numbers have not
    return np.where(values >= top, info.max, np.clip(np.rint(values), info.min, top).astype(dtype))
