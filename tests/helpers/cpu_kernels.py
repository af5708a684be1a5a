"""Tiles of an op by a family of kernels of the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.op import Block, Op, Operand, aligned, numpy_dtype
from ooc.ir.region import Span, spans


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


def in_tiles(op: Op, family: str, sizes: Mapping[str, int], arrays: dict[str, Any], threads: int = 2) -> Any:
    """By one kernel, tile by tile; filters that stay the same have the same stamp."""
    kernels = CpuBackend.families[family]
    kernel = kernels.prepare(op, sizes, aligned_room(int(aligned(kernels.workspace(op, sizes, threads)))), threads)
    (output,) = op.outputs
    held = arrays | {output.name: np.full(output.shape, np.nan, numpy_dtype(output.dtype))}
    held |= {o.name: np.full(o.shape, np.nan, numpy_dtype(o.dtype)) for o in op.state if o.name not in held}
    operands = {o.name: o for o in (*op.operands, *op.state)}.values()
    order = [*(d for d in op.dims if d not in op.reduce), *op.reduce]
    stamps: dict[Any, int] = {}

    def walk(tile: dict[str, Span], rest: list[str]) -> None:
        if rest:
            for span in spans(op.dims[rest[0]], sizes[rest[0]]):
                walk(tile | {rest[0]: span}, rest[1:])
            return
        blocks = {}
        for o in operands:
            region = o.region(tile)
            stamp = stamps.setdefault((o.name, region), len(stamps) + 1) if o in op.inputs else 0
            blocks[o.name] = Block(held[o.name][tuple(slice(s.lo, s.hi) for s in region)], region, stamp)
        kernel(tile, blocks, all(tile[d].lo == 0 for d in op.reduce), all(tile[d].hi == op.dims[d] for d in op.reduce))

    walk({}, order)
    return held[output.name]


def whole(operand: Operand, arrays: dict[str, Any]) -> Block:
    """An operand as one block."""
    return Block(arrays[operand.name], tuple(Span(0, e) for e in operand.shape))
