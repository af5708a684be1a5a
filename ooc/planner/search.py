"""Choosing a plan: a joint search over tile sizes, loop order, depth and kernel.

Thousands of tilings are costed at once with arrays: memory and traffic follow from the operands' axis maps, time from
the model as max over lanes plus the time to fill the pipe. The best few are then simulated step by step. The point
that the original ooc_cuDNN would have chosen (one dimension at a time) is always among them, so the result is never
predicted slower than it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooc.backends.base import Backend, Offer
from ooc.errors import BudgetError, ShapeError, UnsupportedError
from ooc.ir.op import Op
from ooc.model.cost import Model
from ooc.model.simulate import simulate
from ooc.planner.costs import IN_TURN_BOUNCE, Costs, Flow, Question, bound_of
from ooc.planner.tilings import Grid, around, ladder, orders, tall
from ooc.schedule.arena import ALIGN, pack_in_sequence
from ooc.schedule.budget import Budget, show_bytes
from ooc.schedule.emit import emit
from ooc.schedule.link import link
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

MOST_BYTES = 1 << 60  # of an operand, so that sums over all of them are exact
DEPTHS = (1, 2, 3)
CONFIRMED = 2  # tilings simulated
TIE = 0.02  # of the computing counts where it hides behind copies: of two plans that take as long the better kernel wins
# Threads of a processor are used where computing takes longest (what the disk or copies bind is as fast in turn, where the system
# reads ahead) and where they gain so much: the system may keep them waiting for the processor.
WORTH_THREADS = 1.25  # times as fast,
WORTH_LARGE, DOUBT = 1.05, 500e-6  # or a little faster and by so many seconds a tile
PREFIX = 80  # steps simulated of a long schedule; the rest is extrapolated
MOST_TILES = 2048  # of a random plan
MOST_CUTS = 4096  # of one dimension that the greedy search tries: thinner tiles are slower than any other


def plan(op: Op, budget: Budget, backend: Backend, model: Model) -> Plan:
    """The best plan found for an op under a budget.

    Raises UnsupportedError when the backend cannot compute the op, BudgetError (with the smallest budget that would
    do) when no tiling fits, ShapeError for operands that nothing could hold.
    """
    if (largest := max(o.nbytes for o in op.operands)) > MOST_BYTES:
        raise ShapeError(f"{op}: an operand of 2^{largest.bit_length() - 1} bytes; expected 2^60 at most")
    offers = backend.offers(op)
    if not offers:
        reasons = "; ".join(f"{k}: {v}" for k, v in backend.why_not(op).items())
        raise UnsupportedError(f"{op}: backend {backend.name} cannot compute this: {reasons}")
    search = _Search(Question(op, budget, offers, model))
    exact = search.fitting()
    if not exact and search.asked.bounce_bytes:
        search = _Search(Question(op, budget, offers, model, bouncing=False))
        exact = search.fitting()
    if not exact:
        raise search.infeasible()
    greedy = search.greedy()
    finalists = search.confirm((*exact, *greedy))
    confirmed = sorted(finalists, key=search.score)
    return search.explain(confirmed, finalists[len(exact) :])


def alternatives(
    op: Op, budget: Budget, backend: Backend, model: Model, count: int, rng: random.Random
) -> tuple[list[Plan], list[Plan]]:
    """Plans to compare the chosen one with, each with its predicted seconds: the greedy point of ooc_cuDNN, if it fits, and
    `count` random feasible ones, or fewer."""
    search = _Search(Question(op, budget, backend.offers(op), model))
    return search.confirm(search.greedy()), search.confirm(search.random(count, rng))


class _Sums(NamedTuple):
    """Of a whole schedule: seconds per lane, alone and in turn, bytes per lane, and the share of each operand's loads that bring
    something new."""

    lanes: dict[str, float]
    turns: dict[str, float]
    moved: dict[str, int]
    first: dict[str, float]


class _Search:
    """One op, one budget: ranks tilings, checks them exactly, explains the choice."""

    def __init__(self, asked: Question) -> None:
        self.asked, self.op, self.budget = asked, asked.op, asked.budget
        self.places = tuple((o.name, asked.budget.place(o.name)) for o in asked.op.operands)
        moving = [o.nbytes for o in asked.op.operands if asked.budget.place(o.name) is not Place.DEVICE]
        self.compulsory = max(1, sum(moving))  # bytes moved at least

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
        costs, found = Costs(self.asked, self._small(sizes)), []
        for order in nests:
            flow = costs.flow(order)
            for depth in DEPTHS if self.asked.overlapping else (1,):
                found += self._best(costs, flow, depth)
        return sorted(found, key=lambda p: p.predicted_seconds)

    def _small(self, sizes: Grid) -> Grid:
        """The tilings of a grid whose blocks alone fit, one of each operand: most often few, so that only they are costed."""
        moving = [o for o in self.op.operands if self.budget.place(o.name) is not Place.DEVICE]
        least: Any = sum((o.block_bytes(sizes) for o in moving), np.zeros(len(next(iter(sizes.values()))), np.int64))
        fits = least <= (math.inf if self.budget.device_bytes is None else self.budget.device_bytes)
        return {d: v[fits] for d, v in sizes.items()} if fits.any() else {d: v[least.argmin()][None] for d, v in sizes.items()}

    def _best(self, costs: Costs, flow: Flow, depth: int) -> list[Plan]:
        """The fastest tiling that fits, for every kernel."""
        memory, staging = costs.memory(flow, depth)
        pinned_fits = True if self.budget.pinned_bytes is None else staging <= self.budget.pinned_bytes
        limit = math.inf if self.budget.device_bytes is None else self.budget.device_bytes
        handoffs = 2 * costs.tiles * (self.asked.model.handoff_seconds or 0.0)  # a load wakes its tile, a tile the next load
        moving = [np.broadcast_to(v, costs.tiles.shape) for v in flow.seconds.values()]
        fill = sum((v / np.maximum(costs.outer, 1) for v in moving), np.zeros(costs.tiles.shape))
        found = []
        for offer, workspace, compute in zip(self.asked.usable, costs.workspace, costs.computing(flow), strict=True):
            bound = self.asked.model.bound({**flow.seconds, "compute": compute})
            cycle = (compute + np.maximum.reduce([0 * compute, *moving]) + handoffs) / depth  # until a buffer is free again
            turns = sum(costs.in_turn(flow, compute).values(), 0 * compute)
            seconds = turns if depth == 1 else np.maximum.reduce([bound, cycle, *moving]) + fill
            need = np.where(costs.allowed, memory + -(-workspace // ALIGN) * ALIGN, math.inf)
            seconds = np.where((need <= limit) & (workspace <= self.asked.workspace_limit) & pinned_fits, seconds, math.inf)
            seconds = seconds * self.reluctance(sum(flow.nbytes.values(), np.zeros(costs.tiles.shape))) + TIE * compute
            i = int(seconds.argmin())
            if math.isfinite(seconds[i]):
                sizes = {d: int(v[i]) for d, v in costs.sizes.items()}
                found.append(self._plan(sizes, flow.order, depth, offer, float(seconds[i])))
        return found

    def reluctance(self, moved: Any) -> Any:
        """A factor on the seconds of plans that move more than every operand once: 10 % for each time more, 10 % at most.

        The model does not tell plans apart that are closer than that, and fewer bytes leave less to go wrong.
        """
        return 1 + 0.1 * np.clip(moved / self.compulsory - 1, 0, 1)

    def score(self, plan: Plan) -> float:
        """What plans are compared by: seconds, with the reluctance to move more and the ties for less computing."""
        moved, compute = sum(plan.lane_bytes.values()), plan.lane_seconds.get("compute", 0.0)
        return plan.predicted_seconds * float(self.reluctance(moved)) + TIE * compute

    def _plan(self, sizes: dict[str, int], order: tuple[str, ...], depth: int, offer: Offer, seconds: float) -> Plan:
        budget = self.budget
        return Plan(
            self.op, tuple(sizes.items()), order, depth, self.places, budget.staged, budget.shared,
            kernel=offer.name, bounce_bytes=self.asked.bounce_bytes, predicted_seconds=seconds, calibration=self.asked.model.name,
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

    def confirm(self, candidates: Sequence[Plan]) -> list[Plan]:
        """The candidates with simulated seconds, and the seconds and bytes of each lane."""
        if not candidates:
            return []
        costs = Costs(self.asked, {d: np.array([p.sizes[d] for p in candidates], np.int64) for d in candidates[0].sizes})
        flows = {order: costs.flow(order) for order in dict.fromkeys(p.order for p in candidates)}
        return [self._confirm(p, self._sums(p, costs, flows[p.order], i)) for i, p in enumerate(candidates)]

    def _confirm(self, candidate: Plan, sums: _Sums) -> Plan:
        """One of them, with the sums of its whole schedule."""
        lanes, turns, moved, first = sums
        steps = list(itertools.islice(emit(candidate), PREFIX))
        named = dict.fromkeys(r.buffer for s in steps for r in (*s.reads, *s.writes) if r.buffer)
        steps = list(link(steps, pack_in_sequence(named)))
        if len(steps) == PREFIX:  # reads as they are on the average
            steps = [s._replace(again=round(s.nbytes * (1 - first[s.what]))) if s.lane == "read" else s for s in steps]
        timeline = simulate(steps, self.asked.model)
        runs = [i for i, s in enumerate(steps) if s.kind == "run"]
        seconds = timeline.seconds
        if len(steps) == PREFIX:
            half = runs[len(runs) // 2]
            pace = (timeline.ends[runs[-1]] - timeline.ends[half]) / max(1, len(runs) - 1 - len(runs) // 2)
            seconds = max(timeline.ends[runs[-1]] + pace * (candidate.tiles - len(runs)), *lanes.values())
        else:
            lanes, turns = timeline.lane_seconds, simulate(steps, self.asked.model, in_turn=True).lane_seconds
        together = sum(turns.values())
        needed = min(WORTH_THREADS * seconds, WORTH_LARGE * seconds + DOUBT * candidate.tiles)
        hides = self.asked.overlapping and candidate.depth > 1 and lanes["compute"] == max(lanes.values())
        if self.asked.model.handoff_seconds is not None and (not hides or together < needed):
            bounce = min(candidate.bounce_bytes, IN_TURN_BOUNCE)  # the system reads ahead into its page cache alone
            seconds, lanes, candidate = together, turns, replace(candidate, depth=1, in_turn=True, bounce_bytes=bounce)
        spread = self.asked.model.spread(steps[runs[0]].work)
        return replace(candidate, predicted_seconds=seconds, spread=spread, lane_seconds=lanes, lane_bytes=moved)

    def _sums(self, candidate: Plan, costs: Costs, flow: Flow, i: int) -> _Sums:
        """Of the i-th tiling of some."""

        def own(values: Any) -> float:
            return float(np.broadcast_to(values, costs.tiles.shape)[i])

        compute = costs.computing(flow)[[o.name for o in self.asked.usable].index(candidate.kernel)]
        moved = {lane: round(own(v)) for lane, v in flow.nbytes.items() if own(v)}  # others of them may spill
        seconds, turns = (
            {lane: own(v) for lane, v in found.items() if lane in moved or lane == "compute"}
            for found in ({**flow.seconds, "compute": compute}, costs.in_turn(flow, compute))
        )
        first = {name: own(costs.first(costs.traffic[name], loads)) for name, loads in flow.loads.items()}
        return _Sums(seconds, turns, moved, first)

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
            found = self._at(grid, order)
            if found is None:
                sizes = op.legal({**sizes, dim: 1})
            elif best is None or found.predicted_seconds < best.predicted_seconds:
                best, sizes = found, dict(found.sizes)
        exact = self.exact(best) if best else None
        return [exact] if exact else []

    def random(self, count: int, rng: random.Random) -> list[Plan]:
        """So many different plans that fit, or fewer: tilings of the coarse grid in any order, depth and kernel."""
        costs, nests = Costs(self.asked, self._small(ladder(self.op))), orders(self.op)
        limit = math.inf if self.budget.device_bytes is None else self.budget.device_bytes
        found: dict[Plan, None] = {}
        for _ in range(8 * count):
            flow, depth, which = costs.flow(rng.choice(nests)), rng.choice(DEPTHS), rng.randrange(len(self.asked.usable))
            need = costs.memory(flow, depth)[0] + costs.workspace[which]
            fits = np.flatnonzero((need <= limit) & (costs.tiles <= MOST_TILES) & costs.allowed)
            if len(fits) and len(found) < count:
                i = rng.choice(fits.tolist())
                sizes = {d: int(v[i]) for d, v in costs.sizes.items()}
                plan = self.exact(self._plan(sizes, flow.order, depth, self.asked.usable[which], math.nan))
                found |= {plan: None} if plan else {}
        return list(found)

    def _at(self, grid: Grid, order: tuple[str, ...]) -> Plan | None:
        costs = Costs(self.asked, self._small(grid))
        found = self._best(costs, costs.flow(order), 3)
        return min(found, key=lambda p: p.predicted_seconds, default=None)

    def explain(self, confirmed: list[Plan], greedy: list[Plan]) -> Plan:
        """The winner, with what binds it and what else was considered."""
        best = confirmed[0]
        lane = max(best.lane_seconds, key=lambda k: best.lane_seconds[k])
        busy = best.lane_seconds[lane]
        binds = "bound by compute" if lane == "compute" else f"bound by the link ({lane})"
        binds += f", {busy / best.predicted_seconds:.0%} of the time" if best.predicted_seconds > 0 else ""
        lines = [f"runner-up: {_short(p)}" for p in confirmed[1:2]]
        lines.append(f"greedy point of ooc_cuDNN: {_short(greedy[0]) if greedy else 'does not fit'}")
        return replace(best, binds=binds, bound_seconds=bound_of(self.asked).seconds, why="\n".join(lines))

    def infeasible(self) -> BudgetError:
        """The error that names the smallest budget that would do."""
        limit, smallest = self.budget.device_bytes, self._smallest()
        if limit is not None and smallest <= limit:
            return BudgetError(
                f"{self.op}: fits the device budget but not the pinned or workspace budget; raise pinned= or workspace="
            )
        least = self.op.legal(dict.fromkeys(self.op.dims, 1))
        moving = [o for o in self.op.operands if self.budget.place(o.name) is not Place.DEVICE]
        parts = " ".join(f"{o.name} {show_bytes(int(o.block_bytes(least)))}" for o in moving)
        have = "no limit" if limit is None else show_bytes(limit)
        error = BudgetError(
            f"{self.op}: the smallest working set is {show_bytes(smallest)} ({smallest} bytes: {parts}; depth 1) "
            f"but the budget is {have}. Raise budget= to at least {smallest} bytes."
        )
        error.smallest_bytes = smallest
        return error

    def _smallest(self) -> int:
        """Bytes that the tiling with the smallest footprint needs."""
        costs = Costs(self.asked, ladder(self.op))
        workspace = np.minimum.reduce([-(-w // ALIGN) * ALIGN for w in costs.workspace])
        needs = [costs.memory(costs.flow(order), 1)[0] + workspace for order in orders(self.op)]
        return int(min(np.where(costs.allowed, need, math.inf).min() for need in needs))


def _short(p: Plan) -> str:
    tile = " ".join(f"{d}={s}" for d, s in p.tile)
    order = ">".join(d for d in p.order if p.counts[d] > 1) or "one tile"
    return (
        f"{p.predicted_seconds:.4g} s with {tile}, {order}, depth {p.depth}, kernel {p.kernel}, peak {show_bytes(p.peak_bytes)}"
    )


def _distinct(plans: Iterable[Plan]) -> Iterable[Plan]:
    """Without repetitions, best first, at most a few dozen."""
    seen: set[Any] = set()
    for p in plans:
        key = (p.tile, tuple(d for d in p.order if p.counts[d] > 1), p.depth, p.kernel)
        if key not in seen and len(seen) < 64:
            seen.add(key)
            yield p
