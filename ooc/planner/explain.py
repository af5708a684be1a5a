"""What the planner says of its answer: what binds it and what else was considered, or the smallest budget that would do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import BudgetError
from ooc.ir.op import ALIGN, aligned
from ooc.ir.region import Sizes
from ooc.planner.basis import rests_on
from ooc.planner.costs import TilingCosts
from ooc.planner.question import Question, bound_of
from ooc.planner.tilings import ladder, orders
from ooc.schedule.budget import show_bytes
from ooc.schedule.plan import Plan, WrittenReasons

ONE_TILE = "one tile, in less time than a search would take"


class Explained:
    """Why a plan was chosen, and what it rests on, found out when somebody wants to know: see `Reasons`.

    second: the runner-up, if any. greedy: the point of ooc_cuDNN, if it fits. None: nothing else was looked for.
    """

    def __init__(self, asked: Question, best: Plan, second: Sequence[Plan] | None, greedy: Sequence[Plan]) -> None:
        offers = tuple(o._replace(workspace=_unknown) for o in asked.offers)  # a report outlives the backend that answers
        self.asked, self.best, self.second, self.greedy = replace(asked, offers=offers), best, second, greedy

    def __reduce__(self) -> tuple[Any, ...]:
        """WrittenReasons, as what it is found out from stays here."""
        return WrittenReasons, (self.bound_seconds, self.why, self.rests)

    @cached_property
    def bound_seconds(self) -> float:
        """Seconds below which the model predicts no plan."""
        return bound_of(self.asked).seconds

    @property
    def why(self) -> str:
        """What else was considered."""
        if self.second is None:
            return ONE_TILE
        greedy = _short(self.greedy[0]) if self.greedy else "does not fit"
        return "\n".join([*(f"runner-up: {_short(p)}" for p in self.second), f"greedy point of ooc_cuDNN: {greedy}"])

    @cached_property
    def rests(self) -> str:
        """What binds, and which of the numbers that matter were not measured."""
        return rests_on([self.best], self.asked.model)


def _unknown(sizes: Sizes) -> Any:
    raise AssertionError("nobody asks how much workspace a plan takes that was made")


def explained(asked: Question, best: Plan, second: Sequence[Plan] | None = None, greedy: Sequence[Plan] = ()) -> Plan:
    """A plan with its reasons, see `Explained`."""
    return replace(best, reasons=Explained(asked, best, second, greedy))


def smallest_bytes(asked: Question) -> int:
    """Bytes of the smallest budget that would do, whatever the one that is asked for."""
    return _smallest(asked).peak_bytes


def infeasible(asked: Question) -> BudgetError:
    """The error that names the smallest budget that would do."""
    limit, least = asked.budget.device_bytes, _smallest(asked)
    smallest = least.peak_bytes
    if limit is None or smallest <= limit:
        what, have = _tight(asked)
        return BudgetError(f"{asked.op}: fits the device budget but not {have}; raise {what}")
    error = BudgetError(
        f"{asked.op}: the smallest working set is {show_bytes(smallest)} ({_parts(least)}; pieces start at multiples of {ALIGN} "
        f"bytes) but the budget is {show_bytes(limit)}. Raise budget= to at least {smallest} bytes."
    )
    error.smallest_bytes = smallest
    return error


def _parts(plan: Plan) -> str:
    """The buffers of a plan that count, and what they add up to."""
    spaces = ("device", "staging", "spill") if plan.shared else ("device",)
    sizes: dict[str, int] = {}
    for buffer in (*plan.buffers, *plan.spill_buffers):
        if buffer.space in spaces:
            name = buffer.name if buffer.space == "device" else f"{buffer.space} of {buffer.name}"
            sizes[name] = sizes.get(name, 0) + int(aligned(buffer.nbytes))
    return " + ".join(f"{name} {nbytes}" for name, nbytes in sizes.items()) + f" = {sum(sizes.values())} bytes"


def _smallest(asked: Question) -> Plan:
    """The tiling, loop order and kernel with the smallest footprint."""
    costs, budget = TilingCosts(asked, ladder(asked.op)), asked.budget
    found: list[tuple[float, int, tuple[str, ...], int]] = []
    for order in orders(asked.op):
        memory = costs.memory(costs.flow(order), 1)[0]
        for which, workspace in enumerate(costs.workspace):
            need = np.where(costs.allowed, memory + aligned(workspace), math.inf)
            found.append((float(need.min()), which, order, int(need.argmin())))
    _, which, order, i = min(found)
    sizes = {d: int(v[i]) for d, v in costs.sizes.items()}
    places = tuple((o.name, budget.place(o.name)) for o in asked.op.operands)
    return Plan(
        asked.op, tuple(sizes.items()), order, 1, places, budget.staged, budget.shared, asked.usable[which].name,
        int(asked.usable[which].workspace(sizes)), asked.bounce_bytes,
    )  # fmt: skip


def _tight(asked: Question) -> tuple[str, str]:
    """Which of the other limits is too small, as the option to raise and in words: both where either alone is, or no tiling
    keeps both."""
    budget, costs = asked.budget, TilingCosts(asked, ladder(asked.op))
    device = math.inf if budget.device_bytes is None else budget.device_bytes
    pinned = math.inf if budget.pinned_bytes is None else budget.pinned_bytes
    found = {"pinned": False, "workspace": False}  # whether some tiling fits when this limit is put aside
    for order in orders(asked.op):
        memory, staging = costs.memory(costs.flow(order), 1)
        for workspace in costs.workspace:
            fits = costs.allowed & (memory + aligned(workspace) <= device)
            found["pinned"] |= bool(np.any(fits & (workspace <= asked.workspace_limit)))
            found["workspace"] |= bool(np.any(fits & (staging <= pinned)))
    own = [name for name, alone in found.items() if alone]
    names = own if len(own) == 1 else list(found)
    limits = {"pinned": pinned, "workspace": asked.workspace_limit}
    told = " and ".join(f"the {name} budget of {show_bytes(limits[name])}" for name in names if math.isfinite(limits[name]))
    return " and ".join(f"{name}=" for name in names), told


def _short(p: Plan) -> str:
    tile = " ".join(f"{d}={s}" for d, s in p.tile)
    order = ">".join(d for d in p.order if p.counts[d] > 1) or "one tile"
    return (
        f"{p.predicted_seconds:.4g} s with {tile}, {order}, depth {p.depth}, kernel {p.kernel}, peak {show_bytes(p.peak_bytes)}"
    )
