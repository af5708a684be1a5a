"""What is asked of the planner, and what no answer can beat."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ooc.backends.base import Backend, Offer
from ooc.errors import UnsupportedError
from ooc.ir.op import Op
from ooc.model.cost import Model
from ooc.schedule.budget import Budget
from ooc.schedule.place import DIRECT, PAGE, Place, load_route, store_route

BOUNCE = 4 << 20
LEAST_BOUNCE, IN_TURN_BOUNCE = 96 << 10, 256 << 10  # a smaller one gathers too little; too small for direct I/O
IN_PLACE_WORKSPACE = 128 << 20  # workspace when nothing is limited


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

    @property
    def usable(self) -> tuple[Offer, ...]:
        """The ways to compute that the budget allows."""
        return tuple(o for o in self.offers if o.ordered) if self.budget.deterministic else self.offers

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
        if self.budget.workspace_bytes is not None:
            return self.budget.workspace_bytes
        return IN_PLACE_WORKSPACE if self.budget.device_bytes is None else math.inf

    def in_one_piece(self, kernel: str) -> float:
        """Seconds to compute all of the op as one tile by a kernel."""
        return sum(_seconds(work, kernel, self.model) for work in self.op.whole_work)


def usable_offers(op: Op, backend: Backend, deterministic: bool, in_place: frozenset[str] = frozenset()) -> tuple[Offer, ...]:
    """The ways to compute an op; deterministic: those whose sums do not depend on the tiles; in_place: the operands that are used
    in place. Raises UnsupportedError where there is none."""
    offers = backend.offers(op, in_place)
    if not offers:
        reasons = "; ".join(f"{k}: {v}" for k, v in backend.why_not(op).items())
        raise UnsupportedError(f"{op}: backend {backend.name} cannot compute this: {reasons}")
    found = tuple(o for o in offers if o.ordered or not deterministic)
    if not found:
        names = ", ".join(o.name for o in offers)
        raise UnsupportedError(f"{op}: sums of {backend.name}'s kernels ({names}) depend on the tiles: not deterministic")
    return found


def _seconds(work: tuple[str, float, float, float], kernel: str, model: Model) -> float:
    key, effort, nbytes, width = work
    return float(model.compute(f"{key}/{kernel}").seconds(effort, nbytes, 1, width))


def least_computing(op: Op, names: Iterable[str], model: Model) -> float:
    """Seconds below which no plan computes with these kernels: of every stage what any tiling has to do, once, at the rates of
    whichever kernel is fastest at it, without what a call costs."""
    own = tuple(names)
    return float(sum(min(model.compute(f"{k}/{n}").at_best(effort, nbytes) for n in own) for k, effort, nbytes in op.least_work))


class Bound(NamedTuple):
    """What no plan can beat: seconds, what they are spent on (`compute` or a lane), and the bytes that must pass each lane."""

    seconds: float
    by: str
    lane_bytes: dict[str, int]


def bound_of(asked: Question) -> Bound:
    """The bound: seconds below which the model predicts no plan of the op from and to these places, whatever its tiles, their
    order, its kernel and its budget.

    The longest of what the lanes and the kernels are busy with at least, all side by side: each operand moves once, as far as
    any tile reaches it, in one piece at the best rate of its lane (of reads that of the page cache where it is faster); each
    stage is computed once, at the rates of whichever kernel is fastest at it. No latencies, halo, pieces, contention or partial
    sums. A run is faster only where the machine is faster than its calibration.
    """
    moved: dict[str, int] = {}
    for operands, routes in ((asked.op.inputs, load_route), (asked.op.outputs, store_route)):
        for operand in operands:
            for lane in routes(asked.budget.place(operand.name), asked.budget.staged):
                moved[lane] = moved.get(lane, 0) + asked.op.least_bytes[operand.name]
    seconds = {lane: nbytes / asked.model.best_rate(lane) for lane, nbytes in moved.items()}
    seconds["compute"] = least_computing(asked.op, [o.name for o in asked.offers], asked.model)
    by = max(seconds, key=seconds.__getitem__)
    return Bound(seconds[by], by, moved)
