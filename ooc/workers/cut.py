"""A network cut into levels: what the tasks of one level make, those of the next read. Nothing here knows how many workers
there will be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ooc.cache import cached_property
from ooc.errors import BudgetError
from ooc.networks.auto.chained import SHARES, Cutting
from ooc.networks.auto.forms import lasting_fates
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import Network
from ooc.networks.chains import Grid, chainable, families
from ooc.networks.costs import CallCosts
from ooc.networks.items import Instance, Item
from ooc.networks.judge import Judge
from ooc.networks.lower import Lowering
from ooc.networks.moves import nbytes_of
from ooc.networks.plan import NetworkPlan
from ooc.networks.program import program
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.scene import Scene
from ooc.networks.segments import crossing, segment
from ooc.ops.batch_norm import BnMoments
from ooc.runtime.device import Device
from ooc.schedule.budget import show_bytes
from ooc.schedule.place import FILE
from ooc.workers.levels import Kind, Level
from ooc.workers.tiles import fitting

PARTS = 64  # of a chain at least, where they are worth it; a half or a quarter where halo makes them dear
DEARER = 0.12  # than in as few parts as memory allows
SECONDS = 0.2  # of computing that a part should have
UNITS = 64  # of a level at most: each is a task, and a file of the journal


@dataclass(frozen=True)
class Cutter:
    """What cuts a network whose batch is one piece.

    Fields:
        net: an inference.
        device: what workers compute with.
        budget: bytes of each worker.
        deterministic: whether sums are taken in one order.
    """

    net: Network
    device: Device
    budget: int
    deterministic: bool

    @cached_property
    def scene(self) -> Scene:
        """Where segments run: what crosses them is in files."""
        return Scene(CallCosts(self.device, self.deterministic), FILE)

    def levels(self) -> list[Level]:
        """The levels, in order; each reads what those before it made."""
        judge = Judge(self.net, self.scene, self.budget)
        cutting = best(Prices(judge))
        grids = cutting.cut().grids
        ends = [begin for begin, _ in grids[1:]] + [len(self.net.calls)]
        levels: list[Level] = []
        for (begin, grid), end in zip(grids, ends, strict=True):
            if grid and (chain := self._chain(cutting, begin, end, grid)) is not None:
                levels.append(chain)
                continue
            for level in self._single(cutting, begin, end):
                if level.kind is Kind.MOMENTS and levels and self._at_hand(levels[-1], level):
                    levels[-1] = replace(levels[-1], sums=(*levels[-1].sums, level.begin))
                else:
                    levels.append(level)
        return levels

    def _at_hand(self, before: Level, level: Level) -> bool:
        """Whether what sums are taken of is made by the level before, in tiles, as they see it."""
        (x,) = self.net.calls[level.begin].reads
        makes = {t for call in self.net.calls[before.begin : before.end] for t in call.makes}
        shape = segment(self.net, level.begin, level.end, as_operands=True).tensors[x].shape
        return before.kind is Kind.CHAIN and not before.own and x in makes and shape == self.net.tensors[x].shape

    def _chain(self, cutting: Cutting, begin: int, end: int, grid: Grid, as_operands: bool = False) -> Level | None:
        """A level of a chain, whose kernels are chosen now; None: a tile of it is more than the budget, however small."""
        net = segment(self.net, begin, end, as_operands)
        kernels = f"fitting:{cutting.workspace}"
        proposal = Proposal("a part of a chain", grids=((0, grid),), kernels=kernels)
        middle = replace(proposal, cells=(tuple(n // 2 for n in grid),))
        lowering = Lowering(net, middle, program(net, middle), self.scene)
        chosen = {item.call: lowering.plans[i].kernel for i, item in enumerate(lowering.made.items) if i in lowering.plans}
        judge, count = Judge(net, self.scene, self.budget), math.prod(grid)
        try:
            fitting(judge, middle, net)
        except BudgetError:
            return None
        prices, trial = Prices(judge), judge.trial(middle)
        compute, leave, back = prices.apart(trial)
        moving = [(i.what == "store", nbytes_of(net, n)) for i in trial.program.items for n in _moving(i)]
        reads, writes = (sum(nbytes for stores, nbytes in moving if stores is way) * count for way in (False, True))
        return Level(
            Kind.CHAIN, begin, end, replace(proposal, chosen=tuple(chosen.items())), as_operands, grid, -(-count // UNITS),
            prices.together(compute, leave, back) * count, compute * count, (reads, writes),
        )  # fmt: skip

    def _single(self, cutting: Cutting, begin: int, end: int) -> Iterator[Level]:
        """The levels of calls without a grid: in tiles of their own axes, as sums over tiles, or all of it by one worker."""
        first = begin
        for i in range(begin, end):
            levels = self._spread(cutting, i)
            if levels:
                yield from self._alone(cutting, first, i)
                yield from levels
                first = i + 1
        yield from self._alone(cutting, first, end)

    def _alone(self, cutting: Cutting, begin: int, end: int) -> Iterator[Level]:
        """Calls that one worker makes: at once where that fits, else streamed. Raises BudgetError."""
        if begin < end:
            judge = Judge(segment(self.net, begin, end), self.scene, self.budget)
            proposals = (Proposal("at once"), Proposal("streamed", others=Fate.STREAM))
            proposal = next(filter(judge.fits, proposals), None)
            if proposal is None:
                needed = judge.needs(proposals[-1])
                error = BudgetError(
                    f"{self.net.graph.name}: call {begin} takes {show_bytes(needed)} at least, the budget is "
                    f"{show_bytes(self.budget)}. Raise it to at least {needed} bytes."
                )
                error.smallest_bytes = needed
                raise error
            computing = sum(cutting.prices.calls[i] for i in range(begin, end))
            yield self._priced(Level(Kind.ALONE, begin, end, proposal), computing)

    def _spread(self, cutting: Cutting, i: int) -> list[Level]:
        """The levels of a call that several workers share although it belongs to no chain; none where one is enough."""
        call = self.net.calls[i]
        seconds = self._priced(Level(Kind.ALONE, i, i + 1), cutting.prices.calls[i]).seconds
        if seconds < 2 * SECONDS or not self._seen(i):
            return []
        net = segment(self.net, i, i + 1, as_operands=True)
        if call.op.kind == BnMoments.kind:
            grid = spread(net.tensors[call.reads[0]].shape, min(PARTS, int(seconds / SECONDS)))
            each = -(-math.prod(grid) // UNITS)
            return [
                Level(Kind.MOMENTS, i, i + 1, None, True, grid, each, seconds),
                Level(Kind.MERGE, i, i + 1, None, True, grid, 1 << 40),
            ]
        if not chainable(net, net.calls[0]):
            return []
        cuts = replace(cutting, prices=Prices(Judge(net, self.scene, self.budget)))
        ((_, grid),) = cuts.cut().grids
        chain = self._chain(cuts, i, i + 1, grid, as_operands=True) if grid else None
        return [] if chain is None else [chain]

    def _priced(self, level: Level, computing: float) -> Level:
        """A level that reads and makes all of its tensors, with its seconds."""
        reads, makes = crossing(self.net, level.begin, level.end)
        read, written = (sum(self.net.tensors[t].nbytes for t in names) for names in (reads, makes))
        judge = Judge(self.net, self.scene, self.budget)
        back, leave = judge.moving_seconds(read)[1], judge.moving_seconds(written)[0]
        seconds = Prices(judge).together(computing, leave, back)
        return replace(level, seconds=seconds, computing=computing, moved=(read, written))

    def _seen(self, i: int) -> bool:
        """Whether a call may see its tensors with axes of its own: they are in raw files, or have those axes anyway."""
        call = self.net.calls[i]
        named = zip(call.op.operands, (*call.reads, *call.makes), strict=True)
        fixed = {*self.net.graph.inputs, *self.net.outputs}
        return all(self.net.tensors[t].shape == o.shape or t not in fixed for o, t in named)


def _moving(item: Item) -> tuple[Instance, ...]:
    """What an item moves."""
    return (*item.reads, *item.makes) if item.what in ("load", "store") else ()


def spread(shape: Sequence[int], parts: int) -> Grid:
    """The coarsest slices of a tensor, else blocks, that are so many at least; or as many as there can be."""
    finest: Grid = ()
    for grids in reversed([*families(shape)]):
        for grid in grids:
            finest = grid
            if math.prod(grid) >= parts:
                return grid
    return finest


def best(prices: Prices) -> Cutting:
    """The way to cut a network that takes least: in many parts for many workers, in fewer where their halo costs too much."""
    net, budget = prices.net, prices.judge.budget or 0

    def fastest(parts: int) -> tuple[float, Cutting]:
        ways = itertools.product(lasting_fates(net, budget), SHARES)
        cuttings = [Cutting(prices, lasting, share, 1.0, parts, SECONDS) for (_, lasting), share in ways]
        return min(((cutting.cut().seconds, cutting) for cutting in cuttings), key=lambda one: one[0])

    least, _ = fastest(1)
    for parts in (PARTS, PARTS // 2, PARTS // 4):
        seconds, cutting = fastest(parts)
        if seconds <= least * (1 + DEARER):
            break
    return cutting


def whole(net: Network, plan: NetworkPlan) -> list[Level]:
    """The one level of a network that passes at once, as a plan of it says."""
    tensors = [[net.tensors[t].nbytes for t in names] for names in crossing(net, 0, len(net.calls))]
    computing = plan.lane_seconds.get("compute", 0.0)
    moved = sum(tensors[0]), sum(tensors[1])
    return [Level(Kind.ALONE, 0, len(net.calls), plan.proposal, seconds=plan.predicted_seconds, computing=computing, moved=moved)]
