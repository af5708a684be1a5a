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
from ooc.networks.auto.chained import chained
from ooc.networks.auto.early import in_time
from ooc.networks.auto.fates import eased, kept, priced
from ooc.networks.auto.forms import Form, forms, rows
from ooc.networks.auto.fusing import in_tiles
from ooc.networks.auto.prices import Price, Prices
from ooc.networks.judge import Judge
from ooc.networks.policies.base import Policy, room_beside, sizes
from ooc.networks.proposal import CLOSE, Fate, Proposal
from ooc.networks.tensors import Role
from ooc.networks.tiles import places_of
from ooc.planner.question import bound_of
from ooc.schedule.place import Place, load_route
from ooc.schedule.steps import moved_bytes

MOVED = Price(0.0, 0)  # at which nothing is made again
PRICES = (Price(1.0, 6), Price(1.0, 2), MOVED, Price(4.0, 10))  # that are looked at
ROOM = (0.98, 0.92, 0.8)  # of the budget that counts of bytes may use
FITTING = 2  # forms of a row that fit, and are looked at
FORMS = 3  # that are looked at with all prices
TRIES = 4  # sizes of parts that are tried from a guess down
FAR = 1.25  # of the budget: who needs more with single samples needs too much at any price
ITEMS = 100_000  # of programs that may be looked at
WORTH = 0.005  # of the seconds: what may be gained must be more
LESS = (0.75, 0.5)  # of the budget, for which parts are looked at, too
MUCH = 0.25  # of the seconds that computing takes: what may be lost
FUSED = 3  # ways to cut an inference into fused ops that are looked at
FINALISTS = 8  # plans of auto's own that are simulated
ALIKE = 0.1  # of the seconds: plans that differ by less are alike, as the planner has it for single calls
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
    # Policies that no sketch rules out, even if nothing in it waits, are simulated in any case; sketches that are slower are not.
    firm = min((s.seconds for s in search.sketches), default=math.inf)
    early = [p for p in policies if not ruled_out(p, judge, firm)]
    choices = taken(judge, early)
    choices += own(judge, search, least(choices))
    choices += as_assigned(search.prices, least(choices))
    choices += in_bands(search.prices, least(choices))
    choices += fusing(search.prices, search.chains, least(choices))
    choices += taken(judge, [p for p in policies if p not in early and not ruled_out(p, judge, least(choices))])
    best = min(choices, key=lambda c: c.seconds, default=None)
    if best is not None and best.proposal.bands and best.seconds > sum(judge.call_seconds().values()) * (1 + MUCH):
        # The largest parts that fit need not be the best: those that fit less of the budget are looked at, too.
        for share in LESS:
            less = judge.within(int(judge.budget * share))
            fewer = (c.proposal for c in own(less, sketched(less), best.seconds))
            choices += [Choice(judge.seconds(p), "auto", p) for p in fewer if judge.fits(p)]
    ranking = sorted(choices, key=lambda c: c.seconds)
    return ranking if judge.net.mode.trains else lightest_first(judge, ranking)


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


def fusing(prices: Prices, chains: Sequence[Proposal], best: float) -> list[Choice]:
    """What fits of an inference's chains as fused ops, of those that may be faster than the best of others."""
    judge = prices.judge
    if judge.budget is None or judge.net.mode.trains:
        return []
    estimated = [(prices.tiled(p), p) for p in in_tiles(judge, chains)]
    choices = []
    for _, proposal in sorted((one for one in estimated if one[0] < best * (1 - WORTH)), key=lambda one: one[0])[:FUSED]:
        with suppress(UnsupportedError, BudgetError):  # of tiles that are known when they are cut
            if judge.fits(proposal):
                choices.append(Choice(judge.seconds(proposal), "auto", proposal))
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


def taken(judge: Judge, policies: Iterable[Policy]) -> list[Choice]:
    """What policies take, of what fits."""
    choices = []
    for policy in policies:
        for options in policy.variants:
            with suppress(UnsupportedError, BudgetError):  # too many tiles
                proposal = policy.best(judge, **options)
                if judge.fits(proposal):
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


def sketched(judge: Judge) -> ProposalSearch:
    """Auto's own proposals, with their seconds if nothing waits."""
    search = ProposalSearch(judge)
    for proposal in search.chains:
        search.offer(proposal)
    tried: dict[str, int] = {}
    for row in rows(judge):
        fitting = 0
        for form in row:
            tried[form.label()] = search.look_until(form, PRICES)
            fitting += search.has(form)
            if fitting == FITTING:
                break
    for form in search.best_forms():
        for price in PRICES[tried[form.label()] :]:
            search.look(form, price)
    return search


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


