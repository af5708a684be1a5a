"""Convolution kernels of the CPU backend: oneDNN's and our own, for all passes and types."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import Kernel
from ooc.backends.conv_call import ROLES, ConvCall, HalfConv, half_bytes
from ooc.backends.cpu.loops import bias_values, pointwise, why_not_native
from ooc.backends.cpu.onednn import onednn_reason, open_onednn
from ooc.backends.families import Family, no_workspace
from ooc.backends.views import lift, lift_spatial, lifted
from ooc.cache import Cache
from ooc.ir.op import ITEM_BYTES, Block, Op, Operand, aligned
from ooc.ir.region import Sizes, Tile
from ooc.ops import Convolution

SCRATCH = 656 << 10  # most that one thread of the native kernel asks for
PART, MOST_PART, TILES = 512 << 10, 2 << 20, 240 << 10  # and of its wgrad, for small tensors and large ones, of which tiles
LEAN_PART = 128 << 10  # of its wgrad where room is dear
LEAST_PACKED = 512 << 10  # bytes of filters that are worth packing piece by piece
LEAST_OWN, OWN_WEIGHTS = 24 << 10, 256 << 10  # of them that a thread packs at a time, of small tiles and large ones
PAIRS = 144  # of channel and tap for which a thread packs weights at once
LEAST_TURNED = 16  # channels of a group, in and out
LEAST_SQUARES, MOST_SQUARES = 512 << 10, 2 << 20  # room of a thread of Winograd's, for small tiles and large ones
PIECE = 2 << 20  # of x and y of one of oneDNN's pieces, where rows let it be so small
MET = {"fprop": (1, 2), "dgrad": (1, 0), "wgrad": (2, 1)}  # what padding meets and what comes out, by their places in ROLES
Arguments = tuple[list[Any], tuple[int, ...], int, int]  # of ConvCall.arguments
Call = tuple[Tile, Mapping[str, Block], bool, bool]  # of a kernel: tile, blocks, first, last


class CpuConv(ConvCall):
    """What both kernels share: padding takes no part, not even where it meets taps that are infinite or NaN.

    With a workspace, kernels copy padding as zeros and multiply it; then 0 * NaN is NaN, while the plain loops, oneDNN's
    other kernels and other tilings skip it. So where what padding meets (w; dy in wgrad) is not finite, the plain loops
    compute the tile.
    """

    def __init__(self, op: Convolution, workspace: Any, threads: int) -> None:
        super().__init__(op)
        self.workspace, self.threads = workspace, threads
        self.at, self.nbytes = native.address(workspace), workspace.nbytes
        self.finite = 0  # the stamp of taps that were found finite

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        args = self.arguments(tile, blocks)
        if not (self.padded and self.nbytes):
            self.compute(args, tile, blocks, first, last)
            return
        arrays, _, _, stamp = args
        at_met, at_result = MET[self.direction]
        met, result = arrays[at_met], arrays[at_result]
        # NaN shows in the result as well. That is looked at where it is smaller, and holds nothing that is lost by then.
        if first and result.size < met.size:
            self.compute(args, tile, blocks, first, last)
            skip = self._special(result) == 2 and self._special(met) > 0
        else:
            skip = not self._all_finite(met, stamp if self.direction != "wgrad" else 0)
            if not skip:
                self.compute(args, tile, blocks, first, last)
        if skip:
            ChainedConv(self.op, self.workspace[:0], self.threads).compute(args, tile, blocks, first, last)

    def compute(self, args: Arguments, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        """The tile, by this kernel."""
        raise NotImplementedError

    def _all_finite(self, met: Any, stamp: int) -> bool:
        """Looked up where taps are known by their stamp."""
        if stamp and stamp == self.finite:
            return True
        fine = not self._special(met)
        self.finite = stamp if fine else 0
        return fine

    def _special(self, array: Any) -> int:
        """0 where all are finite, 2 where there is NaN."""
        assert native.kernels is not None
        key = (array.shape, array.strides)
        walk = self.known.get(key)
        if walk is None:
            walk = self.known[key] = _in_a_line(array) or lifted(array)
        code = native.DTYPE_CODES[self.op.dtype]
        worst: int = native.kernels.special(code, native.address(array), *walk, self.threads)
        return worst


def _in_a_line(array: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and strides, in elements, that walk over an array without gaps from its start to its end."""
    lo, hi = native.bounds(array)
    dense = hi - lo == array.nbytes and min(array.strides) > 0
    return ((1, 1, 1, 1, array.size), (0, 0, 0, 0, 1)) if dense else None


