"""How much of a tensor's axis tiles reach in all, however it is cut: windows may leave gaps that no small tile touches."""

from __future__ import annotations

from ooc.ir.axis_maps import Composed, Hull, Owned
from ooc.ir.region import Along, AxisMap, Sizes, Span, Unwindow, Whole, Window

TRIED = 1 << 16  # positions that are looked at one by one


def covered(axis: AxisMap, dims: Sizes, size: int) -> int:
    """Indices of an axis of this size that the tiles of one index each reach together: tiles of any tiling reach no fewer."""
    if len(axis.dims) != 1 or _gapless(axis):
        return axis.span({d: Span(0, int(dims[d])) for d in axis.dims}).clip(size).extent
    (dim,), count = axis.dims, int(dims[axis.dims[0]])
    if count <= TRIED:
        return _union(axis, dim, range(count), size)
    # Of a long axis a middle part is looked at: the others of its length reach as many, but for what two of them share.
    middle = range((count - TRIED) // 2, (count + TRIED) // 2)
    shared = axis.span({dim: Span(middle[0], middle[0] + 1)}).extent
    return max(0, (count // TRIED - 1) * (_union(axis, dim, middle, size) - shared))


def _gapless(axis: AxisMap) -> bool:
    """Whether the spans of neighbouring indices touch, so that all of them together are one span."""
    if isinstance(axis, Composed):
        return _gapless(axis.axis) and all(_gapless(m) for _, m, _ in axis.inner)
    if isinstance(axis, Hull):  # around the spans of each
        return any(map(_gapless, axis.parts))
    if isinstance(axis, Window):
        return (axis.size - 1) * axis.dilation + 1 >= axis.stride
    return isinstance(axis, (Along, Owned, Unwindow, Whole))


def _union(axis: AxisMap, dim: str, positions: range, size: int) -> int:
    """Indices that some neighbouring positions reach; their spans advance with them."""
    total = end = 0
    for i in positions:
        lo, hi = axis.span({dim: Span(i, i + 1)}).clip(size)
        total, end = total + max(0, hi - max(lo, end)), max(end, hi)
    return total
