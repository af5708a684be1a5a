"""NumPy as a kernel: an op's own reference, applied to pieces of a tile that fit the caches.

NumPy makes temporaries. On pieces of a fixed size they stay small, whatever the tile and the budget; a reduction is not
cut, since partial sums between pieces would need memory of their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

from ooc.backends.base import Kernel
from ooc.cache import Cache
from ooc.ir.op import Block, Op, crop
from ooc.ir.region import FEW, Sizes, Span, Tile, split

PIECE = 128 << 10  # bytes of all blocks of a piece


@lru_cache(1024)
def in_pieces(op: Op) -> Kernel:
    """A kernel that walks over a tile piece by piece; a few tiles that are one piece are known."""
    free = [d for d in op.dims if d not in op.reduce and d not in op.whole]
    written = (*op.outputs, *op.state)
    known: Cache[Iterable[dict[str, Span]]] = Cache(FEW)

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        key = tuple(tile.items())
        pieces = known.get(key)
        if pieces is None:
            pieces = _pieces(op, tile, free)
            if isinstance(pieces, tuple):
                known.keep(key, pieces)
        for piece in pieces:
            cut = {o.name: crop(blocks[o.name], o.region(piece)) for o in written if o.name in blocks}
            op.reference(piece, {**blocks, **cut}, first, last)

    return kernel


def _pieces(op: Op, tile: Tile, free: list[str]) -> Iterable[dict[str, Span]]:
    """The pieces of a tile one after the other; where it is one piece, that in a tuple."""
    extents = {d: s.extent for d, s in tile.items()}
    sizes = _sizes(op, extents, free)
    if all(sizes[d] >= e > 0 for d, e in extents.items()):
        return (dict(tile),)
    cuts = [[s.shift(tile[d].lo) for s in split(e, sizes[d])] for d, e in extents.items()]
    return (dict(zip(tile, spans, strict=True)) for spans in itertools.product(*cuts))


def _sizes(op: Op, tile: dict[str, int], free: list[str]) -> Sizes:
    """Sizes of pieces: the largest free dim is halved until the blocks of a piece are small."""
    sizes = dict(tile)
    while sum(o.block_bytes(sizes) for o in op.operands) > PIECE:
        longest = max(free, key=lambda d: sizes[d], default=None)
        if longest is None or sizes[longest] <= 1:
            break
        sizes[longest] = math.ceil(sizes[longest] / 2)
    return op.legal(sizes)
