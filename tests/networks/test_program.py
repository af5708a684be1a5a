"""Integer programs: optima that are known, bounds and integers that hold, none where there is none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ooc.networks.auto.program import Constraints, minimum


@pytest.mark.quick
@pytest.mark.parametrize("seed", range(12))
def test_as_the_best_of_all_combinations(seed: int) -> None:
    """Six columns of 0 or 1, and one that is as large as two sums."""
    rng = np.random.default_rng(seed)
    cost, weight, room = rng.integers(-9, 3, 6), rng.integers(1, 9, 6), int(rng.integers(4, 30))
    busy = rng.integers(0, 5, (2, 6))
    constraints = [
        Constraints(np.array([[*weight, 0.0]]), -np.inf, room),
        Constraints(np.array([[*-row, 1.0] for row in busy]), [0.0, 1.0], np.inf),
    ]
    best = minimum(np.array([*cost, 1.0]), np.array([1.0] * 6 + [np.inf]), constraints, 6, 0.0)
    fitting = [np.array(x) for x in itertools.product((0, 1), repeat=6) if weight @ np.array(x) <= room]
    expected = min(cost @ x + max(busy[0] @ x, busy[1] @ x + 1) for x in fitting)
    assert best is not None and best.gap == 0
    assert np.array([*cost, 1.0]) @ best.columns == pytest.approx(expected)
    assert np.allclose(best.columns[:6], np.round(best.columns[:6])) and weight @ best.columns[:6] <= room + 1e-6


def test_none_where_there_is_none() -> None:
    assert minimum(np.ones(2), np.ones(2), [Constraints(np.ones((1, 2)), 3.0, 4.0)], 2, 0.0) is None
