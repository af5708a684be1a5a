"""Kernels of the CPU backend for everything that is not a convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ooc import native
from ooc.backends.base import Kernel
from ooc.backends.blocks import lift_spatial, lifted
from ooc.backends.pieces import in_pieces
from ooc.op import Block, Op, crop, fit
from ooc.ops import ACTIVATIONS, Pointwise, Pool
from ooc.ops.pool import KINDS
from ooc.region import Sizes, Tile


class Family(NamedTuple):
    """One way to compute single ops: whether it can, the workspace it needs, and how to prepare it."""

    why_not: Callable[[Op], str | None]
    workspace: Callable[[Op, Sizes, int], Any]
    prepare: Callable[[Op, Sizes, Any, int], Kernel]


def bias_values(op: Op, tile: Tile, blocks: Mapping[str, Block]) -> Any:
    """A tile's bias, the last input, as contiguous values (one per channel, so a copy is nothing); keep it alive while its
    address is used."""
    return np.ascontiguousarray(crop(blocks["b"], op.inputs[-1].region(tile)).array)


def pointwise(y: Any, x: Any, threads: int, bias: int = 0, act: int = 0, coef: float = 0.0) -> None:
    """y = act(x + bias), converting between dtypes."""
    assert native.kernels is not None
    shape, x_strides = lifted(x)
    _, y_strides = lifted(y)
    code = native.DTYPE_CODES
    native.kernels.pointwise(
        native.address(y), code[_name(y)], y_strides, native.address(x), code[_name(x)], x_strides, shape,
        bias, act, coef, threads,
    )  # fmt: skip


def _name(array: Any) -> str:
    return {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}[array.dtype.name]


def _native_pointwise(op: Op, threads: int) -> Kernel:
    assert isinstance(op, Pointwise)
    act = ACTIVATIONS.index(op.act)

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        x = crop(blocks["x"], op.inputs[0].region(tile)).array
        values = bias_values(op, tile, blocks) if op.bias else None
        bias = native.address(values) if values is not None else 0
        pointwise(blocks["y"].array, x, threads, bias, act, op.coef)

    return kernel


def _native_pool(op: Op, threads: int) -> Kernel:
    assert isinstance(op, Pool)
    how, code = KINDS.index(op.how), native.DTYPE_CODES[op.dtype]
    window, stride = lift_spatial(op.window, 1), lift_spatial(op.stride, 1)

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        x, pad = fit(blocks["x"], op.inputs[0].reach(tile))
        y = blocks["y"].array
        native.kernels.pool_fprop(
            how, code, native.address(x), *lifted(x), native.address(y), *lifted(y), window, stride,
            lift_spatial(pad[2:], 0), threads,
        )  # fmt: skip

    return kernel


def why_not_native(op: Op) -> str | None:
    return native.reason or None


def no_workspace(op: Op, sizes: Sizes, threads: int) -> Any:
    return 0


def _is_plain(op: Op) -> bool:
    return isinstance(op, Pointwise) and (op.alpha, op.add, op.of) == (1.0, "", "")


MAKERS: dict[type[Op], Callable[[Any, int], Kernel]] = {Pool: _native_pool}


def prepare_simple(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
    """Our own loops for an op, or its NumPy meaning in pieces that fit the caches."""
    if _is_plain(op):
        return _native_pointwise(op, threads)
    make = MAKERS.get(type(op))
    return make(op, threads) if make else in_pieces(op)


SIMPLE = Family(why_not_native, no_workspace, prepare_simple)
