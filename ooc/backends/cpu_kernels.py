"""The kernel families of the CPU backend, best first; the last always answers.

`onednn`    f32 convolution through oneDNN (opened at run time), half types through f32
`native`    our own kernels, packed and blocked
`plain`     our own kernels as simple loops that need no workspace: budgets of a few KiB
`reference` NumPy, when no compiler was found
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooc import native
from ooc.backends.base import Kernel, padded
from ooc.backends.blocks import Pieces, dense, lift, lift_spatial, lifted
from ooc.backends.onednn import onednn_reason, open_onednn
from ooc.op import ITEM_BYTES, Block, Op, Operand, crop, fit
from ooc.ops import ACTIVATIONS, ConvFprop, Pointwise, Pool
from ooc.ops.pool import KINDS
from ooc.region import Sizes, Tile, extents

SCRATCH = 656 << 10  # most that one thread of the native kernel asks for

open_onednn()  # now, not in the first run: its pages would count as that run's memory


class Family(NamedTuple):
    """One way to compute single ops: whether it can, the workspace it needs, and how to prepare it."""

    why_not: Callable[[Op], str | None]
    workspace: Callable[[Op, Sizes, int], Any]
    prepare: Callable[[Op, Sizes, Any, int], Kernel]


class ConvCall:
    """What every convolution kernel of this backend shares: geometry in, pointers in, and the epilogue's timing."""

    def __init__(self, op: ConvFprop) -> None:
        self.op = op
        self.acc = op.state[0].name
        self.stride, self.dilation = lift_spatial(op.stride, 1), lift_spatial(op.dilation, 1)
        self.act = ACTIVATIONS.index(op.act)
        self.known: dict[Any, Any] = {}

    def arguments(self, tile: Tile, blocks: Mapping[str, Block]) -> tuple[Any, Any, Any, tuple[int, ...], int]:
        """x cut to what the tile needs, w, the target of the sum, the local pad and the groups of the tile."""
        x, pad = fit(blocks["x"], self.op.inputs[0].reach(tile))
        target = blocks.get(self.acc) or blocks["y"]
        groups = tile["g"].extent if "g" in tile else 1
        return x, blocks["w"].array, target.array, lift_spatial(pad[2:], 0), groups


def _bias(blocks: Mapping[str, Block]) -> Any:
    """The bias as contiguous values (one per channel, so a copy is nothing); keep it alive while its address is used."""
    return np.ascontiguousarray(blocks["b"].array)


class NativeConv(ConvCall):
    """Our direct kernel (kernels/direct.cpp). Reuses packed weights while their block is unchanged."""

    def __init__(self, op: ConvFprop, workspace: Any, threads: int) -> None:
        super().__init__(op)
        self.workspace, self.threads = workspace, threads
        self.at, self.nbytes = native.address(workspace), workspace.nbytes
        self.packed: Any = None

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        op = self.op
        x, w, y, pad, groups = self.arguments(tile, blocks)
        key = (x.shape, x.strides, w.shape, w.strides, y.shape, y.strides, pad)
        geometry = self.known.get(key)
        if geometry is None:
            geometry = self.known[key] = (*lifted(x), *lifted(w), *lifted(y), self._packs(x, w, y, groups))
        x_shape, x_strides, w_shape, w_strides, y_shape, y_strides, packs = geometry
        stamp = (blocks["w"].stamp, w_shape, groups)
        values = _bias(blocks) if op.bias and last else None
        bias = native.address(values) if values is not None else 0
        native.kernels.direct_conv(
            "fprop", native.DTYPE_CODES[op.dtype], native.address(x), x_shape, x_strides, native.address(w), w_shape,
            w_strides, native.address(y), y_shape, y_strides, self.stride, self.dilation, pad, groups, bias,
            self.act if last else 0, op.coef, not first, self.at, self.nbytes,
            packs and bool(stamp[0]) and stamp == self.packed, self.threads,
        )  # fmt: skip
        if packs:
            self.packed = stamp

    def _packs(self, x: Any, w: Any, y: Any, groups: int) -> bool:
        """Whether the kernel packs weights for this geometry (small tiles take simple loops)."""
        assert native.kernels is not None
        packed, scratch = native.kernels.direct_workspace(
            "fprop", native.DTYPE_CODES[self.op.dtype], lifted(x)[0], lifted(w)[0], lifted(y)[0],
            self.stride, self.dilation, groups, self.threads,
        )  # fmt: skip
        return bool(packed > 0 and packed + scratch <= self.nbytes)


