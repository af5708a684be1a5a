"""One tile of an op by a family of kernels of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc import native
from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.op import Block, Op, Operand, aligned, numpy_dtype
from ooc.ir.region import Span


def aligned_room(nbytes: int) -> Any:
    """Memory that is NaN, if it were read."""
    memory = np.full(nbytes + 64, 0xFF, np.uint8)
    begin = -native.address(memory) % 64
    return memory[begin : begin + nbytes]


def in_one_tile(op: Op, family: str, arrays: dict[str, Any]) -> Any:
    """The result of an op by a family."""
    kernels = CpuBackend.families[family]
    assert kernels.why_not(op) is None
    kernel = kernels.prepare(op, op.dims, aligned_room(int(aligned(kernels.workspace(op, op.dims, 2)))), 2)
    (output,) = op.outputs
    held = arrays | {output.name: np.full(output.shape, np.nan, numpy_dtype(op.dtype))}
    kernel({d: Span(0, e) for d, e in op.dims.items()}, {o.name: whole(o, held) for o in op.operands}, True, True)
    return held[output.name]


def whole(operand: Operand, arrays: dict[str, Any]) -> Block:
    """An operand as one block."""
    return Block(arrays[operand.name], tuple(Span(0, e) for e in operand.shape))
