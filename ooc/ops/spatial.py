"""Spatial axes: their letters, windows and checks, shared by every op that slides a window."""

from __future__ import annotations

from ooc.descriptor import Fields, take_int
from ooc.errors import ShapeError

# Letters of input, filter and output extents for 1, 2 and 3 spatial axes.
IN = {1: "w", 2: "hw", 3: "dhw"}
TAPS = {1: "s", 2: "rs", 3: "trs"}
OUT = {1: "q", 2: "pq", 3: "opq"}


def rank_of(kind: str, fields: Fields) -> int:
    """Number of spatial axes that a descriptor names."""
    for rank in (3, 2, 1):
        if IN[rank][0] in fields:
            return rank
    raise ShapeError(f"descriptor: {kind}: w= (and h=, d=) expected")


def take_extents(kind: str, fields: Fields, letters: str) -> tuple[int, ...]:
    """Remove one integer per letter from the fields of a descriptor."""
    return tuple(take_int(kind, fields, letter) for letter in letters)


def out_extent(extent: int, taps: int, stride: int, dilation: int, pad: tuple[int, int]) -> int:
    """Number of window positions along an axis; 0 or less when the window does not fit."""
    return (extent + sum(pad) - (taps - 1) * dilation - 1) // stride + 1


def check_positive(what: str, **values: int | tuple[int, ...]) -> None:
    """Raise ShapeError unless every value is at least 1."""
    for name, value in values.items():
        items = value if isinstance(value, tuple) else (value,)
        if any(v < 1 for v in items):
            raise ShapeError(f"{what}: {name} must be at least 1, got {value}")


def memory_order(rank: int, layout: str) -> tuple[int, ...]:
    """Axes (n, channels, spatial...) from slowest to fastest in memory."""
    spatial = tuple(range(2, 2 + rank))
    return (0, 1, *spatial) if layout == "channels_first" else (0, *spatial, 1)
