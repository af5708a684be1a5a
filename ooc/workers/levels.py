"""Levels: tasks that do not depend on each other."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import StrEnum

from ooc.networks.chains import Grid
from ooc.networks.proposal import Proposal

MOST_CELLS = 1 << 17  # of a level's grid


class Kind(StrEnum):
    """What the units of a level do.

    CHAIN: calls in tiles, each unit some of them. ALONE: calls of which one worker makes all. MOMENTS: sums over tiles. MERGE:
    the sums of those. FLUSH: the result is brought into the file that is wanted. PUT: that file, which is whole, takes its place.
    """

    CHAIN = "chain"
    ALONE = "alone"
    MOMENTS = "moments"
    MERGE = "merge"
    FLUSH = "flush"
    PUT = "put"


AT_THE_END = (Kind.FLUSH, Kind.PUT)  # of all pieces of the batch at once


@dataclass(frozen=True)
class Level:
    """Tasks that do not depend on each other.

    Fields:
        kind: what they do.
        begin, end: which calls, from `begin` to before `end`.
        proposal: how they are run, see `ooc.networks.proposal`.
        sums: calls behind it whose sums over tiles each unit takes, too, while what it made is at hand.
        own: whether tensors have the axes of the one call.
        grid: of tiles, along the batch and space.
        each: tiles of a unit.
        seconds: of the level, as predicted of one worker.
        computing: seconds of that on the worker's device.
        moved: bytes that are read from files, and written to them.
    """

    kind: Kind
    begin: int = 0
    end: int = 0
    proposal: Proposal | None = None
    own: bool = False
    grid: Grid = ()
    each: int = 1
    seconds: float = 0.0
    computing: float = 0.0
    moved: tuple[int, int] = (0, 0)
    sums: tuple[int, ...] = ()

    @property
    def units(self) -> int:
        """Tasks of the level, for one piece of the batch."""
        return max(1, -(-math.prod(self.grid) // self.each))

    def among(self, calls: int) -> bool:
        """Whether a network of so many calls may have it."""
        if self.kind in AT_THE_END:
            return True
        inside = 0 <= self.begin < self.end <= calls and all(0 <= call < calls for call in self.sums)
        return inside and self.each > 0 and all(count > 0 for count in self.grid) and math.prod(self.grid) <= MOST_CELLS

    def cells(self, unit: int) -> tuple[Grid, ...]:
        """The tiles of a unit, by their place in the grid."""
        at = itertools.product(*map(range, self.grid))
        return tuple(itertools.islice(at, unit * self.each, (unit + 1) * self.each))
