"""Cutting a fused op: one plan for all its stages, or several in a row where that is predicted faster or only that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ooc.errors import BudgetError
from ooc.ir.fused import Fused
from ooc.ir.op import Op
from ooc.planner.search import is_quick
from ooc.schedule.budget import show_bytes
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

Piece = TypeVar("Piece")
WORTH = 1.25  # cutting must gain more than this: it moves more bytes, and predictions are no better


def cut(op: Fused, plan: Callable[[Op], Plan], least_seconds: Callable[[], float], budget_bytes: int | None) -> list[Plan]:
    """The plan of a fused op, or of consecutive parts of its stages if that is predicted faster or alone fits.

    plan: of the op or of a part of it, in one piece; raises BudgetError where none fits. least_seconds: what computing takes
    at least. budget_bytes: for the error. Fusing saves moving the intermediates but recomputes their halo and keeps all
    filters resident; several convolutions are worth comparing, one convolution with what follows it is not. Raises
    BudgetError, with the smallest budget that would do, when nothing fits.
    """
    count = len(op.stages)
    if sum(s.kind.startswith("conv.") for s in op.stages) < 2:
        try:
            return [plan(op)]
        except BudgetError:
            if count == 1:
                raise
    plans: dict[tuple[int, int], Plan | BudgetError] = {}
    spans = sorted(((first, end) for end in range(1, count + 1) for first in range(end)), key=lambda s: s[0] - s[1])
    for first, end in spans:
        part = op.part(first, end) if end - first < count else op
        try:
            candidate = plans[first, end] = plan(part)
        except BudgetError as error:
            plans[first, end] = error.with_traceback(None)  # which knows all that the caller has
        else:
            if part is op and (is_quick(candidate) or candidate.predicted_seconds <= WORTH * least_seconds()):
                return [candidate]

    def pieces(end: int) -> Iterator[tuple[int, float, Plan]]:
        fitting = ((first, plans[first, end]) for first in range(end))
        return ((first, part.predicted_seconds, part) for first, part in fitting if isinstance(part, Plan))

    whole, (seconds, parts) = plans[0, count], cheapest(count, pieces)
    if isinstance(whole, Plan) and whole.predicted_seconds <= WORTH * seconds:
        return [whole]
    if not parts:
        raise _refusal(plans, op, budget_bytes)
    return [part for _, part in parts]


def cheapest(count: int, pieces: Callable[[int], Iterable[tuple[int, float, Piece]]]) -> tuple[float, list[tuple[int, Piece]]]:
    """The least cost of `count` things in a row cut into pieces, by dynamic programming over the last piece, and each piece with
    the place where it begins; no pieces and inf where there is no cut.

    pieces: those that may end before a place: where each begins, its cost, and what it is. Of equal ones the longest is taken.
    """
    best: list[tuple[float, tuple[int, Piece] | None]] = [(0.0, None)]
    for end in range(1, count + 1):
        sums = ((best[begin][0] + cost, (begin, piece)) for begin, cost, piece in pieces(end))
        best.append(min(sums, key=_longest, default=(math.inf, None)))
    row: list[tuple[int, Piece]] = []
    last = best[count][1] if best[count][0] < math.inf else None
    while last is not None:
        row.append(last)
        last = best[last[0]][1]
    return best[count][0], row[::-1]


def _longest(last: tuple[float, tuple[int, Any]]) -> tuple[float, int]:
    cost, (begin, _) = last
    return cost, begin


def _refusal(plans: Mapping[tuple[int, int], Plan | BudgetError], op: Op, budget_bytes: int | None) -> BudgetError:
    """The error that names the smallest budget under which some cut fits: the least maximum over its parts."""
    need: list[float] = [0.0] + [math.inf] * len(op.stages)
    for (first, end), answer in sorted(plans.items(), key=lambda item: item[0][1]):
        least = 0.0 if isinstance(answer, Plan) else math.inf if answer.smallest_bytes is None else float(answer.smallest_bytes)
        need[end] = min(need[end], max(need[first], least))
    have = "no limit" if budget_bytes is None else show_bytes(budget_bytes)
    if not math.isfinite(need[-1]):
        return next(answer for answer in plans.values() if isinstance(answer, BudgetError))
    error = BudgetError(
        f"{op}: even cut into its parts, the smallest working set is {show_bytes(need[-1])} ({int(need[-1])} bytes; "
        f"depth 1) but the budget is {have}. Raise budget= to at least {int(need[-1])} bytes."
    )
    error.smallest_bytes = int(need[-1])
    return error


def between(places: Mapping[str, Place], shared: bool) -> Place:
    """Where what passes between the parts lives: in files where the caller's tensors do, else in the host's memory.
    shared: that is the device's own, used in place where the caller's tensors are."""
    kinds = set(places.values())
    if Place.DISK in kinds:
        return Place.DISK
    return Place.DEVICE if shared and Place.HOST not in kinds else Place.HOST
