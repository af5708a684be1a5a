"""Kernels of the CPU backend that take sums over a batch, or use them: bias gradients, batch normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import Kernel
from ooc.backends.views import dense, lift, lifted
from ooc.ir.op import Block, Op, crop
from ooc.ir.region import Sizes, Tile, extents
from ooc.ops import ACTIVATIONS, BnApply, BnMoments, BnPull, BnSums, Reduce
from ooc.ops.statistics import Normal


def is_large(op: Op) -> bool:
    """Whether an op's statistics may be as large as a tile: then NumPy takes them piece by piece."""
    return isinstance(op, Normal) and op.per != "channel"


def state_bytes(op: Op, sizes: Sizes, threads: int) -> Any:
    """The partial sums, which have a place of their own only when the reduction is split."""
    return op.state[0].block_bytes(sizes)


def _sums(op: Op, tile: Tile, blocks: Mapping[str, Block], workspace: Any) -> Any:
    if "acc" in blocks:
        return blocks["acc"].array
    state = op.state[0]
    return dense(workspace, 0, extents(state.region(tile)), np.dtype(np.float64), state.memory_order)


def _over(sums: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of sums seen in the shape of what is summed: 0 along the axes that are."""
    steps = tuple([0 if e == 1 < s else st // sums.itemsize for e, s, st in zip(sums.shape, shape, sums.strides, strict=True)])
    return lift(steps, len(shape) - 2, 0)


def _given(op: Op, tile: Tile, blocks: Mapping[str, Block]) -> dict[str, Any]:
    return {o.name: crop(blocks[o.name], o.region(tile)).array for o in op.inputs}


def _statistics(arrays: Mapping[str, Any], eps: float) -> dict[str, Any]:
    """Per-channel values, each as a contiguous vector."""
    vectors = {n: np.ascontiguousarray(a).reshape(-1) for n, a in arrays.items() if n not in ("x", "dy")}
    return vectors | {"rstd": 1 / np.sqrt(vectors["var"] + eps)}


PER_CHANNEL = (0, 1, 0, 0, 0)


def _reduce(op: Reduce, workspace: Any, threads: int) -> Kernel:
    code = native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        x, acc = _given(op, tile, blocks)["x"], _sums(op, tile, blocks, workspace)
        shape, strides = lifted(x)
        native.kernels.reduce_sum(
            code, native.address(acc), _over(acc, x.shape), native.address(x), strides, shape, op.alpha, not first, threads
        )
        if last:
            y = blocks["y"].array
            y[...] = acc.reshape(y.shape)

    return kernel


def _moments(op: BnMoments, workspace: Any, threads: int) -> Kernel:
    code = native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        x, acc = _given(op, tile, blocks)["x"], _sums(op, tile, blocks, workspace)
        shape, strides = lifted(x)
        native.kernels.bn_moments(
            code, native.address(acc), acc.strides[0] // 8, _over(acc[:1], x.shape), native.address(x), strides, shape,
            not first, threads,
        )  # fmt: skip
        if last:
            blocks["mean"].array[...], blocks["var"].array[...] = acc[1:2], acc[2:3] / op.count

    return kernel


def _backward_sums(op: BnSums, workspace: Any, threads: int) -> Kernel:
    code = native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        arrays, acc = _given(op, tile, blocks), _sums(op, tile, blocks, workspace)
        x, dy, s = arrays["x"], arrays["dy"], _statistics(arrays, op.eps)
        shape, strides = lifted(x)
        native.kernels.bn_backward_sums(
            code, native.address(acc), acc.strides[0] // 8, _over(acc[:1], x.shape), native.address(x), strides,
            native.address(dy), lifted(dy)[1], shape, native.address(s["mean"]), native.address(s["rstd"]), PER_CHANNEL,
            not first, threads,
        )  # fmt: skip
        if last:
            blocks["dscale"].array[...], blocks["db"].array[...] = acc[:1], acc[1:2]

    return kernel


def _apply(op: BnApply, workspace: Any, threads: int) -> Kernel:
    code, act = native.DTYPE_CODES[op.dtype], ACTIVATIONS.index(op.act)

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        arrays, y = _given(op, tile, blocks), blocks["y"].array
        x, s = arrays["x"], _statistics(arrays, op.eps)
        shape, strides = lifted(x)
        vectors = (native.address(s[name]) for name in ("mean", "rstd", "scale", "b"))
        native.kernels.bn_apply(
            code, native.address(y), lifted(y)[1], native.address(x), strides, shape, *vectors, PER_CHANNEL, act, op.coef, threads
        )

    return kernel


def _pull(op: BnPull, workspace: Any, threads: int) -> Kernel:
    code = native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        arrays, dx = _given(op, tile, blocks), blocks["dx"].array
        x, dy, s = arrays["x"], arrays["dy"], _statistics(arrays, op.eps)
        shape, strides = lifted(x)
        vectors = (native.address(s[name]) for name in ("mean", "rstd", "scale", "dscale", "db"))
        native.kernels.bn_backward_apply(
            code, native.address(dx), lifted(dx)[1], native.address(x), strides, native.address(dy), lifted(dy)[1], shape,
            *vectors, PER_CHANNEL, op.count, threads,
        )  # fmt: skip

    return kernel


def _none(op: Op, sizes: Sizes, threads: int) -> Any:
    return 0


MAKERS: dict[type[Op], tuple[Callable[[Any, Any, int], Kernel], Callable[[Op, Sizes, int], Any]]] = {
    Reduce: (_reduce, state_bytes),
    BnMoments: (_moments, state_bytes),
    BnSums: (_backward_sums, state_bytes),
    BnApply: (_apply, _none),
    BnPull: (_pull, _none),
}
