"""Every kind of op and every fused form, under any plan and budget, gives what the naive references give."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import oracle
import pytest
from cases import data, is_exact, random_plan
from cases_fused import FUSED
from cases_ops import KINDS, random_common
from oracle_forward import philox
from running import PoisonedBackend, assert_right, execute, planned, poisoned_device
from sweeps import swept

from ooc.ir.op import Op
from ooc.ops import Dropout
from ooc.ops.descriptor import parse
from ooc.schedule.plan import Plan

BUDGETS = (None, "256 KiB", "16 KiB", "2 KiB")
FORMS = KINDS | FUSED
# One of each nature.
SOME = ("conv.fprop", "conv.wgrad", "pool_backward.max", "softmax.sum", "reduce.bias", "fused backward", "fused chain")


def draw(rng: random.Random, form: str) -> Op:
    """A problem of a kind or form, whose descriptor is read back."""
    op = FORMS[form](rng, random_common(rng))
    assert parse(str(op)) == op
    return op


def under_random_plans(form: str, seed: int, count: int) -> None:
    rng = random.Random(zlib.crc32(form.encode()) + seed)
    backends = [PoisonedBackend(threads=2), PoisonedBackend(threads=1, staged=True)]
    for _ in range(count):
        op, backend = draw(rng, form), rng.choice(backends)
        arrays = data(rng, op)
        for _ in range(2):
            plan = random_plan(rng, op, backend)
            assert Plan.from_json(plan.to_json()) == plan
            got = execute(plan, arrays, backend, rng if rng.random() < 0.9 else None)
            assert_right(op, got, arrays, backend, plan.kernel, str(plan.to_json()))


@pytest.mark.parametrize("form", swept(FORMS, quick=SOME))
def test_random_plans(form: str) -> None:
    under_random_plans(form, 0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", FORMS)
def test_many_random_plans(form: str, seed: int) -> None:
    under_random_plans(form, seed, 200)


def under_budget(form: str, budget: str | None, seed: int, count: int) -> int:
    """How many of these problems fit a budget; those that do are right."""
    rng = random.Random(zlib.crc32(form.encode()) + seed)
    where = poisoned_device(budget)
    served = 0
    for _ in range(count):
        op = draw(rng, form)
        arrays = data(rng, op)
        got = planned(op, arrays, where, rng)
        served += got is not None
        if got:
            assert_right(op, got, arrays, where.backend, where.backend.offers(op)[0].name, f"under {budget}")
    return served


@pytest.mark.parametrize("count", swept((1, 3), suite=1))
@pytest.mark.parametrize("budget", BUDGETS)
def test_budgets(budget: str | None, count: int) -> None:
    served = {form: under_budget(form, budget, 1000, count) for form in FORMS}
    assert sum(served.values()) >= 0.9 * count * len(FORMS), str(served)


@pytest.mark.quick
@pytest.mark.parametrize("budget", BUDGETS)
def test_budgets_of_some(budget: str | None) -> None:
    served = {form: under_budget(form, budget, 3000, 1) for form in SOME}
    assert sum(served.values()) >= len(SOME) - 1, str(served)


def test_philox_known_answers() -> None:
    """The known-answer vectors of Random123."""
    ones = 0xFFFFFFFF
    assert philox((0,) * 4, (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones,) * 4, (ones, ones)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_stage_of_which_nothing_is_seen(budget: str | None) -> None:
    op = parse("conv.fprop n=1 c=2 h=4 w=4 k=3 r=1 s=1 | place n=1 c=3 h=4 w=4 k=3 size=4 lead=3x0x0")
    got = planned(op, data(random.Random(1), op), poisoned_device(budget), random.Random(1))
    assert got is not None and not got["y"].any()


def test_what_is_drawn_is_the_key() -> None:
    """Draw 0 is no draw; every other one, of 64 bits with a sign, is the mask of another seed."""
    x = np.ones((1, 1, 40), np.float32)

    def mask(draw: int | None, seed: int = 5) -> list[float]:
        op = Dropout(1, 1, (40,), 0.5, seed, drawn=draw is not None)
        arrays = {"x": x} | ({} if draw is None else {"draw": np.array([draw])})
        found: list[float] = execute(random_plan(random.Random(1), op, PoisonedBackend()), arrays, PoisonedBackend(), None)[
            "y"
        ].tolist()
        return found

    assert mask(0) == mask(None)
    for draw in (1, 2, -1, 2**62 + 3, -(2**63)):
        assert mask(draw) == mask(None, (5 + draw * 0x9E3779B97F4A7C15) % 2**64) != mask(0)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_budgets(form: str) -> None:
    for budget in BUDGETS:
        assert under_budget(form, budget, 2000, 20) >= 18, budget


@pytest.mark.parametrize("form", ["pool.max", "pool_backward.max", "activation_backward"])
def test_not_a_number(form: str) -> None:
    """NaN is the largest of a window, the first of several; a unit that is shut passes nothing back, not even NaN."""
    rng, backend = random.Random(form), PoisonedBackend(threads=1)
    for _ in range(40):
        op: Any = draw(rng, form)
        arrays = data(rng, op)
        spoilt = arrays["dy" if form == "activation_backward" else "x"]
        spoilt[np.random.default_rng(rng.getrandbits(32)).random(spoilt.shape) < 0.3] = np.nan
        (wanted,) = oracle.evaluate(op, arrays).values()
        if getattr(op, "act", "") in ("relu", "clipped_relu"):
            wanted = np.where((arrays["y"] > 0) & ((op.act == "relu") | (arrays["y"] < op.coef)), arrays["dy"], 0)
        (got,) = execute(random_plan(rng, op, backend), arrays, backend, rng).values()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted), err_msg=str(op))
        if is_exact(op):
            np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64), err_msg=str(op))
