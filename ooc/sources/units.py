"""Units: what a file stores in one piece (chunks, shards, tiles, strips), laid over a tensor from its origin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ooc.ir.region import Region, Span


def covering(region: Region, unit: tuple[int, ...], shape: tuple[int, ...]) -> Region:
    """The smallest region of whole units around a region, within the shape; an empty span stays empty.

    >>> covering((Span(3, 5), Span(9, 10)), (4, 4), (12, 10))
    (Span(lo=0, hi=8), Span(lo=8, hi=10))
    """
    return tuple([_around(span, u, extent) for span, u, extent in zip(region, unit, shape, strict=True)])


def _around(span: Span, unit: int, extent: int) -> Span:
    if span.lo == span.hi:
        return span
    return Span(span.lo // unit * unit, min(-(-span.hi // unit) * unit, extent))


def batches(region: Region, unit: tuple[int, ...], most: int) -> Iterator[Region]:
    """A region in parts, cut between units only, last axis fastest. A part touches one unit, or several of at most `most`
    elements together.

    >>> [[str(s) for s in part] for part in batches((Span(1, 3), Span(2, 9)), (1, 4), 8)]
    [['1:2', '2:8'], ['1:2', '8:9'], ['2:3', '2:8'], ['2:3', '8:9']]
    """
    room, steps = max(1, most // max(1, math.prod(unit))), []
    for (lo, hi), u in zip(reversed(region), reversed(unit), strict=True):
        count = max(1, min(-(-hi // u) - lo // u, room))
        room //= count
        steps.append(count * u)
    return itertools.product(*(list(_cut(span, u, step)) for span, u, step in zip(region, unit, reversed(steps), strict=True)))


def _cut(span: Span, unit: int, step: int) -> Iterator[Span]:
    for lo in range(span.lo // unit * unit, span.hi, step):
        yield Span(max(lo, span.lo), min(lo + step, span.hi))


def inside(part: Region, region: Region) -> tuple[slice, ...]:
    """Where a part of a region lies in the array that holds the region."""
    return tuple([slice(p.lo - r.lo, p.hi - r.lo) for p, r in zip(part, region, strict=True)])
