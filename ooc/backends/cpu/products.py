"""Kernels of the CPU backend for products of matrices and attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import Kernel
from ooc.backends.families import no_workspace
from ooc.ir.op import Block, Op, crop
from ooc.ir.region import Sizes, Tile
from ooc.ops import Attention, MatMul
from ooc.ops.attention import PARTS
from ooc.ops.spatial import OUT

BIASES = ("bias", "mask")  # what is added to scores, as kernels/products/attention.cpp takes it


def _matmul(op: MatMul, workspace: Any, threads: int) -> Kernel:
    code = native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        (a, b), y = op.factors(tile, blocks), blocks["y"].array if last else None
        block = blocks.get(op.state[0].name)
        acc = block.array if block is not None else None
        shape = (*a.shape[:3], b.shape[3], a.shape[3])
        native.kernels.matmul(
            code,
            *_located(y),
            *_located(acc),
            *_located(a),
            *_located(b.swapaxes(2, 3)),
            shape,
            op.alpha,
            not first,
            last,
            op.run,
            tile["c"].lo,
            threads,
        )

    return kernel


def _attention(op: Attention, workspace: Any, threads: int) -> Kernel:
    of, code = tuple(PARTS).index(op.how), native.DTYPE_CODES[op.dtype]
    state = op.state[-1].name if op.state else ""

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        read = {o.name: crop(blocks[o.name], o.region(tile)).array for o in op.inputs}
        heads = tile["k"].extent
        apart = tuple(tile[d].extent if d in tile else 1 for d in ("n", "g", "k", *OUT[2]))
        steps = dict.fromkeys(BIASES, 0)
        for name in op.biases:
            lifted = np.broadcast_to(op.by_groups(name, read[name], tile), apart)
            steps[name], read[name] = lifted.strides[1] // lifted.itemsize, lifted[:, 0]
        if op.how == "forward":
            read["sums"] = blocks["sums"].array
        acc, result = (blocks[name].array if name in blocks else None for name in (state, op.outputs[0].name))
        read.setdefault("q", read.get("y"))  # of the two that dots are products of
        arrays = [*(read.get(name) for name in ("q", "k", "v", *BIASES, "sums", "dots", "dy")), result, acc]
        data, strides = zip(*map(_located, arrays), strict=True)
        sizes = (apart[0], apart[1] * apart[2], *apart[3:], op.c)
        grouped = (heads, *steps.values())
        native.kernels.attention(of, code, data, strides, grouped, sizes, op.depth, op.scale, not first, last, threads)

    return kernel


def _located(array: Any) -> tuple[int, tuple[int, ...]]:
    """Address and strides in elements of an array of four axes; zeros for none."""
    if array is None:
        return 0, (0, 0, 0, 0)
    return native.address(array), tuple(s // array.itemsize for s in array.strides)


MAKERS: dict[type[Op], tuple[Callable[[Any, Any, int], Kernel], Callable[[Op, Sizes, int], Any]]] = {
    MatMul: (_matmul, no_workspace),
    Attention: (_attention, no_workspace),
}
