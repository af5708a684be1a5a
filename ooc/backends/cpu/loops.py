"""Kernels of the CPU backend for everything that is not a convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import Kernel
from ooc.backends.cpu import products, sampling, sums
from ooc.backends.families import Family, no_workspace
from ooc.backends.pieces import in_pieces
from ooc.backends.views import lift_spatial, lifted
from ooc.ir.op import ITEM_BYTES, Block, Op, crop, dtype_name, fit
from ooc.ir.region import Sizes, Tile
from ooc.ops import (
    ACTIVATIONS,
    Accrue,
    ActivationBackward,
    AdamUpdate,
    Binary,
    Concat,
    ConvertIn,
    ConvertOut,
    Embed,
    Function,
    Multiply,
    Permute,
    Pointwise,
    PoolBackward,
    PoolForward,
    Resize,
    RmsPropUpdate,
    Sgd,
    Spread,
    Upsample,
)  # fmt: skip
from ooc.ops.binary import BINARIES
from ooc.ops.function import FUNCTIONS
from ooc.ops.optimizer import RATES
from ooc.ops.pool import KINDS
from ooc.ops.spatial import IN


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
        native.address(y), code[dtype_name(y.dtype)], y_strides, native.address(x), code[dtype_name(x.dtype)], x_strides, shape,
        bias, act, coef, threads,
    )  # fmt: skip


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
    assert isinstance(op, PoolForward)
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


def _spread(array: Any, shape: tuple[int, ...]) -> Any:
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _blend(op: Pointwise, workspace: Any, threads: int) -> Kernel:
    if (op.alpha, op.add, op.of) == (1.0, "", ""):
        return _native_pointwise(op, threads)
    act, code = ACTIVATIONS.index(op.act), native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        y = blocks["y"].array
        x, *rest = (_spread(crop(blocks[o.name], o.region(tile)).array, y.shape) for o in op.inputs[: 1 + bool(op.add)])
        z = rest[0] if rest else x
        values = bias_values(op, tile, blocks) if op.bias else None
        shape, y_strides = lifted(y)
        native.kernels.blend(
            code, native.address(y), y_strides, native.address(x), lifted(x)[1], native.address(z) if rest else 0,
            lifted(z)[1], shape, native.address(values) if values is not None else 0, op.alpha, op.beta, act, op.coef, threads,
        )  # fmt: skip

    return kernel


def _multiply(op: Multiply, workspace: Any, threads: int) -> Kernel:
    act, code = ACTIVATIONS.index(op.act), native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        y = blocks["y"].array
        x, z = (_spread(crop(blocks[o.name], o.region(tile)).array, y.shape) for o in op.inputs[:2])
        values = bias_values(op, tile, blocks) if op.bias else None
        shape, y_strides = lifted(y)
        native.kernels.multiply(
            code, native.address(y), y_strides, native.address(x), lifted(x)[1], native.address(z), lifted(z)[1], shape,
            native.address(values) if values is not None else 0, act, op.coef, threads,
        )  # fmt: skip

    return kernel


# The kernel of each pass over parameters, the operands in its slots, results first, and that of its numbers.
UPDATES: dict[type[Op], tuple[str, str, str]] = {
    Sgd: ("sgd", "quhpgv", "rates"),
    AdamUpdate: ("adam", "qrshpgmv", "rates"),
    RmsPropUpdate: ("rmsprop", "qsuchpgvba", "rates"),
    Accrue: ("accrue", "rxa", "shares"),
}


def _update(op: Op, workspace: Any, threads: int) -> Kernel:
    name, slots, numbers = UPDATES[type(op)]
    operands = {o.name: o for o in op.operands}
    types = [native.DTYPE_CODES[operands[slot].dtype if slot in operands else op.dtype] for slot in slots]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        parts = [crop(blocks[n], operands[n].region(tile)).array if n in operands else None for n in slots]
        shape, unmoved = lifted(parts[0])[0], (0,) * 5
        data = [0 if a is None else native.address(a) for a in parts]
        strides = [unmoved if a is None else lifted(a)[1] for a in parts]
        rates = [*blocks[numbers].array.tolist(), *[0.0] * RATES][:RATES]
        getattr(native.kernels, name)(types, data, strides, shape, rates, threads)

    return kernel


def _activation_backward(op: ActivationBackward, workspace: Any, threads: int) -> Kernel:
    act, code = ACTIVATIONS.index(op.act), native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        y, dy = (crop(blocks[o.name], o.region(tile)).array for o in op.inputs)
        dx = blocks["dx"].array
        shape, dx_strides = lifted(dx)
        native.kernels.act_backward(
            code, native.address(dx), dx_strides, native.address(y), lifted(y)[1], native.address(dy), lifted(dy)[1],
            shape, act, op.coef, threads,
        )  # fmt: skip

    return kernel


def _convert_in(op: ConvertIn, workspace: Any, threads: int) -> Kernel:
    code, stored = native.DTYPE_CODES[op.dtype], native.INTEGER_CODES[op.store]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        x, *each = (crop(blocks[o.name], o.region(tile)).array for o in op.inputs)
        y = blocks["y"].array
        shape, y_strides = lifted(y)
        values = [np.ascontiguousarray(v) for v in each]  # kept while their addresses are used
        scales, offsets = (native.address(v) for v in values) if values else (0, 0)
        native.kernels.convert_in(
            code, native.address(y), y_strides, stored, native.address(x), lifted(x)[1], shape, scales, offsets, op.scale,
            op.offset, threads,
        )  # fmt: skip

    return kernel


def _convert_out(op: ConvertOut, workspace: Any, threads: int) -> Kernel:
    code, stored = native.DTYPE_CODES[op.dtype], native.INTEGER_CODES[op.store]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        x, y = crop(blocks["x"], op.inputs[0].region(tile)).array, blocks["y"].array
        shape, y_strides = lifted(y)
        native.kernels.convert_out(stored, native.address(y), y_strides, code, native.address(x), lifted(x)[1], shape, threads)

    return kernel


def _copies(op: Concat | Permute | Embed | Spread, workspace: Any, threads: int) -> Kernel:
    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        for target, source in op.copies(blocks):
            pointwise(target, source, threads)

    return kernel


def _function(op: Function, workspace: Any, threads: int) -> Kernel:
    of, code = tuple(FUNCTIONS).index(op.how), native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        x, y = crop(blocks["x"], op.inputs[0].region(tile)).array, blocks["y"].array
        shape, y_strides = lifted(y)
        native.kernels.function(
            of, code, native.address(y), y_strides, native.address(x), lifted(x)[1], shape, op.a, op.b, threads
        )

    return kernel


def _binary(op: Binary, workspace: Any, threads: int) -> Kernel:
    of, code = tuple(BINARIES).index(op.how), native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        y = blocks["y"].array
        x, z = (_spread(crop(blocks[o.name], o.region(tile)).array, y.shape) for o in op.inputs)
        shape, y_strides = lifted(y)
        native.kernels.binary(
            of,
            code,
            native.address(y),
            y_strides,
            native.address(x),
            lifted(x)[1],
            native.address(z),
            lifted(z)[1],
            shape,
            threads,
        )

    return kernel


NOWHERE = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1))  # the sources along an axis that there is not


def _resize(op: Resize | Upsample, workspace: Any, threads: int) -> Kernel:
    code = native.DTYPE_CODES[op.dtype]

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        part, region = crop(blocks["x"], op.inputs[0].region(tile)), op.outputs[0].region(tile)
        tables = [NOWHERE] * (3 - op.rank)
        for axis, (held, span) in enumerate(zip(part.region[2:], region[2:], strict=True)):
            one, two, share = (np.ascontiguousarray(v[span.lo : span.hi]) for v in op.table(axis))
            tables.append((one - held.lo, two - held.lo, share))
        at, mixed = [tuple(map(native.address, t)) for t in tables], [bool(t[2].any()) for t in tables]
        shape, y_strides = lifted(blocks["y"].array)
        native.kernels.resize(
            code, native.address(blocks["y"].array), y_strides, shape, native.address(part.array), lifted(part.array)[1], at,
            mixed, threads,
        )  # fmt: skip

    return kernel


def _pool_backward(op: PoolBackward, workspace: Any, threads: int) -> Kernel:
    kind, code = KINDS.index(op.how), native.DTYPE_CODES[op.dtype]
    window, stride, extent = (lift_spatial(v, 1) for v in (op.window, op.stride, op.extent))
    pad = lift_spatial(tuple(before for before, _ in op.pad), 0)
    room = (native.address(workspace), workspace.nbytes)

    def located(block: Block) -> tuple[Any, ...]:
        shape, strides = lifted(block.array)
        return native.address(block.array), strides, lift_spatial(tuple(s.lo for s in block.region[2:]), 0), shape

    def kernel(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        inputs = {o.name: located(crop(blocks[o.name], o.region(tile))) for o in op.inputs}
        dy = inputs["dy"]
        x = inputs.get("x", (0, *dy[1:]))
        native.kernels.pool_backward(kind, code, *located(blocks["dx"]), *x, *dy, extent, window, stride, pad, *room, threads)

    return kernel


def _pool_backward_bytes(op: Op, sizes: Sizes, threads: int) -> Any:
    """A plane of sums in f32 per thread, where windows overlap and the type is too narrow to sum in."""
    assert isinstance(op, PoolBackward)
    if ITEM_BYTES[op.dtype] > 2 or all(w <= s for w, s in zip(op.window, op.stride, strict=True)):
        return 0
    return threads * math.prod(sizes[d] for d in IN[op.rank]) * 4


Maker = Callable[[Any, Any, int], Kernel]
# For each op with loops of our own: how to prepare them, and the workspace that they need.
MAKERS: dict[type[Op], tuple[Maker, Callable[[Op, Sizes, int], Any]]] = {
    Pointwise: (_blend, no_workspace),
    Multiply: (_multiply, no_workspace),
    Binary: (_binary, no_workspace),
    **dict.fromkeys(UPDATES, (_update, no_workspace)),
    ActivationBackward: (_activation_backward, no_workspace),
    ConvertIn: (_convert_in, no_workspace),
    ConvertOut: (_convert_out, no_workspace),
    Function: (_function, no_workspace),
    Concat: (_copies, no_workspace),
    Permute: (_copies, no_workspace),
    Resize: (_resize, no_workspace),
    Upsample: (_resize, no_workspace),
    Embed: (_copies, no_workspace),
    Spread: (_copies, no_workspace),
    PoolForward: (lambda op, workspace, threads: _native_pool(op, threads), no_workspace),
    PoolBackward: (_pool_backward, _pool_backward_bytes),
    **sums.MAKERS,
    **products.MAKERS,
    **sampling.MAKERS,
}


def _prepare(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
    """Our own loops for an op, or its NumPy meaning in pieces that fit the caches."""
    maker = MAKERS.get(type(op))
    return maker[0](op, workspace, threads) if maker and not sums.is_large(op) else in_pieces(op)


def _workspace(op: Op, sizes: Sizes, threads: int) -> Any:
    maker = MAKERS.get(type(op))
    return maker[1](op, sizes, threads) if maker else 0


SIMPLE = Family(why_not_native, _workspace, _prepare)
