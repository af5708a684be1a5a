"""The choice: plans of auto's own and those of every policy, by one judge."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ooc.errors import BudgetError, UnsupportedError
from ooc.networks.auto.assigned import assigned
from ooc.networks.auto.banded import banded
from ooc.networks.auto.early import in_time
from ooc.networks.auto.forms import forms
from ooc.networks.auto.fusing import in_tiles
from ooc.networks.auto.prices import Prices
from ooc.networks.auto.sketches import WORTH, ProposalSearch, sketched
from ooc.networks.judge import Judge
from ooc.networks.policies.base import Policy
from ooc.networks.proposal import CLOSE, Fate, Proposal
from ooc.networks.tensors import Role
from ooc.networks.tiles import places_of
from ooc.planner.question import bound_of
from ooc.schedule.place import Place, load_route
from ooc.schedule.steps import moved_bytes

LESS = (0.75, 0.5)  # of the budget, for which parts are looked at, too
MUCH = 0.25  # of the seconds that computing takes: what may be lost
FUSED = 3  # ways to cut an inference into fused ops that are looked at
ALIKE = 0.1  # of the seconds: plans that differ by less are alike, as the planner has it for single calls
TRUSTED = 1.25  # times what was expected: who takes longer shows that what is expected says little
WAITING = 0.02  # of the seconds: waiting for inputs that is worth parts
PARTS = (4, 8)  # of a batch whose inputs come part by part,
AHEAD = (1 << 20, 4)  # runs ahead: all at once, where there is room for them


class Choice(NamedTuple):
    """A proposal that fits.

    Fields:
        seconds: as predicted.
        name: of who proposes it: "auto", or a policy.
        proposal: what.
    """

    seconds: float
    name: str
    proposal: Proposal


def choose(judge: Judge, policies: Sequence[Policy]) -> list[Choice]:
    """What fits, the fastest first: of auto's own, and of every policy. Nothing of it depends on a clock."""
    keep = Proposal("all stays")
    if judge.budget is None or judge.fits(keep):
        whole = Choice(judge.seconds(keep), "auto", keep)
        beside = arriving(judge, whole.seconds)
        if waiting_seconds(judge) > WAITING * whole.seconds:
            beside += fusing(Prices(judge), [Proposal("one chain", grids=((0, ()),))], whole.seconds)
        return sorted([whole, *beside], key=lambda c: c.seconds)
    search = sketched(judge)
    if not judge.net.mode.trains:
        return inferred(judge, search, policies)
    # Policies that no sketch rules out, even if nothing in it waits, are simulated in any case; sketches that are slower are not.
    firm = min((s.seconds for s in search.sketches), default=math.inf)
    early = [p for p in policies if not ruled_out(p, judge, firm)]
    choices = taken(judge, early)
    choices += own(judge, search, least(choices))
    choices += as_assigned(search.prices, least(choices))
    choices += in_bands(search.prices, least(choices))
    choices += taken(judge, [p for p in policies if p not in early and not ruled_out(p, judge, least(choices))])
    return sorted([*choices, *in_smaller_parts(judge, choices)], key=lambda c: c.seconds)


def inferred(judge: Judge, search: ProposalSearch, policies: Sequence[Policy]) -> list[Choice]:
    """What fits of an inference, the best first; policies and fused ops are simulated where they may be faster than auto's."""
    choices = own(judge, search, math.inf)
    for policy in policies:
        most = least(choices) * (1 + ALIKE)  # below which a plan of a policy is no slower than one that may be taken
        if not ruled_out(policy, judge, most):
            choices += taken(judge, [policy], search.prices, most)
    choices += fusing(search.prices, search.chains, least(choices), expected(search.prices, choices))
    choices += in_smaller_parts(judge, choices)
    return lightest_first(judge, sorted(choices, key=lambda c: c.seconds))


def expected(prices: Prices, choices: Sequence[Choice]) -> float:
    """What was expected of the best where that may be compared with what is expected of others: lanes take turns, and it takes
    about so long."""
    best = min(choices, key=lambda c: c.seconds, default=None)
    if best is None or not prices.judge.device.backend.shared:
        return math.inf
    seconds = prices.if_nothing_waits(prices.judge.trial(best.proposal))
    return seconds if best.seconds < seconds * TRUSTED else math.inf


