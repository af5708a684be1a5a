"""Running an op in a test: one random plan, one tile, or as a device plans it; into poisoned outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import oracle
from adversarial import adversarial
from cases import is_exact, reference_offer
from races import races

from ooc.backends.cpu.backend import CpuBackend
from ooc.errors import BudgetError
from ooc.ir.op import INTEGERS, Op, Operand, numpy_dtype
from ooc.runtime.context import device
from ooc.runtime.device import Device
from ooc.runtime.executor import Run
from ooc.runtime.store import ArrayStore, Store
from ooc.schedule.budget import Budget
from ooc.schedule.lowering import Schedule, lower, schedule_of
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

EPS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7, **dict.fromkeys(INTEGERS, 0.5)}
LARGEST = {"f64": 2.0**50, "f32": 2.0**24, "f16": 2.0**15, "bf16": 2.0**24}
Arrays = dict[str, Any]


class PoisonedBackend(CpuBackend):
    """The CPU, with memory that holds NaN in every type: what is read before it is written shows."""

    def allocate(self, space: str, nbytes: int) -> Any:
        memory = super().allocate(space, nbytes)
        memory[...] = 0xFF
        return memory


def poisoned_device(budget: int | str | None) -> Device:
    return replace(device("cpu", budget, threads=2), backend=PoisonedBackend(threads=2))


def poisoned(operand: Operand) -> Any:
    """NaN, or a number of ones in integers: no result has it everywhere."""
    made = np.empty(operand.shape, numpy_dtype(operand.dtype))
    made.view(np.uint8)[...] = 0xFF
    return made if operand.dtype in INTEGERS else np.full(operand.shape, np.nan, made.dtype)


class InWindows(Run):
    """A run in windows of at most so many steps."""

    def __init__(self, few: int, *given: Any) -> None:
        super().__init__(*given)
        self.few = few

    def windows(self) -> Iterator[Schedule | None]:
        return self.schedule.windows(self.few)


def execute(plan: Plan, arrays: Arrays, backend: Any, rng: random.Random | None) -> Arrays:
    """The outputs of a plan; with a random generator, in an adversarial order of its lanes."""
    todo = lower(plan)
    assert races(todo.steps, todo.layout) == []
    assert sum(todo.layout.peaks.get(s, 0) for s in ("device", "staging", "spill")) <= plan.peak_bytes
    out = {o.name: poisoned(o) for o in plan.op.outputs}
    stores: dict[str, Store] = {n: ArrayStore(a) for n, a in (arrays | out).items()}
    if rng is None:
        few = random.Random(str(plan.op)).randint(1, 2 * len(todo.steps))  # at once, and always the same
        InWindows(few, schedule_of(plan), backend, 0).go((stores,), plan.op)
    else:
        adversarial(todo, stores, backend, rng.choice)
    return out


def single_tile(op: Op, arrays: Arrays, backend: Any, kernel: str) -> Arrays:
    """The outputs of one tile that is the whole op, computed in place."""
    places = tuple((o.name, Place.DEVICE) for o in op.operands)
    offer = next(o for o in (*backend.offers(op, Budget(places=places).in_place), reference_offer(op)) if o.name == kernel)
    plan = Plan(op, tuple(op.dims.items()), tuple(op.dims), 1, places, backend.staged, backend.shared,
                kernel=kernel, workspace_bytes=int(offer.workspace(op.dims)))  # fmt: skip
    return execute(plan, arrays, backend, random.Random(0))


def planned(op: Op, arrays: Arrays, where: Device, rng: random.Random) -> Arrays | None:
    """The outputs of an op as a device plans it, cut if need be; None when no plan fits its budget, empty when left out."""
    place = Place.DEVICE if where.device_bytes is None else Place.HOST
    try:
        plans = where.planner.plans(op, {o.name: place for o in op.operands})
    except BudgetError as error:
        assert "Raise budget= to at least" in str(error)
        return None
    known = dict(arrays)
    for plan in plans:
        assert where.device_bytes is None or plan.peak_bytes <= where.device_bytes, str(op)
        known |= execute(plan, {o.name: known[o.name] for o in plan.op.inputs}, where.backend, rng)
    return {o.name: known[o.name] for o in op.outputs}


def under_random_budget(rng: random.Random, op: Op, arrays: Arrays) -> Arrays:
    """The outputs of an op on a device with a random small budget, or the smallest that is enough."""
    budget = rng.choice((None, 16 << 10, 4 << 10, 2 << 10))
    while True:
        got = planned(op, arrays, poisoned_device(budget), rng)
        if got is not None:
            return got
        assert budget is not None
        budget *= 2


def sizes_of(op: Any) -> dict[str, Any]:
    """The fields of an op, for another of the same fields."""
    return {f.name: getattr(op, f.name) for f in fields(op)}


def assert_right(
    op: Op, got: Arrays, arrays: Arrays, backend: Any, kernel: str, note: str, single: Callable[..., Arrays] = single_tile
) -> None:
    """Outputs are the oracle's: the same bits where every step is exact; else within twice the error of one whole tile
    (computed by `single`) and one unit in the last place of the largest value (16 for sums)."""
    made = oracle.tensors(op, arrays)
    exact = is_exact(op) and all(np.max(np.abs(made[t]), initial=0) <= LARGEST[op.dtype] for t in made)
    whole = {} if exact else single(op, arrays, backend, kernel)
    for o in op.outputs:
        have, wanted = got[o.name].astype(np.float64), made[o.name]
        if exact:
            np.testing.assert_array_equal(have, oracle.stored(wanted, o.dtype), err_msg=f"{o.name} of {op}\n{note}")
            continue
        error = np.max(np.abs(whole[o.name].astype(np.float64) - wanted), initial=0)
        units = 16 if any(s.reduce for s in op.stages) else 1  # the order of a sum may follow the tiling
        unit = units * EPS[o.dtype] * max(1.0, np.max(np.abs(wanted), initial=0))
        assert error < 64 * EPS[op.dtype] * max(1.0, np.max(np.abs(wanted), initial=0)), f"{o.name} of {op} in one tile: {error}"
        np.testing.assert_allclose(have, wanted, rtol=0, atol=2 * error + unit, err_msg=f"{o.name} of {op}\n{note}")
