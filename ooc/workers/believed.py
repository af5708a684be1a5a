"""Which finished units are believed: what they wrote is read again, and compared with the checksum that was written down."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from ooc.errors import StoreError
from ooc.files.records import content, understood
from ooc.ir.region import Region, Span, extents
from ooc.networks.segments import crossing
from ooc.runtime.journal import checksum as summed
from ooc.sources import Source
from ooc.workers.levels import Kind
from ooc.workers.work import WorkFolder

SUMS_OF = "sums of "  # and the number of a call
MOST_SUMS = 1 << 30  # bytes of a file of sums


def wrong(work: WorkFolder) -> set[str]:
    """Finished units that do not count: something that they wrote, and that is needed yet, is not as it was written down; or they
    depend on such a unit; or its inputs are gone, and all has to be done again. Raises OocError."""
    finished, levels = work.journal.finished(), work.levels()
    if work.about.result.made and work.over and not work.placed:
        return finished
    first = next((level for level in range(len(levels)) if not {*work.names_of(level)} <= finished), len(levels))
    needed = needed_from(work, first)
    for level in range(len(levels)):
        bad = {
            name
            for name, at in zip(work.names_of(level), work.units_of(level), strict=True)
            if name in finished and not _holds(work, level, *at, needed)
        }
        if bad and level in (0, first):
            return bad | {name for name in finished if int(name.partition("-")[0]) > level}
        if bad:
            return finished
    return set()


def needed_from(work: WorkFolder, first: int) -> set[str]:
    """What a level and those behind it read; and the result, where workers write to that."""
    net = work.network(0)
    names = {*net.outputs} if work.about.result.direct else set[str]()
    for level in work.levels()[first:]:
        if level.kind in (Kind.CHAIN, Kind.ALONE, Kind.MOMENTS):
            names |= {*crossing(net, level.begin, level.end)[0], *map(sums_of, level.sums)}
        elif level.kind is Kind.MERGE:
            names.add(sums_of(level.begin))
        elif level.kind is Kind.FLUSH:
            names |= {*net.outputs}
    return names


def _holds(work: WorkFolder, level: int, piece: int, unit: int, needed: set[str]) -> bool:
    """Whether what a unit wrote is as it was written down, as far as that is needed."""
    told = work.journal.told(f"{level}-{piece}-{unit}").get("wrote")
    with suppress(StoreError), understood(work.folder, "its journal is damaged"):
        return all(
            checksum(work, level, piece, unit, name, _regions(one)) == one["sum"]
            for name, one in told.items()
            if name in needed or work.levels(piece)[level].kind is Kind.FLUSH
        )
    return False


def _regions(told: Mapping[str, Any]) -> list[Region]:
    return [tuple(Span(int(lo), int(hi)) for lo, hi in region) for region in told["regions"]]


def checksum(work: WorkFolder, level: int, piece: int, unit: int, name: str, regions: Sequence[Region]) -> str:
    """Of what a unit wrote of a tensor, or of its sums of a call, as it is in its file now. Raises OocError."""
    if name.startswith(SUMS_OF):
        with understood(work.folder):
            raw = content(work.sums_file(int(name.removeprefix(SUMS_OF)), piece, unit), MOST_SUMS)
        return hashlib.blake2b(raw, digest_size=16).hexdigest()
    entry = work.levels(piece)[level]
    with ExitStack() as stack:
        if entry.kind is Kind.FLUSH:
            return _checksum_of(stack.enter_context(work.sink("r")), regions, work.about.budget)
        net = work.segment(level, piece) if entry.kind in (Kind.CHAIN, Kind.ALONE) else work.single(entry.begin, piece)
        return _checksum_of(work.open(stack, name, net, piece), regions, work.about.budget)


def _checksum_of(source: Source, regions: Sequence[Region], budget: int | None) -> str:
    unit = extents(source.own(tuple(Span(0, min(1, e)) for e in source.shape)))
    return summed(source.read, regions, source.dtype, unit, budget)


def sums_of(call: int) -> str:
    """What the sums of a call are called beside tensors."""
    return f"{SUMS_OF}{call}"