def in_smaller_parts(judge: Judge, choices: Sequence[Choice]) -> list[Choice]:
    """Where the best passes in parts: the largest that fit need not be the best, those that fit less of the budget are looked at,
    too."""
    best = min(choices, key=lambda c: c.seconds, default=None)
    smaller: list[Choice] = []
    if best is not None and best.proposal.bands and best.seconds > sum(judge.call_seconds().values()) * (1 + MUCH):
        for share in LESS:
            less = judge.within(int((judge.budget or 0) * share))
            fewer = (c.proposal for c in own(less, sketched(less), best.seconds))
            smaller += [Choice(judge.seconds(p), "auto", p) for p in fewer if judge.fits(p)]
    return smaller


def arriving(judge: Judge, seconds: float) -> list[Choice]:
    """Where all fits, and takes so many seconds: the inputs of a training step come part by part while the parts before them are
    computed, if waiting for all of them takes long enough to be worth it."""
    if judge.device.backend.shared or not judge.net.mode.trains or waiting_seconds(judge) < WAITING * seconds:
        return []
    inputs = [t for t in judge.net.tensors.values() if t.role is Role.INPUT and t.per_sample]
    fates, choices = {t.name: Fate.OFFLOAD for t in inputs}, []
    for form, parts in itertools.product([f for f in forms(judge) if f.parted], PARTS):
        chunk = judge.net.batch // parts
        if chunk:
            label = f"{form.label(chunk)}, inputs as they come"
            early = Proposal(label, fates, bands=form.bands(chunk), late=form.late, window="runs", space=CLOSE)
            choices += simulated(judge, (replace(early, ahead=ahead) for ahead in AHEAD))
    return [c for c in choices if c.seconds < seconds * (1 - WORTH)]


def waiting_seconds(judge: Judge) -> float:
    """Seconds in which all inputs come, when nothing is computed yet."""
    inputs = [t for t in judge.net.tensors.values() if t.role is Role.INPUT and t.per_sample]
    route = load_route(Place.HOST, judge.device.backend.staged)
    return sum(t.nbytes / judge.device.model.best_rate(lane) for t in inputs for lane in route)


def fusing(prices: Prices, chains: Sequence[Proposal], best: float, as_expected: float = math.inf) -> list[Choice]:
    """What fits of an inference's chains as fused ops, of those that may be faster than the best of others; no further than to
    one that is far from it. as_expected: seconds that were expected of the best."""
    judge = prices.judge
    if judge.budget is None or judge.net.mode.trains:
        return []
    tensors, most = judge.net.tensors, min(best, as_expected) * (1 - WORTH)
    homes = [{t: how for t, how in chain.fates.items() if tensors[t].role.lasting} for chain in chains]
    chains = [chain for chain, lasting in zip(chains, homes, strict=True) if prices.least(lasting) < most]
    estimated = [(prices.tiled(p), p) for p in in_tiles(judge, chains)]
    choices: list[Choice] = []
    for _, proposal in sorted((one for one in estimated if one[0] < most), key=lambda one: one[0])[:FUSED]:
        with suppress(UnsupportedError, BudgetError):  # of tiles that are known when they are cut
            if judge.fits(proposal):
                choices.append(Choice(judge.seconds(proposal), "auto", proposal))
                if choices[-1].seconds > best * (1 + ALIKE):
                    break
    return choices


def in_bands(prices: Prices, best: float) -> list[Choice]:
    """A training step in bands."""
    return promising(prices.judge, banded(prices), best)


def as_assigned(prices: Prices, best: float) -> list[Choice]:
    """A training step whose tensors are assigned as wholes."""
    judge = prices.judge

    def early(proposals: Iterable[Proposal]) -> Iterator[Proposal]:
        for proposal in itertools.islice(filter(judge.fits, proposals), 1):
            yield from in_time(prices, proposal)

    return promising(judge, ((seconds, early(proposals)) for seconds, proposals in assigned(prices)), best)


