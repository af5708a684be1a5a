"""The few best candidates step by step: simulated seconds, and whether their steps run in turn or on threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooc.model.simulate import pace, simulate
from ooc.planner.costs import TilingCosts
from ooc.planner.question import IN_TURN_BOUNCE, Question
from ooc.schedule.arena import pack_in_sequence
from ooc.schedule.emit import emit
from ooc.schedule.link import link
from ooc.schedule.plan import Plan
from ooc.schedule.steps import Step, moved_bytes

# Threads of a processor are used where computing takes longest (what the disk or copies bind is as fast in turn, where the system
# reads ahead) and where they gain so much: the system may keep them waiting for the processor.
WORTH_THREADS = 1.25  # times as fast,
WORTH_LARGE, DOUBT = 1.05, 500e-6  # or a little faster and by so many seconds a tile
PREFIX, RUNS = 80, 4  # steps simulated of a long schedule at least, and tiles computed in them; the rest is extrapolated


class Sums(NamedTuple):
    """Of a whole schedule: seconds per lane, alone and in turn, bytes per lane, and the share of each operand's loads that bring
    something new."""

    lanes: dict[str, float]
    turns: dict[str, float]
    moved: dict[str, int]
    first: dict[str, float]


def confirm(question: Question, candidates: Sequence[Plan]) -> list[Plan]:
    """The candidates with simulated seconds, and the seconds and bytes of each lane."""
    return [_confirm(question, p) for p in candidates]


def _sums(question: Question, candidate: Plan) -> Sums:
    """Of a long schedule, without its steps."""
    costs = TilingCosts(question, {d: np.array([v], np.int64) for d, v in candidate.sizes.items()})
    flow = costs.flow(candidate.order)

    def own(values: Any) -> float:
        return float(np.broadcast_to(values, costs.tiles.shape)[0])

    compute = costs.computing(flow)[[o.name for o in question.usable].index(candidate.kernel)]
    moved = {lane: round(own(v)) for lane, v in flow.nbytes.items() if own(v)}  # others of them may spill
    seconds, turns = (
        {lane: own(v) for lane, v in busy.items() if lane in moved or lane == "compute"}
        for busy in ({**flow.seconds, "compute": compute}, costs.in_turn(flow, compute))
    )
    first = {name: own(costs.first(costs.traffic[name], loads)) for name, loads in flow.loads.items()}
    return Sums(seconds, turns, moved, first)


def _confirm(question: Question, candidate: Plan) -> Plan:
    """One of them, with the sums of its whole schedule: of a short one simulated, of a long one extrapolated."""
    steps, long = _first_steps(candidate)
    sums = _sums(question, candidate) if long else None
    if sums is not None:  # reads as they are on the average
        steps = [s._replace(again=round(s.nbytes * (1 - sums.first[s.what]))) if s.lane == "read" else s for s in steps]
    timeline = simulate(steps, question.model)
    runs = [i for i, s in enumerate(steps) if s.kind == "run"]
    if sums is not None:
        ends = [timeline.ends[i] for i in runs]
        lanes, turns = sums.lanes, sums.turns
        seconds = max(ends[-1] + pace(ends) * (candidate.tiles - len(runs)), *lanes.values())
    else:
        lanes, turns = timeline.lane_seconds, simulate(steps, question.model, in_turn=True).lane_seconds
        seconds = timeline.seconds
    moved = moved_bytes(steps) if sums is None else sums.moved
    together = sum(turns.values())
    if question.model.handoff_seconds is not None and not _threads_pay(question, candidate, lanes, seconds, together):
        bounce = min(candidate.bounce_bytes, IN_TURN_BOUNCE)  # the system reads ahead into its page cache alone
        seconds, lanes, candidate = together, turns, replace(candidate, depth=1, in_turn=True, bounce_bytes=bounce)
    spread = question.model.spread(steps[runs[0]].work)
    return replace(candidate, predicted_seconds=seconds, spread=spread, lane_seconds=lanes, lane_bytes=moved)


def _first_steps(candidate: Plan) -> tuple[Sequence[Step], bool]:
    """The steps of a plan, linked; of a long one the first. A tile may take many: it passes the staging ring in pieces."""
    steps, runs, emitted = list[Step](), 0, emit(candidate)
    for step in emitted:
        steps.append(step)
        runs += step.kind == "run"
        if len(steps) >= PREFIX and runs >= RUNS:
            break
    named = dict.fromkeys(r.buffer for s in steps for r in (*s.reads, *s.writes) if r.buffer)
    return link(steps, pack_in_sequence(named)), next(emitted, None) is not None


def _threads_pay(question: Question, candidate: Plan, lanes: dict[str, float], seconds: float, together: float) -> bool:
    """Whether a processor's threads gain enough: `seconds` with them, `together` in turn."""
    needed = min(WORTH_THREADS * seconds, WORTH_LARGE * seconds + DOUBT * candidate.tiles)
    hides = question.overlapping and candidate.depth > 1 and lanes["compute"] == max(lanes.values())
    return hides and together >= needed
