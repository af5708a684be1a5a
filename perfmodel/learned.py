"""What measurements say beyond a straight line: how much slower or faster tiles or copies of a shape are than its fit expects.

A Gaussian process over the logarithms of what the speed depends on (of a kernel see `Op.shape`): near what was measured it
says what was measured, far from it nothing. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# Octaves of each feature over which two shapes are alike.
TILE_REACH = (3.0, 3.0, 2.25, 2.25, 3.0, 0.7)
COPY_REACH = (2.0, 2.0)  # bytes, and bytes of a contiguous piece
SPREAD = 0.4  # standard deviation of the logarithms that are not known
NOISE = 0.2  # and of those measured
CAUTION = 0.4  # standard deviations of the unknown that count as seconds
MOST = 128  # samples of a kernel; the newest are kept


class Sample(NamedTuple):
    """A measured tile or copy: what it has to do (of a copy: contiguous pieces and bytes), its shape, its seconds."""

    effort: float
    nbytes: float
    shape: tuple[float, ...]
    seconds: float


class Learned:
    """The logarithms of measured over fitted seconds, by shape."""

    def __init__(self, shapes: Sequence[Sequence[float]], logs: Sequence[float], reach: Sequence[float] = TILE_REACH) -> None:
        self.reach = np.asarray(reach)
        self.points = np.log2(np.asarray(shapes[-MOST:], float)) / self.reach
        alike = _alike(self.points, self.points) + NOISE**2 / SPREAD**2 * np.eye(len(self.points))
        inverse = np.linalg.inv(alike)
        # Half the digits are enough from here on, in half the time.
        self.weights = (inverse @ np.asarray(logs[-MOST:], float)).astype(np.float32)
        self.inverse, self.points = inverse.astype(np.float32), self.points.astype(np.float32)

    def factor(self, shape: Sequence[Any]) -> Any:
        """Measured over fitted seconds to be expected of a shape (numbers or arrays of one length): the more, the less is
        known, as who picks the best of thousands of shapes picks errors too."""
        near = _alike(self._scaled(shape), self.points)
        return np.exp((near @ self.weights + CAUTION * self._unknown(near)).astype(float))

    def spread(self, shape: Sequence[Any]) -> Any:
        """How sure that is: the standard deviation of its logarithm."""
        return np.hypot(NOISE, self._unknown(_alike(self._scaled(shape), self.points)))

    def _unknown(self, near: Any) -> Any:
        """The standard deviation of the expectation itself."""
        known = ((near @ self.inverse) * near).sum(-1)
        return SPREAD * np.sqrt(np.maximum(0.0, 1 - known))

    def _scaled(self, shape: Sequence[Any]) -> Any:
        """One point per entry of the broadcast shape."""
        axes = np.broadcast_arrays(*[np.asarray(v, float) for v in shape])
        return (np.log2(np.maximum(np.stack(axes, -1), 1.0)) / self.reach).astype(np.float32)


def _alike(a: Any, b: Any) -> Any:
    """From 1 for the same shape to 0 for one that says nothing."""
    apart = (a * a).sum(-1)[..., None] + (b * b).sum(-1) - 2 * (a @ b.T)
    return np.exp(-0.5 * np.maximum(apart, 0.0))


UNKNOWN = math.hypot(SPREAD, NOISE)  # the spread of what was never measured