class OneDnnConv(ConvCall):
    """oneDNN's kernel for a tile, or ours where oneDNN refuses that tile's geometry."""

    def __init__(self, op: ConvFprop, workspace: Any, threads: int) -> None:
        super().__init__(op)
        self.workspace, self.threads = workspace, threads
        self.at, self.nbytes = native.address(workspace), workspace.nbytes
        self.fallback = NativeConv(op, workspace, threads)
        self.packed: Any = None
        self.reordered: Any = None

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        op = self.op
        x, w, y, pad, groups = self.arguments(tile, blocks)
        key = (x.shape, x.strides, w.shape, w.strides, y.shape, y.strides, pad, groups, first, last)
        conv = self.known.get(key)
        if conv is None:
            conv = self.known[key] = self._prepare(x, w, y, pad, groups, first, last)
        if conv is False:
            self.packed = self.reordered = None
            self.fallback(tile, blocks, first, last)
            return
        values = _bias(blocks) if op.bias and last else None
        bias = native.address(values) if values is not None else 0
        stamp = (blocks["w"].stamp, conv.weights_key)
        reuse = bool(stamp[0] and stamp[1]) and stamp == self.packed
        # The conv object itself is part of the mark: another one lays its workspace out differently.
        mark = (blocks["x"].stamp, conv, x.shape, pad)
        reuse_x = bool(mark[0]) and mark == self.reordered
        conv.run(native.address(x), native.address(w), bias, native.address(y), self.at, reuse, reuse_x)
        self.packed, self.reordered, self.fallback.packed = stamp, mark, None

    def _prepare(self, x: Any, w: Any, y: Any, pad: tuple[int, ...], groups: int, first: bool, last: bool) -> Any:
        conv = _conv_of(
            *lifted(x), *lifted(w), *lifted(y), self.stride, self.dilation, pad, groups,
            self.op.bias and last, 0, 0.0, not first, self.threads,
        )  # fmt: skip
        return conv if conv is not None and conv.workspace_bytes <= self.nbytes else False


_CONVS: OrderedDict[Any, Any] = OrderedDict()
_CONVS_LOCK = threading.Lock()


def _conv_of(*arguments: Any) -> Any | None:
    """A oneDNN convolution, made once per geometry and thread (making one costs about a millisecond)."""
    key = (threading.get_ident(), arguments)
    with _CONVS_LOCK:
        if key in _CONVS:
            _CONVS.move_to_end(key)
            return _CONVS[key]
    library = open_onednn()
    try:
        conv = library.conv("fprop", *arguments) if library else None
        if conv is not None and conv.impl == "x64:gemm:jit":
            conv = None  # allocates its own buffers in every run, outside any budget
    except (RuntimeError, ValueError):
        conv = None
    with _CONVS_LOCK:
        _CONVS[key] = conv
        while len(_CONVS) > 512:
            _CONVS.popitem(last=False)
    return conv


class HalfConv:
    """Half types: operands are widened to f32 in the workspace, summed in f32, and rounded once at the end."""

    def __init__(self, op: ConvFprop, family: Family, sizes: Sizes, workspace: Any, threads: int) -> None:
        self.op, self.wide, self.threads = op, replace(op, dtype="f32"), threads
        pool = Pieces(workspace)
        self.inner = family.prepare(
            self.wide, sizes, pool.take(int(padded(family.workspace(self.wide, sizes, threads)))), threads
        )
        self.rooms = {o.name: pool.take(int(padded(o.block_bytes(sizes)))) for o in _widened(self.wide)}
        self.stamps: dict[str, Any] = {}

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        y = self.wide.outputs[0]
        region = y.region(tile)
        x = crop(blocks["x"], self.wide.inputs[0].region(tile))
        given = {"x": self._widen("x", x), "w": self._widen("w", blocks["w"])}
        if "b" in blocks:
            given["b"] = blocks["b"]
        given["y"] = blocks.get("acc") or Block(self._array(y, extents(region)), region)
        self.inner(tile, given, first, last)
        if last:
            pointwise(blocks["y"].array, given["y"].array, self.threads)

    def _widen(self, name: str, block: Block) -> Block:
        operand = next(o for o in self.wide.inputs if o.name == name)
        wide = self._array(operand, block.array.shape)
        key = (block.stamp, block.region)
        if not block.stamp or self.stamps.get(name) != key:
            pointwise(wide, block.array, self.threads)
        self.stamps[name] = key
        return Block(wide, block.region, block.stamp)

    def _array(self, operand: Operand, shape: tuple[int, ...]) -> Any:
        return dense(self.rooms[operand.name], 0, shape, np.dtype(np.float32), operand.memory_order)


def _widened(op: ConvFprop) -> tuple[Operand, ...]:
    """The operands of a half-precision convolution that exist in f32 while a tile is computed."""
    return (*op.inputs[:2], op.outputs[0])


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
        values = _bias(blocks) if op.bias else None
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


def _no_workspace(op: Op, sizes: Sizes, threads: int) -> Any:
    return 0


