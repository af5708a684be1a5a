"""What predictions rest on (the lane that binds, where the numbers that matter are from) and what would change them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ooc.errors import BudgetError, UnsupportedError
from ooc.ir.op import Op
from ooc.model.cost import Model
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from ooc.schedule.steps import lane_totals
from ooc.schedule.work import stage_keys

MATTERS = 0.3  # of the busiest lane's seconds: what takes less hardly moves the outcome
TELLING = 0.9  # of the seconds: the model does not tell apart what is closer
SMALL = 0.01  # of an op's bytes: where such operands live hardly matters
FOREIGN = {"assumed": "assumed", "datasheet": "from datasheets"}
Places = Mapping[str, Place]
Planning = Callable[[Op, Places], Sequence[Plan]]  # plans an op with its operands in these places


class PlannedOp(NamedTuple):
    """An op that was planned: the places of its operands, and its plans in a row."""

    op: Op
    places: Places
    plans: Sequence[Plan]

    @property
    def seconds(self) -> float:
        """Predicted seconds."""
        return sum(p.predicted_seconds for p in self.plans)


class Change(NamedTuple):
    """Operands that live elsewhere, and the seconds that are predicted then."""

    places: dict[str, Place]
    seconds: float

    def __str__(self) -> str:
        return " ".join(f"{name}={place.value}" for name, place in self.places.items())


# ---- where the numbers are from


def rests_on(plans: Sequence[Plan], model: Model) -> str:
    """What binds plans in a row, and which of the numbers that matter were not measured; empty where all were."""
    busy = lane_totals(p.lane_seconds for p in plans)
    binding = max(busy, key=busy.__getitem__, default="")
    lanes = sorted((lane for lane in busy if busy[lane] >= MATTERS * busy[binding]), key=lambda lane: -busy[lane])
    origins = {lane: _origin(lane, plans, model) for lane in lanes}
    if all(origin == "measured" for origin in origins.values()):
        return ""
    others = {words: [x for x in lanes[1:] if origins[x] == origin] for origin, words in FOREIGN.items()}
    parts = [f"bound by {_lane(binding)}: {_what(binding, plans, model)}, {origins[binding]}"]
    return "; ".join([*parts, *(f"{words} too: {', '.join(some)}" for words, some in others.items() if some)])


def _lane(lane: str) -> str:
    return lane if lane == "compute" else f"the {lane} lane"


def _what(lane: str, plans: Sequence[Plan], model: Model) -> str:
    """What is done on a lane, at which rate."""
    if lane == "compute":
        return f"kernels ({_entry(plans, model)})"
    rate = f"{model.copy(lane).bytes_per_second / 1e9:.3g} GB/s"
    if lane in ("h2d", "d2h"):
        return f"{'the link' if plans[0].staged else 'copies in memory'} at {rate}"
    if not _of_files(lane, plans):
        return f"staging copies at {rate}"
    return f"files taken to be as fast as staging copies, {rate}" if plans[0].staged else f"files at {rate}"


def _origin(lane: str, plans: Sequence[Plan], model: Model) -> str:
    """Where the numbers of a lane are from. Where a device needs staging, its calibration knows nothing of the disk."""
    if lane == "compute":
        return model.origin("computes", _entry(plans, model))
    return "assumed" if plans[0].staged and _of_files(lane, plans) else model.origin("copies", lane)


def _of_files(lane: str, plans: Sequence[Plan]) -> bool:
    """Whether files pass a lane."""
    ends = {"read": [(p, p.op.inputs) for p in plans], "write": [(p, p.op.outputs) for p in plans]}
    return any(p.place(o.name) is Place.DISK for p, operands in ends.get(lane, ()) for o in operands)


def _entry(plans: Sequence[Plan], model: Model) -> str:
    """The calibration's entry for what computing takes longest."""
    keyed = ((stage_keys(p.op, p.kernels), p.op.least_work(p.kernels)) for p in plans)
    works = ((key, *least) for keys, work in keyed for key, least in zip(keys, work, strict=True))
    return model.entry(max(works, key=lambda work: float(model.compute(work[0]).at_best(*work[1:])))[0])


# ---- what would change the outcome


def change(cases: Sequence[PlannedOp], plan: Planning) -> Change | None:
    """The same work with operands in a faster place, if that is faster: in pinned memory instead of pageable where a device
    needs staging, in memory instead of files where files bind another. plan: plans it."""
    busy = lane_totals(p.lane_seconds for case in cases for p in case.plans)
    if not busy or not (staged(cases) or max(busy, key=busy.__getitem__) in ("read", "write")):
        return None
    then = _moved(cases, Place.HOST, Place.PINNED) if staged(cases) else _moved(cases, Place.DISK, Place.HOST)
    seconds = _planned(then, plan)[1] if then else math.inf
    if seconds >= TELLING * sum(case.seconds for case in cases):
        return None
    return Change({name: place for now, case in zip(cases, then, strict=True) for name, place in _news(now, case)}, seconds)


def enough_of_disk(cases: Sequence[PlannedOp], plan: Planning) -> str:
    """Of a device that needs staging, whose calibration does not know the disk: the rate from which on something else binds, by
    plans of what would be without the disk; empty where no files pass."""
    plans = [p for case in cases for p in case.plans]
    lanes = [link for lane, link in (("read", "h2d"), ("write", "d2h")) if _of_files(lane, plans)]
    then = _moved(cases, Place.DISK, Place.PINNED) if lanes and staged(cases) else []
    replanned, _ = _planned(then, plan) if then else ((), 0.0)
    busy, moved = (lane_totals(getattr(p, what) for p in replanned) for what in ("lane_seconds", "lane_bytes"))
    if not busy:
        return ""
    binding = max(busy, key=busy.__getitem__)
    what = "staging copies" if binding in ("read", "write") else _lane(binding)
    rate = max(moved.get(lane, 0) for lane in lanes) / busy[binding]
    return f"from some {rate / 1e9:.3g} GB/s on it is not the disk that binds but {what}"


def staged(cases: Sequence[PlannedOp]) -> bool:
    """Whether the device reaches only pinned memory."""
    return any(p.staged for case in cases for p in case.plans)


def _moved(cases: Sequence[PlannedOp], now: Place, then: Place) -> list[PlannedOp]:
    """The same ops with their large operands in another place, not planned yet; empty where there are none."""
    moved = []
    for case in cases:
        large = SMALL * sum(o.nbytes for o in case.op.operands)
        places = {o.name: then for o in case.op.operands if case.places.get(o.name) is now and o.nbytes >= large}
        moved.append(PlannedOp(case.op, {**case.places, **places}, ()))
    return moved if any(a.places != b.places for a, b in zip(moved, cases, strict=True)) else []


def _news(now: PlannedOp, then: PlannedOp) -> list[tuple[str, Place]]:
    """The operands that live elsewhere."""
    return [(name, place) for name, place in then.places.items() if now.places[name] is not place]


def _planned(cases: Sequence[PlannedOp], plan: Planning) -> tuple[list[Plan], float]:
    """All plans, and their seconds: none and endless ones where one of them does not fit."""
    try:
        plans = [p for case in cases for p in plan(case.op, case.places)]
    except (BudgetError, UnsupportedError):
        return [], math.inf
    return plans, sum(p.predicted_seconds for p in plans)
