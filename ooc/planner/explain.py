"""What the planner says of its answer: what binds it and what else was considered, or the smallest budget that would do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ooc.errors import BudgetError
from ooc.ir.op import aligned
from ooc.planner.basis import rests_on
from ooc.planner.costs import Costs
from ooc.planner.question import Question, bound_of
from ooc.planner.tilings import ladder, orders
from ooc.schedule.budget import show_bytes
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan


def explain(asked: Question, best: Plan, why: str = "one tile, in less time than a search would take") -> Plan:
    """A plan with what binds it, what that rests on, and why it was chosen."""
    lane = max(best.lane_seconds, key=lambda k: best.lane_seconds[k])
    busy = best.lane_seconds[lane]
    binds = "bound by compute" if lane == "compute" else f"bound by the link ({lane})"
    binds += f", {busy / best.predicted_seconds:.0%} of the time" if best.predicted_seconds > 0 else ""
    return replace(best, binds=binds, bound_seconds=bound_of(asked).seconds, why=why, rests=rests_on([best], asked.model))


def compared(second: Sequence[Plan], greedy: Sequence[Plan]) -> str:
    """What else was considered."""
    lines = [f"runner-up: {_short(p)}" for p in second]
    lines.append(f"greedy point of ooc_cuDNN: {_short(greedy[0]) if greedy else 'does not fit'}")
    return "\n".join(lines)


def infeasible(asked: Question) -> BudgetError:
    """The error that names the smallest budget that would do."""
    limit, smallest = asked.budget.device_bytes, _smallest(asked)
    if limit is None or smallest <= limit:
        what, have = _tight(asked)
        return BudgetError(f"{asked.op}: fits the device budget but not {have}; raise {what}")
    least = asked.op.legal(dict.fromkeys(asked.op.dims, 1))
    moving = [o for o in asked.op.operands if asked.budget.place(o.name) is not Place.DEVICE]
    parts = " ".join(f"{o.name} {show_bytes(int(o.block_bytes(least)))}" for o in moving)
    error = BudgetError(
        f"{asked.op}: the smallest working set is {show_bytes(smallest)} ({smallest} bytes: {parts}; depth 1) "
        f"but the budget is {show_bytes(limit)}. Raise budget= to at least {smallest} bytes."
    )
    error.smallest_bytes = smallest
    return error


def _smallest(asked: Question) -> int:
    """Bytes that the tiling with the smallest footprint needs."""
    costs = Costs(asked, ladder(asked.op))
    workspace = np.minimum.reduce([aligned(w) for w in costs.workspace])
    needs = [costs.memory(costs.flow(order), 1)[0] + workspace for order in orders(asked.op)]
    return int(min(np.where(costs.allowed, need, math.inf).min() for need in needs))


def _tight(asked: Question) -> tuple[str, str]:
    """Which of the other limits is too small, as the option to raise and in words: both where either alone is, or no tiling
    keeps both."""
    budget, costs = asked.budget, Costs(asked, ladder(asked.op))
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
