"""Resizing in compiled loops has the bits of its meaning in NumPy: every table, dtype, layout and tile."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from cases_ops import KINDS

from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.op import Block, numpy_dtype
from ooc.ir.region import Span, extents
from ooc.native import kernels
from ooc.ops import Resize, Upsample
from ooc.ops.descriptor import parse
from ooc.ops.resize import table

pytestmark = pytest.mark.skipif(kernels is None, reason="needs the compiled extension")

NAMES = [name for name in KINDS if name.startswith(("resize.", "upsample."))]


def drawn(rng: random.Random, shape: tuple[int, ...], dtype: Any, last: bool) -> Any:
    """Values, some of them infinite or not a number, in a layout."""
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    order = (0, *range(2, len(shape)), 1) if last else tuple(range(len(shape)))
    values = numbers.standard_normal([shape[a] for a in order])
    values[numbers.random(values.shape) < 0.02] = rng.choice((np.inf, -np.inf, np.nan))
    return values.astype(dtype).transpose(np.argsort(order))


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_bits(name: str, dtype: str) -> None:
    rng = random.Random(f"{name} {dtype}")
    for _ in range(25):
        layout = rng.choice(("channels_first", "channels_last"))
        op = KINDS[name](rng, {"dtype": dtype, "layout": layout})
        tile = {}
        for dim, extent in op.dims.items():
            lo = rng.randrange(extent)
            tile[dim] = Span(lo, rng.randint(lo + 1, extent))
        x, y = op.inputs[0], op.outputs[0]
        own, kind = x.region(tile), numpy_dtype(dtype)
        wide = tuple(Span(rng.randint(0, s.lo), rng.randint(s.hi, e)) for s, e in zip(own, x.shape, strict=True))
        given = Block(drawn(rng, extents(wide), kind, layout == "channels_last"), wide)
        region = y.region(tile)
        made = [Block(drawn(rng, extents(region), kind, layout == "channels_last"), region) for _ in range(2)]
        with np.errstate(invalid="ignore"):
            op.reference(tile, {"x": given, "y": made[0]}, True, True)
        sizes = {dim: span.extent for dim, span in tile.items()}
        CpuBackend(2).kernel(op, "plain", sizes, None)(tile, {"x": given, "y": made[1]}, True, True)
        np.testing.assert_array_equal(made[1].array.astype(np.float64), made[0].array.astype(np.float64), err_msg=str(op))


def test_rows_longer_than_a_piece() -> None:
    """Columns pass in pieces, rows in bands: what is the same is made once."""
    numbers = np.random.default_rng(0)
    for op in (
        Upsample("nearest", 1, 2, (3, 700), (29, 5000)), Upsample("linear", 1, 2, (3, 700), (29, 5000)),
        Upsample("linear", 1, 1, (5, 5000), (4, 31)),
        Resize("reflect", 1, 1, (4, 3000), (9, 8000), (-2.0, 1, 1, 0, -2500.0, 1, 1, 0)),
    ):  # fmt: skip
        tile = {dim: Span(0, e) for dim, e in op.dims.items()}
        x = Block(numbers.standard_normal(op.inputs[0].shape).astype(np.float32), op.inputs[0].region(tile))
        made = [Block(np.zeros(op.outputs[0].shape, np.float32), op.outputs[0].region(tile)) for _ in range(2)]
        op.reference(tile, {"x": x, "y": made[0]}, True, True)
        CpuBackend(2).kernel(op, "native", op.dims, None)(tile, {"x": x, "y": made[1]}, True, True)
        np.testing.assert_array_equal(made[1].array, made[0].array)


def test_positions_beyond_the_end_are_the_end() -> None:
    """Not mixed of the end with itself, which would make NaN of an infinity."""
    first, second, share = table("linear", 3, 6, (0.0, 3.0, 1.0, 0.5))
    assert first.tolist() == [0, 2, 2, 2, 2, 2] and second.tolist() == [1, 2, 2, 2, 2, 2] and not share.any()
    op = parse("resize.linear n=1 k=1 w=3 size=6 lines=0x3x1x0.5 dtype=f32")
    x = np.array([[[1, 2, np.inf]]], np.float32)
    sizes, tile = op.dims, {d: Span(0, e) for d, e in op.dims.items()}
    for family in ("native", "plain", "reference"):
        made = np.zeros((1, 1, 6), np.float32)
        blocks = {"x": Block(x, op.inputs[0].region(tile)), "y": Block(made, op.outputs[0].region(tile))}
        CpuBackend(1).kernel(op, family, sizes, None)(tile, blocks, True, True)
        assert made.tolist() == [[[1, *[np.inf] * 5]]]
