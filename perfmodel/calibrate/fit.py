"""Fitting non-negative linear cost curves to measured times, by ratios."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

ROUNDS = 25  # after which weights change no digit that counts
NEAR, LEAST = 0.03, 1e-3  # shares of a measured time: errors that weigh alike; fitted times that are as bad as none


def fit_costs(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], float]:
    """Non-negative cost per feature, and the median relative error of the fit.

    features: one row per measurement (calls, pieces, bytes, ...); seconds: its measured time. As many times are made too long as
    too short, however they scatter: squares of errors relative to what was measured would make all too short, squares of
    logarithms too long where others disturb some. Small problems have few features, so every subset is solved and the best one
    without negative costs kept.
    """
    rows, times = np.asarray(features, float), np.asarray(seconds, float)
    count = rows.shape[1]
    best, best_error = np.zeros(count), np.inf
    for size in range(1, count + 1):
        for kept in itertools.combinations(range(count), size):
            costs = np.zeros(count)
            costs[list(kept)] = _solved(rows[:, kept], times)
            error = _apart(rows @ costs, times)
            if (costs >= 0).all() and error < best_error * (1 - 1e-9):
                best, best_error = costs, error
    errors = np.abs(rows @ best / times - 1)
    return [float(c) for c in best], float(statistics.median(errors))


def _solved(rows: Any, times: Any) -> Any:
    """The costs for which `_apart` is least: squares, weighted so that at what the costs before gave its slope is theirs."""
    scale = np.abs(rows / times[:, None]).max(0)
    scaled, fitted = rows / np.where(scale > 0, scale, 1), times
    costs = np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        at = np.maximum(fitted, times * LEAST)
        weighted = scaled / (at * np.maximum(np.abs(at - times), NEAR * times))[:, None]
        costs = np.linalg.lstsq(weighted.T @ scaled, weighted.T @ times, rcond=None)[0]  # as few numbers as costs
        fitted = scaled @ costs
    return costs / np.where(scale > 0, scale, 1)


def _apart(fitted: Any, times: Any) -> float:
    """How far fitted times are off: the sum of the sizes of the logarithms of their ratios to the measured ones."""
    return float(np.abs(np.log(np.maximum(fitted / times, LEAST))).sum())