def promising(judge: Judge, candidates: Iterable[tuple[float, Iterable[Proposal]]], best: float) -> list[Choice]:
    """What fits of candidates that may be faster than the best of others, by the seconds that they take if nothing waits."""
    choices: list[Choice] = []
    for seconds, proposals in candidates:
        if seconds < min(best, least(choices)) * (1 - WORTH):
            choices += simulated(judge, proposals)
    return choices


def lightest_first(judge: Judge, ranking: list[Choice]) -> list[Choice]:
    """Plans of an inference that the model cannot tell apart: the one that moves least comes first, if it is auto's own and no
    policy's is faster. A fused run moves less since it computes more: it comes first where it is faster."""
    best = min((c.seconds for c in ranking if c.name != "auto"), default=math.inf)
    alike = [c for c in ranking if c.name == "auto" and c.seconds <= min(best, ranking[0].seconds * (1 + ALIKE))]
    alike = [c for c in alike if not c.proposal.fused or c is ranking[0]]

    def moved(choice: Choice) -> int:
        return sum(moved_bytes(judge.schedule(choice.proposal).steps).values())

    first = min(alike, key=moved, default=ranking[0]) if ranking else None
    return sorted(ranking, key=lambda c: c is not first)


def least(choices: Iterable[Choice]) -> float:
    """Seconds of the fastest."""
    return min((c.seconds for c in choices), default=math.inf)


def ruled_out(policy: Policy, judge: Judge, best: float) -> bool:
    """Whether a policy has nothing that fits, or all it has is slower than the best by a bound."""
    if policy.hopeless(judge):
        return True
    return policy.streams and all(slower(judge, p, best) for p in policy.propose(judge))


def slower(judge: Judge, proposal: Proposal, best: float) -> bool:
    """Whether a proposal does not fit, or takes longer by a bound."""
    too_large = judge.budget is not None and judge.trial(proposal).least > judge.budget
    return too_large or moving_seconds(judge, proposal) > best


def taken(judge: Judge, policies: Iterable[Policy], prices: Prices | None = None, most: float = math.inf) -> list[Choice]:
    """What policies take, of what fits. prices: by which it is left out where it takes longer than `most`."""
    choices: list[Choice] = []
    for policy in policies:
        for options in policy.variants:
            with suppress(UnsupportedError, BudgetError):  # too many tiles
                proposal = policy.best(judge, **options)
                if not judge.fits(proposal):
                    continue
                if prices is None or prices.floor(judge.trial(proposal)) < most:
                    choices.append(Choice(judge.seconds(proposal), policy.name, proposal))
    return choices


def moving_seconds(judge: Judge, proposal: Proposal) -> float:
    """Seconds below which no plan is whose calls are streamed; known before thousands of tiles are planned."""
    if proposal.others is not Fate.STREAM:
        return 0.0
    moved: Counter[str] = Counter()
    for index, outside in judge.trial(proposal).lowering.outside_of.items():
        call = judge.network(proposal).calls[index]
        moved.update(bound_of(judge.costs.asked(call.op, places_of(call, outside, judge.scene))).lane_bytes)
    return max((nbytes / judge.device.model.best_rate(lane) for lane, nbytes in moved.items()), default=0.0)


# ---- auto's own


def own(judge: Judge, search: ProposalSearch, best: float) -> list[Choice]:
    """The best of auto's own, simulated, of those that may be faster than the best of others."""
    choices: list[Choice] = []
    for sketch in search.finalists():
        worth = 1 - WORTH if judge.net.mode.trains else 1 + ALIKE
        if sketch.seconds >= min(best, least(choices) * worth):
            continue
        choices += simulated(judge, in_time(search.prices, sketch.proposal))
    return choices


def simulated(judge: Judge, proposals: Iterable[Proposal]) -> list[Choice]:
    """What fits of some proposals, with its seconds; no further than to one that fits."""
    for proposal in filter(judge.fits, proposals):
        with suppress(BudgetError):  # too many tiles
            return [Choice(judge.seconds(proposal), "auto", proposal)]
    return []
