"""Loads just in time: each as late as the link allows for all of them to be there when they are read, and as early as that where
memory has room for what comes early."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ooc.networks.auto.prices import Prices
from ooc.networks.items import Instance
from ooc.networks.judge import Trial
from ooc.networks.loads import Loads, apart
from ooc.networks.moves import nbytes_of
from ooc.networks.proposal import Proposal

SHARES = (0.98, 0.93, 0.88, 0.8)  # of the budget that what comes early may fill, tried in turn: layouts have gaps
SLACK = 1  # item before the last one by which loads have to be issued: what comes before them may be late


def in_time(prices: Prices, proposal: Proposal) -> Iterator[Proposal]:
    """A proposal whose loads come early, as far as memory has room for them, where copies run beside kernels; and as it is."""
    if not prices.judge.device.backend.shared:
        yield from (_early(prices, proposal, share) for share in SHARES)
    yield proposal


def _early(prices: Prices, proposal: Proposal, share: float) -> Proposal:
    """A proposal whose loads come early, where a share of the budget has room for them."""
    demand = replace(proposal, window="demand", issue=(), early=())
    trial = prices.judge.trial(demand)
    program = apart(trial.program.items)
    budget = prices.judge.budget
    room = (math.inf if budget is None else budget * share) - _load(trial, program)
    places = _places(trial, program, room, _latest(program, *_seconds(prices, trial)))
    runs = [bisect_left(program.runs, at) for at in places]  # the first one that is not before the place
    return replace(demand, window="listed", early=tuple(load.run - run for load, run in zip(program.loads, runs, strict=True)))


def _load(trial: Trial, program: Loads) -> np.ndarray:
    """Bytes in use at every item but loads."""
    load = np.asarray(trial.lowering.load(), np.float64)
    return load[[item.what != "load" for item in trial.program.items]]


def _seconds(prices: Prices, trial: Trial) -> tuple[list[float], list[float]]:
    """When every item but loads begins if nothing waits, in seconds in which loads can come, and those of every load."""
    begins, loads, now = list[float](), list[float](), 0.0
    for i, item in enumerate(trial.program.items):
        lanes = prices.of_item(trial, i)
        if item.what == "load":
            loads.append(lanes.back)
        else:
            begins.append(now)
            now += max(lanes) - lanes.back if item.what == "run" else 0.0
    return begins, loads


def _latest(program: Loads, begins: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """The places by which loads have to be issued, one after the other, to be there when they are read."""
    latest, free = [0] * len(program.loads), float("inf")
    for k in reversed(range(len(program.loads))):
        at = program.place(program.loads[k], program.loads[k].run)
        free = min(free, begins[at] if at < len(begins) else float("inf")) - seconds[k]
        latest[k] = max(0, bisect_right(begins, free) - 1 - SLACK)
    return latest


def _places(trial: Trial, program: Loads, room: np.ndarray, latest: Sequence[int]) -> list[int]:
    """Where loads are issued: by when they have to be, as far as there is room for them."""
    first: dict[Instance, int] = {}
    for at, item in enumerate(program.others):
        for instance in item.touches:
            first.setdefault(trial.program.holder(instance), at)
    places = list[int]()
    for load, by in zip(program.loads, latest, strict=True):
        (instance,) = load.item.makes
        holder = trial.program.holder(instance)
        at = program.place(load, load.run)
        begin, nbytes = min(at, first.get(holder, at)), nbytes_of(trial.net, holder)
        lowest = max(by, load.floor)
        while begin > lowest and room[begin - 1] >= nbytes:
            begin -= 1
        if begin < first.get(holder, at):
            room[begin : first.get(holder, at)] -= nbytes
            first[holder] = begin
        places.append(min(at, begin))
    return places
