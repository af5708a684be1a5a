"""Chains that end with one call, grown from there to the front: what a part needs behind a call does not depend on where its
chain begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.ir.op import ITEM_BYTES, Op, aligned
from ooc.ir.region import Region, Span, elements
from ooc.networks.calls import Call
from ooc.networks.chains import ChainPart, Grid, lengthen, share
from ooc.networks.judge import Judge

Computing = Callable[[Op, dict[str, Span]], float]  # seconds of a tile of an op


class Grown(NamedTuple):
    """A chain of so many calls.

    Fields:
        peak: bytes of the batch in use at most while a part passes.
        moving: seconds of copies of a part: of what others made, and of what others read, as if each were in one piece.
        pieces: seconds more that it takes, as they are in several.
    """

    peak: int
    moving: float
    pieces: float


class Use(NamedTuple):
    """A tensor of the batch in a chain: the calls, by index, that touch it first and last, bytes of its region, and pieces of
    the whole tensor that these are."""

    first: int
    last: int
    nbytes: int
    runs: int


class Walk:
    """The part that has halo on all sides, if one has, of chains that end with one call.

    Parameters:
        walks: of the network.
        last: index of the call that chains end with.
        grid: how they are cut.
    """

    def __init__(self, walks: Walks, last: int, grid: Grid) -> None:
        self.judge, self.last_read, self.last, self.grid, self.net = walks.judge, walks.last_read, last, grid, walks.judge.net
        self.at = [n // 2 for n in grid]
        self.part = ChainPart({}, {})
        self.uses: dict[str, Use] = {}
        self.leaving: set[str] = set()
        self.made: set[str] = set()
        self.grown: list[Grown] = []
        self.computed: dict[int, list[float]] = {}

    def chain(self, first: int) -> Grown:
        """The chain that begins with a call, by its index."""
        while self.last - len(self.grown) >= first:
            self._lengthen(self.net.calls[self.last - len(self.grown)])
        return self.grown[self.last - first]

    def computing(self, first: int, workspace: int, computing: Computing) -> float:
        """Seconds that a part of a chain computes with kernels of so much workspace."""
        self.chain(first)
        sums = self.computed.setdefault(workspace, [0.0])
        while len(sums) <= self.last - first + 1:
            call = self.net.calls[self.last - len(sums) + 1]
            tile = self.part.tiles.get(call.index)
            sums.append(sums[-1] + (computing(call.op, tile) if tile is not None else 0.0))
        return sums[self.last - first + 1]

    def _lengthen(self, call: Call) -> None:
        leaves = {t for t in call.makes if self.last_read.get(t, -1) > self.last}
        lengthen(self.net, self.part, call, {t: share(self.net.tensors[t].shape, self.grid, self.at) for t in leaves})
        self.leaving |= leaves
        self.made.update(call.makes)
        for t in (t for t in call.tensors if t in self.part.regions):
            last = self.uses[t].last if t in self.uses else call.index
            region = self.part.regions[t]
            self.uses[t] = Use(call.index, last, self._nbytes(t, region), runs_of(region, self.net.tensors[t].shape))
        moving = self._moving(False)
        self.grown.append(Grown(self._peak(call.index), moving, self._moving(True) - moving))

    def _nbytes(self, name: str, region: Region) -> int:
        return int(aligned(elements(region) * ITEM_BYTES[self.net.tensors[name].dtype]))

    def _peak(self, first: int) -> int:
        steps = [0] * (self.last - first + 2)
        for use in self.uses.values():
            steps[use.first - first] += use.nbytes
            steps[use.last - first + 1] -= use.nbytes
        most = now = 0
        for step in steps:
            now += step
            most = max(most, now)
        return most

    def _moving(self, pieces: bool) -> float:
        leave = sum(self._seconds(use, pieces)[0] for t, use in self.uses.items() if t in self.leaving)
        return leave + sum(self._seconds(use, pieces)[1] for t, use in self.uses.items() if t not in self.made)

    def _seconds(self, use: Use, pieces: bool) -> tuple[float, float]:
        return self.judge.moving_seconds(use.nbytes, use.runs if pieces else 1)


def runs_of(region: Region, shape: Sequence[int]) -> int:
    """Contiguous pieces that a region of a tensor is.

    >>> runs_of((Span(0, 1), Span(0, 8), Span(2, 6), Span(0, 9)), (1, 8, 9, 9))
    8
    """
    runs, cut = 1, False
    for span, extent in zip(reversed(region), reversed(shape), strict=True):
        runs *= span.extent if cut else 1
        cut = cut or span.extent < extent
    return runs


@dataclass(frozen=True)
class Walks:
    """All walks of a network, remembered: they are the same wherever its parameters live and whatever a part may take."""

    judge: Judge

    @cached_property
    def last_read(self) -> dict[str, int]:
        """The last call that reads each tensor; of outputs none is the last."""
        last = {t: call.index for call in self.judge.net.calls for t in call.reads}
        return last | dict.fromkeys(self.judge.net.outputs, len(self.judge.net.calls))

    @cached_property
    def _known(self) -> dict[tuple[int, Grid], Walk]:
        return {}

    def to(self, last: int, grid: Grid) -> Walk:
        """The walk from a call, by its index, with a grid."""
        known = self._known.get((last, grid))
        if known is None:
            known = self._known[last, grid] = Walk(self, last, grid)
        return known
