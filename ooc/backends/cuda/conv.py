"""Convolutions by cuDNN, tile by tile.

cuDNN pads both ends of an axis alike; a tile at the edge of a tensor does not. Its x (or dx) takes a detour through a copy
in the workspace in which the padding is written out. What cuDNN refuses is computed by our own kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.backends.base import Kernel
from ooc.backends.conv_call import ConvCall, HalfConv
from ooc.backends.cuda.kernels import ARGS, RECIPES, fill, own_kernel
from ooc.backends.device_array import at, device_array
from ooc.backends.families import Family
from ooc.backends.gpu_workspace import Axis, algorithm_bytes, convolutions_only, cudnn_bytes, detour_bytes, half_way
from ooc.backends.views import dense, dense_strides, lift_spatial
from ooc.errors import UnsupportedError
from ooc.ir.op import Block, Op, aligned, crop, numpy_dtype
from ooc.ir.region import Sizes, Tile, extents, split
from ooc.ops import Convolution, Pointwise

ROLE_OF = {"fprop": (0, 1, 2), "dgrad": (1, 2, 0), "wgrad": (0, 2, 1)}  # of x w y: cuDNN's first, second and result
Extents = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """A tile as cuDNN is told of it: shapes and element strides as (n, channels, [d,] h, w)."""

    direction: str
    dtype: str
    x: Extents
    x_strides: Extents
    w: Extents
    channels_last: bool
    y: Extents
    y_strides: Extents
    pad: Extents
    stride: Extents
    dilation: Extents
    groups: int
    math: str


class Shape:
    """Tiles of one shape. Raises UnsupportedError for pieces of filters that are not dense."""

    def __init__(self, call: ConvCall, how: str, arrays: list[Any], pad: Extents, groups: int) -> None:
        op = call.op
        x, w, y = map(five, arrays)
        if not _is_dense(w, op):
            raise UnsupportedError("cuDNN: the filters are not dense")
        windows = zip(x.shape[2:], pad, lift_spatial(op.taps, 1), y.shape[2:], call.stride, call.dilation, strict=True)
        axes = [Axis(e, p, (o - 1) * s + (r - 1) * u + 1, s) for e, p, r, o, s, u in windows]
        self.detour = not all(a.even for a in axes)
        self.written = (*x.shape[:2], *(a.extent if a.even else a.written for a in axes))
        self.shift = (0, 0, *(0 if a.even else a.pad for a in axes))
        strides = dense_strides(self.written, x.itemsize, five_order(op)) if self.detour else x.strides
        flat = slice(int(op.rank < 3), None)  # cuDNN wants two spatial axes or three
        self.geometry = Geometry(
            call.direction, op.dtype, *_told(self.written, strides, x.itemsize, flat), _told(w.shape, w.strides, 1, flat)[0],
            op.layout == "channels_last", *_told(y.shape, y.strides, y.itemsize, flat),
            tuple(a.pad if a.even else 0 for a in axes)[flat], call.stride[flat], call.dilation[flat], groups, how,
        )  # fmt: skip


def five(array: Any) -> Any:
    """An (n, channels, spatial...) array with its missing spatial axes first among them."""
    return array[(slice(None), slice(None), *(None,) * (5 - array.ndim))]


def five_order(op: Convolution) -> Extents:
    """The axes of such an array, from slowest to fastest in memory."""
    return (0, 1, 2, 3, 4) if op.layout == "channels_first" else (0, 2, 3, 4, 1)


def _told(shape: Extents, strides: Extents, item: int, flat: slice) -> tuple[Extents, Extents]:
    return (*shape[:2], *shape[2:][flat]), tuple(s // item for s in (*strides[:2], *strides[2:][flat]))


def _is_dense(w: Any, op: Convolution) -> bool:
    wanted = dense_strides(w.shape, w.itemsize, five_order(op))
    return all(e == 1 or have == want for e, have, want in zip(w.shape, w.strides, wanted, strict=True))


class CudnnConv(ConvCall):
    """A convolution whose factors and sum have one type. how: the math that cuDNN may use."""

    def __init__(self, op: Convolution, sizes: Sizes, workspace: Any, backend: Any, how: str) -> None:
        super().__init__(op)
        self.backend, self.how = backend, how
        self.workspace, self.room = workspace, int(detour_bytes(op, sizes))
        self.own = own_kernel(op, backend)

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        op = self.op
        if self.acc != self.made and self.acc in blocks:
            # A half type whose sum turned out to be split (a fused stage may meet its tile twice): cuDNN would round it.
            self.own(tile, blocks, first, last)
            return
        arrays, pad, groups, _ = self.arguments(tile, blocks)
        key = (*((a.shape, a.strides) for a in arrays), pad, groups)
        if key not in self.known:
            self.known[key] = None if op.empty(tile) else self._prepare(arrays, pad, groups)
        if self.known[key] is None:
            self.own(tile, blocks, first, last)
            return
        shape, prepared = self.known[key]
        self._run(shape, prepared, arrays, first)
        if last and (op.bias or op.act != "identity"):
            self._finish(arrays[self.roles.index(self.made)], tile, blocks)

    def _prepare(self, arrays: list[Any], pad: Extents, groups: int) -> tuple[Shape, Any] | None:
        """What is known of tiles of a shape; None where our own kernels compute them."""
        try:
            if not all(a.size for a in arrays):
                return None
            shape = Shape(self, self.how, arrays, pad, groups)
            if shape.detour and math.prod(shape.written) * arrays[0].itemsize > self.room:
                return None
            return shape, self.backend.cudnn.prepare(shape.geometry, self.workspace.nbytes - self.room)
        except UnsupportedError:
            return None

    def _run(self, shape: Shape, prepared: Any, arrays: list[Any], first: bool) -> None:
        x, made = five(arrays[0]), ROLE_OF[self.direction][2]
        told = list(map(at, arrays))
        inner: Any = None
        if shape.detour:
            room = dense(self.workspace, 0, shape.written, x.dtype, five_order(self.op))
            inner = room[tuple(slice(lo, lo + e) for lo, e in zip(shape.shift, x.shape, strict=True))]
            told[0] = at(room)
            if made != 0:
                self.backend.clear(room)
            if made != 0 or not first:
                self.backend.copy("compute", inner, x)
        one, two, result = (told[i] for i in ROLE_OF[self.direction])
        prepared.run(one, two, result, at(self.workspace) + self.room, not first)
        if shape.detour and made == 0:
            self.backend.copy("compute", x, inner)

    def _finish(self, total: Any, tile: Tile, blocks: Mapping[str, Block]) -> None:
        """The result of a complete sum: bias and activation, by our own kernel, which lets NaN pass."""
        op, args = self.op, np.zeros((), ARGS)
        made, recipe = op.outputs[0], RECIPES[Pointwise]
        slots = recipe.slots.split()
        region = made.region(tile)
        fill(args["t"][slots.index("x")], made.shape, region, total)
        fill(args["t"][slots.index("y")], made.shape, region, blocks[made.name].array)
        if op.bias:
            bias = crop(blocks["b"], op.inputs[-1].region(tile))
            fill(args["t"][slots.index("b")], op.inputs[-1].shape, bias.region, bias.array)
        wholes, reals = recipe.numbers(Pointwise(1, 1, op.extent, act=op.act, coef=op.coef))
        args["whole"][: len(wholes)], args["real"][: len(reals)] = wholes, reals
        self.backend.launch(recipe.kernel, op.dtype, total.size, args)


# ---- what the family says of itself


def _math(op: Convolution, single: str) -> str:
    """How cuDNN multiplies: `fma` exactly, `tf32` with the factors of f32 rounded to 11 bits, `tensor` half types."""
    return {"f64": "fma", "f32": single}.get(op.dtype, "tensor")


def middle(op: Convolution, sizes: Sizes) -> Tile:
    """A tile away from the edges, as most of a plan's are."""
    pieces = {d: split(e, sizes[d]) for d, e in op.dims.items()}
    return {d: p[min(1, len(p) - 1)] for d, p in pieces.items()}


