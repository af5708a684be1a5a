"""Plans that the chosen one is compared with: the point that the original ooc_cuDNN would have taken, and random ones."""

from __future__ import annotations

import math
import random

import numpy as np

from ooc.backends.base import Backend
from ooc.ir.op import Op
from ooc.model.cost import Model
from ooc.planner.confirm import confirm
from ooc.planner.costs import TilingCosts
from ooc.planner.question import Question
from ooc.planner.search import DEPTHS, Search
from ooc.planner.tilings import ladder, orders
from ooc.schedule.budget import Budget
from ooc.schedule.plan import Plan

MOST_TILES = 2048  # of a random plan


def alternatives(
    op: Op, budget: Budget, backend: Backend, model: Model, count: int, rng: random.Random
) -> tuple[list[Plan], list[Plan]]:
    """The greedy point of ooc_cuDNN, if it fits, and `count` random feasible plans, or fewer; each with its predicted seconds."""
    search = Search(Question(op, budget, backend.offers(op, budget.in_place), model))
    return confirm(search.asked, search.greedy()), confirm(search.asked, some(search, count, rng))


def some(search: Search, count: int, rng: random.Random) -> list[Plan]:
    """So many different plans that fit, or fewer: tilings of the coarse grid in any order, depth and kernel."""
    op, question = search.op, search.asked
    costs, nests = TilingCosts(question, search.small(ladder(op))), orders(op)
    limit = question.budget.device_limit
    plans: dict[Plan, None] = {}
    for _ in range(8 * count):
        flow, depth, which = costs.flow(rng.choice(nests)), rng.choice(DEPTHS), rng.randrange(len(question.usable))
        need = costs.memory(flow, depth)[0] + costs.workspace[which]
        fits = np.flatnonzero((need <= limit) & (costs.tiles <= MOST_TILES) & costs.allowed)
        if len(fits) and len(plans) < count:
            i = rng.choice(fits.tolist())
            sizes = {d: int(v[i]) for d, v in costs.sizes.items()}
            plan = search.exact(search.candidate(sizes, flow.order, depth, question.usable[which], math.nan))
            plans |= {plan: None} if plan else {}
    return list(plans)
