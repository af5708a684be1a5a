"""The items of chains: tile by tile of the batch and of space."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from ooc.errors import UnsupportedError
from ooc.ir.region import Region, Span, elements
from ooc.networks.calls import Call, Network
from ooc.networks.chains import ChainPart, parts
from ooc.networks.items import Instance, Item
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.stage_items import StageItems
from ooc.networks.stages import Stage
from ooc.networks.tensors import Role


class Tiling(NamedTuple):
    """What tiles of a chain do.

    Fields:
        parts: the tiles, in order.
        calls: those that are computed; others are made again later.
        here: tensors that are made, or come, as a whole.
        coming: of those the ones that come.
        stored: tensors that are made and stored.
        sums: what is summed over all tiles.
        in_samples: whether tiles are some samples, which come and are stored by themselves.
        done: what was loaded.
    """

    parts: list[ChainPart]
    calls: list[Call]
    here: set[str]
    coming: set[str]
    stored: set[str]
    sums: set[str]
    in_samples: bool
    done: set[Instance]


class ChainItems(StageItems):
    """A step while it is written, chains in tiles."""

    def __init__(self, net: Network, proposal: Proposal, brief: bool) -> None:
        super().__init__(net, proposal, brief)
        self.count = 0  # of parts
        self.views: dict[Instance, Instance] = {}  # some samples of what is there as a whole
        self.cuts = cuts_of(net, self.stages) if proposal.grids else {}

    def _chain(self, stage: Stage, number: int) -> None:
        """The calls of a chain, tile by tile: what others made is loaded by region, what others need is stored, or made in a part
        of what stays."""
        tiling = self._tiling(stage, number)
        whole = set() if tiling.in_samples else tiling.coming
        for name in sorted(whole):
            self._load(name)
        for name in sorted((tiling.here | tiling.sums) - self.lasting - whole):
            self._next(name)
        self._last(tiling.sums)
        for part in tiling.parts:
            self.count += 1
            self.begins.append(self.count_of_runs)
            at: dict[str, Instance] = {}
            for call in tiling.calls:
                if call.index in part.tiles:
                    self._tile(call, part, at, tiling)
        for name in sorted(() if tiling.in_samples else tiling.stored & tiling.here):
            self._emit(Item("store", reads=(self._now(name),)))
        self.present |= tiling.here | tiling.sums
        self.stored |= tiling.stored - self.outside
        for name in sorted({t for call in stage.calls for t in call.tensors} & self.present):
            self._forget(name, number, 0)

    def _tiling(self, stage: Stage, number: int) -> Tiling:
        """What the tiles of a chain do."""
        makes = {t for call in stage.calls if call.index not in stage.remade for t in call.makes}
        sums = {t for t in makes if not self.net.tensors[t].per_sample}
        leaving = {t for t in makes - sums if t in self.net.outputs or self._comes_back(t, number)}
        here = {t for t in leaving & self.shared if t not in self.outside and t not in self.net.outputs}
        stored = (leaving - here) | {t for t in here & self.proposal.staying if self.last_read.get(t, -1) >= self.turn > number}
        every = self._parts(stage, leaving)
        calls = [call for call in stage.calls if any(call.index in part.tiles for part in every)]
        coming = {t for call in calls for t in call.reads if t not in makes and self._comes_and_stays(t)}
        return Tiling(every, calls, here | coming, coming, stored, sums, stage.in_samples, set())

    def _parts(self, stage: Stage, leaving: set[str]) -> list[ChainPart]:
        """The tiles of a chain, as proposals share them."""
        net, cells = self.net, self.proposal.cells
        key = tuple(call.index for call in stage.calls), stage.grid, frozenset(leaving), cells
        return net.tilings.made(key, lambda: list(parts(net, stage.calls, stage.grid, leaving, cells)))

    def _tile(self, call: Call, part: ChainPart, at: dict[str, Instance], tiling: Tiling) -> None:
        """One call of a chain's part. at: what there is of the part; it grows."""
        for name in (t for t in call.reads if t not in at):
            if name in tiling.here or name in tiling.sums or (name in self.present and name not in self.outside):
                if tiling.in_samples and self.net.tensors[name].per_sample and name in self.shared:
                    at[name] = self._view(name, part.regions[name])
            elif self.net.tensors[name].per_sample:
                region = part.regions[name]
                if elements(region):
                    self._check_there(name)
                at[name] = Instance(name, self.count, self._samples(name, region) if tiling.in_samples else region)
            else:
                self._load(name)
            if name in at:
                self._come(name, at[name], tiling)
        for name in (t for t in call.makes if t in part.regions):
            if name not in tiling.here:
                at[name] = Instance(name, self.count, part.regions[name])
            elif tiling.in_samples:
                at[name] = self._view(name, part.regions[name])
        reads, makes = (tuple(at.get(t) or self._now(t) for t in names) for names in (call.reads, call.makes))
        over = tuple((at[r], at[m]) for r, m in call.over if r in at and m in at)
        tile = part.tiles[call.index]
        sums = tuple(Instance(f"{call.index}:{o.name}") for o in call.sums_over(tile))
        self._emit(Item("run", call.index, reads, makes, tile=tuple(tile.items()), over=over, sums=sums))
        for name in call.makes:
            ends = name not in tiling.here or (tiling.in_samples and part.regions[name][0].hi in self.cuts[name])
            if name in tiling.stored and ends:
                self._emit(Item("store", reads=(at[name],)))

    def _come(self, name: str, instance: Instance, tiling: Tiling) -> None:
        """Load what a tile reads, if it is not there."""
        of_part = instance.part is not None and instance not in self.views
        if (of_part or name in tiling.coming) and instance not in tiling.done:
            if instance.part is None or elements(instance.part):
                self._emit(Item("load", makes=(instance,)))
            tiling.done.add(instance)

    def _check_there(self, name: str) -> None:
        """Raise UnsupportedError where nobody has stored what a chain is to load."""
        if self.net.tensors[name].role is not Role.INPUT and name not in self.stored and name not in self.outside:
            raise UnsupportedError(f"{self.proposal.label}: {name} is needed in tiles, and was not stored")

    def _samples(self, name: str, region: Region) -> Region:
        """All of some samples."""
        return (region[0], *map(partial(Span, 0), self.net.tensors[name].shape[1:]))

    def _view(self, name: str, region: Region) -> Instance:
        """Some samples of what is there as a whole: the piece that holds a region."""
        whole, cuts = self._now(name), self.cuts[name]
        end = bisect_left(cuts, region[0].hi)
        if len(cuts) == 2:
            return whole
        view = whole._replace(part=self._samples(name, (Span(cuts[end - 1], cuts[end]),)))
        self.views[view] = whole
        return view

    def _comes_back(self, name: str, number: int) -> bool:
        """Whether a later visit reads what a chain makes, and does not make it again."""
        return self.last_read.get(name, -1) > number and self.proposal.fate(name) is not Fate.RECOMPUTE

    def _comes_and_stays(self, name: str) -> bool:
        """Whether what a chain reads is not there yet, and will stay."""
        missing = name in self.shared and name not in self.present and self.net.tensors[name].per_sample
        return missing and (name in self.stored or self.net.tensors[name].role is Role.INPUT)


def cuts_of(net: Network, every: Collection[Stage]) -> dict[str, list[int]]:
    """Between which samples tensors may be cut, so that no stage touches half a piece."""
    cuts: dict[str, set[int]] = {}
    for stage in every:
        parts = stage.grid[0] if stage.grid and stage.in_samples else 1
        ends = {net.batch * i // parts for i in range(parts + 1)}
        for name in {t for call in stage.calls for t in call.tensors if net.tensors[t].per_sample}:
            cuts[name] = cuts[name] & ends if name in cuts else ends
    return {name: sorted(ends) for name, ends in cuts.items()}
