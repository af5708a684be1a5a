"""What is asked of the planner, and what no answer can beat."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ooc.backends.base import Backend, Offer
from ooc.cache import cached_property
from ooc.errors import UnsupportedError
from ooc.ir.op import INTEGERS, Op
from ooc.model.cost import Model
from ooc.schedule.budget import Budget
from ooc.schedule.place import DIRECT, PAGE, Place, load_route, store_route
from ooc.schedule.work import stage_keys

LOG = logging.getLogger("ooc.planner")
BOUNCE = 4 << 20
PAYS = 0.8  # of the time of exact kernels, below which others are taken
LEAST_BOUNCE, IN_TURN_BOUNCE = 96 << 10, 256 << 10  # a smaller one gathers too little; too small for direct I/O


def share_for_bounce(limit: int | None) -> int:
    """Bytes of a budget for each buffer through which file regions pass; 0 where it would be too small."""
    share = BOUNCE if limit is None else min(limit // 24, BOUNCE)
    return share // PAGE * PAGE if share >= LEAST_BOUNCE else 0


@dataclass(frozen=True)
class Question:
    """What is asked of the planner: an op, a budget, the ways to compute it, and the machine's model."""

    op: Op
    budget: Budget
    offers: tuple[Offer, ...]
    model: Model
    bouncing: bool = True  # whether files may have bounce buffers

    @cached_property
    def usable(self) -> tuple[Offer, ...]:
        """The ways to compute that the budget allows, and that pay."""
        offers = tuple(o for o in self.offers if o.ordered) if self.budget.deterministic else self.offers
        return paying(self.op, offers, self.in_one_piece)

    @property
    def bounce_bytes(self) -> int:
        """Size of each buffer through which file regions pass: a small share of the budget, none when that is tiny."""
        if not self.bouncing or all(self.budget.place(o.name) is not Place.DISK for o in self.op.operands):
            return 0
        return share_for_bounce(self.budget.device_bytes)

    @property
    def overlapping(self) -> bool:
        """Whether lanes that work side by side may gain: those of a processor share it, so there only what it is free of
        while it goes on, direct I/O."""
        return self.model.handoff_seconds is None or self.bounce_bytes >= DIRECT

    @property
    def workspace_limit(self) -> float:
        """Bytes of workspace that a kernel may have."""
        return math.inf if self.budget.workspace_bytes is None else self.budget.workspace_bytes

    def in_one_piece(self, offer: Offer) -> float:
        """Seconds to compute all of the op as one tile in a way."""
        works = zip(offer_keys(self.op, offer), self.op.whole_work(offer.kernels(self.op)), strict=True)
        return sum(float(self.model.compute(key).seconds(effort, nbytes, 1, width)) for key, (effort, nbytes, width) in works)


def offer_keys(op: Op, offer: Offer) -> tuple[str, ...]:
    """What the model is asked about each stage of an op that is computed in a way."""
    return stage_keys(op, offer.kernels(op))


def paying(op: Op, offers: tuple[Offer, ...], seconds: Callable[[Offer], float]) -> tuple[Offer, ...]:
    """Offers without those that round exact numbers where others are hardly slower, or tensors are of integers. seconds: of all
    of the op as one tile."""
    exact = tuple(o for o in offers if not o.rounds)
    if not exact or exact == offers:
        return offers
    if any(o.dtype in INTEGERS for o in op.operands):
        return exact
    most = PAYS * min(map(seconds, exact))
    return tuple(o for o in offers if not o.rounds or seconds(o) < most)


def usable_offers(op: Op, backend: Backend, deterministic: bool, in_place: frozenset[str] = frozenset()) -> tuple[Offer, ...]:
    """The ways to compute an op; deterministic: those whose sums do not depend on the tiles; in_place: the operands that are used
    in place. Raises UnsupportedError where there is none."""
    offers = backend.offers(op, in_place)
    if LOG.isEnabledFor(logging.DEBUG):  # telling takes longer than asking
        chosen = ", ".join(offer.name for offer in offers)
        LOG.debug("%s: %s offers %s", op, backend.name, chosen or "nothing")
        for refusal in backend.why_not(op).values():
            LOG.debug("%s: %s", op, refusal)
    if not offers:
        reasons = "; ".join(f"{k}: {v}" for k, v in backend.why_not(op).items())
        raise UnsupportedError(f"{op}: backend {backend.name} cannot compute this: {reasons}")
    usable = tuple(o for o in offers if o.ordered or not deterministic)
    if not usable:
        names = ", ".join(o.name for o in offers)
        raise UnsupportedError(f"{op}: sums of {backend.name}'s kernels ({names}) depend on the tiles: not deterministic")
    return usable


def least_computing(op: Op, offers: Iterable[Offer], model: Model) -> float:
    """Seconds below which no plan computes in these ways: of every stage what any tiling has to do, once, at the rates of
    whichever kernel is fastest at it, without what a call costs."""
    ways = [zip(offer_keys(op, offer), op.least_work(offer.kernels(op)), strict=True) for offer in offers]
    stages = zip(*ways, strict=True)
    return float(sum(min(model.compute(key).at_best(*work) for key, work in stage) for stage in stages))


class Bound(NamedTuple):
    """What no plan can beat: seconds, what they are spent on (`compute` or a lane), and the bytes that must pass each lane."""

    seconds: float
    by: str
    lane_bytes: dict[str, int]


def bound_of(question: Question) -> Bound:
    """The bound: seconds below which the model predicts no plan of the op from and to these places, whatever its tiles, their
    order, its kernel and its budget.

    The longest of what the lanes and the kernels are busy with at least, all side by side: each operand moves once, as far as
    any tile reaches it, in one piece at the best rate of its lane (of reads that of the page cache where it is faster); each
    stage is computed once, at the rates of whichever kernel is fastest at it. No latencies, halo, pieces, contention or partial
    sums. A run is faster only where the machine is faster than its calibration.
    """
    moved: dict[str, int] = {}
    for operands, routes in ((question.op.inputs, load_route), (question.op.outputs, store_route)):
        for operand in operands:
            for lane in routes(question.budget.place(operand.name), question.budget.staged):
                moved[lane] = moved.get(lane, 0) + question.op.least_bytes[operand.name]
    seconds = {lane: nbytes / question.model.best_rate(lane, once=True) for lane, nbytes in moved.items()}
    seconds["compute"] = least_computing(question.op, question.offers, question.model)
    by = max(seconds, key=seconds.__getitem__)
    return Bound(seconds[by], by, moved)
