"""Cutting a chain: one fused plan, or several in a row where that is predicted faster or only that fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ooc.device import Device
from ooc.errors import BudgetError
from ooc.op import Op, fuse
from ooc.ops import ConvFprop
from ooc.plan import Place, Plan, show_bytes


class Segment(NamedTuple):
    """Consecutive stages that run as one op: stages[first:end]."""

    first: int
    end: int
    plan: Plan


def cut(stages: Sequence[Op], places: Mapping[str, Place], device: Device) -> list[Segment]:
    """The fused chain, or the cut of it that is predicted fastest, or the only one that fits the budget.

    Fusing saves moving the intermediate but recomputes its halo and keeps all filters resident; several convolutions
    in a row are worth comparing, one convolution with what follows it is not. Raises BudgetError when nothing fits.
    """
    if sum(isinstance(s, ConvFprop) for s in stages) < 2:
        try:
            return [Segment(0, len(stages), _plan_part(stages, 0, len(stages), places, device))]
        except BudgetError:
            if len(stages) == 1:
                raise
    plans: dict[tuple[int, int], Plan | BudgetError] = {}
    for end in range(1, len(stages) + 1):
        for first in range(end):
            try:
                plans[first, end] = _plan_part(stages, first, end, places, device)
            except BudgetError as error:
                plans[first, end] = error
    return _fastest(plans, len(stages)) or _refuse(plans, stages, device)


def _fastest(plans: Mapping[tuple[int, int], Plan | BudgetError], count: int) -> list[Segment]:
    """The cut with the least predicted time, by dynamic programming over its last part; empty when nothing fits."""
    best: list[tuple[float, list[Segment]]] = [(0.0, []), *([(math.inf, [])] * count)]
    for (first, end), own in sorted(plans.items(), key=lambda item: item[0][1]):
        seconds, before = best[first]
        if isinstance(own, Plan) and seconds + own.predicted_seconds < best[end][0]:
            best[end] = (seconds + own.predicted_seconds, [*before, Segment(first, end, own)])
    return best[count][1]


def _refuse(plans: Mapping[tuple[int, int], Plan | BudgetError], stages: Sequence[Op], device: Device) -> list[Segment]:
    """Raise the error that names the smallest budget under which some cut fits: the least maximum over its parts."""
    need: list[float] = [0.0] + [math.inf] * len(stages)
    for (first, end), own in sorted(plans.items(), key=lambda item: item[0][1]):
        least = 0.0 if isinstance(own, Plan) else math.inf if own.smallest_bytes is None else float(own.smallest_bytes)
        need[end] = min(need[end], max(need[first], least))
    have = "no limit" if device.device_bytes is None else show_bytes(device.device_bytes)
    if not math.isfinite(need[-1]):
        raise next(own for own in plans.values() if isinstance(own, BudgetError))
    error = BudgetError(
        f"{fuse(*stages)}: even cut into its parts, the smallest working set is {show_bytes(need[-1])} ({int(need[-1])} bytes; "
        f"depth 1) but the budget is {have}. Raise budget= to at least {int(need[-1])} bytes."
    )
    error.smallest_bytes = int(need[-1])
    raise error


def between(places: Mapping[str, Place]) -> Place:
    """Where intermediates between the parts live: in files when the ends are files."""
    ends = (places["x"], places["y"])
    return Place.DISK if Place.DISK in ends else places["x"]


def _plan_part(stages: Sequence[Op], first: int, end: int, places: Mapping[str, Place], device: Device) -> Plan:
    """The plan of stages[first:end] fused."""
    op = fuse(*stages[first:end])
    own = {"x": places["x"] if first == 0 else between(places), "y": places["y"] if end == len(stages) else between(places)}
    for operand in op.inputs[1:]:
        base, _, index = operand.name.partition(".")
        stage = int(index or 0) + first
        own[operand.name] = places.get(f"{base}.{stage}" if stage else base, Place.HOST)
    return device.plan(op, own)
