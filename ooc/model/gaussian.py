"""What measurements say beyond a straight line: how much slower or faster tiles or copies of a shape are than its fit expects.

A Gaussian process over the logarithms of what the speed depends on (of a kernel see `Op.shape`): near what was measured it
says what was measured, far from it nothing. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, overload

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


class SampleRows(Sequence[Sample]):
    """Many samples in a fifth of their memory: a row of numbers for each."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.rows = np.array([(s.effort, s.nbytes, *s.shape, s.seconds) for s in samples], float)

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    @overload
    def __getitem__(self, at: int) -> Sample: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Sample]: ...

    def __getitem__(self, at: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        effort, nbytes, *shape, seconds = self.rows[at].tolist()
        return Sample(effort, nbytes, tuple(shape), seconds)


class Learned:
    """The logarithms of measured over fitted seconds, by shape."""

    def __init__(self, shapes: Sequence[Sequence[float]], logs: Sequence[float], reach: Sequence[float] = TILE_REACH) -> None:
        # Half the digits are enough for all but the inverse, in half the time.
        self.scale = np.asarray(1 / np.asarray(reach), np.float32)
        self.points = self._scaled(np.asarray(shapes[-MOST:], np.float32))
        self.squares = (self.points**2).sum(-1)
        alike = self._near(self.points).astype(float)
        inverse = np.linalg.inv(alike + NOISE**2 / SPREAD**2 * np.eye(len(alike)))
        self.weights = (inverse @ np.asarray(logs[-MOST:], float)).astype(np.float32)
        self.inverse = inverse.astype(np.float32)

    def factor(self, shape: Sequence[Any]) -> Any:
        """Measured over fitted seconds to be expected of a shape (numbers or arrays of one length): the more, the less is
        known, as who picks the best of thousands of shapes picks errors too."""
        near = self._near(self._point(shape))
        return np.exp((near @ self.weights + CAUTION * self._unknown(near)).astype(float))

    def spread(self, shape: Sequence[Any]) -> Any:
        """How sure that is: the standard deviation of its logarithm."""
        return np.hypot(NOISE, self._unknown(self._near(self._point(shape))))

    def _unknown(self, near: Any) -> Any:
        """The standard deviation of the expectation itself."""
        known = ((near @ self.inverse) * near).sum(-1)
        return SPREAD * np.sqrt(np.maximum(0.0, 1 - known))

    def _point(self, shape: Sequence[Any]) -> Any:
        """One point per entry of the broadcast shape."""
        many = next((values.shape for values in shape if isinstance(values, np.ndarray)), ())
        sizes = np.empty((*many, len(shape)), np.float32)
        for i, values in enumerate(shape):
            sizes[..., i] = values
        return self._scaled(sizes)

    def _scaled(self, sizes: Any) -> Any:
        return np.log2(np.maximum(sizes, 1)) * self.scale

    def _near(self, points: Any) -> Any:
        """How alike points and what was measured are: from 1 for the same shape to 0 for one that says nothing."""
        apart = (points * points).sum(-1)[..., None] + self.squares - 2 * (points @ self.points.T)
        return np.exp(-0.5 * np.maximum(apart, 0))


UNKNOWN = math.hypot(SPREAD, NOISE)  # the spread of what was never measured
