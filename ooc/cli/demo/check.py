"""The demo's weights, and its check: windows of the result computed again, in memory, by NumPy in float64.

Shares no code with ooc's own kernels: its convolution is one `einsum`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

CHANNELS = 64
WINDOW = 8  # pixels of the result per side
SEAMS, RANDOM = 8, 16

Array = Any


@dataclass(frozen=True)
class BlockWeights:
    """Seeded weights of the block's two convolutions."""

    w1: Array
    b1: Array
    w2: Array
    b2: Array


def make_weights() -> BlockWeights:
    """He-initialised, always the same."""
    rng = default_rng(16)

    def he(k: int, c: int) -> Array:
        return (rng.standard_normal((k, c, 3, 3)) * math.sqrt(2 / (c * 9))).astype(np.float32)

    biases = rng.uniform(-0.1, 0.1, (2, CHANNELS)).astype(np.float32)
    return BlockWeights(he(CHANNELS, 3), biases[0], he(CHANNELS, CHANNELS), biases[1])


class ResultWindow(NamedTuple):
    """Rows top:bottom and columns left:right of the result."""

    top: int
    bottom: int
    left: int
    right: int


def windows(height: int, width: int, tile_height: int, tile_width: int) -> list[ResultWindow]:
    """Corners, middles of the edges, seams between tiles, and random places of a result, each once."""
    rng = default_rng(19)
    tops, lefts = max(0, height - WINDOW), max(0, width - WINDOW)
    corners = [(i * tops // 2, j * lefts // 2) for i in range(3) for j in range(3)]
    seams = [(y - WINDOW // 2, x - WINDOW // 2) for y, x in _seams(height, width, tile_height, tile_width, rng)]
    anywhere = [(int(rng.integers(tops + 1)), int(rng.integers(lefts + 1))) for _ in range(RANDOM)]
    places = ((min(max(top, 0), tops), min(max(left, 0), lefts)) for top, left in (*corners, *seams, *anywhere))
    return list(dict.fromkeys(ResultWindow(t, min(t + WINDOW, height), x, min(x + WINDOW, width)) for t, x in places))


def _seams(height: int, width: int, tile_height: int, tile_width: int, rng: Generator) -> Iterator[tuple[int, int]]:
    """Points where tiles meet; where only one axis is cut, anywhere along the other."""
    for _ in range(SEAMS):
        rows, columns = -(-height // tile_height), -(-width // tile_width)
        y = tile_height * int(rng.integers(1, rows)) if rows > 1 else int(rng.integers(height))
        x = tile_width * int(rng.integers(1, columns)) if columns > 1 else int(rng.integers(width))
        yield y, x


def check(x: Array, y: Array, weights: BlockWeights, places: list[ResultWindow]) -> float:
    """The largest error of a result y in some windows, relative to the largest value there; NaN counts as infinite."""
    worst = largest = 0.0
    for at in places:
        exact = expected(x, weights, at)
        window = np.asarray(y[0, :, at.top : at.bottom, at.left : at.right], np.float64)
        error = float(np.abs(window - exact).max())
        worst, largest = max(worst, error if math.isfinite(error) else math.inf), max(largest, float(exact.max()))
    return worst / largest


def expected(x: Array, weights: BlockWeights, at: ResultWindow) -> Array:
    """One window of the result from its receptive field: 2 x the window for the pooling, and 1 more per convolution."""
    fields = [(2 * at.top, 2 * at.bottom, 2 * at.left, 2 * at.right)]
    for _ in range(2):
        top, bottom, left, right = fields[0]
        fields.insert(0, (max(top - 1, 0), min(bottom + 1, x.shape[2]), max(left - 1, 0), min(right + 1, x.shape[3])))
    top, bottom, left, right = fields[0]
    features = np.asarray(x[0, :, top:bottom, left:right], np.float64)
    features = _conv_relu(features, weights.w1, weights.b1, fields[0], fields[1])
    features = _conv_relu(features, weights.w2, weights.b2, fields[1], fields[2])
    rows, columns = features.shape[1] // 2, features.shape[2] // 2
    return features.reshape(CHANNELS, rows, 2, columns, 2).max(axis=(2, 4))


Field = tuple[int, int, int, int]


def _conv_relu(x: Array, w: Array, b: Array, source: Field, target: Field) -> Array:
    """relu(conv3x3(x) + b) on the field `target`, from x on the field `source`: zeros where x ends at the image's edge."""
    top, left = source[0] - (target[0] - 1), source[2] - (target[2] - 1)
    bottom, right = target[1] + 1 - source[1], target[3] + 1 - source[3]
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    sums = np.einsum("chwrs,kcrs->khw", views, w.astype(np.float64), optimize=True)
    return np.maximum(sums + b.astype(np.float64)[:, None, None], 0)
