"""What measurements say beyond a straight line: how much slower or faster tiles of a shape are than its fit expects.

A Gaussian process over the logarithms of what a kernel's speed depends on (see `Op.shape`): near what was measured it
says what was measured, far from it nothing. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

REACH = np.array([2.0, 2.0, 1.5, 1.5, 2.0, 1.0])  # octaves of each feature over which two shapes are alike
SPREAD = 0.4  # standard deviation of the logarithms that are not known
NOISE = 0.08  # and of those measured
MOST = 256  # samples of a kernel; the newest are kept


class Sample(NamedTuple):
    """A measured tile: what it has to do, its shape, its seconds."""

    effort: float
    nbytes: float
    shape: tuple[float, ...]
    seconds: float


class Learned:
    """The logarithms of measured over fitted seconds, by shape."""

    def __init__(self, shapes: Sequence[Sequence[float]], logs: Sequence[float]) -> None:
        self.points = np.log2(np.asarray(shapes[-MOST:], float)) / REACH
        alike = _alike(self.points, self.points) + NOISE**2 / SPREAD**2 * np.eye(len(self.points))
        self.inverse = np.linalg.inv(alike)
        self.weights = self.inverse @ np.asarray(logs[-MOST:], float)

    def factor(self, shape: Sequence[Any]) -> Any:
        """Measured over fitted seconds to be expected of a shape (numbers or arrays of one length)."""
        return np.exp(_alike(_points(shape), self.points) @ self.weights)

    def spread(self, shape: Sequence[Any]) -> Any:
        """How sure that is: the standard deviation of its logarithm."""
        near = _alike(_points(shape), self.points)
        known = np.einsum("...i,ij,...j->...", near, self.inverse, near)
        return np.sqrt(NOISE**2 + SPREAD**2 * np.maximum(0.0, 1 - known))


def _points(shape: Sequence[Any]) -> Any:
    """One scaled point per entry of the broadcast shape."""
    axes = np.broadcast_arrays(*[np.asarray(v, float) for v in shape])
    return np.log2(np.maximum(np.stack(axes, -1), 1.0)) / REACH


def _alike(a: Any, b: Any) -> Any:
    """From 1 for the same shape to 0 for one that says nothing."""
    apart = (a * a).sum(-1)[..., None] + (b * b).sum(-1) - 2 * (a @ b.T)
    return np.exp(-0.5 * np.maximum(apart, 0.0))


UNKNOWN = math.hypot(SPREAD, NOISE)  # the spread of what was never measured
