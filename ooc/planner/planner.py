"""The planner of a device: what was asked before is remembered, what is new is searched for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ooc.backends.base import Backend
from ooc.cache import Cache
from ooc.errors import BudgetError
from ooc.ir.fused import Fused
from ooc.ir.op import Op
from ooc.model.cost import Model
from ooc.planner.cutting import between, cut
from ooc.planner.question import Bound, Question, bound_of, least_computing
from ooc.planner.search import search
from ooc.schedule.budget import Budget
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

CROWDED = 1.5  # times what computing takes, from which on a plan suffers from the budget
PARTED = 2  # times that tiles of some taps must be predicted faster: what many small tiles take besides is more than predicted
REMEMBERED = 1024  # plans, cuts and bounds of one planner
LEAST_WORKSPACE, MOST_WORKSPACE = 256, 1 << 40  # bytes, between which a limit that yields is raised


@dataclass(frozen=True)
class Limits:
    """What the plans of a device keep to: bytes of each kind of memory (None: no limit), and the order of sums.

    workspace_yields: where no plan keeps within `workspace_bytes`, that limit is doubled until one does.
    """

    device_bytes: int | None = None
    pinned_bytes: int | None = None
    workspace_bytes: int | None = None
    deterministic: bool = False
    workspace_yields: bool = False


class Planner:
    """Plans for one backend under fixed limits, by one model. Threads may share it."""

    def __init__(self, backend: Backend, model: Model, limits: Limits) -> None:
        self.backend, self.model, self.limits = backend, model, limits
        self._plans: Cache[Plan] = Cache(REMEMBERED)
        self._cuts: Cache[list[Plan]] = Cache(REMEMBERED)
        self._bounds: Cache[Bound] = Cache(REMEMBERED)

    def budget(self, places: Mapping[str, Place], deterministic: bool = False) -> Budget:
        """The budget for operands that live in these places.

        Without a limit, what is not used in place streams through an arena of a fixed size, and where all is used in place
        kernels may work in what the backend says. What libraries take for themselves counts, unless that leaves next to nothing.
        """
        limits, overhead = self.limits, self.backend.own_bytes
        limit, workspace = limits.device_bytes, limits.workspace_bytes
        if limit is None and set(places.values()) != {Place.DEVICE}:
            limit = self.backend.streaming_bytes
        if limit is not None and overhead <= limit // 8:
            limit -= overhead
        if limit is None and workspace is None:
            workspace = self.backend.workspace_bytes
        return Budget(
            limit, limits.pinned_bytes, workspace, tuple(sorted(places.items())), self.backend.staged,
            self.backend.shared, deterministic or limits.deterministic,
        )  # fmt: skip

    def plan(self, op: Op, places: Mapping[str, Place], deterministic: bool = False, greedy: bool = True) -> Plan:
        """The plan for an op in one piece. greedy: whether ooc_cuDNN's greedy point is looked at, too. Raises BudgetError or
        UnsupportedError."""
        key = op, self.budget(places, deterministic), greedy
        return self._plans.get(key) or self._plans.keep(key, self._parted(*key))

    def plans(self, op: Op, places: Mapping[str, Place], deterministic: bool = False) -> list[Plan]:
        """The plans for an op, one after the other: one in one piece, or of parts of a fused op where that is predicted
        faster or alone fits. What passes between parts lives where `between` says. Raises BudgetError or UnsupportedError."""
        key = op, self.budget(places, deterministic)
        return self._cuts.get(key) or self._cuts.keep(key, self._cut(op, places, deterministic))

    def bound(self, op: Op, places: Mapping[str, Place]) -> Bound:
        """What no plan for an op can beat here, by the model: `bound_of`."""
        key = (op, tuple(sorted(places.items())))
        return self._bounds.get(key) or self._bounds.keep(
            key, bound_of(Question(op, self.budget(places), self.backend.offers(op), self.model))
        )

    def _cut(self, op: Op, places: Mapping[str, Place], deterministic: bool) -> list[Plan]:
        def own(part: Op) -> Plan:
            inner = between(places, self.backend.shared)
            return self.plan(part, {o.name: places.get(o.name, inner) for o in part.operands}, deterministic)

        def least_seconds() -> float:
            return least_computing(op, self.backend.offers(op), self.model)

        return cut(op, own, least_seconds, self.limits.device_bytes) if isinstance(op, Fused) else [own(op)]

    def _parted(self, op: Op, budget: Budget, greedy: bool) -> Plan:
        """The plan of an op, or of one whose tiles have some of the taps of its filters, where that is faster."""
        plan = self._search(op, budget, greedy)
        limited = budget.device_bytes is not None and not budget.deterministic and self.backend.parts_filters
        parts = op.in_parts if limited else None
        if parts is None:
            return plan
        least = least_computing(op, self.backend.offers(op), self.model)
        if plan.predicted_seconds <= CROWDED * least:
            return plan
        parted = self._search(parts, budget, greedy)
        return parted if parted.predicted_seconds * PARTED < plan.predicted_seconds else plan

    def _search(self, op: Op, budget: Budget, greedy: bool) -> Plan:
        """The plan under a budget, or under the first of more generous ones that has any."""
        attempts = list(self._attempts(budget))
        for attempt in attempts:
            try:
                return search(op, attempt, self.backend, self.model, greedy)
            except BudgetError as error:  # the caller's own limit is one that nothing raises
                if attempt is attempts[-1] or (self.limits.device_bytes is not None and error.smallest_bytes is not None):
                    raise
        raise AssertionError

    def _attempts(self, budget: Budget) -> Iterator[Budget]:
        """A budget, then more generous ones where a limit was not the caller's or yields."""
        workspace = budget.workspace_bytes
        while True:
            yield replace(budget, workspace_bytes=workspace)
            if self.limits.device_bytes is None and budget.device_bytes is not None:
                yield replace(budget, workspace_bytes=workspace, device_bytes=self.backend.total_bytes // 2)
            if not self.limits.workspace_yields or workspace is None or workspace >= MOST_WORKSPACE:
                return
            workspace = max(LEAST_WORKSPACE, 2 * workspace)
