"""PoocH: keep, swap or recompute for every tensor, by what a simulation says that swapping it costs.

Source: Ito, Imahori, Endo, "Profiling based out-of-core hybrid method for large neural networks", PPoPP 2019 (arXiv
1907.05013), and its code. From all swapped: (1) what compute had to wait for when it left is kept, the last in the backward
pass first, while it fits; (2) then anything, last to first; (3) of the others the one with the least ratio of seconds to
compute it again to seconds that its swap costs is recomputed, while that is below 1; (4) loads are issued as early as memory
allows. Feasibility is asked of a count of bytes, as there, and confirmed by the layout. Where it departs: what a swap costs
is the time for which compute waited for it in one simulation (theirs simulates each without its transfer), in long networks
several tensors change at once, and loads are not moved back to where they just cost nothing (delay_swapin): on demand is
tried instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ooc.networks.judge import Judge
from ooc.networks.policies.base import Policy, offloadable, room_beside
from ooc.networks.policies.curve import Curve, earliest
from ooc.networks.proposal import Fate, Proposal

ROUNDS, FEW = 12, 2  # of recomputation: in long networks several tensors change in one, and there are few
SHARES = (1.0, 0.97, 0.94, 0.9, 0.85, 0.75, 0.5)  # of the budget that the count may use, where layouts have gaps
LONG = 100  # activations of a long network


def swapping(fates: dict[str, Fate], label: str, kernels: str, issue: tuple[tuple[str, int], ...] = ()) -> Proposal:
    """A proposal of these fates."""
    changed = {t: h for t, h in fates.items() if h is not Fate.KEEP}
    return Proposal(label, changed, window="at" if issue else "demand", issue=issue, kernels=kernels)


def stalls(judge: Judge, proposal: Proposal) -> dict[str, float]:
    """Seconds for which compute waited for each tensor that moves, as simulated."""
    trial = judge.trial(replace(proposal, patient=False))
    schedule = trial.schedule(judge.budget)
    timeline = trial.timeline_of(schedule)
    waits: dict[str, float] = {}
    idle = 0.0
    for i, step in enumerate(schedule.steps):
        if step.lane == "compute":
            waited = timeline.starts[i] - idle
            moves = [j for j in step.after if schedule.steps[j].kind in ("load", "store")]
            if waited > 0 and moves:
                last = max(moves, key=lambda j: timeline.ends[j])
                waits[schedule.steps[last].what] = waits.get(schedule.steps[last].what, 0.0) + waited
            idle = timeline.ends[i]
        elif schedule.alone:
            waits[step.what] = waits.get(step.what, 0.0) + timeline.ends[i] - timeline.starts[i]
            idle = timeline.ends[i]
    return waits


def keeping(judge: Judge, base: Proposal, names: list[str], limit: float) -> dict[str, Fate]:
    """Steps 1 and 2: of `names`, in order of preference, what fits beside all that is swapped."""
    curve = Curve(judge.trial(base))
    load, away = curve.bytes.copy(), curve.away
    fates: dict[str, Fate] = {}
    for t in names:
        lo, hi = away.get(t, (0, 0))
        if hi > lo and int(load[lo:hi].max(initial=0)) + curve.nbytes(t) > limit:
            fates[t] = Fate.OFFLOAD
        else:
            load[lo + 1 : hi] += curve.nbytes(t)
            fates[t] = Fate.KEEP
    return fates


def again_seconds(judge: Judge, tensor: str, fates: dict[str, Fate], seconds: dict[int, float]) -> float:
    """Seconds to compute a tensor again, from what is there."""
    net, total, todo, indices = judge.net, 0.0, [tensor], set()
    while todo:
        maker = net.makers.get(todo.pop())
        if maker is None or maker.index in indices:
            continue
        indices.add(maker.index)
        total += seconds[maker.index]
        todo += [t for t in maker.reads if t in net.makers and (fates.get(t) is Fate.RECOMPUTE or t not in net.backward_readers)]
    return total


def recomputing(judge: Judge, fates: dict[str, Fate], kernels: str) -> dict[str, Fate]:
    """Step 3: swapped tensors that are cheaper to make again."""
    seconds, fates = judge.call_seconds(), dict(fates)
    rounds = ROUNDS if len(fates) < LONG else FEW
    for _ in range(rounds):
        waits = stalls(judge, swapping(fates, "trial", kernels))
        ratios = []
        for t, how in fates.items():
            if how is Fate.OFFLOAD and t in judge.net.makers and waits.get(t, 0.0) > 0:
                ratios.append((again_seconds(judge, t, fates, seconds) / waits[t], t))
        cheap = sorted(r for r in ratios if r[0] < 1)
        if not cheap:
            break
        count = max(1, len(fates) // (4 * rounds)) if len(fates) >= LONG else 1
        while count and not judge.fits(swapping({**fates, **again(cheap[:count])}, "trial", kernels)):
            count //= 2
        if not count:
            break
        fates |= again(cheap[:count])
    return fates


def again(ranked: list[tuple[float, str]]) -> dict[str, Fate]:
    """The fates of tensors that are made again."""
    return {t: Fate.RECOMPUTE for _, t in ranked}


def propose(judge: Judge) -> Iterable[Proposal]:
    """All four steps, with ever more room for gaps in the layout; then all swapped."""
    every = offloadable(judge.net)
    fates = dict.fromkeys(every, Fate.OFFLOAD)
    keep = swapping({}, "all kept", "fastest")
    if judge.budget is None or judge.fits(keep):
        yield keep
        return
    base = swapping(fates, "all swapped", "fastest")
    if not judge.fits(base):
        base = replace(base, kernels=room_beside(judge, swapping(fates, "all swapped", "lean")))
    if not judge.fits(base):
        yield from frugal(judge)
        return
    kernels, waits = base.kernels, stalls(judge, base)
    last_first = every[::-1]
    names = sorted(last_first, key=lambda t: waits.get(t, 0.0) <= 0)  # those that stall first, each group last to first
    for share in SHARES:
        limit = judge.budget * share
        kept = keeping(judge, base, names, limit)
        if not judge.fits(swapping(kept, "kept", kernels)):
            continue
        recomputed = recomputing(judge, kept, kernels)
        issue = earliest(judge, swapping(recomputed, "demand", kernels), limit)
        yield swapping(recomputed, "loads as early as may be", kernels, issue)
        yield swapping(recomputed, "loads on demand", kernels)
        break
    yield base
    yield from frugal(judge)


def frugal(judge: Judge) -> Iterable[Proposal]:
    """All swapped, the leanest kernels."""
    fates = dict.fromkeys(offloadable(judge.net), Fate.OFFLOAD)
    yield Proposal("all swapped, lean", fates, window="demand", kernels="lean", patient=False)
    yield Proposal("all kept, lean", kernels="lean")


POOCH = Policy("pooch", "PoocH (Ito et al., PPoPP 2019)", propose, frugal, first_fits=False)
