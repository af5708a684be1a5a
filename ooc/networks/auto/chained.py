"""Chains of an inference: which calls pass together, in how many tiles, so that the least time goes on copies and halo."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.ir.op import Op, aligned
from ooc.ir.region import Tile
from ooc.networks.auto.forms import HUGE, lasting_fates
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import Call, Network
from ooc.networks.chains import Grid, chainable
from ooc.networks.proposal import Fate, Proposal
from ooc.planner.cutting import cheapest

SHARES = (0.9, 0.65, 0.45)  # of the budget that the tensors of a part may take; the rest is for workspace, and for the next part
WORKSPACE = 1 / 2  # of the rest
WEIGHTS = (1.0, 4.0, 64.0)  # of a second of copies beside one of computing: longer chains move less, and compute more again
BEST = 9  # ways to cut a network that are looked at
LONG = 24  # cuts, in a longer run of calls than that a chain has no more of them
MANY = 1 << 13  # parts of a chain


class Chain(NamedTuple):
    """Calls that pass together.

    Fields:
        seconds: as predicted, alone.
        grid: how they are cut; (): they are not, but streamed one by one.
    """

    seconds: float
    grid: Grid


def chained(prices: Prices) -> list[Proposal]:
    """An inference in chains: the best of where parameters live, how much a part may take and how it is computed."""
    net, proposals = prices.net, {}  # type: Network, dict[tuple[tuple[int, Grid], ...], tuple[float, Proposal]]
    for words, lasting in lasting_fates(net, prices.judge.budget or 0) if not net.mode.trains else ():
        for share, weight in itertools.product(SHARES, WEIGHTS):
            cutting = Cutting(prices, lasting, share, weight)
            seconds, grids = cutting.cut()
            if any(grid for _, grid in grids) and seconds < proposals.get(grids, (math.inf, None))[0]:
                count = sum(bool(grid) for _, grid in grids)
                label = f"{count} chain{'s' * (count > 1)} in tiles{words}"
                fates = {**lasting, **cutting.fates(grids)}
                proposals[grids] = seconds, Proposal(label, fates, grids=grids, kernels=f"fitting:{cutting.workspace}")
    return [proposal for _, proposal in sorted(proposals.values(), key=lambda one: one[0])[:BEST]]


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

    def cut(self) -> tuple[float, tuple[tuple[int, Grid], ...]]:
        """Seconds, and where chains begin, with their grids; calls between them have none."""
        streamed = {t for t, how in self.lasting.items() if how is Fate.STREAM}
        seconds, grids, run = 0.0, [], []  # type: float, list[tuple[int, Grid]], list[Call]

        def close() -> float:
            more, chains = self._cut(run)
            grids.extend(chains)
            run.clear()
            return more

        for call in self.net.calls:
            if chainable(self.net, call) and not streamed.intersection(call.tensors):
                if run and self._rank(run[-1]) != self._rank(call):  # one grid cuts all that a chain makes
                    seconds += close()
                run.append(call)
            else:
                seconds += close() + self._streaming(call)
                grids.append((call.index, ()))
        return seconds + close(), tuple(grids)

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

    def _cut(self, run: Sequence[Call]) -> tuple[float, list[tuple[int, Grid]]]:
        """Seconds of a run of calls that can be chained, cut where that costs least, and the chains: by the best beginning of
        each last one."""
        cuts = [i for i in range(len(run) + 1) if i in (0, len(run)) or len(run) <= LONG or self._crossing(run, i) == 1]

        def chains(n: int) -> Iterator[tuple[int, float, Grid]]:
            least = 1
            for begin in reversed(range(max(0, n - LONG), n)):
                calls = run[cuts[begin] : cuts[n]]
                chain = self._chain(calls, least)
                if chain is None and begin < n - 1:
                    return  # longer ones take more
                chain = chain or Chain(sum(map(self._streaming, calls)), ())
                least = max(least, math.prod(chain.grid) // 2)
                yield begin, chain.seconds, chain.grid

        seconds, row = cheapest(len(cuts) - 1, chains)
        return seconds, [(run[cuts[begin]].index, grid) for begin, grid in row]

    def _crossing(self, run: Sequence[Call], i: int) -> int:
        """How many tensors of the batch are made before a call of a run and read from it on."""
        tensors = {t for call in run[:i] for t in call.makes}
        return sum(self.prices.walks.last_read.get(t, -1) >= run[i].index for t in tensors)

    def _chain(self, calls: Sequence[Call], least: int) -> Chain | None:
        """The best grid of a chain, of not fewer parts than `least`; None: no part fits."""
        first, last = calls[0].index, calls[-1].index
        room = self.free * self.share - self._floor(calls)
        least = max(least, self._wanted(calls))
        chains = []
        for grids in families(self.net.tensors[calls[-1].makes[0]].shape):
            for grid in (g for g in grids if math.prod(g) >= least):
                walk = self.prices.walks.to(last, grid)
                if (grown := walk.chain(first)).peak <= room:
                    seconds = walk.computing(first, self.workspace, self._computing) + grown.moving * self.weight
                    chains.append(((seconds + grown.pieces) * math.prod(grid), Chain(seconds * math.prod(grid), grid)))
                    break
        return min(chains)[1] if chains else None

    def _wanted(self, calls: Sequence[Call]) -> int:
        """Parts that a chain should have, and can."""
        _, _, *extent = self.net.tensors[calls[-1].makes[0]].shape
        able = self.net.batch * math.prod(extent) // 4
        if self.parts < 2:
            return 1
        seconds, moving = sum(self.prices.calls[call.index] for call in calls), self.prices.judge.moving_seconds
        seconds += moving(self.net.tensors[calls[0].reads[0]].nbytes)[1] + moving(self.net.tensors[calls[-1].makes[0]].nbytes)[0]
        return max(1, min(self.parts, able, int(seconds / self.seconds)))

    def _floor(self, calls: Sequence[Call]) -> int:
        """Bytes of the parameters that are brought for a chain."""
        lasting = {t for call in calls for t in call.reads if self.net.tensors[t].role.lasting and t in self.lasting}
        return sum(int(aligned(self.net.tensors[t].nbytes)) for t in lasting)

    def _computing(self, op: Op, tile: Tile) -> float:
        """Seconds of a tile of an op."""
        cut = tuple((dim, span.extent) for dim, span in tile.items())
        plan = self.prices.judge.costs.plan(op, cut, "fitting", self.workspace)
        return self.prices.computing(op, plan.kernel, tile)

    def _streaming(self, call: Call) -> float:
        """Seconds of a call that is cut by itself."""
        moving, tensors = self.prices.judge.moving_seconds, self.net.tensors
        leave = sum(moving(tensors[t].nbytes)[0] for t in call.makes)
        back = sum(moving(tensors[t].nbytes)[1] for t in call.reads)
        return self.prices.calls[call.index] + (leave + back) * self.weight


def families(shape: Sequence[int]) -> Iterator[Iterator[Grid]]:
    """Grids over a tensor of n x k x extent, ever finer: samples, then blocks of a sample, blocks of whole rows, or slices."""
    axes = len(shape) - 2
    for cut in dict.fromkeys((axes, max(1, axes - 1), 1)):
        yield _finer(shape, cut)


def _finer(shape: Sequence[int], cut: int) -> Iterator[Grid]:
    """Of samples, then with so many axes of space cut."""
    batch, extent = shape[0], tuple(shape[2:])
    parts = 1
    while parts < batch:
        yield (parts, *(1 for _ in extent))
        parts *= 2
    grid = [1 for _ in extent]
    yield (batch, *grid)
    while batch * math.prod(grid) < MANY:
        axis = max(range(cut), key=lambda i: extent[i] / grid[i])
        if grid[axis] >= extent[axis]:
            return
        grid[axis] = min(extent[axis], max(grid[axis] + 1, grid[axis] * 5 // 4))
        yield (batch, *grid)
