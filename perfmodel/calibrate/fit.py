"""Fitting non-negative linear cost curves to measured times, by relative error."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import numpy as np


def fit_costs(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], float]:
    """Non-negative cost per feature, and the median relative error of the fit.

    features: one row per measurement (calls, pieces, bytes, ...); seconds: its measured time. Small problems have few
    features, so every subset is solved and the best one without negative costs kept.
    """
    rows, times = np.asarray(features, float), np.asarray(seconds, float)
    weighted = rows / times[:, None]
    count = rows.shape[1]
    best, best_error = np.zeros(count), np.inf
    for size in range(1, count + 1):
        for kept in itertools.combinations(range(count), size):
            costs = np.zeros(count)
            costs[list(kept)] = np.linalg.lstsq(weighted[:, kept], np.ones(len(times)), rcond=None)[0]
            error = float(np.sum((weighted @ costs - 1) ** 2))
            if (costs >= 0).all() and error < best_error * (1 - 1e-9):
                best, best_error = costs, error
    errors = np.abs(weighted @ best - 1)
    return [float(c) for c in best], float(statistics.median(errors))
