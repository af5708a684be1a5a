"""Kernels of the CPU backend for sampling at positions of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import Kernel
from ooc.backends.families import no_workspace
from ooc.backends.views import lifted
from ooc.ir.op import ITEM_BYTES, Block, Op, crop
from ooc.ir.region import Sizes, Tile
from ooc.ops import GridSample, GridSampleDgrid, GridSampleDx
from ooc.ops.grid_sample import MODES, PADDINGS, GridSampling
from ooc.ops.spatial import IN

PASSES: dict[type[Op], int] = {GridSample: 0, GridSampleDx: 1, GridSampleDgrid: 2}  # codes in kernels/grid_sample.cpp
ABSENT = (np.zeros(1, np.int64), np.ones(1, np.int64))  # the limits along an axis that there is not


def _sampling(op: GridSampling, workspace: Any, threads: int) -> Kernel:
    code, result = native.DTYPE_CODES[op.dtype], op.outputs[0].name
    words = (PASSES[type(op)], tuple(MODES).index(op.mode), PADDINGS.index(op.padding), op.aligned, op.rank)
    room = native.address(workspace) if isinstance(op, GridSampleDx) and workspace is not None else 0
    missing, extent = 3 - op.rank, (1,) * (3 - op.rank) + op.extent

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        read = {o.name: crop(blocks[o.name], o.region(tile)) for o in op.inputs}
        acc = blocks.get(op.state[0].name) if op.state else None
        held = (read["x"] if "x" in read else blocks["dx"]).region[2:]
        results = read["grid"].region[2:]
        limits = [ABSENT] * missing + [op.limits(axis, span) for axis, span in enumerate(results)]
        limits = [tuple(map(np.ascontiguousarray, pair)) for pair in limits]  # kept while their addresses are used
        lines = [(1, 0, 1)] * missing + [(e, s.lo, s.extent) for e, s in zip(extent[missing:], held, strict=True)]
        named = [read.get("x"), read["grid"], read.get("dy"), blocks.get(result), acc]
        data = [0 if b is None else native.address(b.array) for b in named]
        strides = [(0,) * 5 if b is None else lifted(b.array)[1] for b in named]
        channels = lifted(next(b for b in (read.get("dy"), blocks.get("y")) if b is not None).array)[0][1]
        shape = lifted(read["grid"].array)[0]
        native.kernels.grid_sample(
            (*words, not first, last), code, data, strides, (shape[0], channels, *shape[2:]), lines,
            [tuple(map(native.address, pair)) for pair in limits], room, threads,
        )  # fmt: skip

    return kernel


def _planes(op: Op, sizes: Sizes, threads: int) -> Any:
    """A plane of sums for each thread, where the type is too narrow to sum in."""
    assert isinstance(op, GridSampleDx)
    return threads * math.prod(sizes[d] for d in IN[op.rank]) * 4 if ITEM_BYTES[op.dtype] == 2 else 0


MAKERS: dict[type[Op], tuple[Callable[[Any, Any, int], Kernel], Callable[[Op, Sizes, int], Any]]] = {
    GridSample: (_sampling, no_workspace),
    GridSampleDx: (_sampling, _planes),
    GridSampleDgrid: (_sampling, no_workspace),
}
