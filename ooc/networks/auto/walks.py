"""Chains that end with one call, grown from there to the front: what a part needs behind a call does not depend on where its
chain begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ooc.cache import cached_property
from ooc.ir.op import ITEM_BYTES, Op, aligned
from ooc.ir.region import Region, Span, elements
from ooc.networks.calls import Call
from ooc.networks.chains import ChainPart, Grid, chainable, families, lengthen, share
from ooc.networks.judge import Judge

Computing = Callable[[Op, dict[str, Span]], tuple[float, float]]  # seconds of a tile of an op, and of all of it by its kernel


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
        self.grown: dict[int, Grown] = {}  # by the first call
        self.computed: dict[int, list[tuple[float, float]]] = {}
        self._begin()

    def _begin(self) -> None:
        self.first = self.last + 1
        self.part = ChainPart({}, {})
        self.uses: dict[str, Use] = {}
        self.leaving: set[str] = set()
        self.made: set[str] = set()

    def chain(self, first: int) -> Grown:
        """The chain that begins with a call, by its index."""
        if first not in self.grown:
            if first > self.first:  # shorter than what it has grown to
                self._begin()
            self._grow(first)
            moving = self._moving(False)
            self.grown[first] = Grown(self._peak(), moving, self._moving(True) - moving)
        return self.grown[first]

    def computing(self, first: int, workspace: int, computing: Computing) -> tuple[float, float]:
        """Seconds that a part of a chain computes with kernels of so much workspace, and those of all its calls by the same."""
        self._grow(first)
        sums = self.computed.setdefault(workspace, [(0.0, 0.0)])
        while len(sums) <= self.last - first + 1:
            call = self.net.calls[self.last - len(sums) + 1]
            tile = self.part.tiles.get(call.index)
            part, whole = computing(call.op, tile) if tile is not None else (0.0, 0.0)
            sums.append((sums[-1][0] + part, sums[-1][1] + whole))
        return sums[self.last - first + 1]

    def _grow(self, first: int) -> None:
        while self.first > first:
            self.first -= 1
            self._lengthen(self.net.calls[self.first])

    def _lengthen(self, call: Call) -> None:
        leaves = {t for t in call.makes if self.last_read.get(t, -1) > self.last}
        lengthen(self.net, self.part, call, {t: share(self.net.tensors[t].shape, self.grid, self.at) for t in leaves})
        self.leaving |= leaves
        self.made.update(call.makes)
        for t in (t for t in call.tensors if t in self.part.regions):
            last = self.uses[t].last if t in self.uses else call.index
            region = self.part.regions[t]
            self.uses[t] = Use(call.index, last, self._nbytes(t, region), runs_of(region, self.net.tensors[t].shape))

    def _nbytes(self, name: str, region: Region) -> int:
        return int(aligned(elements(region) * ITEM_BYTES[self.net.tensors[name].dtype]))

    def _peak(self) -> int:
        steps = [0] * (self.last - self.first + 2)
        for use in self.uses.values():
            steps[use.first - self.first] += use.nbytes
            steps[use.last - self.first + 1] -= use.nbytes
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
    def chainable(self) -> frozenset[int]:
        """The calls that tiles can pass, by index."""
        return frozenset(call.index for call in self.judge.net.calls if chainable(self.judge.net, call))

    @cached_property
    def alike(self) -> list[int]:
        """A number of every call: chains of calls with the same numbers take the same, but for parameters."""
        numbers: dict[Any, int] = {}
        return [numbers.setdefault(self._ways(call), len(numbers)) for call in self.judge.net.calls]

    def _ways(self, call: Call) -> tuple[Any, ...]:
        """What a call computes, how far before it what it reads was made, and how far behind it what it makes is read last."""
        net, ways = self.judge.net, list[Any]()
        for t in call.reads:
            maker = net.makers.get(t)
            unlike = t if net.tensors[t].per_sample else ""
            ways.append(unlike if maker is None else (call.index - maker.index, maker.makes.index(t)))
        for t in call.makes:
            last = self.last_read.get(t, -1)
            ways.append(math.inf if last == len(net.calls) else last - call.index)
        tensors = [net.tensors[t] for t in call.tensors]
        return (call.op, *((t.shape, t.dtype, t.per_sample) for t in tensors), *ways)

    def grids(self, shape: tuple[int, ...]) -> list[list[tuple[int, Grid]]]:
        """The families of grids over a tensor, remembered: each grid behind the number of its parts."""
        known = self._grids.get(shape)
        if known is None:
            known = self._grids[shape] = [[(math.prod(grid), grid) for grid in grids] for grids in families(shape)]
        return known

    @cached_property
    def fitting(self) -> dict[tuple[Any, ...], list[Any]]:
        """Grids of chains that were looked at, by the numbers of their calls, the parts at least, and the bytes of tensors and of
        workspace: cuttings that differ in how copies count ask for the same."""
        return {}

    @cached_property
    def _grids(self) -> dict[tuple[int, ...], list[list[tuple[int, Grid]]]]:
        return {}

    @cached_property
    def _known(self) -> dict[tuple[int, Grid], Walk]:
        return {}

    def to(self, last: int, grid: Grid) -> Walk:
        """The walk from a call, by its index, with a grid."""
        known = self._known.get((last, grid))
        if known is None:
            known = self._known[last, grid] = Walk(self, last, grid)
        return known
