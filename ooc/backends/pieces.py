"""NumPy as a kernel: an op's own reference, applied to pieces of a tile that fit the caches.

NumPy makes temporaries. On pieces of a fixed size they stay small, whatever the tile and the budget; a reduction is not
cut, since partial sums between pieces would need memory of their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from ooc.backends.base import Kernel
from ooc.op import Block, Op, crop
from ooc.region import Sizes, Tile, split

PIECE = 128 << 10  # bytes of all blocks of a piece


def in_pieces(op: Op) -> Kernel:
    """A kernel that walks over a tile piece by piece."""
    free = [d for d in op.dims if d not in op.reduce and d not in op.whole]
    made = (*op.outputs, *op.state)

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        sizes = _sizes(op, {d: s.extent for d, s in tile.items()}, free)
        pieces = ([s.shift(tile[d].lo) for s in split(tile[d].extent, sizes[d])] for d in tile)
        for spans in itertools.product(*pieces):
            piece = dict(zip(tile, spans, strict=True))
            cut = {o.name: crop(blocks[o.name], o.region(piece)) for o in made if o.name in blocks}
            op.reference(piece, {**blocks, **cut}, first, last)

    return kernel


def _sizes(op: Op, tile: dict[str, int], free: list[str]) -> Sizes:
    """Sizes of pieces: the largest free dim is halved until the blocks of a piece are small."""
    sizes = dict(tile)
    while sum(o.block_bytes(sizes) for o in op.operands) > PIECE:
        longest = max(free, key=lambda d: sizes[d], default=None)
        if longest is None or sizes[longest] <= 1:
            break
        sizes[longest] = math.ceil(sizes[longest] / 2)
    return op.legal(sizes)