def usual(op: Convolution, sizes: Sizes, how: str) -> Geometry:
    """What cuDNN is told of most tiles of a plan, whose blocks are dense."""
    call, tile = ConvCall(op), middle(op, sizes)
    blocks = {}
    for o in op.operands:
        shape, dtype = extents(o.region(tile)), numpy_dtype(o.dtype)
        strides = dense_strides(shape, dtype.itemsize, o.memory_order)
        blocks[o.name] = Block(device_array(0, shape, dtype, strides), o.region(tile))
    arrays, pad, groups, _ = call.arguments(tile, blocks)
    return Shape(call, how, arrays, pad, groups).geometry


def cudnn_family(share: int, single: str) -> Family:
    """Convolutions with a share of memory for their algorithms; single: the math of f32, `fma` or `tf32`."""

    def workspace(op: Op, sizes: Sizes, backend: Any) -> Any:
        assert isinstance(op, Convolution)
        needed = _needed(op, sizes, backend, share, _math(op, single))
        return cudnn_bytes(op, sizes, needed, cudnn_family(share, "tf32"), backend)

    def prepare(op: Op, sizes: Sizes, workspace: Any, backend: Any) -> Kernel:
        assert isinstance(op, Convolution)
        if half_way(op, sizes):
            # TF32 has the mantissa of f16 and the exponent of bf16: no factor loses anything.
            return HalfConv(op, cudnn_family(share, "tf32"), sizes, workspace, backend, backend.convert)
        return CudnnConv(op, sizes, workspace, backend, _math(op, single))

    return Family(convolutions_only, workspace, prepare, empty=True)


def _needed(op: Convolution, sizes: Sizes, backend: Any, share: int, how: str) -> Any:
    """Bytes for the algorithm: what the measured best of a plan's tiles needs, a fixed share while nothing was measured."""
    most = algorithm_bytes(op, sizes, share)
    if share == 0 or any(hasattr(v, "shape") for v in sizes.values()) or op.empty(middle(op, sizes)):
        return most
    known = backend.cudnn.needs(usual(op, sizes, how), int(most))
    return most if known is None else aligned(known)
