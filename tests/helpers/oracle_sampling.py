"""Sampling at positions of a grid as its formulas say, result by result, in float64; and its gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

Array = Any
Arrays = dict[str, Array]
Results = dict[str, Array]


def unfolded(at: float, extent: int, op: Any) -> tuple[float, float]:
    """A position brought back into an axis, and the slope of that."""
    if op.padding == "zeros":
        return at, 1.0
    slope = 1.0
    if op.padding == "reflection":
        low, high = (0.0, extent - 1.0) if op.aligned else (-0.5, extent - 0.5)
        if high == low:
            return 0.0, 0.0
        period = (at - low) % (2 * (high - low))
        slope = 1.0 if period < high - low else -1.0
        at = low + min(period, 2 * (high - low) - period)
    inside = 0 < at < extent - 1
    return min(max(at, 0.0), extent - 1.0), slope * inside


def keys(d: float) -> tuple[float, float]:
    """The cubic of a distance with its sign, and its slope."""
    a, s, far = -0.75, math.copysign(1, d), abs(d)
    if far <= 1:
        return (a + 2) * far**3 - (a + 3) * far**2 + 1, s * (3 * (a + 2) * far**2 - 2 * (a + 3) * far)
    return a * far**3 - 5 * a * far**2 + 8 * a * far - 4 * a, s * (3 * a * far**2 - 10 * a * far + 8 * a)


def taps(position: float, extent: int, op: Any) -> list[tuple[int, float, float]]:
    """Places along an axis, what they count for, and the slope of that."""
    at = (position + 1) / 2 * (extent - 1) if op.aligned else ((position + 1) * extent - 1) / 2
    pace = (extent - 1) / 2 if op.aligned else extent / 2
    if op.mode == "cubic":
        first = math.floor(at)
        every = [(round(unfolded(i, extent, op)[0]), *keys(at - i)) for i in range(first - 1, first + 3)]
        return [(i, w, slope * pace) for i, w, slope in every if 0 <= i < extent]
    at, turn = unfolded(at, extent, op)
    if op.mode == "nearest":
        return [(round(at), 1.0, 0.0)] if 0 <= round(at) < extent else []
    first = math.floor(at)
    every = [(first, first + 1 - at, -pace * turn), (first + 1, at - first, pace * turn)]
    return [tap for tap in every if 0 <= tap[0] < extent]


def crossed(op: Any, position: Any) -> list[tuple[tuple[int, ...], float, list[float]]]:
    """Places of a result, what they count for, and the slopes of that along each axis."""
    axes = [taps(float(position[op.rank - 1 - i]), e, op) for i, e in enumerate(op.extent)]
    parts = []
    for some in itertools.product(*axes):
        weight = math.prod(w for _, w, _ in some)
        slopes = [math.prod(s if i == j else w for j, (_, w, s) in enumerate(some)) for i in range(op.rank)]
        parts.append((tuple(i for i, _, _ in some), weight, slopes))
    return parts


def grid_sample(op: Any, arrays: Arrays) -> Results:
    results = {
        "grid_sample": lambda: {"y": np.zeros((op.n, op.k, *op.size))},
        "grid_sample_backward.x": lambda: {"dx": np.zeros((op.n, op.k, *op.extent))},
        "grid_sample_backward.grid": lambda: {"dgrid": np.zeros((op.n, op.rank, *op.size))},
    }[op.kind]()
    for n, *point in np.ndindex(op.n, *op.size):
        to = (n, slice(None), *point)
        for place, weight, slopes in crossed(op, arrays["grid"][to]):
            at = (n, slice(None), *place)
            if "y" in results:
                results["y"][to] += weight * arrays["x"][at]
            elif "dx" in results:
                results["dx"][at] += weight * arrays["dy"][to]
            else:
                results["dgrid"][to] += np.dot(arrays["x"][at], arrays["dy"][to]) * np.array(slopes[::-1])
    return results


def even_grid(op: Any) -> Array:
    """Positions of an even grid over x, with one component for each axis."""
    axes = []
    for size in op.size:
        i = np.arange(size)
        axes.append(2 * i / max(size - 1, 1) - 1 if op.aligned else (2 * i + 1) / size - 1)
    return np.stack(np.meshgrid(*axes, indexing="ij")[::-1])


def positions(op: Any, numbers: Any) -> Array:
    """Random positions: as far from an even grid as is declared, or anywhere, beyond the ends too."""
    if not op.reach:
        return numbers.uniform(-1.6, 1.6, (op.n, op.rank, *op.size))
    steps = np.array([2 / max(e - 1 if op.aligned else e, 1) for e in op.extent[::-1]])
    moves = numbers.uniform(-1, 1, (op.n, op.rank, *op.size)) * np.array(op.reach[::-1]).reshape(1, -1, *(1,) * op.rank)
    return even_grid(op) + (moves + 0.3) * steps.reshape(1, -1, *(1,) * op.rank)  # beside values, where slopes jump