def _conv_family(single: Family) -> Family:
    """A family of f32 (and perhaps f64) convolution kernels, extended to half types by widening."""

    def why_not(op: Op) -> str | None:
        return single.why_not(replace(op, dtype="f32") if isinstance(op, ConvFprop) and ITEM_BYTES[op.dtype] == 2 else op)

    def workspace(op: Op, sizes: Sizes, threads: int) -> Any:
        assert isinstance(op, ConvFprop)
        if ITEM_BYTES[op.dtype] != 2:
            return single.workspace(op, sizes, threads)
        wide = replace(op, dtype="f32")
        return padded(single.workspace(wide, sizes, threads)) + sum(padded(o.block_bytes(sizes)) for o in _widened(wide))

    def prepare(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
        assert isinstance(op, ConvFprop)
        if ITEM_BYTES[op.dtype] != 2:
            return single.prepare(op, sizes, workspace, threads)
        return HalfConv(op, single, sizes, workspace, threads)

    return Family(why_not, workspace, prepare)


# ---- the list: first that serves an op wins


def _why_not_onednn(op: Op) -> str | None:
    if not isinstance(op, ConvFprop):
        return f"onednn: serves convolutions, not {op.kind}"
    if op.dtype != "f32":
        return f"onednn: computes f32, not {op.dtype}"
    if op.act != "identity":
        # A pass of our own over its output was measured to cost more than oneDNN gains over the native kernel.
        return f"onednn: its {op.act} turns NaN into a number"
    return f"onednn: {onednn_reason()}" if onednn_reason() else None


def _onednn_bytes(op: Op, sizes: Sizes, threads: int) -> Any:
    """Blocked copies of w, x and y, channels rounded up to 16, and a scratchpad."""
    blocked: Any = 64 << 10
    for operand in op.operands[:2] + op.outputs:
        plain = operand.count(sizes)
        channels = operand.axes[1].extent(sizes)
        blocked = blocked + padded(plain // channels * (-(-channels // 16) * 16) * 4)
    return blocked


def _why_not_native(op: Op) -> str | None:
    return native.reason or None


def _native_bytes(op: Op, sizes: Sizes, threads: int) -> Any:
    """Packed weights and the tiles of every thread: asked of the kernel for one size, bounded for many."""
    assert isinstance(op, ConvFprop) and native.kernels is not None
    if any(hasattr(v, "shape") for v in sizes.values()):
        k, taps, item = sizes["k"], math.prod(op.taps), ITEM_BYTES[op.dtype]
        packed = (k + 16) * sizes["c"] * taps * item * sizes.get("g", 1)
        tiles = threads * (op.inputs[0].count(sizes) * taps + op.outputs[0].count(sizes)) * item
        return packed + np.minimum(tiles, threads * SCRATCH) + 4096
    x, w, y = (_extents_of(o, sizes) for o in (*op.inputs[:2], op.outputs[0]))
    groups = sizes.get("g", 1)
    need = native.kernels.direct_workspace(
        "fprop", native.DTYPE_CODES[op.dtype], x, w, y, lift_spatial(op.stride, 1), lift_spatial(op.dilation, 1), groups, threads
    )
    return sum(need)


def _extents_of(operand: Operand, sizes: Sizes) -> tuple[int, ...]:
    """The largest block of an operand, as (n, channels, d, h, w)."""
    shape = tuple(int(min(a.extent(sizes), s)) for a, s in zip(operand.axes, operand.shape, strict=True))
    return lift(shape, len(shape) - 2, 1)


def _as_conv(make: Callable[[ConvFprop, Any, int], Kernel]) -> Callable[[Op, Sizes, Any, int], Kernel]:
    def prepare(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
        assert isinstance(op, ConvFprop)
        return make(op, workspace, threads)

    return prepare


def _simple(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
    return _native_pool(op, threads) if isinstance(op, Pool) else _native_pointwise(op, threads)


def _why_not_reference(op: Op) -> str | None:
    return "reference: the compiled kernels serve this; NumPy's temporaries are outside any budget" if native.kernels else None


def _reference(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
    return op.reference


def _by_kind(conv: Family) -> Family:
    """Convolutions by a family, pooling and pointwise operations by our own loops."""

    def pick(op: Op) -> Family:
        return conv if isinstance(op, ConvFprop) else Family(_why_not_native, _no_workspace, _simple)

    return Family(
        lambda op: pick(op).why_not(op),
        lambda op, sizes, threads: pick(op).workspace(op, sizes, threads),
        lambda op, sizes, workspace, threads: pick(op).prepare(op, sizes, workspace, threads),
    )


FAMILIES: dict[str, Family] = {
    "onednn": _conv_family(Family(_why_not_onednn, _onednn_bytes, _as_conv(OneDnnConv))),
    "native": _by_kind(_conv_family(Family(_why_not_native, _native_bytes, _as_conv(NativeConv)))),
    "plain": _by_kind(_conv_family(Family(_why_not_native, _no_workspace, _as_conv(NativeConv)))),
    "reference": Family(_why_not_reference, _no_workspace, _reference),
}
