"""moDNN's sub-batches."""

from __future__ import annotations

import pytest
from papers import U, by_hand, convolutions, judge_of, lasting

from ooc.errors import BudgetError, UnsupportedError
from ooc.ir.region import Span
from ooc.networks import SGD
from ooc.networks.calls import UPDATE
from ooc.networks.judge import Judge
from ooc.networks.policies.base import sizes
from ooc.networks.proposal import Proposal

pytestmark = pytest.mark.quick


def test_sub_batches_that_differ() -> None:
    # 8 in 1 to 8 parts: 8, 4, 3 (3 + 3 + 2), 2, 2 (five parts of which one is empty), ..., 1.
    assert sizes(8) == [8, 4, 3, 2, 1]
    assert sizes(5) == [5, 3, 2, 1]
    assert sizes(1) == [1]


@pytest.mark.parametrize(
    ("units", "size"), [(72.5, 8), (71.9, 4), (36.5, 4), (35.9, 3), (27.5, 3), (26.9, 2), (17.9, 1), (9.5, 1)]
)
def test_the_largest_sub_batch_that_fits(units: float, size: int) -> None:
    # 9 U for each sample of a part, and a few bytes: 72, 36, 27, 18, 9.
    budget = lasting(judge_of(convolutions(), 8)) + int(units * U)
    plan = convolutions().plan(batch=8, budget=budget, policy="modnn", device=by_hand())
    assert plan.proposal.chunk == size
    program = judge_of(convolutions(), 8).trial(plan.proposal).program
    parts = -(-8 // size)
    whole = Span(0, 8)
    runs = [item.samples or whole for item in program.items if item.call == 0]
    assert runs == [Span(lo, min(8, lo + size)) for lo in range(0, 8, size)] and len(runs) == parts
    # Forward and backward of a part follow each other, and nothing of one part is in use in the next but what lasts.
    order = [item.samples for item in program.items if item.what == "run" and item.samples is not None]
    assert order == sorted(order)
    loaded = [item.makes[0].part for item in program.items if item.what == "load" and item.makes[0].tensor == "x"]
    assert loaded == ([None] if parts == 1 else [(run, Span(0, 1), Span(0, 32), Span(0, 32)) for run in runs])


def test_less_than_a_sample_does_not_fit() -> None:
    with pytest.raises(BudgetError, match="modnn"):
        budget = lasting(judge_of(convolutions(), 8)) + int(8.9 * U)
        convolutions().plan(batch=8, budget=budget, policy="modnn", device=by_hand())


def test_updates_are_once_a_step() -> None:
    plan = convolutions().plan(batch=4, policy="modnn", device=by_hand(), optimizer=SGD(0.1))
    updates = [c.index for c in plan.network.calls if c.phase == UPDATE]
    items = Judge(plan.network, plan.scene, None).trial(Proposal("parts", bands=((0, 1),))).program.items
    assert [item.call for item in items if item.call in updates] == updates
    assert {item.call for item in items[-len(updates) :]} == set(updates)


def test_statistics_of_the_batch_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"policy modnn: two convolutions: norm \(batch_norm\) takes statistics"):
        convolutions(norm=True).plan(batch=8, policy="modnn", device=by_hand())
    convolutions(norm=True).plan(batch=8, policy="keep", device=by_hand())
