"""Sampling in compiled loops has the bits of its meaning in NumPy: every mode, padding, dtype, layout and tile."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from cases_ops import KINDS
from oracle_sampling import positions

from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.op import Block, crop, numpy_dtype
from ooc.ir.region import Span, extents
from ooc.native import kernels

pytestmark = pytest.mark.skipif(kernels is None, reason="needs the compiled extension")

NAMES = [name for name in KINDS if name.startswith("grid_sample")]


def laid(values: Any, dtype: str, layout: str) -> Any:
    """Values in a dtype and a layout."""
    order = (0, *range(2, values.ndim), 1) if layout == "channels_last" else tuple(range(values.ndim))
    return np.ascontiguousarray(values.transpose(order)).astype(numpy_dtype(dtype)).transpose(np.argsort(order))


def drawn(op: Any, numbers: Any) -> dict[str, Any]:
    """Inputs: some values are infinite or not a number, some positions are both, or too far."""
    inputs = {}
    for o in op.inputs:
        values = positions(op, numbers) if o.name == "grid" else numbers.standard_normal(o.shape)
        odd = numbers.random(values.shape) < 0.03
        values[odd] = numbers.choice((np.inf, -np.inf, np.nan, 1e30, -7.0, 0.0), odd.sum())
        with np.errstate(over="ignore"):
            inputs[o.name] = laid(values, o.dtype, op.layout)
    return inputs


def results(op: Any, kernel: Any, tile: dict[str, Span], arrays: dict[str, Any], cut: int) -> list[Any]:
    """What a kernel makes of a tile, its sums in as many goes as a reduced axis is cut into."""
    outputs = {o.name: np.full(extents(o.region(tile)), 7, numpy_dtype(o.dtype)) for o in (*op.outputs, *op.state)}
    blocks = {o.name: Block(outputs[o.name], o.region(tile)) for o in (*op.outputs, *op.state)}
    whole = {o.name: Block(arrays[o.name], o.whole) for o in op.inputs}
    goes = [tile]
    if op.reduce and cut < tile["c"].hi:
        lo, hi = tile["c"]
        goes = [{**tile, "c": Span(lo, cut)}, {**tile, "c": Span(cut, hi)}] if lo < cut else goes
    for i, go in enumerate(goes):
        read = {o.name: crop(whole[o.name], o.region(go)) for o in op.inputs}
        kernel(go, {**blocks, **read}, i == 0, i == len(goes) - 1)
    return [outputs[o.name].astype(np.float64) for o in op.outputs]


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_bits(name: str, dtype: str) -> None:
    rng = random.Random(f"{name} {dtype}")
    backend = CpuBackend(2)
    for _ in range(60):
        op: Any = KINDS[name](rng, {"dtype": dtype, "layout": rng.choice(("channels_first", "channels_last"))})
        tile = {}
        for dim, extent in op.dims.items():
            lo = rng.randrange(extent)
            tile[dim] = Span(lo, rng.randint(lo + 1, extent))
        arrays, sizes = drawn(op, np.random.default_rng(rng.getrandbits(32))), {d: s.extent for d, s in tile.items()}
        room = next(o for o in backend.offers(op) if o.name == "plain").workspace(sizes)
        kernel = backend.kernel(op, "plain", sizes, np.zeros(max(int(room), 1), np.uint8))
        cut = rng.randint(tile["c"].lo, tile["c"].hi) if "c" in tile else 0
        with np.errstate(invalid="ignore", over="ignore"):
            compiled, plain = results(op, kernel, tile, arrays, cut), results(op, op.reference, tile, arrays, cut)
        for one, other in zip(compiled, plain, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(op))


def test_rows_longer_than_a_piece_on_several_threads() -> None:
    rng = random.Random(5)
    for name in NAMES:
        op: Any = KINDS[name](rng, {"dtype": "f32", "layout": "channels_first"})
        op = type(op)(2, 3, (30, 200), (40, 150), "cubic", "reflection", reach=op.reach and (3, 4))
        arrays = drawn(op, np.random.default_rng(3))
        tile = {d: Span(0, e) for d, e in op.dims.items()}
        kernel = CpuBackend(4).kernel(op, "plain", op.dims, np.zeros(1, np.uint8))
        with np.errstate(invalid="ignore", over="ignore"):
            one, other = (results(op, k, tile, arrays, 99) for k in (kernel, op.reference))
        np.testing.assert_array_equal(one[0], other[0], err_msg=str(op))
