"""Sums over parts and tiles: always in the same order, whoever made what is summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ooc.errors import UnsupportedError
from ooc.ops import BnMoments, BnSums, DiceSums

Sums = np.ndarray[Any, Any]  # 3 x channels, f64: count, mean, sum of squared deviations
Part = TypeVar("Part")
Results = Sequence[Any]  # what a call makes
Joining = Callable[[Any, int, Callable[[int], Results]], Results]


def halves(lo: int, hi: int, part: Callable[[int], Part], join: Callable[[Part, Part], Part]) -> Part:
    """All parts from `lo` to before `hi` as one, in halves: few of them are there at a time."""
    if hi - lo == 1:
        return part(lo)
    middle = (lo + hi) // 2
    first = halves(lo, middle, part, join)
    return join(first, halves(middle, hi, part, join))


def tree(sums: Sequence[Sums]) -> Sums:
    """Sums of neighbours merged, and of those, until one is left: the order depends on how many there are alone.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    level = list(sums)
    while len(level) > 1:
        pairs = [merged(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + (level[-1:] if len(level) % 2 else [])
    return level[0]


def merged(a: Sums, b: Sums) -> Sums:
    """The sums of two disjoint parts."""
    count = a[0] + b[0]
    shift = b[1] - a[1]
    return np.stack([count, a[1] + shift * (b[0] / count), a[2] + b[2] + shift**2 * (a[0] * b[0] / count)])


def joined(op: Any, parts: int, part: Callable[[int], Results]) -> Results:
    """What an operation that sums over the batch makes of all of it, as those read it that have a part. op: of a part. part: what
    it made of each, in f64; parts have equal sizes."""
    return JOININGS[op.kind](op, parts, part)


def check_joined(op: Any, what: str) -> None:
    """Raise UnsupportedError for an operation whose parts nobody can join."""
    if op.kind not in JOININGS:
        raise UnsupportedError(f"{what}: takes sums over the batch ({op.kind}) that its parts cannot have")


def _moments(op: BnMoments, parts: int, part: Callable[[int], Results]) -> Results:
    def sums(i: int) -> Sums:
        mean, var = part(i)
        return np.stack([np.full(mean.shape, float(op.count)), mean, var * op.count])

    count, mean, squares = halves(0, parts, sums, merged)
    return mean, squares / count


def _totals(op: Any, parts: int, part: Callable[[int], Results]) -> Results:
    return halves(0, parts, part, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])


def _shares(op: BnSums, parts: int, part: Callable[[int], Results]) -> Results:
    """Who reads them divides by the count of a part."""
    return [total / parts for total in _totals(op, parts, part)]


JOININGS: Mapping[str, Joining] = {BnMoments.kind: _moments, BnSums.kind: _shares, DiceSums.kind: _totals}
