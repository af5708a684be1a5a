"""A network cut into levels: what the tasks of one level make, those of the next read. Nothing here knows how many workers
there will be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ooc.cache import cached_property
from ooc.errors import BudgetError
from ooc.networks.auto.chained import SHARES, Cutting, families
from ooc.networks.auto.forms import lasting_fates
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import Network
from ooc.networks.chains import Grid, chainable
from ooc.networks.costs import Costs
from ooc.networks.judge import Judge
from ooc.networks.lower import Lowering
from ooc.networks.plan import NetworkPlan
from ooc.networks.program import program
from ooc.networks.proposal import How, Proposal
from ooc.networks.scene import Scene
from ooc.networks.segments import segment
from ooc.ops.batch_norm import BnMoments
from ooc.runtime.device import Device
from ooc.schedule.budget import show_bytes
from ooc.schedule.place import FILE

PARTS = 64  # of a chain at least, where they are worth it
SECONDS = 0.2  # of computing that a part should have
UNITS = 64  # of a level at most: each is a task, and a file of the journal


class Kind(StrEnum):
    """What the units of a level do.

    CHAIN: calls in tiles, each unit some of them. ALONE: calls of which one worker makes all. MOMENTS: sums over tiles. MERGE:
    the sums of those. FLUSH: the result is brought into the file that is wanted.
    """

    CHAIN = "chain"
    ALONE = "alone"
    MOMENTS = "moments"
    MERGE = "merge"
    FLUSH = "flush"


@dataclass(frozen=True)
class Level:
    """Tasks that do not depend on each other.

    Fields:
        kind: what they do.
        begin, end: which calls, from `begin` to before `end`.
        proposal: how they are run, see `ooc.networks.proposal`.
        own: whether tensors have the axes of the one call.
        grid: of tiles, along the batch and space.
        each: tiles of a unit.
        seconds: of the level, as predicted.
    """

    kind: Kind
    begin: int = 0
    end: int = 0
    proposal: Proposal | None = None
    own: bool = False
    grid: Grid = ()
    each: int = 1
    seconds: float = 0.0

    @property
    def units(self) -> int:
        """Tasks of the level, for one piece of the batch."""
        return max(1, -(-math.prod(self.grid) // self.each))

    def cells(self, unit: int) -> tuple[Grid, ...]:
        """The tiles of a unit, by their place in the grid."""
        at = itertools.product(*map(range, self.grid))
        return tuple(itertools.islice(at, unit * self.each, (unit + 1) * self.each))

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        proposal = None if self.proposal is None else self.proposal.fields()
        return {**self.__dict__, "proposal": proposal}

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Level:
        """The level of such fields."""
        proposal = None if raw["proposal"] is None else Proposal.of(raw["proposal"])
        return cls(**raw | {"kind": Kind(raw["kind"]), "proposal": proposal, "grid": tuple(raw["grid"])})


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
        return Scene(Costs(self.device, self.deterministic), FILE)

    def levels(self) -> list[Level]:
        """The levels, in order; each reads what those before it made."""
        judge = Judge(self.net, self.scene, self.budget)
        cutting = best(Prices(judge))
        _, grids = cutting.cut()
        ends = [begin for begin, _ in grids[1:]] + [len(self.net.calls)]
        found: list[Level] = []
        for (begin, grid), end in zip(grids, ends, strict=True):
            if grid:
                found.append(self._chain(cutting, begin, end, grid))
            else:
                found += self._single(cutting, begin, end)
        return found

    def _chain(self, cutting: Cutting, begin: int, end: int, grid: Grid, own: bool = False) -> Level:
        """A level of a chain, whose kernels are chosen now."""
        net = segment(self.net, begin, end, own)
        kernels = f"fitting:{cutting.workspace}"
        proposal = Proposal("a part of a chain", grids=((0, grid),), kernels=kernels)
        middle = replace(proposal, cells=(tuple(n // 2 for n in grid),))
        lowering = Lowering(net, middle, program(net, middle), self.scene)
        chosen = {item.call: lowering.plans[i].kernel for i, item in enumerate(lowering.made.items) if i in lowering.plans}
        judge = Judge(net, self.scene, self.budget)
        seconds = Prices(judge).estimate(judge.trial(middle)) * math.prod(grid)
        each = -(-math.prod(grid) // UNITS)
        return Level(Kind.CHAIN, begin, end, replace(proposal, chosen=tuple(chosen.items())), own, grid, each, seconds)

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
            proposals = (Proposal("at once"), Proposal("streamed", others=How.STREAM))
            proposal = next(filter(judge.fits, proposals), None)
            if proposal is None:
                needed = judge.needs(proposals[-1])
                error = BudgetError(
                    f"{self.net.graph.name}: call {begin} takes {show_bytes(needed)} at least, the budget is "
                    f"{show_bytes(self.budget)}. Raise it to at least {needed} bytes."
                )
                error.smallest_bytes = needed
                raise error
            yield Level(Kind.ALONE, begin, end, proposal, seconds=sum(cutting.prices.calls[i] for i in range(begin, end)))

    def _spread(self, cutting: Cutting, i: int) -> list[Level]:
        """The levels of a call that several workers share although it belongs to no chain; none where one is enough."""
        call, seconds = self.net.calls[i], cutting.prices.calls[i]
        if seconds < 2 * SECONDS or not self._seen(i):
            return []
        net = segment(self.net, i, i + 1, own=True)
        if call.op.kind == BnMoments.kind:
            grid = spread(net.tensors[call.reads[0]].shape, min(PARTS, int(seconds / SECONDS)))
            each = -(-math.prod(grid) // UNITS)
            return [
                Level(Kind.MOMENTS, i, i + 1, None, True, grid, each, seconds),
                Level(Kind.MERGE, i, i + 1, None, True, grid, 1 << 40),
            ]
        if not chainable(net, net.calls[0]):
            return []
        own = replace(cutting, prices=Prices(Judge(net, self.scene, self.budget)))
        _, ((_, grid),) = own.cut()
        return [self._chain(own, i, i + 1, grid, own=True)] if grid else []

    def _seen(self, i: int) -> bool:
        """Whether a call may see its tensors with axes of its own: they are in raw files, or have those axes anyway."""
        call = self.net.calls[i]
        named = zip(call.op.operands, (*call.reads, *call.makes), strict=True)
        fixed = {*self.net.graph.inputs, *self.net.outputs}
        return all(self.net.tensors[t].shape == o.shape or t not in fixed for o, t in named)


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
    """The way to cut a network that takes least, in as many parts as several workers need."""
    net, budget = prices.net, prices.judge.budget or 0
    ways = itertools.product(lasting_fates(net, budget), SHARES)
    found = [Cutting(prices, lasting, share, 1.0, PARTS, SECONDS) for (_, lasting), share in ways]
    return min(found, key=lambda cutting: cutting.cut()[0])


def whole(net: Network, plan: NetworkPlan) -> list[Level]:
    """The one level of a network that passes at once, as a plan of it says."""
    return [Level(Kind.ALONE, 0, len(net.calls), plan.proposal, seconds=plan.predicted_seconds)]
