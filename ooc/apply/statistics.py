"""What a network wants to know of all of its input before it begins: percentiles, mean and deviation, in passes over the file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc.errors import ArgumentError
from ooc.ir.region import Region, Span, extents, whole
from ooc.sources import Source
from ooc.sources.units import batches

Array = np.ndarray[Any, Any]
BLOCK = 1 << 20  # values that are read at a time, where the file's units are not larger
DIGIT = 16  # bits of a number that one pass tells


class Measure(NamedTuple):
    """What is subtracted, and what is then divided by.

    Fields:
        how: "percentile" or "normalise".
        low, high: percentiles that become 0 and 1.
        each: of every channel for itself.
    """

    how: str
    low: float = 0.0
    high: float = 100.0
    each: bool = False

    def of(self, source: Source) -> tuple[Array, Array]:
        """Both, of a tensor n x c x spatial: one value, or one per channel. Raises ArgumentError where there is nothing to divide
        by."""
        if self.how == "normalise":
            less, by = moments(source, self.each)
        else:
            less, high = percentiles(source, (self.low, self.high), self.each)
            by = high - less
        if not np.isfinite(less).all() or not (np.isfinite(by).all() and by.all()):
            raise ArgumentError(f"{self.how}: the input has one value alone, or some that are not finite")
        return less, by


def blocks(source: Source) -> Iterator[tuple[Region, Array]]:
    """All of a tensor, a part at a time with its region, in whole units of its file."""
    unit = extents(source.own(tuple(Span(0, 1) for _ in source.shape)))
    for region in batches(whole(source.shape), unit, BLOCK):
        block = np.empty(extents(region), source.dtype)
        source.read(region, block)
        yield region, block


def groups(source: Source, each: bool) -> Iterator[tuple[int, Array]]:
    """The same, with the channel if each is for itself; else with 0."""
    for region, block in blocks(source):
        yield from ((c, block[:, c - region[1].lo]) for c in range(region[1].lo, region[1].hi)) if each else ((0, block),)


def moments(source: Source, each: bool = False) -> tuple[Array, Array]:
    """Mean and deviation, combined from block to block.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    count = source.shape[1] if each else 1
    number, mean, square = np.zeros(count), np.zeros(count), np.zeros(count)
    for i, group in groups(source, each):
        floats = group.astype(np.float64)
        more, off = floats.size, floats.mean() - mean[i]
        square[i] += floats.var() * more + off**2 * number[i] * more / (number[i] + more)
        number[i] += more
        mean[i] += off * more / number[i]
    return mean, np.sqrt(square / number)


def percentiles(source: Source, percents: Sequence[float], each: bool = False) -> list[Array]:
    """Percentiles, as numpy.percentile has them: between two values of the tensor in proportion. Exact, of tensors of any size:
    a pass tells 16 bits of what is looked for."""
    count = source.shape[1] if each else 1
    total = math.prod(source.shape) // count
    ranks = [(total - 1) * q / 100 for q in percents]
    needed = sorted({f(rank) for rank in ranks for f in (math.floor, math.ceil)})
    by_rank = _ordered(source, needed, count, each)
    return [np.array([_between(by_rank, i, rank) for i in range(count)]) for rank in ranks]


def _between(values: dict[tuple[int, int], float], channel: int, rank: float) -> float:
    low, high = values[channel, math.floor(rank)], values[channel, math.ceil(rank)]
    return low + (high - low) * (rank - math.floor(rank))


def _ordered(source: Source, ranks: Sequence[int], channels: int, each: bool) -> dict[tuple[int, int], float]:
    """The values of some ranks of every channel, by both, from the highest bits of their keys to the lowest."""
    bits = source.dtype.itemsize * 8
    digits = min(DIGIT, bits)
    pairs = [(channel, rank) for channel in range(channels) for rank in ranks]
    prefix, below = dict.fromkeys(pairs, 0), dict.fromkeys(pairs, 0)  # of each: its key so far, how many are smaller
    for done in range(0, bits, digits):
        shift = bits - done - digits
        counts = {(channel, p): np.zeros(1 << digits, np.int64) for (channel, _), p in prefix.items()}
        for channel, keys in ((i, _keys(group)) for i, group in groups(source, each)):
            for p, count in ((p, count) for (c, p), count in counts.items() if c == channel):
                inside = keys if not done else keys[keys >> (shift + digits) == p]
                count += np.bincount((inside >> shift & ((1 << digits) - 1)).astype(np.intp), minlength=1 << digits)
        for one in pairs:
            sums = np.cumsum(counts[one[0], prefix[one]])
            digit = int(np.searchsorted(sums, one[1] - below[one], side="right"))
            below[one] += int(sums[digit - 1]) if digit else 0
            prefix[one] = prefix[one] << digits | digit
    return {one: float(_value(key, source.dtype)) for one, key in prefix.items()}


def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def _keys(values: Array) -> Array:
    """Unsigned integers in the order of the values; not-a-number comes last."""
    dtype, store = values.dtype, _unsigned(values.dtype)
    raw: Array = np.ascontiguousarray(values).reshape(-1).view(store)
    top = store.type(1 << (dtype.itemsize * 8 - 1))
    if dtype.kind in "ub":
        return raw
    turned: Array = raw ^ top if dtype.kind == "i" else np.where(raw & top, ~raw, raw | top)
    return turned


def _value(key: int, dtype: np.dtype[Any]) -> Any:
    """The value of a key."""
    store = _unsigned(dtype)
    top = 1 << (dtype.itemsize * 8 - 1)
    if dtype.kind == "i":
        key ^= top
    elif dtype.kind not in "ub":
        key = key ^ top if key & top else ~key & (2 * top - 1)
    return np.array(key, store).view(dtype)[()]
