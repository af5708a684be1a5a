"""Auto's own proposals, sketched: what they need as a few parts of the batch tell, and their seconds if nothing waits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ooc.networks.auto.chained import chained
from ooc.networks.auto.fates import eased, kept, priced
from ooc.networks.auto.forms import Form, rows
from ooc.networks.auto.prices import Price, Prices
from ooc.networks.judge import Judge
from ooc.networks.policies.base import room_beside, sizes
from ooc.networks.proposal import CLOSE, Fate, Proposal

MOVED = Price(0.0, 0)  # at which nothing is made again
PRICES = (Price(1.0, 6), Price(1.0, 2), MOVED, Price(4.0, 10))  # that are looked at
ROOM = (0.98, 0.92, 0.8)  # of the budget that counts of bytes may use
FITTING = 2  # forms of a row that fit, and are looked at
FORMS = 3  # that are looked at with all prices
TRIES = 4  # sizes of parts that are tried from a guess down
FAR = 1.25  # of the budget: who needs more with single samples needs too much at any price
ITEMS = 100_000  # of programs that may be looked at
BEST = 9  # ways to cut an inference into chains that fit, and are looked at,
NEAR = 1.2  # of the seconds that are expected of the first one,
EACH = 2  # and of those with each room for workspace in any case
FINALISTS = 8  # plans of auto's own that are simulated
WORTH = 0.005  # of the seconds: what may be gained must be more


def sketched(judge: Judge) -> ProposalSearch:
    """Auto's own proposals, with their seconds if nothing waits."""
    search = ProposalSearch(judge)
    every, prices = list(rows(judge)), PRICES if judge.net.kept else (MOVED,)
    if not judge.net.mode.trains:
        every = search.look_at_chains(every)
    tried: dict[str, int] = {}
    for row in every:
        fitting = 0
        for form in row:
            tried[form.label()] = search.look_until(form, prices)
            fitting += search.has(form)
            if fitting == FITTING:
                break
    for form in search.best_forms():
        for price in prices[tried.get(form.label(), len(prices)) :]:
            search.look(form, price)
    return search


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
        self.chains: list[Proposal] = []  # of an inference, of which fused ops may be made
        self.sketches: list[Sketch] = []
        self.left = ITEMS

    def look_at_chains(self, every: Sequence[list[Form]]) -> list[list[Form]]:
        """An inference with all samples at once, and in chains; returns the rows of forms that may be better, as parameters live
        where a sketch is not as good as can be."""
        for form in (row[0] for row in every if not row[0].parted):
            self.look(form, MOVED)
        open_rows = [row for row in every if not self._reaches(row[0].lasting)]
        homes = {row[0].words: row[0].lasting for row in open_rows if not row[0].parted}
        cut = chained(self.prices, homes.items())
        fitting: list[float] = []  # seconds that are expected of those that fit
        rooms = Counter[str]()  # for workspace: little is expected to be slow, until what is left over is shared out
        for seconds, proposal in cut:
            near = len(fitting) < BEST and (not fitting or seconds <= fitting[0] * NEAR)
            if (near or rooms[proposal.kernels] < EACH) and self.offer(proposal):
                fitting.append(seconds)
                rooms[proposal.kernels] += 1
        rest = {row[0].words: row[0].lasting for row in every if not row[0].parted and row not in open_rows}
        single = [Proposal(f"one chain in tiles{words}", lasting, grids=((0, ()),)) for words, lasting in rest.items()]
        self.chains = [*(proposal for _, proposal in cut[:BEST]), *single]
        return [row for row in open_rows if not self._reaches(row[0].lasting)]

    def _reaches(self, lasting: Mapping[str, Fate]) -> bool:
        """Whether a sketch is about as good as can be where parameters live like this."""
        best = min((s.seconds for s in self.sketches), default=math.inf)
        return best <= self.prices.least(lasting) * (1 + WORTH)

    def ranking(self) -> list[Sketch]:
        """The best first, as far as it is known before any is simulated: where memory is short much waits."""
        return sorted(self.sketches, key=lambda s: s.likely)

    def finalists(self) -> list[Sketch]:
        """The best of each form, or of grids, the best first: those that are simulated."""
        forms: dict[Any, Sketch] = {}
        for sketch in self.ranking():
            base = sketch.proposal
            forms.setdefault((base.label, base.grids) if sketch.form is None else sketch.form.label(), sketch)
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
        fuller = (kept(self.prices, self.judge.trial(base, True), base, share) for share in ROOM)
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
        self.left -= 0 if trial.known.program is not None else len(trial.program.items)
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
