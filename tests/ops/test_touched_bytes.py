"""What any kernel must walk through for a tile of a convolution."""

from __future__ import annotations

import math

import pytest

from ooc.ops.descriptor import parse

LEAPING = {
    "conv.fprop n=2 c=64 h=56 w=56 k=128 r=1 s=1 stride=2": (28, 56),
    "conv.fprop n=2 c=64 h=57 w=20 k=128 r=3 s=3 dilation=4x1": (57, 20),
    "conv.fprop n=2 c=16 h=35 w=24 k=16 r=1 s=1 stride=7x3": (5, 24),
    "conv.fprop n=2 c=16 h=35 w=24 k=16 r=2 s=2 stride=7x2": (10, 24),
}


@pytest.mark.parametrize(("line", "read"), LEAPING.items())
def test_rows_that_a_stride_leaps_over_are_not_touched(line: str, read: tuple[int, int]) -> None:
    """Of x, so many rows of so many columns are, whole or by parts: any tiling of them costs at least as much as one tile."""
    op = parse(line)
    n, c, *_ = op.inputs[0].shape
    y = op.outputs[0].nbytes
    assert op.touched_bytes(op.dims) == pytest.approx(4 * n * c * math.prod(read) + y)
    for d, parts in (("p", 5), ("q", 2), ("p", op.dims["p"]), ("q", op.dims["q"])):
        size = -(-op.dims[d] // parts)
        tile = op.legal(op.dims | {d: size})
        assert op.touched_bytes(tile) * op.dims[d] / size >= op.touched_bytes(op.dims) * (1 - 1e-9)