class NativeConv(CpuConv):
    """Our direct kernel (kernels/direct). Reuses packed weights while their block is unchanged.

    chained: whether sums are taken in one order, whatever the tile, where there is no workspace.
    """

    chained = False

    def __init__(self, op: Convolution, workspace: Any, threads: int) -> None:
        super().__init__(op, workspace, threads)
        self.packed: Any = None

    def compute(self, args: Arguments, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        geometry = self._geometry(args)
        stamp = (args[3], geometry[2], args[2])
        packs = geometry[-1]
        reuse = packs and bool(stamp[0]) and stamp == self.packed
        call = (tile, blocks, first, last)
        self._run(native.kernels.direct_conv, geometry, args, call, reuse, self.threads, self.chained)
        self.packed = stamp if packs else None

    def _geometry(self, args: Arguments) -> tuple[Any, ...]:
        """Shapes and strides of x, w and y as kernels take them, and whether weights are packed for them; remembered."""
        (x, w, y), pad, groups, _ = args
        key = (x.shape, x.strides, w.shape, w.strides, y.shape, y.strides, pad)
        geometry = self.known.get(key)
        if geometry is None:
            geometry = self.known[key] = (*lifted(x), *lifted(w), *lifted(y), self._packs(x, w, y, groups))
        return geometry  # type: ignore[no-any-return]

    def _run(self, kernel: Any, geometry: tuple[Any, ...], args: Arguments, call: Call, *more: Any) -> Any:
        """What one of our kernels answers."""
        op, ((x, w, y), pad, groups, _), (tile, blocks, first, last) = self.op, args, call
        x_shape, x_strides, w_shape, w_strides, y_shape, y_strides, _ = geometry
        values = bias_values(op, tile, blocks) if op.bias and last else None
        bias = native.address(values) if values is not None else 0
        return kernel(
            self.direction, native.DTYPE_CODES[op.dtype], native.address(x), x_shape, x_strides, native.address(w), w_shape,
            w_strides, native.address(y), y_shape, y_strides, self.stride, self.dilation, pad, groups, bias,
            self.act if last else 0, op.coef, not first, self.at, self.nbytes, *more,
        )  # fmt: skip

    def _packs(self, x: Any, w: Any, y: Any, groups: int) -> bool:
        """Whether the kernel packs weights for this geometry (small tiles take simple loops)."""
        assert native.kernels is not None
        packed, scratch, _ = native.kernels.direct_workspace(
            self.direction, native.DTYPE_CODES[self.op.dtype], lifted(x)[0], lifted(w)[0], lifted(y)[0],
            self.stride, self.dilation, groups, self.threads,
        )  # fmt: skip
        return bool(self.direction != "wgrad" and packed > 0 and packed + scratch <= self.nbytes)


class ChainedConv(NativeConv):
    """The same, without a workspace: one chain of terms for each sum, so that its bits do not depend on the tiling."""

    chained = True


class LeanConv(NativeConv):
    """The same in a workspace that other stages use as well: no packed weights last in it."""

    def _packs(self, x: Any, w: Any, y: Any, groups: int) -> bool:
        return False


class WinogradConv(NativeConv):
    """Winograd's way to 3 x 3 taps (kernels/direct/winograd*.inl), or the direct kernel where that serves a tile better.

    It looks at what it has computed: what is not finite comes from plain loops, which skip padding. So nothing is looked for
    before it.
    """

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        args = self.arguments(tile, blocks)
        if self._run(native.kernels.winograd_conv, self._geometry(args), args, (tile, blocks, first, last), self.threads):
            self.packed = None  # it works where weights were
        else:
            super().__call__(tile, blocks, first, last)


class OneDnnConv(CpuConv):
    """oneDNN's kernel for a tile, or ours where oneDNN refuses that tile's geometry."""

    def __init__(self, op: Convolution, workspace: Any, threads: int) -> None:
        super().__init__(op, workspace, threads)
        self.fallback = NativeConv(op, workspace, threads)
        self.packed: Any = None

    def compute(self, args: Arguments, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        op = self.op
        (x, w, y), pad, groups, stamp_w = args
        key = (x.shape, x.strides, w.shape, w.strides, y.shape, y.strides, pad, groups, first, last)
        conv = self.known.get(key)
        if conv is None:
            conv = self.known[key] = self._prepare(x, w, y, pad, groups, first, last)
        if conv is False:
            self.packed = None
            self.fallback.compute(args, tile, blocks, first, last)
            return
        values = bias_values(op, tile, blocks) if op.bias and last else None
        bias = native.address(values) if values is not None else 0
        stamp = (stamp_w, conv.weights_key)
        reuse = bool(stamp[0] and stamp[1]) and stamp == self.packed
        conv.run(native.address(x), native.address(w), bias, native.address(y), self.at, reuse)
        self.packed, self.fallback.packed = stamp, None

    def _prepare(self, x: Any, w: Any, y: Any, pad: tuple[int, ...], groups: int, first: bool, last: bool) -> Any:
        conv = _conv_of(
            self.direction, *lifted(x), *lifted(w), *lifted(y), self.stride, self.dilation, pad, groups,
            self.op.bias and last, self.act if last else 0, self.op.coef, not first, self.threads,
        )  # fmt: skip
        return conv if conv is not None and conv.workspace_bytes <= self.nbytes else False


_CONVS: Cache[Any] = Cache(512)


def _conv_of(*arguments: Any) -> Any | None:
    """A oneDNN convolution, made once per geometry and thread (making one costs about a millisecond)."""
    return _CONVS.made((threading.get_ident(), arguments), lambda: _new_conv(arguments))


def _new_conv(arguments: tuple[Any, ...]) -> Any | None:
    library = open_onednn()
    try:
        conv = library.conv(*arguments) if library else None
    except (RuntimeError, ValueError):
        return None
    if conv is not None and (conv.impl == "x64:gemm:jit" or "ref" in conv.impl):
        return None  # gemm allocates its own buffers in every run, outside any budget; ref is slower than ours
    return conv


def in_f32(single: Family) -> Family:
    """A family of f32 (and perhaps f64) convolution kernels, extended to half types by widening."""

    def why_not(op: Op) -> str | None:
        half = isinstance(op, Convolution) and ITEM_BYTES[op.dtype] == 2
        return single.why_not(replace(op, dtype="f32") if half else op)  # type: ignore[type-var]

    def workspace(op: Op, sizes: Sizes, threads: int) -> Any:
        assert isinstance(op, Convolution)
        if ITEM_BYTES[op.dtype] != 2:
            return single.workspace(op, sizes, threads)
        return half_bytes(op, single, sizes, threads)

    def prepare(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
        assert isinstance(op, Convolution)
        if ITEM_BYTES[op.dtype] != 2:
            return single.prepare(op, sizes, workspace, threads)
        return HalfConv(op, single, sizes, workspace, threads, lambda y, x: pointwise(y, x, threads))

    return single._replace(why_not=why_not, workspace=workspace, prepare=prepare)


# ---- what each family says of itself


def _why_not_onednn(op: Op) -> str | None:
    if not isinstance(op, Convolution):
        return f"onednn: serves convolutions, not {op.kind}"
    if op.kind == "conv.wgrad":
        return "onednn: its wgrad was measured to be no faster than ours, and needs a copy of every operand"
    if math.prod(op.taps) == 1 or op.parted or op.c == op.k == op.groups:
        # Measured: 1 x 1 ours 0.97 to 1.5 times as fast, depthwise 1 to 3 times.
        return "onednn: convolutions of one tap, and depthwise ones, are no faster by it, and need copies"
    if op.dtype != "f32":
        return f"onednn: computes f32, not {op.dtype}"
    if op.bias and op.kind != "conv.fprop":
        return f"onednn: {op.kind} takes no bias"
    return f"onednn: {onednn_reason()}" if onednn_reason() else None


def _onednn_bytes(op: Op, sizes: Sizes, threads: int) -> Any:
    """Blocked copies: of w, and of x and y of the piece that each thread is at (kernels/onednn/tiled.cpp), channels rounded up to
    16; and a scratchpad."""
    assert isinstance(op, Convolution)
    met, w, output = *op.inputs[:2], op.outputs[0]
    weights = aligned(_sixteens(w.axes[0].extent(sizes)) * _sixteens(w.axes[1].extent(sizes)) * math.prod(op.taps) * 4)
    image: Any = 0
    for operand in (met, output):
        channels, images = operand.axes[1].extent(sizes), operand.axes[0].extent(sizes)
        image = image + operand.count(sizes) // channels // images * _sixteens(channels) * 4
    rows = output.axes[2].extent(sizes)
    whole = image * output.axes[0].extent(sizes)
    piece = np.minimum(whole, 3 * PIECE + image * np.minimum(rows, 6 * max(op.taps)) // rows)
    return weights + threads * (aligned(piece) + (64 << 10))


def _why_not_winograd(op: Op) -> str | None:
    if not isinstance(op, Convolution):
        return f"winograd: serves convolutions, not {op.kind}"
    if op.taps[-2:] != (3, 3) or max(op.stride) > 1 or max(op.dilation[-2:]) > 1:
        return "winograd: taps are 3 x 3 on the last two axes, without stride or dilation"
    if min(op.c, op.k) // op.groups < LEAST_TURNED:
        return f"winograd: turning pays from {LEAST_TURNED} channels in and out on"
    return f"winograd: computes f32, not {op.dtype}" if op.dtype != "f32" else why_not_native(op)


def _winograd_bytes(op: Op, sizes: Sizes, threads: int) -> Any:
    """Turned inputs, products and some turned filters or gradients of a run of squares, for every thread."""
    tile = sum(o.block_bytes(sizes) for o in (*op.inputs[:2], op.outputs[0]))
    return threads * np.clip(tile // (4 * threads), LEAST_SQUARES, MOST_SQUARES)


def _sixteens(channels: Any) -> Any:
    return -(-channels // 16) * 16


def _why_not_lean(op: Op) -> str | None:
    if not isinstance(op, Convolution) or op.parted or op.c == op.k == op.groups:
        return f"native_lean: serves convolutions that sum over channels, not {op.kind} of this kind"
    if op.k * (op.c // op.groups) * math.prod(op.taps) * ITEM_BYTES[op.dtype] < LEAST_PACKED:
        return "native_lean: filters as small as these are packed as a whole"
    return why_not_native(op)


def _lean_bytes(op: Op, sizes: Sizes, threads: int) -> Any:
    """Tiles of every thread, and the weights of a channel block that it packs itself; the smallest parts of dw."""
    assert isinstance(op, Convolution) and native.kernels is not None
    if not any(hasattr(v, "shape") for v in sizes.values()):
        return _asked(op, sizes, threads)[2]
    tensors = op.inputs if op.kind == "conv.wgrad" else (op.inputs[0], op.outputs[0])
    some = sum(o.block_bytes(sizes) for o in tensors) // (8 * threads)
    if op.kind == "conv.wgrad":
        return threads * np.minimum(_packed_bytes(op, sizes) + TILES, np.clip(some, LEAN_PART, MOST_PART)) + 4096
    panel = 8 * max(PAIRS, math.prod(op.taps)) * ITEM_BYTES[op.dtype]
    weights = np.maximum(np.clip(some, LEAST_OWN, OWN_WEIGHTS), panel)
    tile = np.clip(some, LEAST_OWN, SCRATCH)
    return np.minimum(_packed_bytes(op, sizes) + _scratch_bytes(op, sizes, threads), threads * (tile + weights + 64) + 4096)


def _why_not_packed(op: Op) -> str | None:
    """Depthwise filters are not packed: their kernels are the plain loops."""
    if isinstance(op, Convolution) and op.c == op.k == op.groups > 1:
        return "native: depthwise convolutions take no workspace, as plain"
    return why_not_native(op)


def _native_bytes(op: Op, sizes: Sizes, threads: int) -> Any:
    """Packed weights and the tiles of every thread: asked of the kernel for one size, estimated for many."""
    assert isinstance(op, Convolution) and native.kernels is not None
    if not any(hasattr(v, "shape") for v in sizes.values()):
        return sum(_asked(op, sizes, threads)[:2])
    if op.kind == "conv.wgrad":  # a part of dw per thread, with its tiles
        part = np.clip(sum(o.block_bytes(sizes) for o in op.operands) // 8, PART, MOST_PART)
        return threads * np.minimum(_packed_bytes(op, sizes) + TILES, part) + 4096
    return _packed_bytes(op, sizes) + _scratch_bytes(op, sizes, threads)


def _packed_bytes(op: Convolution, sizes: Sizes) -> Any:
    """About so much of packed weights."""
    filters = (sizes["k"] + 16) * (sizes["c"] + 16 * (op.kind != "conv.fprop")) * math.prod(op.taps_of(sizes))
    return filters * ITEM_BYTES[op.dtype] * sizes.get("g", 1)


def _scratch_bytes(op: Convolution, sizes: Sizes, threads: int) -> Any:
    """About so much of the tiles of all threads."""
    source = next(o for o in op.operands if o.name == ROLES[op.kind][0 if op.kind == "conv.fprop" else 2])
    channels = source.axes[1].extent(sizes)
    copied = source.count(sizes) // channels * (-(-channels // 16) * 16) * ITEM_BYTES[op.dtype] * 17 // 16
    return np.minimum(copied + threads * (24 << 10), threads * SCRATCH) + 4096


def _asked(op: Convolution, sizes: Sizes, threads: int) -> Any:
    """What the kernel asks for: packed weights, tiles, or both where threads pack their own."""
    assert native.kernels is not None
    operands = {o.name: o for o in op.operands}
    shapes = (_extents_of(operands[role], sizes) for role in ROLES[op.kind])
    return native.kernels.direct_workspace(
        op.kind.removeprefix("conv."), native.DTYPE_CODES[op.dtype], *shapes, lift_spatial(op.stride, 1),
        lift_spatial(op.dilation, 1), sizes.get("g", 1), threads,
    )  # fmt: skip


def _extents_of(operand: Operand, sizes: Sizes) -> tuple[int, ...]:
    """The largest block of an operand, as (n, channels, d, h, w)."""
    shape = tuple(int(min(a.extent(sizes), s)) for a, s in zip(operand.axes, operand.shape, strict=True))
    return lift(shape, len(shape) - 2, 1)


def _as_conv(make: Callable[[Convolution, Any, int], Kernel]) -> Callable[[Op, Sizes, Any, int], Kernel]:
    def prepare(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
        assert isinstance(op, Convolution)
        return make(op, workspace, threads)

    return prepare


WINOGRAD = in_f32(Family(_why_not_winograd, _winograd_bytes, _as_conv(WinogradConv), keeps=False))
ONEDNN = in_f32(Family(_why_not_onednn, _onednn_bytes, _as_conv(OneDnnConv)))
LEAN = in_f32(Family(_why_not_lean, _lean_bytes, _as_conv(LeanConv), keeps=False))
NATIVE = in_f32(Family(_why_not_packed, _native_bytes, _as_conv(NativeConv)))
PLAIN = in_f32(Family(why_not_native, no_workspace, _as_conv(ChainedConv)))
