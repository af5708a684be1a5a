"""Strided copies as the fewest runtime calls: contiguous, rows with a pitch, or slices of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from ooc.backends.device_array import at

MOST_PITCH = 2**31 - 1  # bytes between rows that the runtime accepts
MOST_KEPT = 64  # calls of a form that are remembered


class PitchedRows(NamedTuple):
    """`depth` slices of `height` rows of `width` bytes. Pitches: bytes between rows; heights: rows between slices."""

    target: int
    source: int
    width: int
    height: int = 1
    depth: int = 1
    target_pitch: int = 0
    source_pitch: int = 0
    target_height: int = 0
    source_height: int = 0


def rows(target: Any, source: Any) -> Iterator[PitchedRows]:
    """The calls that copy an array into another of the same shape and item size, with any strides."""
    if target.size:
        to, of = at(target), at(source)
        form = target.shape, target.strides, source.strides, target.itemsize
        few = _few(*form)
        if few is None:
            yield from _calls(to, of, *_merged(*form))
        else:
            for call in few:
                yield PitchedRows(to + call[0], of + call[1], *call[2:])


@lru_cache(1 << 12)
def _few(shape: tuple[int, ...], to: tuple[int, ...], of: tuple[int, ...], item: int) -> tuple[PitchedRows, ...] | None:
    """The calls for arrays of this form that begin at address 0, as tiles come in few forms; None where they are many."""
    width, axes = _merged(shape, to, of, item)
    return tuple(_calls(0, 0, width, axes)) if math.prod(axis[0] for axis in axes[1:]) <= MOST_KEPT else None


Axis = tuple[int, int, int]  # extent, bytes between elements in the target and in the source


def _merged(shape: tuple[int, ...], to: tuple[int, ...], of: tuple[int, ...], item: int) -> tuple[int, list[Axis]]:
    """Contiguous bytes of both arrays, and the other axes, innermost first, joined where neither array has a gap."""
    axes = [a for a in zip(shape, to, of, strict=True) if a[0] > 1]
    axes.sort(key=lambda axis: (abs(axis[1]), abs(axis[2])))
    width, joined = item, list[Axis]()
    for extent, far, away in axes:
        if not joined and far == width and away == width:
            width *= extent
        elif joined and far == joined[-1][0] * joined[-1][1] and away == joined[-1][0] * joined[-1][2]:
            joined[-1] = (joined[-1][0] * extent, joined[-1][1], joined[-1][2])
        else:
            joined.append((extent, far, away))
    return width, joined


def _calls(target: int, source: int, width: int, axes: list[Axis]) -> Iterator[PitchedRows]:
    if not axes:
        yield PitchedRows(target, source, width)
    elif len(axes) == 1 and _pitched(axes[0], width):
        (extent, to, of) = axes[0]
        yield PitchedRows(target, source, width, extent, 1, to, of)
    elif len(axes) == 2 and _pitched(axes[0], width) and _sliced(axes):
        (height, to, of), (depth, far, away) = axes
        yield PitchedRows(target, source, width, height, depth, to, of, far // to, away // of)
    else:
        extent, to, of = axes[-1]
        for i in range(extent):
            yield from _calls(target + i * to, source + i * of, width, axes[:-1])


def _pitched(axis: Axis, width: int) -> bool:
    return all(width <= pitch <= MOST_PITCH for pitch in axis[1:])


def _sliced(axes: list[Axis]) -> bool:
    """Whether slices are whole numbers of rows apart, as the runtime describes them."""
    (height, *inner), (_, *outer) = axes
    return all(far > 0 and far % pitch == 0 and far // pitch >= height for pitch, far in zip(inner, outer, strict=True))
