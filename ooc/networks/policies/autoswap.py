"""AutoSwap: of all that is away long enough across the peak, what gains most leaves, until the peak keeps within the limit.

Source: Zhang, Yeung, Shu, He, Wang, "Efficient Memory Management for GPU-based Deep Learning Systems", 2019, section 4, and its
code in SINGA. A candidate is a tensor between two accesses with the peak between them. Scores: DOA, duration of absence, is the
gap less the seconds to leave and to come back; AOA, area of absence, is DOA times bytes (DOA over bytes where it is negative);
WDOA is the integral over the gap of the load above the limit; SWDOA is WDOA on the curve that earlier choices have lowered (their
code has no SWDOA and its WDOA does not work: these are as the paper's terms read). Where their code takes candidates from 1 MB
on, here it is a sixteenth of the largest where that is less.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc.errors import OptionError
from ooc.networks.judge import Judge
from ooc.networks.policies.base import Policy, offloadable, room_beside
from ooc.networks.policies.curve import Curve
from ooc.networks.proposal import Fate, Proposal

SCORES, SCHEDULERS = ("doa", "aoa", "wdoa", "swdoa"), ("no_overhead", "limit")
SCORE, SCHEDULER = "aoa", "no_overhead"  # of those the ones that gain most, over the networks of the paper
LEAST = 1 << 20  # bytes of a candidate


@dataclass(frozen=True)
class Candidate:
    """A tensor that could be away between two accesses.

    Fields:
        tensor: its name.
        nbytes: of it.
        first, last: the items of the two accesses.
        gap: seconds between them.
        out, back: seconds in which it leaves, and comes back.
    """

    tensor: str
    nbytes: int
    first: int
    last: int
    gap: float
    out: float
    back: float

    @property
    def doa(self) -> float:
        """Duration of absence, in seconds."""
        return self.gap - self.out - self.back

    @property
    def aoa(self) -> float:
        """Area of absence."""
        return self.doa * self.nbytes if self.doa >= 0 else self.doa / self.nbytes

    def wdoa(self, load: Any, seconds: Any, limit: float) -> float:
        """The load above the limit, over the absence."""
        between = slice(self.first + 1, self.last)
        return float((np.maximum(load[between] - limit, 0) * seconds[between]).sum())


def order(candidates: Sequence[Candidate], score: str, load: Any, seconds: Any, limit: float) -> list[Candidate]:
    """Candidates in the order in which they are picked."""
    if score in ("doa", "aoa"):
        return sorted(candidates, key=lambda c: -getattr(c, score))
    if score == "wdoa":
        return sorted(candidates, key=lambda c: -c.wdoa(load, seconds, limit))
    picked: list[Candidate] = []
    left, load = sorted(candidates, key=lambda c: -c.aoa), load.copy()
    firsts, lasts = (np.array([getattr(c, name) for c in left], np.int64) for name in ("first", "last"))
    while left:
        above = np.concatenate(([0.0], np.cumsum(np.maximum(load - limit, 0) * seconds)))
        scores = above[lasts] - above[firsts + 1]  # what `wdoa` says of each, on the curve as it is now
        best = int(scores.argmax())
        if scores[best] <= 0:  # nothing is above the limit any more
            return picked + left
        load[left[best].first + 1 : left[best].last] -= left[best].nbytes
        picked.append(left.pop(best))
        firsts, lasts = np.delete(firsts, best), np.delete(lasts, best)
    return picked


def candidates(judge: Judge, curve: Curve, seconds: Any) -> list[Candidate]:
    """What may leave across the peak."""
    program, net = curve.trial.program, judge.net
    peak = int(curve.bytes.argmax())
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, item in enumerate(program.items):
        for instance in (*item.reads, *item.makes):
            (first if i <= peak else last).setdefault(instance.tensor, i)
            if i <= peak:
                first[instance.tensor] = i
    names = [t for t in offloadable(net) if t in first and t in last]
    least = min(LEAST, max((net.tensors[t].nbytes for t in names), default=0) // 16)
    clock = np.concatenate(([0.0], np.cumsum(seconds)))
    leaving = []
    for t in names:
        nbytes = net.tensors[t].nbytes
        if nbytes >= least:
            out, back = judge.moving_seconds(nbytes)
            leaving.append(Candidate(t, nbytes, first[t], last[t], float(clock[last[t]] - clock[first[t] + 1]), out, back))
    return leaving


def item_seconds(judge: Judge, curve: Curve) -> Any:
    """Seconds of every item that computes; moves are 0."""
    of = judge.call_seconds()
    return np.array([of[item.call] if item.what == "run" else 0.0 for item in curve.trial.program.items])


def issues(picked: Sequence[Candidate], curve: Curve, seconds: Any, limit: float, scheduler: str) -> tuple[tuple[str, int], ...]:
    """Before which call every load is issued: one after the other on the link, as late as the last deadline allows
    ("no_overhead"); but not while what is back would lift the load above the limit ("limit")."""
    if not picked:
        return ()
    clock = np.concatenate(([0.0], np.cumsum(seconds)))
    load = curve.bytes.astype(np.float64)
    for c in picked:
        load[c.first + 1 : c.last] -= c.nbytes
    begin = curve.trial.net.backward[0].index  # nothing that is away comes back before
    calls = sorted((i, call) for call, i in curve.at.items() if call >= begin)
    free, issued = np.inf, []
    for c in sorted(picked, key=lambda c: -c.last):
        end = min(free, float(clock[c.last]))
        free = end - c.back
        at = int(np.searchsorted(clock, free, side="right")) - 1
        at = max(at, c.first + 1)
        if scheduler == "limit":
            over = np.flatnonzero(load[at : c.last] + c.nbytes > limit)
            at += int(over[-1]) + 1 if len(over) else 0
            load[at : c.last] += c.nbytes
        later = bisect.bisect_left(calls, (at, -1))
        if later < len(calls):
            issued.append((c.tensor, calls[later][1]))
    return tuple(issued)


def propose(judge: Judge, score: str = SCORE, scheduler: str = SCHEDULER) -> Iterable[Proposal]:
    """The fewest picks, in the order of their score, with which everything fits."""
    check(score, scheduler)
    keep = Proposal("keep")
    limit = judge.budget
    if limit is None or judge.fits(keep):
        yield keep
        return
    least = min(frugal(judge, score, scheduler), key=judge.needs)
    on_demand = []
    for kernels in ("fastest", room_beside(judge, least), "lean"):
        curve = Curve(judge.trial(replace(keep, kernels=kernels)))
        seconds = item_seconds(judge, curve)
        ranked = order(candidates(judge, curve, seconds), score, curve.bytes.astype(np.float64), seconds, limit)

        def picking(count: int, ranked: list[Candidate] = ranked, curve: Curve = curve, seconds: Any = seconds,
                    kernels: str = kernels) -> Proposal:  # fmt: skip
            some = ranked[:count]
            fates = dict.fromkeys((c.tensor for c in some), Fate.OFFLOAD)
            return Proposal(
                f"{count} of {len(ranked)} candidates by {score}, {scheduler}", fates,
                window="at", issue=issues(some, curve, seconds, limit, scheduler), kernels=kernels,
                patient=scheduler != "limit",
            )  # fmt: skip

        count = enough(ranked, curve.bytes, limit)
        more = max(1, len(ranked) // 64)
        while count < len(ranked) and not judge.fits(picking(count)):  # layouts have gaps, and loads come early
            count, more = min(len(ranked), count + more), 2 * more
        yield picking(count)
        on_demand.append(replace(picking(len(ranked)), window="demand", issue=()))
    yield from on_demand
    yield from frugal(judge, score, scheduler)


def enough(ranked: Sequence[Candidate], load: Any, limit: float) -> int:
    """How many picks lower the curve below the limit; all where none do."""
    load = load.astype(np.float64)
    for count, c in enumerate(ranked):
        if load.max(initial=0) <= limit:
            return count
        load[c.first + 1 : c.last] -= c.nbytes
    return len(ranked)


def check(score: str, scheduler: str) -> None:
    """Raise OptionError for a word that is not known."""
    for name, word, known in (("score", score, SCORES), ("scheduler", scheduler, SCHEDULERS)):
        if word not in known:
            raise OptionError(f"policy autoswap: {name}={word!r}: expected one of {', '.join(known)}")


def frugal(judge: Judge, score: str = SCORE, scheduler: str = SCHEDULER) -> Iterable[Proposal]:
    """All that may leave does, and comes back when it is needed."""
    check(score, scheduler)
    fates = dict.fromkeys(offloadable(judge.net), Fate.OFFLOAD)
    yield Proposal("all candidates", fates, window="demand", kernels="lean", patient=False)
    yield Proposal("none", kernels="lean")


AUTOSWAP = Policy(
    "autoswap", "AutoSwap (Zhang et al., 2019)", propose, frugal, options=("score", "scheduler"),
    variants=(*({"score": score} for score in (SCORE, "doa", "wdoa", "swdoa")), {"score": "swdoa", "scheduler": "limit"}),
)  # fmt: skip
