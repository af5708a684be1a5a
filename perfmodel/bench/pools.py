"""Pools that give out memory online, knowing no future: what layouts made before the first step are compared with."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ooc.ir.op import aligned
from ooc.schedule.arena import Buffer

Live = tuple[Buffer, tuple[int, int]]  # a buffer, the first and the last moment at which it is in use
GRANULARITY = 512  # bytes, CnMem's


def online(lives: Sequence[Live], best: bool) -> int:
    """Bytes of a pool that gives each buffer a gap when it is first used, the smallest that is large enough or the first."""
    taken: dict[Buffer, tuple[int, int]] = {}
    peak = 0
    for buffer, gone in served(lives):
        for b in gone:
            del taken[b]
        nbytes, at, gaps = int(aligned(buffer.nbytes)), 0, []  # type: int, int, list[tuple[int, int]]
        for lo, hi in sorted(taken.values()):
            gaps += [(lo - at, at)] if lo - at >= nbytes else []
            at = max(at, hi)
        place = (min(gaps) if best else gaps[0])[1] if gaps else at
        taken[buffer] = place, place + nbytes
        peak = max(peak, place + nbytes)
    return peak


def served(lives: Sequence[Live]) -> Iterator[tuple[Buffer, list[Buffer]]]:
    """Buffers in the order of their first use, each with those that are done with since the one before."""
    using: dict[Buffer, int] = {}
    for buffer, (first, last) in sorted(lives, key=lambda one: (one[1], one[0])):
        gone = [b for b, until in using.items() if until < first]
        for b in gone:
            del using[b]
        yield buffer, gone
        using[buffer] = last


class PoolBlock(NamedTuple):
    """Bytes of a pool. head: whether it begins a chunk from cudaMalloc, which is never merged with what lies before it."""

    at: int
    nbytes: int
    head: bool


def cnmem(lives: Sequence[Live]) -> int:
    """Bytes of all chunks that a pool by CnMem's rule takes from the device: sizes are multiples of 512 bytes; the smallest free
    block that is large enough serves, the lowest of equals, and what is left behind the bytes that it gives is another; where
    there is none, cudaMalloc serves with a chunk of the very size; blocks that are free merge with neighbours of their chunk.

    Source: NVIDIA's CnMem (github.com/NVIDIA/cnmem, cnmem.cpp), with no chunk reserved before.
    """
    free: list[PoolBlock] = []
    using: dict[Buffer, PoolBlock] = {}
    total = 0
    for buffer, gone in served(lives):
        for b in gone:
            release(free, using.pop(b))
        nbytes = -(-buffer.nbytes // GRANULARITY) * GRANULARITY
        block = min((b for b in free if b.nbytes >= nbytes), key=lambda b: b.nbytes, default=None)
        if block is None:
            block = PoolBlock(total, nbytes, True)
            total += nbytes
        else:
            free.remove(block)
            if block.nbytes > nbytes:
                bisect.insort(free, PoolBlock(block.at + nbytes, block.nbytes - nbytes, False))
        using[buffer] = block._replace(nbytes=nbytes)
    return total


def release(free: list[PoolBlock], block: PoolBlock) -> None:
    """Put a block among the free ones, which lie in the order of their bytes, and merge it with those next to it."""
    i = bisect.bisect(free, block)
    if i < len(free) and block.at + block.nbytes == free[i].at and not free[i].head:
        block = block._replace(nbytes=block.nbytes + free.pop(i).nbytes)
    if i and free[i - 1].at + free[i - 1].nbytes == block.at and not block.head:
        i -= 1
        before = free.pop(i)
        block = before._replace(nbytes=before.nbytes + block.nbytes)
    free.insert(i, block)
