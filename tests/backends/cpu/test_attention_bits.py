"""Products and attention on the CPU round alike however they are cut: neither blocks nor the rest of a line show in the bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from running import execute

from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.op import Op, numpy_dtype
from ooc.ops.attention import PARTS, Attention
from ooc.ops.matmul import HOWS, MatMul
from ooc.schedule.plan import Plan


def drawn(op: Op) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    arrays = {o.name: draw.standard_normal(o.shape).astype(numpy_dtype(o.dtype)) for o in op.inputs}
    if "sums" in arrays:
        arrays["sums"] = np.abs(arrays["sums"]) + 1
    return arrays


def in_tiles(op: Op, sizes: dict[str, int], backend: CpuBackend, kernel: str, arrays: dict[str, Any]) -> dict[str, Any]:
    whole = op.legal({**op.dims, **sizes})
    offer = next(o for o in backend.offers(op) if o.name == kernel)
    plan = Plan(op, tuple(whole.items()), tuple(op.dims), 1, (), False, True, kernel=kernel,
                workspace_bytes=int(offer.workspace(whole)))  # fmt: skip
    return execute(plan, arrays, backend, None)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("how", [*HOWS, *PARTS])
def test_tiles_of_any_size(how: str, dtype: str) -> None:
    op: Any = MatMul(how, 2, 2, (23, 37), 40, 0.5, dtype=dtype) if how in HOWS else (
        Attention(how, 2, 2, (23, 1 if how == "dots" else 37), 10, 12, 0.3, "" if how == "dots" else "khw", dtype=dtype)
    )  # fmt: skip
    arrays, backend = drawn(op), CpuBackend(2)
    for kernel in (offer.name for offer in backend.offers(op)):
        expected = in_tiles(op, {}, backend, kernel, arrays)
        for d, extent in op.dims.items():
            for size in (1, 3, 8, 17):
                if size < extent:
                    for name, values in in_tiles(op, {d: size}, backend, kernel, arrays).items():
                        np.testing.assert_array_equal(
                            values.view(np.uint8), expected[name].view(np.uint8), err_msg=f"{kernel} {d}={size}"
                        )
