"""Chains of an inference: which calls pass together, in how many tiles, so that the least time goes on copies and halo."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.ir.op import Op, aligned
from ooc.ir.region import Tile
from ooc.networks.auto.forms import HUGE
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import Call, Network
from ooc.networks.chains import Grid
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.stage_items import ELEMENTWISE
from ooc.planner.cutting import cheapest

SHARES = (0.9, 0.65, 0.45)  # of the budget that the tensors of a part may take; the rest is for workspace, and for the next part
WORKSPACE = 1 / 2  # of the rest
WEIGHTS = (1.0, 4.0, 64.0)  # of a second of copies beside one of computing: longer chains move less, and compute more again
HALO = 2  # times the seconds of a chain's calls, beyond which it is no longer: its halo takes as much as they do
TINY = 1e-30  # seconds that nothing takes
LONG = 24  # cuts, in a longer run of calls than that a chain has no more of them


class Chain(NamedTuple):
    """Calls that pass together.

    Fields:
        seconds: as predicted, alone.
        grid: how they are cut; (): they are not, but streamed one by one.
        expected: those with copies that count as what they are.
        halo: seconds that parts compute, of those that its calls would take by the same kernels in as many parts without halo.
    """

    seconds: float
    grid: Grid
    expected: float
    halo: float = 1.0


class Cut(NamedTuple):
    """A network in chains.

    Fields:
        seconds: as predicted.
        grids: where chains begin, with their grids; calls between them have none.
        expected: seconds with copies that count as what they are.
    """

    seconds: float
    grids: tuple[tuple[int, Grid], ...]
    expected: float


class FittingGrid(NamedTuple):
    """The coarsest grid of its family that cuts a chain into parts that fit.

    Fields:
        grid: how the chain is cut.
        parts: how many there are.
        computing: seconds of one.
        whole: those of all calls of the chain by the same kernels, in as many parts without halo.
        moving, pieces: seconds, see `Grown`.
    """

    grid: Grid
    parts: int
    computing: float
    whole: float
    moving: float
    pieces: float


def chained(prices: Prices, homes: Iterable[tuple[str, Mapping[str, Fate]]]) -> list[tuple[float, Proposal]]:
    """An inference in chains, with expected seconds: the best of where parameters live, how much a part may take and how it is
    computed, the best first. homes: of parameters, in words and as fates."""
    proposals: dict[tuple[tuple[int, Grid], ...], tuple[float, Proposal]] = {}
    for words, lasting in homes:
        coming = sum(prices.judge.moving_seconds(prices.net.tensors[t].nbytes)[1] for t in lasting)
        for share, weight in itertools.product(SHARES, WEIGHTS):
            cutting = Cutting(prices, lasting, share, weight)
            _, grids, seconds = cutting.cut()
            seconds += coming
            if any(grid for _, grid in grids) and seconds < proposals.get(grids, (math.inf, None))[0]:
                count = sum(bool(grid) for _, grid in grids)
                label = f"{count} chain{'s' * (count > 1)} in tiles{words}"
                fates = {**lasting, **cutting.fates(grids)}
                proposals[grids] = seconds, Proposal(label, fates, grids=grids, kernels=f"fitting:{cutting.workspace}")
    return sorted(proposals.values(), key=lambda one: one[0])


@dataclass(frozen=True)
class Cutting:
    """A network cut into chains.

    Fields:
        prices: of calls and copies.
        lasting: fates of what lasts, but what stays.
        share: of the budget that the tensors of a part may take.
        weight: of copies.
        parts: of a chain at least, where they take `seconds` each; 1: as many as memory asks for.
        seconds: of computing and moving, see `parts`.
    """

    prices: Prices
    lasting: Mapping[str, Fate]
    share: float
    weight: float
    parts: int = 1
    seconds: float = 0.0

    @property
    def net(self) -> Network:
        """The network."""
        return self.prices.net

    @cached_property
    def free(self) -> int:
        """Bytes beside what lasts and stays."""
        stays = sum(int(aligned(t.nbytes)) for t in self.net.lasting if t.name not in self.lasting)
        return max(0, (self.prices.judge.budget or 0) - stays)

    @cached_property
    def workspace(self) -> int:
        """Bytes of workspace that kernels may take."""
        return int(self.free * (1 - self.share) * WORKSPACE)

    def cut(self) -> Cut:
        """It in chains."""
        streamed = {t for t, how in self.lasting.items() if how is Fate.STREAM}
        chains, run = list[tuple[int, Chain]](), list[Call]()

        def close() -> None:
            chains.extend(self._cut(run))
            run.clear()

        for call in self.net.calls:
            if call.index in self.prices.walks.chainable and not streamed.intersection(call.tensors):
                if run and self._rank(run[-1]) != self._rank(call):  # one grid cuts all that a chain makes
                    close()
                run.append(call)
            else:
                close()
                chains.append((call.index, self._streaming([call])))
        close()
        grids = tuple((index, chain.grid) for index, chain in chains)
        return Cut(sum(chain.seconds for _, chain in chains), grids, sum(chain.expected for _, chain in chains))

    def _rank(self, call: Call) -> int:
        """Axes of what a call makes."""
        return len(self.net.tensors[call.makes[0]].shape)

    def fates(self, grids: Sequence[tuple[int, Grid]]) -> dict[str, Fate]:
        """Of what crosses chains: at home, and where calls without a chain would need all of what is large, in tiles."""
        chain_of: list[int] = []
        begins = dict(grids)
        for call in self.net.calls:
            chain_of.append(len(chain_of) if not chain_of or call.index in begins else chain_of[-1])
        alone = {c for c in set(chain_of) if not begins.get(c)}
        touched: dict[str, set[int]] = {}
        for call in self.net.calls:
            for t in call.tensors:
                if self.net.tensors[t].per_sample and t not in self.net.outputs:
                    touched.setdefault(t, set()).add(chain_of[call.index])
        large = (self.prices.judge.budget or 0) * HUGE
        fates = {}
        for t, chains in touched.items():
            if chains & alone and self.net.tensors[t].nbytes > large:
                fates[t] = Fate.STREAM
            elif len(chains) > 1:
                fates[t] = Fate.OFFLOAD
        return fates

    def _cut(self, run: Sequence[Call]) -> list[tuple[int, Chain]]:
        """The chains of a run of calls that can be chained, cut where that costs least, by the best beginning of each last one,
        and where they begin."""
        cuts = [*self._cuts(run), len(run)]

        def chains(n: int) -> Iterator[tuple[int, float, Chain]]:
            least, brought, floor = 1, set[str](), 0
            for begin in reversed(range(max(0, n - LONG), n)):
                calls = run[cuts[begin] : cuts[n]]
                for name in self._brought(run[cuts[begin] : cuts[begin + 1]]) - brought:
                    brought.add(name)
                    floor += int(aligned(self.net.tensors[name].nbytes))
                chain = self._chain(calls, least, floor)
                if begin < n - 1 and (chain is None or chain.halo > HALO):
                    return  # longer ones take more
                chain = chain or self._streaming(calls)
                least = max(least, math.prod(chain.grid) // 2)
                yield begin, chain.seconds, chain

        _, row = cheapest(len(cuts) - 1, chains)
        return [(run[cuts[begin]].index, chain) for begin, chain in row]

    def _cuts(self, run: Sequence[Call]) -> list[int]:
        """Where a run may be cut, and its beginning: in a long one where one tensor alone passes from the calls before to those
        behind, but not before what works by elements: behind it as much passes, and there is a step less."""
        cuts, passing, last_read = list[int](), set[str](), self.prices.walks.last_read
        for i, call in enumerate(run):
            passing = {t for t in passing if last_read.get(t, -1) >= call.index}
            alone = len(passing) == 1 and call.op.kind in ELEMENTWISE and passing <= {*call.reads}
            if not i or (not alone and (len(run) <= LONG or len(passing) == 1)):
                cuts.append(i)
            passing.update(call.makes)
        return cuts

    def _chain(self, calls: Sequence[Call], least: int, floor: int) -> Chain | None:
        """The best grid of a chain, of not fewer parts than `least`; None: no part fits. floor: bytes of the parameters that are
        brought for it."""
        walks, least, room = self.prices.walks, max(least, self._wanted(calls)), self.free * self.share - floor
        key = tuple(walks.alike[calls[0].index : calls[-1].index + 1]), least, room, self.workspace
        if (fitting := walks.fitting.get(key)) is None:
            fitting = walks.fitting[key] = self._fitting(calls, least, room)
        chains = []
        for grid, count, computing, whole, moving, pieces in fitting:
            seconds, expected = computing + moving * self.weight, computing + moving + pieces
            chain = Chain(seconds * count, grid, expected * count, computing * count / max(whole, TINY))
            chains.append(((seconds + pieces) * count, chain))
        return min(chains)[1] if chains else None

    def _fitting(self, calls: Sequence[Call], least: int, room: float) -> list[FittingGrid]:
        """Of every family of grids the coarsest of at least so many parts that fit in so many bytes."""
        first, last, walks, fitting = calls[0].index, calls[-1].index, self.prices.walks, list[FittingGrid]()
        for grids in walks.grids(self.net.tensors[calls[-1].makes[0]].shape):
            for count, grid in grids[bisect_left(grids, (least,)) :]:
                walk = walks.to(last, grid)
                if (grown := walk.chain(first)).peak <= room:
                    computing = walk.computing(first, self.workspace, partial(self._computing, count))
                    fitting.append(FittingGrid(grid, count, *computing, grown.moving, grown.pieces))
                    break
        return fitting

    def _wanted(self, calls: Sequence[Call]) -> int:
        """Parts that a chain should have, and can."""
        if self.parts < 2:
            return 1
        _, _, *extent = self.net.tensors[calls[-1].makes[0]].shape
        able = self.net.batch * math.prod(extent) // 4
        seconds, moving = sum(self.prices.calls[call.index] for call in calls), self.prices.judge.moving_seconds
        seconds += moving(self.net.tensors[calls[0].reads[0]].nbytes)[1] + moving(self.net.tensors[calls[-1].makes[0]].nbytes)[0]
        return max(1, min(self.parts, able, int(seconds / self.seconds)))

    def _brought(self, calls: Sequence[Call]) -> set[str]:
        """The parameters that are brought for some calls."""
        return {t for call in calls for t in call.reads if t in self.lasting and self.net.tensors[t].role.lasting}

    def _computing(self, parts: int, op: Op, tile: Tile) -> tuple[float, float]:
        """Seconds of a tile of an op, and of all of it in so many parts."""
        cut = tuple((dim, span.extent) for dim, span in tile.items())
        plan = self.prices.judge.costs.plan(op, cut, "fitting", self.workspace)
        whole, launch = self.prices.kernel(op, plan.kernel)
        return self.prices.computing(op, plan.kernel, tile), whole + (parts - 1) * launch

    def _streaming(self, calls: Sequence[Call]) -> Chain:
        """Calls that are cut by themselves."""
        moving, tensors = self.prices.judge.moving_seconds, self.net.tensors
        moved = sum(moving(tensors[t].nbytes)[0] for call in calls for t in call.makes)
        moved += sum(moving(tensors[t].nbytes)[1] for call in calls for t in call.reads)
        computing = sum(self.prices.calls[call.index] for call in calls)
        return Chain(computing + moved * self.weight, (), computing + moved)