class Sketch(NamedTuple):
    """A proposal that fits as far as a few parts of the batch tell.

    Fields:
        seconds: if nothing waits.
        likely: halfway to those in which everything waits.
    """

    seconds: float
    likely: float
    form: Form | None
    proposal: Proposal


class ProposalSearch:
    """Auto's own proposals so far. They are looked at in a fixed order, and no longer than a number of items allows."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.prices = judge, Prices(judge)
        self.chains = chained(self.prices)
        self.sketches: list[Sketch] = []
        self.left = ITEMS

    def ranking(self) -> list[Sketch]:
        """The best first, as far as it is known before any is simulated: where memory is short much waits."""
        return sorted(self.sketches, key=lambda s: s.likely)

    def finalists(self) -> list[Sketch]:
        """The best of each form, the best first: those that are simulated."""
        forms: dict[str, Sketch] = {}
        for sketch in self.ranking():
            forms.setdefault(sketch.proposal.label if sketch.form is None else sketch.form.label(), sketch)
        return list(forms.values())[:FINALISTS]

    def best_forms(self) -> list[Form]:
        """The forms worth another price."""
        return list({s.form.label(): s.form for s in self.ranking() if s.form is not None}.values())[:FORMS]

    def has(self, form: Form) -> bool:
        """Whether a proposal of a form fits."""
        return any(sketch.form is form for sketch in self.sketches)

    def look_until(self, form: Form, every: Sequence[Price]) -> int:
        """Look at a form until it fits; returns how many prices that took."""
        for i, price in enumerate(every):
            if self.look(form, price):
                return i + 1
            if form.parted and self._needs_much(form):
                break
        return len(every)

    def _needs_much(self, form: Form) -> bool:
        """Whether single samples need far more than the budget, even if nothing is made again."""
        single = self.judge.trial(self._lean(form, 1, MOVED), True)
        return self.left > 0 and single.least > (self.judge.budget or 0) * FAR

    def look(self, form: Form, price: Price) -> bool:
        """Add the proposal of a form, if one fits: the largest parts, with all kept that there is room for."""
        chunk = self._largest(form, price) if form.parted else 0
        if chunk is None:
            return False
        lean = self._lean(form, chunk, price)
        return self.offer(lean if form.parted else eased(self.judge, lean), form)

    def offer(self, base: Proposal, form: Form | None = None) -> bool:
        """Add a proposal of least memory, if it fits, with all kept that there is room for."""
        if not self._fits(base):
            return False
        roomy = replace(base, kernels=room_beside(self.judge, base, brief=True))
        base = roomy if self._fits(roomy) else base
        fuller = (kept(self.prices, self.judge.trial(base, True), share) for share in ROOM)
        self._add(form, next(filter(self._fits, fuller), base))
        return True

    def _add(self, form: Form | None, proposal: Proposal) -> None:
        """Another sketch, if it is one."""
        if all(replace(proposal, label=s.proposal.label) != s.proposal for s in self.sketches):
            lanes = self.prices.apart(self.judge.trial(proposal, True))
            seconds = self.prices.together(*lanes)
            self.sketches.append(Sketch(seconds, (seconds + sum(lanes)) / 2, form, proposal))

    def _fits(self, proposal: Proposal) -> bool:
        if self.left <= 0:
            return False
        trial = self.judge.trial(proposal, True)
        self.left -= len(trial.program.items)
        return self.judge.fits(proposal, True)

    def _lean(self, form: Form, chunk: int, price: Price) -> Proposal:
        """The proposal of least memory of a form."""
        fates = priced(self.prices, form, chunk, price)
        return Proposal(form.label(chunk), fates, bands=form.bands(chunk), late=form.late, kernels="lean", space=CLOSE)

    def _largest(self, form: Form, price: Price) -> int | None:
        """The largest parts that fit: bytes in use grow with them, about linearly. None: not even single samples do."""
        batch, budget = self.judge.net.batch, self.judge.budget or 0
        every = [s for s in sizes(batch) if s < batch]
        if not every or not self._fits(self._lean(form, 1, price)):
            return None
        one = self.judge.trial(self._lean(form, 1, price), True).least
        many = self.judge.trial(self._lean(form, every[0], price), True).least
        each = max(1.0, (many - one) / max(1, every[0] - 1))
        guess = 1 + int((budget - one) / each)
        for size in [s for s in every if s <= guess * 1.1][:TRIES]:
            if self._fits(self._lean(form, size, price)):
                return size
        return 1
