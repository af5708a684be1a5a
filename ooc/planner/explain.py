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

    second: the runner-up, if any. greedy: the point of ooc_cuDNN, if it fits. None: nothing else, or no such, was looked for.
    """

    def __init__(self, question: Question, best: Plan, second: Sequence[Plan] | None, greedy: Sequence[Plan] | None) -> None:
        offers = tuple(o._replace(workspace=_unknown) for o in question.offers)  # a report outlives the backend that answers
        self.asked, self.best, self.second, self.greedy = replace(question, offers=offers), best, second, greedy

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
        told = [f"runner-up: {_short(p)}" for p in self.second]
        if self.greedy is not None:
            told.append(f"greedy point of ooc_cuDNN: {_short(self.greedy[0]) if self.greedy else 'does not fit'}")
        return "\n".join(told)

    @cached_property
    def rests(self) -> str:
        """What binds, and which of the numbers that matter were not measured."""
        return rests_on([self.best], self.asked.model)


def _unknown(sizes: Sizes) -> Any:
    raise AssertionError("nobody asks how much workspace a plan takes that was made")


def explained(question: Question, best: Plan, second: Sequence[Plan] | None = None, greedy: Sequence[Plan] | None = ()) -> Plan:
    """A plan with its reasons, see `Explained`."""
    return replace(best, reasons=Explained(question, best, second, greedy))


def smallest_bytes(question: Question) -> int:
    """Bytes of the smallest budget that would do, whatever the one that is asked for."""
    return _smallest(question).peak_bytes


def infeasible(question: Question) -> BudgetError:
    """The error that names the smallest budget that would do."""
    limit, least = question.budget.device_bytes, _smallest(question)
    smallest = least.peak_bytes
    if limit is None or smallest <= limit:
        what, have = _tight(question)
        return BudgetError(f"{question.op}: fits the device budget but not {have}; raise {what}")
    error = BudgetError(
        f"{question.op}: the smallest working set is {show_bytes(smallest)} ({_parts(least)}; pieces start at multiples of "
        f"{ALIGN} bytes) but the budget is {show_bytes(limit)}. Raise budget= to at least {smallest} bytes."
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


def _smallest(question: Question) -> Plan:
    """The tiling, loop order and kernel with the smallest footprint."""
    costs, budget = TilingCosts(question, ladder(question.op)), question.budget
    candidates: list[tuple[float, int, tuple[str, ...], int]] = []
    for order in orders(question.op):
        memory = costs.memory(costs.flow(order), 1)[0]
        for which, workspace in enumerate(costs.workspace):
            need = np.where(costs.allowed, memory + aligned(workspace), math.inf)
            candidates.append((float(need.min()), which, order, int(need.argmin())))
    _, which, order, i = min(candidates)
    sizes = {d: int(v[i]) for d, v in costs.sizes.items()}
    places = tuple((o.name, budget.place(o.name)) for o in question.op.operands)
    return Plan(
        question.op, tuple(sizes.items()), order, 1, places, budget.staged, budget.shared, question.usable[which].name,
        int(question.usable[which].workspace(sizes)), question.bounce_bytes,
    )  # fmt: skip


def _tight(question: Question) -> tuple[str, str]:
    """Which of the other limits is too small, as the option to raise and in words: both where either alone is, or no tiling
    keeps both."""
    budget, costs = question.budget, TilingCosts(question, ladder(question.op))
    device = budget.device_limit
    pinned = math.inf if budget.pinned_bytes is None else budget.pinned_bytes
    enough = {"pinned": False, "workspace": False}  # whether some tiling fits when this limit is put aside
    for order in orders(question.op):
        memory, staging = costs.memory(costs.flow(order), 1)
        for workspace in costs.workspace:
            fits = costs.allowed & (memory + aligned(workspace) <= device)
            enough["pinned"] |= bool(np.any(fits & (workspace <= question.workspace_limit)))
            enough["workspace"] |= bool(np.any(fits & (staging <= pinned)))
    single = [name for name, alone in enough.items() if alone]
    names = single if len(single) == 1 else list(enough)
    limits = {"pinned": pinned, "workspace": question.workspace_limit}
    told = " and ".join(f"the {name} budget of {show_bytes(limits[name])}" for name in names if math.isfinite(limits[name]))
    return " and ".join(f"{name}=" for name in names), told


def _short(p: Plan) -> str:
    tile = " ".join(f"{d}={s}" for d, s in p.tile)
    order = ">".join(d for d in p.order if p.counts[d] > 1) or "one tile"
    return (
        f"{p.predicted_seconds:.4g} s with {tile}, {order}, depth {p.depth}, kernel {p.kernel}, peak {show_bytes(p.peak_bytes)}"
    )
