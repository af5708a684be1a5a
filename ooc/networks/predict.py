"""The time of a network's schedule: simulated where it holds the steps, extrapolated where it holds the first ones of many."""

from __future__ import annotations

from collections.abc import Sequence

from ooc.model.cost import Model
from ooc.model.simulate import Timeline, pace, simulate
from ooc.networks.scene import NetworkSchedule
from ooc.schedule.lowering import Tail
from ooc.schedule.steps import Step


def predict(schedule: NetworkSchedule, model: Model) -> Timeline:
    """When the steps that a schedule holds begin and end. The last held one of a call in many tiles ends when the call does."""
    if not schedule.tails:
        return simulate(schedule.steps, model, schedule.alone)
    starts, ends, busy, begin = list[float](), list[float](), dict[str, float](), 0
    tails: list[Tail | None] = [*schedule.tails, None]
    for tail in tails:
        now, end = max(ends, default=0.0), len(schedule.steps) if tail is None else tail.at
        steps = _apart(schedule.steps, begin, end)
        part, begin = simulate(steps, model, schedule.alone), end
        more = {} if tail is None else _lanes(tail, steps, part, model)
        for lane in (*part.lane_seconds, *more):
            busy.setdefault(lane, 0.0)
        busy = {lane: s + part.lane_seconds.get(lane, 0.0) + more.get(lane, 0.0) for lane, s in busy.items()}
        starts += (now + s for s in part.starts)
        ends += (now + s for s in part.ends)
        if tail is not None:
            ends[-1] = max(ends[-1], now + part.seconds + _seconds(tail, steps, part, more, schedule.alone))
    return Timeline(starts, ends, busy)


def _apart(steps: Sequence[Step], begin: int, end: int) -> list[Step]:
    """Some of the steps, which wait for each other alone."""
    return [step._replace(after=tuple([i - begin for i in step.after if i >= begin])) for step in steps[begin:end]]


def _lanes(tail: Tail, steps: Sequence[Step], part: Timeline, model: Model) -> dict[str, float]:
    """Seconds of each lane in a tail: as many for a tile, and for a byte, as the steps before it took."""
    tiles, busy, moved = 0, dict[str, float](), dict[str, int]()
    for step, start, end in zip(steps, part.starts, part.ends, strict=True):
        if step.job == tail.job:
            tiles += step.kind == "run"
            busy[step.lane] = busy.get(step.lane, 0.0) + end - start
            moved[step.lane] = moved.get(step.lane, 0) + step.nbytes
    seconds = {"compute": busy["compute"] / tiles * tail.tiles}
    for lane, nbytes in tail.lane_bytes.items():
        seconds[lane] = nbytes * (busy[lane] / moved[lane] if moved.get(lane) else 1 / model.best_rate(lane))
    return seconds


def _seconds(tail: Tail, steps: Sequence[Step], part: Timeline, lanes: dict[str, float], alone: bool) -> float:
    """Seconds of a tail: of its lanes in turn; side by side at the pace of the tiles before it, or of the busiest lane."""
    if alone:
        return sum(lanes.values())
    ends = [end for step, end in zip(steps, part.ends, strict=True) if step.job == tail.job and step.kind == "run"]
    return max(pace(ends) * tail.tiles, *lanes.values())
