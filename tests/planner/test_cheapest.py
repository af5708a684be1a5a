"""The cheapest row of pieces: against every row there is."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from ooc.planner.cutting import cheapest


@pytest.mark.quick
@pytest.mark.parametrize("seed", range(40))
def test_no_row_costs_less(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(0, 7)
    spans = [(first, end) for end in range(1, count + 1) for first in range(end) if rng.random() < 0.6]
    cost = {span: rng.randint(1, 9) for span in spans}  # small: many rows cost the same
    seconds, row = cheapest(count, lambda end: ((first, cost[first, e], (first, e)) for first, e in spans if e == end))
    ways = [
        list(itertools.pairwise((0, *inner, count))) for n in range(count) for inner in itertools.combinations(range(1, count), n)
    ]
    costs = [sum(cost[span] for span in way) for way in ways if all(span in cost for span in way)]
    assert seconds == min(costs, default=0 if count == 0 else math.inf)
    assert sum(cost[span] for _, span in row) == (seconds if row else 0)
    assert [first for first, _ in row] == [span[0] for _, span in row]
    assert not row or list(itertools.pairwise((*(first for first, _ in row), count))) == [span for _, span in row]
