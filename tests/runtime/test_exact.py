"""Any tiling, loop order, depth, placement, kernel, lane order and budget gives the naive result, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import oracle
import pytest
from adversarial import adversarial
from cases import exact_in, integers, random_op, random_plan
from races import races
from sweeps import swept

from ooc.backends.cpu.backend import CpuBackend
from ooc.errors import BudgetError
from ooc.ir.op import Op, numpy_dtype
from ooc.ops.descriptor import parse
from ooc.runtime.context import device
from ooc.runtime.device import Device
from ooc.runtime.executor import run
from ooc.runtime.store import ArrayStore, Store
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

BUDGETS = (None, "256 KiB", "16 KiB", "2 KiB")


def problems(seed: int, count: int) -> Any:
    """Problems whose result the dtype holds exactly, with their data and the naive result."""
    rng = random.Random(seed)
    while count:
        op = random_op(rng)
        arrays = integers(rng, op)
        expected = oracle.chain(op, arrays)
        if exact_in(op, expected):
            count -= 1
            yield rng, op, arrays, expected


def poisoned(op: Op) -> Any:
    return np.full(op.outputs[0].shape, np.nan, numpy_dtype(op.outputs[0].dtype))


@pytest.mark.parametrize("seed", swept(range(20), suite=3, quick=1))
def test_random_plans_under_adversarial_lane_order(seed: int) -> None:
    backends = [CpuBackend(threads=2), CpuBackend(threads=1, staged=True)]
    for rng, op, arrays, expected in problems(seed, 60):
        assert parse(str(op)) == op
        backend = rng.choice(backends)
        plan = random_plan(rng, op, backend)
        assert Plan.from_json(plan.to_json()) == plan
        todo = lower(plan)
        assert races(todo.steps, todo.layout) == []
        out = poisoned(op)
        stores: dict[str, Store] = {n: ArrayStore(a) for n, a in arrays.items()} | {"y": ArrayStore(out)}
        if rng.random() < 0.8:
            adversarial(todo, stores, backend, rng.choice)
        else:
            run(todo, stores, backend)
        np.testing.assert_array_equal(out.astype(np.float64), expected, err_msg=f"{op}\n{plan}")


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("seed", swept(range(100, 125), suite=3, quick=1))
def test_planned_under_budget(budget: str | None, seed: int) -> None:
    where = device("cpu", budget, threads=2)
    served = 0
    for rng, op, arrays, expected in problems(seed, 10):
        out = poisoned(op)
        served += planned(rng, op, arrays, out, where)
        if not np.isnan(out.astype(np.float64)).all():
            np.testing.assert_array_equal(out.astype(np.float64), expected, err_msg=f"{op} under {budget}")
    assert served >= 9, f"only {served} of 10 problems fit {budget}"


def planned(rng: random.Random, op: Op, arrays: dict[str, Any], out: Any, where: Device) -> int:
    """Run an op as its device plans it, cut if need be, under adversarial lane order; 0 when it does not fit."""
    place = Place.DEVICE if where.device_bytes is None else Place.HOST
    try:
        plans = where.planner.plans(op, {o.name: place for o in op.operands})
    except BudgetError as error:
        assert "Raise budget= to at least" in str(error)
        return 0
    stores: dict[str, Store] = {n: ArrayStore(a) for n, a in arrays.items()} | {"y": ArrayStore(out)}
    for plan in plans:
        assert where.device_bytes is None or plan.peak_bytes <= where.device_bytes
        stores |= {o.name: ArrayStore(poisoned(plan.op)) for o in plan.op.outputs if o.name not in stores}
        todo = lower(plan)
        assert sum(todo.layout.peaks.get(s, 0) for s in ("device", "staging", "spill")) <= plan.peak_bytes
        adversarial(todo, stores, where.backend, rng.choice)
    return 1
