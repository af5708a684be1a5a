"""Arrays over raw memory, and the shapes in which kernels want them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


@lru_cache(4096)
def dense_strides(shape: tuple[int, ...], itemsize: int, order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in bytes of a dense array whose axes lie in the given order, slowest first."""
    strides = [0] * len(shape)
    step = itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def dense(memory: Any, offset: int, shape: tuple[int, ...], dtype: Any, order: tuple[int, ...]) -> Any:
    """A dense array over raw memory, of the memory's own class, whose axes lie in the given order."""
    strides = dense_strides(shape, dtype.itemsize, order)
    array = np.ndarray(shape, dtype, memory, offset, strides)
    kind = type(memory)
    return array.view(kind) if kind is not np.ndarray and issubclass(kind, np.ndarray) else array


class Pieces:
    """Hands out a workspace piece by piece."""

    def __init__(self, workspace: Any) -> None:
        self.workspace = workspace if workspace is not None else np.empty(0, np.uint8)
        self.at = 0

    def skip(self, nbytes: int) -> int:
        at, self.at = self.at, self.at + nbytes
        return at

    def take(self, nbytes: int) -> Any:
        at = self.skip(nbytes)
        return self.workspace[at : at + nbytes]


def lift(values: tuple[int, ...], rank: int, fill: int) -> tuple[int, ...]:
    """Per-axis values of an (n, channels, spatial...) array as (n, channels, d, h, w)."""
    return (*values[:2], *(fill,) * (3 - rank), *values[2:])


def lift_spatial(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Per-spatial-axis values as (d, h, w)."""
    return (*(fill,) * (3 - len(values)), *values)


def lifted(array: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides, in elements, of an (n, channels, spatial...) array seen as (n, channels, d, h, w)."""
    rank, item = array.ndim - 2, array.itemsize
    return lift(array.shape, rank, 1), lift(tuple([s // item for s in array.strides]), rank, 0)
