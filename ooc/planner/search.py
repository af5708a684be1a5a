"""Choosing a plan: a joint search over tile sizes, loop order, depth and kernel.

Thousands of tilings are costed at once with arrays: memory and traffic follow from the operands' axis maps, time from
the model as max over lanes plus the time to fill the pipe. The best few are then simulated step by step. The point
that the original ooc_cuDNN would have chosen (one dimension at a time) is always among them, so the result is never
predicted slower than it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooc.backends.base import Backend, Offer
from ooc.errors import ArgumentError
from ooc.ir.op import Op, aligned
from ooc.model.cost import Model
from ooc.planner.confirm import confirm
from ooc.planner.costs import Flow, TilingCosts
from ooc.planner.explain import explained, infeasible
from ooc.planner.question import Question, usable_offers
from ooc.planner.tilings import Grid, around, ladder, orders, tall
from ooc.schedule.budget import Budget
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

MOST_BYTES = 1 << 60  # of an operand, so that sums over all of them are exact
DEPTHS = (1, 2, 3)
CONFIRMED = 2  # tilings simulated
TIE = 0.1  # of the computing counts where it hides behind copies: of two plans that take about as long the better kernel wins
AT_ONCE = 1e-3  # seconds: what takes no longer in one tile is not searched for anything better; the search would take longer
MOST_CUTS = 4096  # of one dimension that the greedy search tries: thinner tiles are slower than any other


def search(op: Op, budget: Budget, backend: Backend, model: Model, greedy: bool = True) -> Plan:
    """The best plan found for an op under a budget. greedy: whether the original's choice is looked at, too, to be told of.

    Raises UnsupportedError when the backend cannot compute the op, BudgetError (with the smallest budget that would
    do) when no tiling fits, ArgumentError for operands that nothing could hold.
    """
    if (largest := max(o.nbytes for o in op.operands)) > MOST_BYTES:
        raise ArgumentError(f"{op}: an operand of 2^{largest.bit_length() - 1} bytes; expected 2^60 at most")
    usable_offers(op, backend, budget.deterministic)
    offers = backend.offers(op, budget.in_place)
    trial = Search(Question(op, budget, offers, model))
    if at_once := trial.at_once():
        return explained(trial.asked, at_once)
    exact = trial.fitting()
    if not exact and trial.asked.bounce_bytes:
        trial = Search(Question(op, budget, offers, model, bouncing=False))
        exact = trial.fitting()
    if not exact:
        raise infeasible(trial.asked)
    finalists = confirm(trial.asked, (*exact, *(trial.greedy() if greedy else ())))
    confirmed = sorted(finalists, key=trial.score)
    return explained(trial.asked, confirmed[0], confirmed[1:2], finalists[len(exact) :] if greedy else None)


def is_quick(plan: Plan) -> bool:
    """Whether nothing better is worth looking for: planning takes longer than all of it."""
    return plan.tiles == 1 and plan.predicted_seconds <= AT_ONCE


class Search:
    """One question: ranks tilings, and checks them exactly."""

    def __init__(self, question: Question) -> None:
        self.asked, self.op, self.budget = question, question.op, question.budget
        self.places = tuple((o.name, question.budget.place(o.name)) for o in question.op.operands)
        moving = [o.nbytes for o in question.op.operands if question.budget.place(o.name) is not Place.DEVICE]
        self.compulsory = max(1, sum(moving))  # bytes moved at least

    def at_once(self) -> Plan | None:
        """All of the op as one tile, by the kernel that is fastest there, where that fits and is quick."""
        whole = dict(self.op.dims)
        for seconds, offer in sorted(((self.asked.in_one_piece(o), o) for o in self.asked.usable), key=lambda pair: pair[0]):
            if seconds > AT_ONCE:
                return None
            exact = self.exact(self.candidate(whole, tuple(whole), 1, offer, seconds))
            if exact is not None:
                (plan,) = confirm(self.asked, [exact])
                return plan if is_quick(plan) else None
        return None

    def fitting(self) -> list[Plan]:
        """The best plans that fit exactly, by estimated seconds, out of a coarse grid and a fine one around its best."""
        ranked = self.ranked(ladder(self.op), orders(self.op))
        if ranked:
            promising = list(dict.fromkeys(p.order for p in ranked))[:2]
            finer = self.ranked(around(self.op, ranked[0].sizes), promising)
            ranked = sorted(ranked + finer, key=lambda p: p.predicted_seconds)
        return list(itertools.islice(filter(None, map(self.exact, _distinct(ranked))), CONFIRMED))

    def ranked(self, sizes: Grid, nests: Sequence[tuple[str, ...]]) -> list[Plan]:
        """The feasible best of every loop order and depth, by estimated seconds."""
        costs, plans = TilingCosts(self.asked, self.small(sizes)), []
        for order in nests:
            flow = costs.flow(order)
            for depth in DEPTHS if self.asked.overlapping else (1,):
                plans += self._best(costs, flow, depth)
        return sorted(plans, key=lambda p: p.predicted_seconds)

    def small(self, sizes: Grid) -> Grid:
        """The tilings of a grid whose blocks alone fit, one of each operand: most often few, so that only they are costed."""
        moving = [o for o in self.op.operands if self.budget.place(o.name) is not Place.DEVICE]
        least: Any = sum((o.block_bytes(sizes) for o in moving), np.zeros(len(next(iter(sizes.values()))), np.int64))
        fits = least <= self.budget.device_limit
        return {d: v[fits] for d, v in sizes.items()} if fits.any() else {d: v[least.argmin()][None] for d, v in sizes.items()}

    def _best(self, costs: TilingCosts, flow: Flow, depth: int) -> list[Plan]:
        """The fastest tiling that fits, for every kernel."""
        memory, staging = costs.memory(flow, depth)
        pinned_fits = True if self.budget.pinned_bytes is None else staging <= self.budget.pinned_bytes
        limit, plans = self.budget.device_limit, []
        for offer, workspace, compute in zip(self.asked.usable, costs.workspace, costs.computing(flow), strict=True):
            in_turn = sum(costs.in_turn(flow, compute).values(), 0 * compute) if depth == 1 else None
            seconds = self._beside(costs, flow, compute, depth) if in_turn is None else in_turn
            need = np.where(costs.allowed, memory + aligned(workspace), math.inf)
            seconds = np.where((need <= limit) & (workspace <= self.asked.workspace_limit) & pinned_fits, seconds, math.inf)
            seconds = seconds * self.reluctance(sum(flow.nbytes.values(), np.zeros(costs.tiles.shape))) + TIE * compute
            i = int(seconds.argmin())
            if math.isfinite(seconds[i]):
                sizes = {d: int(v[i]) for d, v in costs.sizes.items()}
                plans.append(self.candidate(sizes, flow.order, depth, offer, float(seconds[i])))
        return plans

    def _beside(self, costs: TilingCosts, flow: Flow, compute: Any, depth: int) -> Any:
        """Seconds of the tilings whose lanes work side by side."""
        handoffs = 2 * costs.tiles * (self.asked.model.handoff_seconds or 0.0)  # a load wakes its tile, a tile the next load
        moving = [np.broadcast_to(v, costs.tiles.shape) for v in flow.seconds.values()]
        fill = sum((v / np.maximum(costs.outer, 1) for v in moving), np.zeros(costs.tiles.shape))
        bound = self.asked.model.bound({**flow.seconds, "compute": compute})
        cycle = (compute + np.maximum.reduce([0 * compute, *moving]) + handoffs) / depth  # until a buffer is free again
        return np.maximum.reduce([bound, cycle, *moving]) + fill

    def reluctance(self, moved: Any) -> Any:
        """A factor on the seconds of plans that move more than every operand once: 10 % for each time more, 10 % at most.

        The model does not tell plans apart that are closer than that, and fewer bytes leave less to go wrong.
        """
        return 1 + 0.1 * np.clip(moved / self.compulsory - 1, 0, 1)

    def score(self, plan: Plan) -> float:
        """What plans are compared by: seconds, with the reluctance to move more and the ties for less computing."""
        moved, compute = sum(plan.lane_bytes.values()), plan.lane_seconds.get("compute", 0.0)
        return plan.predicted_seconds * float(self.reluctance(moved)) + TIE * compute

    def candidate(self, sizes: dict[str, int], order: tuple[str, ...], depth: int, offer: Offer, seconds: float) -> Plan:
        """A tiling of the arrays as a plan."""
        budget = self.budget
        return Plan(
            self.op, tuple(sizes.items()), order, depth, self.places, budget.staged, budget.shared,
            kernel=offer.name, bounce_bytes=self.asked.bounce_bytes, predicted_seconds=seconds, calibration=self.asked.model.name,
            serving=offer.serving,
        )  # fmt: skip

    def exact(self, candidate: Plan) -> Plan | None:
        """The candidate with its exact workspace, if it still fits."""
        offer = next(o for o in self.asked.offers if o.name == candidate.kernel)
        fixed = replace(candidate, workspace_bytes=int(offer.workspace(candidate.sizes)))
        limit = self.budget.device_bytes
        fits = (limit is None or fixed.peak_bytes <= limit) and fixed.workspace_bytes <= self.asked.workspace_limit
        if self.budget.pinned_bytes is not None and fixed.pinned_bytes > self.budget.pinned_bytes:
            fits = False
        return fixed if fits else None

    def greedy(self) -> list[Plan]:
        """The original's choice, if it fits: coordinate descent over n, h, c, k, each tried exhaustively once, three buffers.

        Source: ooc_cuDNN, *_optimize.cpp; described in Ito et al., "ooc_cuDNN", IEEE Big Data 2017.
        """
        op = self.op
        order = next(o for o in orders(op))
        sizes = dict(op.dims)
        best: Plan | None = None
        for dim in [d for d in ("n", tall(op), *op.reduce, "k") if d in op.dims and d not in op.whole]:
            tried = sorted({-(-op.dims[dim] // j) for j in range(1, min(op.dims[dim], MOST_CUTS) + 1)})[-256:]
            grid = {d: np.full(len(tried), s, np.int64) for d, s in sizes.items()}
            grid[dim] = np.array(tried, np.int64)
            if "g" in grid and dim in ("k", "c"):
                grid["g"][:] = 1
            candidate = self._at(grid, order)
            if candidate is None:
                sizes = op.legal({**sizes, dim: 1})
            elif best is None or candidate.predicted_seconds < best.predicted_seconds:
                best, sizes = candidate, dict(candidate.sizes)
        exact = self.exact(best) if best else None
        return [exact] if exact else []

    def _at(self, grid: Grid, order: tuple[str, ...]) -> Plan | None:
        costs = TilingCosts(self.asked, self.small(grid))
        plans = self._best(costs, costs.flow(order), 3)
        return min(plans, key=lambda p: p.predicted_seconds, default=None)


def _distinct(plans: Iterable[Plan]) -> Iterable[Plan]:
    """Without repetitions, best first, at most a few dozen."""
    keys: set[Any] = set()
    for p in plans:
        key = (p.tile, tuple(d for d in p.order if p.counts[d] > 1), p.depth, p.kernel)
        if key not in keys and len(keys) < 64:
            keys.add(key)
            yield p
