"""Tensors whose extents of 1 are repeated beside larger ones: shapes, letters, and the sums that gradients of them are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ooc.errors import ShapeError
from ooc.networks.tensors import Role
from ooc.networks.writer import Writer
from ooc.ops import Permute, Reduce
from ooc.ops.registry import IN

Shape = tuple[int, ...]


def spread(kind: str, reads: Sequence[Shape]) -> Shape:
    """The shape of what tensors make together whose extents of 1 are repeated; one value per channel has no other axes."""
    rank = max(map(len, reads))
    wide = [_wide(r, rank) for r in reads]
    shape = tuple(map(max, zip(*wide, strict=True)))
    if any(len(r) not in (1, rank) for r in reads) or any(e not in (1, f) for w in wide for e, f in zip(w, shape, strict=True)):
        raise ShapeError(f"{kind}: expected shapes that agree or are 1, got {', '.join(map(str, reads))}")
    return shape


def letters(shape: Shape, full: Shape, batch: str = "n") -> str:
    """The axes along which a tensor is full beside what is made of it, as letters; empty: along all."""
    names = "k" + IN[max(1, len(full) - 1)]
    wide = _wide(shape, len(full))
    if wide == full and batch:
        return ""
    return batch + "".join(n for n, e, f in zip(names, wide, full) if e == f and f > 1) or "1"


def _wide(shape: Shape, rank: int) -> Shape:
    return shape if len(shape) == rank else (*shape, *(1,) * (rank - len(shape)))


def summed(writer: Writer, dz: str, full: Shape, shape: Shape, into: str, of_batch: bool = False, alpha: float = 1.0) -> None:
    """Write the sums of a gradient over the axes along which a tensor was repeated; of_batch: over the batch, too.

    The axes that stay become the channels of a sum over positions: where they are not in front, they are moved there.
    """
    wide = _wide(shape, len(full))
    stay = [i for i, (e, f) in enumerate(zip(wide, full, strict=True)) if e == f]
    gone = [i for i in range(len(full)) if i not in stay]
    order = (*stay, *gone)
    dtype, batch = writer.tensors[writer.resolve(dz)].dtype, writer.batch
    if [i for i in order if full[i] > 1] != [i for i in range(len(full)) if full[i] > 1]:
        moved = f"{into}/moved"
        writer.call(Permute(batch, full[0], full[1:], order, dtype), (dz,), (moved,))
        dz = moved
    channels, positions = (math.prod(full[i] for i in some) for some in (stay, gone))
    op = Reduce("bias" if of_batch else "positions", batch, channels, (positions,), alpha, dtype=dtype)
    writer.call(op, (dz,), (into,), ("n", 1), Role.GRADIENT_SUM if of_batch else None)
