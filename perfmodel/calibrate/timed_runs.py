"""Steps timed inside real runs: tiles of chosen shapes, with their copies, one after the other on one thread.

A kernel that is called again and again on the same warm arrays is up to three times as fast as the same kernel between
copies of fresh tiles, so only what runs as schedules run tells how long schedules take.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooc.ir.op import Op
from ooc.model.cost import AGAIN, CACHED
from ooc.planner.question import IN_TURN_BOUNCE, share_for_bounce
from ooc.runtime.device import Device
from ooc.runtime.report import Part
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from ooc.schedule.work import Moved, Work
from perfmodel.calibrate.entries import workspace_bytes
from perfmodel.calibrate.trial import TimedProblem, placed

CACHES = 40 << 20  # bytes that push everything else out of the processor's caches
BYTES = 24 << 20  # of all tiles of a rehearsal, where they are large
FEWEST, MOST_TILES = 3, 5  # more tell less than other shapes, or the same one at another moment


def along_batch(op: Any, copies: int = MOST_TILES) -> Op:
    """An op of which the given one is a tile: several times its batch, as many as are worth moving."""
    count = max(FEWEST, min(copies, BYTES // sum(o.nbytes for o in op.operands)))
    longer: Op = replace(op, n=op.n * count)
    return longer


def plan_of(device: Device, op: Op, tile: Mapping[str, int], kernel: str, place: Place, depth: int = 1) -> Plan:
    """The plan with these tiles and this kernel, whatever it costs; in turn at depth 1. place: of everything but filters."""
    sizes = {**op.dims, **tile}
    generous = 24 * max(int(o.block_bytes(sizes)) for o in op.operands)
    return Plan(
        op, tuple(sizes.items()), tuple(op.dims), depth, tuple(sorted(placed(op, place).items())), False, True, kernel,
        workspace_bytes(device.backend, op, kernel, sizes), share_for_bounce(generous) if place is Place.DISK else 0,
        in_turn=depth == 1,
    )  # fmt: skip


def rehearse(device: Device, plan: Plan, folder: str | None = None, most_steps: int | None = None) -> dict[Moved | Work, float]:
    """Run a plan, or its first steps, with nothing in the caches, after a run that does not count: the seconds of its steps, by
    what they do.

    Of those that do the same, the median: others on a shared machine take the processor away now and then. Of reads and writes
    of files the mean, as they answer unevenly. Tiles that come but once are left out: the first packs filters and warms up.
    Tiles are timed while nothing is fetched, which slows them down. Reads of files are repeated alone, one right after the
    other, as beside other steps they depend on what the system has fetched meanwhile; and once more out of the page cache.
    """
    with TimedProblem(plan.op, dict(plan.places), device, folder) as trial:
        trial.run(plan, most_steps)  # warms up
        timed = _round(trial, plan, most_steps)
    return {did: _usual(did, seconds) for did, seconds in timed.items() if isinstance(did, Moved) or len(seconds) > 1}


def _usual(did: Moved | Work, seconds: Sequence[float]) -> float:
    uneven = isinstance(did, Moved) and did.lane in ("read", "write")
    return statistics.fmean(seconds) if uneven else statistics.median(seconds)


def _round(trial: TimedProblem, plan: Plan, most_steps: int | None) -> dict[Moved | Work, list[float]]:
    _empty_caches()
    all_steps = _by_work(trial.run(plan, most_steps, cached=True)[1])
    timed = {did: seconds for did, seconds in all_steps.items() if not isinstance(did, Moved) or did.lane != "read"}
    if len(timed) < len(all_steps):
        _empty_caches()
        timed |= _by_work(trial.read(plan, most_steps), first=True)
        timed |= _cached(trial, replace(plan, bounce_bytes=min(plan.bounce_bytes, IN_TURN_BOUNCE)), most_steps)
    return timed


def _cached(trial: TimedProblem, plan: Plan, most_steps: int | None) -> dict[Moved | Work, list[float]]:
    """The reads of a plan out of the page cache: to each is added what it takes to have the system fetch as many bytes; and once
    more into the same memory, with nothing added."""
    fetching = trial.fetch(plan, most_steps)
    trial.read(plan, most_steps, cached=True)  # waits for what is not there yet
    _empty_caches()
    first, second = (_by_work(part) for part in trial.read_twice(plan, most_steps))
    total = sum(did.nbytes * len(seconds) for did, seconds in first.items())
    fetched = {did: [s + fetching * did.nbytes / total for s in seconds] for did, seconds in first.items()}
    ways = ((CACHED, fetched), (AGAIN, second))
    return {did._replace(lane=lane): s for lane, reads in ways for did, s in reads.items() if isinstance(did, Moved)}


def _empty_caches() -> None:
    """Nothing of ours stays in the processor's caches."""
    _other_bytes().max()


@functools.cache
def _other_bytes() -> Any:
    return np.ones(CACHES, np.uint8)


def _by_work(part: Part, first: bool = False) -> dict[Moved | Work, list[float]]:
    """Seconds of the steps of a run that do the same: computing one stage, or copying as much in as many pieces. first: only
    steps that move nothing again."""
    timed: dict[Moved | Work, list[float]] = {}
    for step, lo, hi in zip(part.schedule.steps, part.measured.starts, part.measured.ends, strict=True):
        if len(step.work) < 2 and not (first and step.again):  # what each stage of a fused tile takes is not known
            did = step.work[0] if step.kind == "run" else Moved(step.lane, step.nbytes, max(1, step.runs))
            timed.setdefault(did, []).append(hi - lo)
    return timed
