"""A step in stages: calls that a part of the batch passes one after the other, before the next part does."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ooc.errors import ArgumentError, UnsupportedError, shown
from ooc.ir.region import Span
from ooc.networks.calls import FORWARD, LOSS, UPDATE, Call, Network
from ooc.networks.chains import Grid, passable
from ooc.networks.proposal import Fate, Proposal

MOST_PARTS = 1 << 17  # of a chain: what each call does with each is an item


class Stage(NamedTuple):
    """Calls, in order, and how many samples pass all of them at a time; 0: all. grid: of a chain, see `Proposal`. remade: those
    of its calls, by index, that make again what others have made."""

    calls: tuple[Call, ...]
    chunk: int
    grid: Grid = ()
    remade: frozenset[int] = frozenset()

    @property
    def in_samples(self) -> bool:
        """Whether tiles of a chain are some samples."""
        return all(count == 1 for count in self.grid[1:])

    def parts(self, batch: int, brief: bool = False) -> list[Span | None]:
        """The parts of the batch; None: all of it. brief: of many, the first two and the last, as those between are like the
        second."""
        if not self.chunk:
            return [None]
        every: list[Span | None] = [Span(lo, min(batch, lo + self.chunk)) for lo in range(0, batch, self.chunk)]
        return [*every[:2], every[-1]] if brief and len(every) > 3 else every

    def visits(self) -> list[tuple[Call, ...]]:
        """The calls of the forward pass (with the loss), and those of the backward pass, as far as there are any; of a chain all
        at once."""
        if self.grid:
            return [self.calls]
        forward = tuple(c for c in self.calls if c.phase in (FORWARD, LOSS))
        backward = tuple(c for c in self.calls if c.phase not in (FORWARD, LOSS))
        return [calls for calls in (forward, backward) if calls]


def stages(net: Network, proposal: Proposal) -> list[Stage]:
    """The stages of a step. Neighbours whose parts are of one size, or which are of one chain, are one stage, unless the second
    one reads what is complete only when all parts have passed: a sum over the batch, or what the caller gives after a pause."""
    groups: list[tuple[list[Call], int, int, bool]] = []
    sums: set[str] = set()  # of the stage that is open
    chunk_of, chain_of = _chunks(net, proposal), _chains(net, proposal)
    grids = [(), *(grid for _, grid in sorted(proposal.grids))]
    for call in _ordered(net, proposal):
        chunk, chain = chunk_of(call), chain_of(call)
        parted, paused = chunk or grids[chain], net.pause is not None and call.index >= net.pause
        if not groups or groups[-1][1:] != (chunk, chain, paused) or (parted and sums.intersection(call.reads)):
            groups.append(([], chunk, chain, paused))
            sums = set()
        groups[-1][0].append(call)
        if call.over_batch or any(count > 1 for count in grids[chain][1:]):  # samples may have sums of their own
            sums |= {t for t in call.makes if not net.tensors[t].per_sample}
    return [_stage(net, proposal, calls, chunk, grids[chain]) for calls, chunk, chain, _ in groups]


def _stage(net: Network, proposal: Proposal, calls: Sequence[Call], chunk: int, grid: Grid) -> Stage:
    """A stage; of a chain with the calls that make again what it needs and nobody kept. Raises UnsupportedError for one that its
    tiles cannot pass, ArgumentError for a grid that nobody made."""
    makes = {t for call in calls for t in call.makes}
    if math.prod(grid) > MOST_PARTS or min(grid, default=1) < 1:
        raise ArgumentError(f"grids: {shown(grid)}: expected 1 to {MOST_PARTS} parts")
    remade: dict[int, Call] = {}
    todo = [*calls] if grid else []
    while todo:
        for t in todo.pop().reads:
            maker = net.makers.get(t)
            if maker is None or t in makes or maker.index in remade or proposal.fate(t) is not Fate.RECOMPUTE:
                continue
            if not passable(net, maker):
                raise UnsupportedError(f"{proposal.label}: {t} cannot be made again in tiles")
            remade[maker.index] = maker
            todo.append(maker)
    return Stage((*(remade[i] for i in sorted(remade)), *calls), chunk, grid, frozenset(remade))


def _chains(net: Network, proposal: Proposal) -> Callable[[Call], int]:
    """The number of the chain of a call, from 1; 0: none. Where a step has two passes, calls that tiles cannot pass, or not with
    so many axes, have none."""
    grids = sorted(proposal.grids)
    begins = [begin for begin, _ in grids]

    def able(call: Call, grid: Grid) -> bool:
        tensors = [net.tensors[t] for t in call.tensors]
        axes = all(len(t.shape) == len(grid) + 1 for t in tensors if t.per_sample)
        return axes and passable(net, call) and all(t.per_sample or proposal.fate(t.name) is not Fate.STREAM for t in tensors)

    def chain(call: Call) -> int:
        number = bisect_right(begins, call.index)
        return number if not net.mode.has_gradients or (number and able(call, grids[number - 1][1])) else 0

    return chain


def _ordered(net: Network, proposal: Proposal) -> Sequence[Call]:
    """All calls; those that are put off come right before the updates."""
    if not proposal.late:
        return net.calls
    early = [c for c in net.calls if c.index not in proposal.late and c.phase != UPDATE]
    late = [c for c in net.calls if c.index in proposal.late]
    return [*early, *late, *(c for c in net.calls if c.phase == UPDATE)]


def _chunks(net: Network, proposal: Proposal) -> Callable[[Call], int]:
    """Samples at a time of a call: as the band of its layer has it. What has to do with the whole batch, is put off, or is cut
    into tiles passes at once."""
    begins = dict(proposal.bands)
    band: dict[str, int] = {}
    now = 0
    for call in net.forward:
        now = begins.get(call.index, now)
        band.setdefault(call.layer, now if now < net.batch else 0)

    def chunk(call: Call) -> int:
        tiled = any(proposal.fate(t) is Fate.STREAM for t in call.tensors)
        if call.along is None or tiled or call.index in proposal.late:
            return 0
        return band.get(call.layer, 0)

    return chunk
