"""Convolutions by cuDNN, tile by tile.

cuDNN pads both ends of an axis alike; a tile at the edge of a tensor does not. Its x (or dx) goes by way of a copy in the
workspace in which the padding is written out. So does what is used in place where cuDNN would not take it as it lies: tiles that
span 2^31 elements, filters or gradients with gaps; and, where the workspace has room, what its fast algorithms want otherwise:
planes without gaps, addresses that are multiples of 16 bytes. Where cuDNN refuses or fails, its next algorithm is tried, and in
the end our own kernels, of which the report and one warning tell.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ooc.backends.algorithms import Algorithms, algorithm_bytes, tiles_of
from ooc.backends.base import Kernel
from ooc.backends.conv_call import ConvCall, HalfConv
from ooc.backends.cuda.kernels import own_kernel
from ooc.backends.device_array import at, device_array
from ooc.backends.families import Family, Names
from ooc.backends.gpu_workspace import (
    GOOD,
    MOST,
    Axis,
    beside_bytes,
    cudnn_bytes,
    dense_from,
    detour_bytes,
    half_way,
)
from ooc.backends.views import dense, dense_strides, lift_spatial
from ooc.errors import BackendError, UnsupportedError
from ooc.ir.op import Block, Op, aligned, numpy_dtype
from ooc.ir.region import Sizes, Span, Tile, extents
from ooc.ops import Convolution, Pointwise

ROLE_OF = {"fprop": (0, 1, 2), "dgrad": (1, 2, 0), "wgrad": (0, 2, 1)}  # of x w y: cuDNN's first, second and result
Extents = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """A tile as cuDNN is told of it: shapes and element strides as (n, channels, [d,] h, w), and of how many bytes all addresses
    are multiples."""

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
    aligned: int = GOOD


@dataclass(frozen=True)
class Room:
    """A dense copy of x, w or y (role 0, 1, 2) that cuDNN gets instead.

    Fields:
        shape: of the copy, with padding written out.
        shift: where the operand begins in it.
        wished: whether cuDNN would take the operand as it is, too.
    """

    role: int
    shape: Extents
    shift: Extents
    wished: bool


class Shape:
    """Tiles of one shape: what cuDNN is told of them, and which operands need a copy. bases: of how many bytes the addresses of
    x, w and y are multiples; wishes: whether operands get a copy that could do without; planes: whether gaps in planes are
    one."""

    def __init__(
        self, call: ConvCall, how: str, arrays: list[Any], bases: Extents, pad: Extents, groups: int, wishes: bool = False,
        planes: bool = False,
    ) -> None:  # fmt: skip
        op, order = call.op, five_order(call.op)
        x, w, y = fives = [five(a) for a in arrays]
        windows = zip(x.shape[2:], pad, lift_spatial(op.taps, 1), y.shape[2:], call.stride, call.dilation, strict=True)
        axes = [Axis(e, p, (o - 1) * s + (r - 1) * u + 1, s) for e, p, r, o, s, u in windows]
        written = (*x.shape[:2], *(a.extent if a.even else a.written for a in axes))
        shift = (0, 0, *(0 if a.even else a.pad for a in axes))
        whole = [Room(0, written, shift, False), *(Room(i, a.shape, (0,) * 5, False) for i, a in enumerate((w, y), 1))]
        needed = [_beyond(a) or not is_dense(a, order, dense_from(i, call.direction, False)) for i, a in enumerate(fives)]
        needed[0] = needed[0] or written != x.shape
        self.rooms = [room for room, need in zip(whole, needed, strict=True) if need]
        if wishes:
            loose = [not is_dense(a, order, dense_from(i, call.direction, planes)) for i, a in enumerate(fives)]
            wished = [not need and (gaps or base < GOOD) for need, gaps, base in zip(needed, loose, bases, strict=True)]
            self.rooms += [replace(room, wished=True) for room, wish in zip(whole, wished, strict=True) if wish]
        copied = {room.role for room in self.rooms}
        strides = [
            dense_strides(room.shape, 1, order) if i in copied else canonical(a, order)
            for i, (room, a) in enumerate(zip(whole, fives, strict=True))
        ]
        flat = slice(int(op.rank < 3), None)  # cuDNN wants two spatial axes or three
        self.geometry = Geometry(
            call.direction, op.dtype, _flat(written, flat), _flat(strides[0], flat), _flat(w.shape, flat),
            op.layout == "channels_last", _flat(y.shape, flat), _flat(strides[2], flat),
            tuple(a.pad if a.even else 0 for a in axes)[flat], call.stride[flat], call.dilation[flat], groups, how,
            min(GOOD if i in copied else base for i, base in enumerate(bases)),
        )  # fmt: skip


def five(array: Any) -> Any:
    """An (n, channels, spatial...) array with its missing spatial axes first among them."""
    return array[(slice(None), slice(None), *(None,) * (5 - array.ndim))]


def five_order(op: Convolution) -> Extents:
    """The axes of such an array, from slowest to fastest in memory."""
    return (0, 1, 2, 3, 4) if op.layout == "channels_first" else (0, 2, 3, 4, 1)


def _flat(values: Extents, flat: slice) -> Extents:
    return (*values[:2], *values[2:][flat])


def canonical(array: Any, order: Extents) -> Extents:
    """Strides in elements, where axes of extent 1 have those of a dense array of this shape: cuDNN looks at them, and refuses
    what exceeds 32 bits. Source: PyTorch, aten/src/ATen/native/cudnn/Conv_v7.cpp, fixSizeOneDimStride."""
    alone = dense_strides(array.shape, 1, order)
    strides = zip(array.shape, array.strides, alone, strict=True)
    return tuple(dense if extent == 1 else stride // array.itemsize for extent, stride, dense in strides)


def is_dense(array: Any, order: Extents, first: int = 0) -> bool:
    """Whether the elements lie one after the other, in the order of these axes, along those from `first` on."""
    strides = dense_strides(array.shape, array.itemsize, order)
    axes = zip(array.shape[first:], array.strides[first:], strides[first:], strict=True)
    return all(extent == 1 or have == want for extent, have, want in axes)


def _beyond(array: Any) -> bool:
    """Whether cuDNN does not take an array: from its first element to its last it counts in 32 bits, and forwards."""
    steps = [(e - 1, s // array.itemsize) for e, s in zip(array.shape, array.strides, strict=True) if e > 1]
    return any(s <= 0 for _, s in steps) or sum(e * s for e, s in steps) >= MOST


def base_of(address: int) -> int:
    """The power of two, GOOD at most, of which an address is a multiple."""
    return min(address & -address, GOOD) or GOOD


class _Known(NamedTuple):
    """Tiles of one shape, ready to run: what cuDNN prepared, and the copies with the part of each that the operand fills, the
    first bytes of the workspace."""

    prepared: Any
    copies: tuple[tuple[Room, Any, Any], ...]
    copied_bytes: int


class CudnnConv(ConvCall):
    """A convolution whose factors and sum have one type.

    how: the math that cuDNN may use. algorithms: the class that the workspace is for, of which they want `needed` bytes. tiles:
    how many there will be. ran: tiles by the algorithm that computed them, our own kernels among them (`cuda`) where cuDNN
    refused.
    """

    def __init__(
        self, op: Convolution, workspace: Any, backend: Any, how: str, algorithms: Algorithms, needed: int, tiles: int
    ) -> None:
        super().__init__(op)
        self.backend, self.how, self.workspace = backend, how, workspace
        self.algorithms, self.needed, self.tiles, self.ran = algorithms, needed, tiles, dict[str, int]()
        self.own = own_kernel(op, backend)
        n, k, *extent = op.outputs[0].shape
        end = Pointwise(n, k, tuple(extent), op.bias, op.act, op.coef, dtype=op.dtype, layout=op.layout)
        self.end, self.end_dims = own_kernel(end, backend), tuple(end.dims)

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        op = self.op
        if self.acc != self.made and self.acc in blocks:
            # A fused stage may meet its tile twice.
            self._fall_back("the sum of a half type turned out to be split, which cuDNN would round", tile, blocks, first, last)
            return
        arrays, pad, groups, _ = self.arguments(tile, blocks)
        told = list(map(at, arrays))
        bases = tuple(map(base_of, told))
        key = (*((a.shape, a.strides) for a in arrays), bases, pad, groups)
        if key not in self.known:
            empty = op.empty(tile) or not all(a.size for a in arrays)
            self.known[key] = None if empty else self._prepare(arrays, bases, pad, groups)
        known = self.known[key]
        if known is None:
            self.own(tile, blocks, first, last)
            return
        ran = known if isinstance(known, str) else self._run(known, arrays, told, first)
        if isinstance(ran, str):
            self.known[key] = ran  # where cuDNN has failed it is not asked again
            self._fall_back(ran, tile, blocks, first, last)
            return
        self._count(f"cudnn {ran}")
        if last and (op.bias or op.act != "identity"):
            self._finish(arrays[self.roles.index(self.made)], tile, blocks)

    def _count(self, what: str) -> None:
        self.ran[what] = self.ran.get(what, 0) + 1

    def _fall_back(self, reason: str, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        """Compute a tile by our own kernel; the first time, tell why."""
        self._count("cuda")
        if self.backend.tells_once((self.op, reason)):
            text = f"{self.op}: computed by a kernel of ooc's own, many times slower than cuDNN, for some tiles: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self.own(tile, blocks, first, last)

    def _prepare(self, arrays: list[Any], bases: Extents, pad: Extents, groups: int) -> _Known | str:
        """What is known of tiles of a shape, or why our own kernels compute them."""
        reason = ""
        for shape in self._shapes(arrays, bases, pad, groups):
            try:
                return self._with(shape, arrays)
            except (UnsupportedError, BackendError) as error:
                reason = str(error)
        return reason

    def _shapes(self, arrays: list[Any], bases: Extents, pad: Extents, groups: int) -> Iterator[Shape]:
        """Ways to tell cuDNN of tiles, the best first: with copies of all that its fast algorithms want otherwise, and
        without."""
        args = self, self.how, arrays, bases, pad, groups
        wishing = Shape(*args, wishes=True, planes=self.algorithms.planes)
        yield wishing
        if any(room.wished for room in wishing.rooms):
            yield Shape(*args)

    def _with(self, shape: Shape, arrays: list[Any]) -> _Known:
        """Raises UnsupportedError where copies do not fit, or cuDNN refuses."""
        copies, used, order = [], 0, five_order(self.op)
        for room in shape.rooms:
            array = five(arrays[room.role])
            begin, used = used, used + int(aligned(math.prod(room.shape) * array.itemsize))
            if used > self.workspace.nbytes:
                which = "xwy"[room.role]
                raise UnsupportedError(
                    f"cuDNN: no room for a copy of {which}, which has gaps, another order of axes, or uneven padding"
                )
            whole = dense(self.workspace, begin, room.shape, array.dtype, order)
            filled = tuple(slice(lo, lo + e) for lo, e in zip(room.shift, array.shape, strict=True))
            copies.append((room, whole, whole[filled]))
        room = self.workspace.nbytes - used
        if room < self.needed and any(r.wished for r in shape.rooms):
            raise UnsupportedError("cuDNN: copies would take the room of the algorithm")
        prepared = self.backend.cudnn.prepare(
            shape.geometry, room, self.algorithms.codes.get(self.direction), self.tiles, self.backend.repeatable
        )
        return _Known(prepared, tuple(copies), used)

    def _run(self, known: _Known, arrays: list[Any], told: list[int], first: bool) -> int | str:
        """Compute a tile, but for bias and activation. Returns cuDNN's algorithm, or how cuDNN has failed."""
        one, two, target = ROLE_OF[self.direction]
        for room, whole, filled in known.copies:
            told[room.role] = at(whole)
            if room.role == target and first:
                continue
            if room.role != target and whole.shape != filled.shape:
                self.backend.clear(whole)
            self.backend.copy("compute", filled, five(arrays[room.role]))
        try:
            algorithm = known.prepared.run(told[one], told[two], told[target], at(self.workspace) + known.copied_bytes, not first)
        except (UnsupportedError, BackendError) as error:
            return str(error)
        for room, _, filled in known.copies:
            if room.role == target:
                self.backend.copy("compute", five(arrays[target]), filled)
        return int(algorithm)

    def _finish(self, total: Any, tile: Tile, blocks: Mapping[str, Block]) -> None:
        """The result of a complete sum: bias and activation, by our own kernel, which lets NaN pass."""
        region = self.op.outputs[0].region(tile)
        operands = {"x": Block(total, region), "y": blocks[self.made], **({"b": blocks["b"]} if self.op.bias else {})}
        self.end(dict(zip(self.end_dims, region, strict=True)), operands, True, True)


# ---- what the family says of itself


def _math(op: Convolution, single: str) -> str:
    """How cuDNN multiplies: `fma` exactly, `tf32` with the factors of f32 rounded to 11 bits, `tensor` half types."""
    return {"f64": "fma", "f32": single}.get(op.dtype, "tensor")


def middle(op: Convolution, sizes: Sizes) -> Tile:
    """A tile away from the edges, as most of a plan's are."""
    begins = {d: sizes[d] if e > sizes[d] else 0 for d, e in op.dims.items()}  # of the second piece, where there are two
    return {d: Span(begins[d], min(begins[d] + sizes[d], e)) for d, e in op.dims.items()}


def usual(op: Convolution, sizes: Sizes, how: str) -> Geometry:
    """What cuDNN is told of most tiles of a plan, whose blocks are dense."""
    call, tile = ConvCall(op), middle(op, sizes)
    blocks = {}
    for o in op.operands:
        shape, dtype = extents(o.region(tile)), numpy_dtype(o.dtype)
        strides = dense_strides(shape, dtype.itemsize, o.memory_order)
        blocks[o.name] = Block(device_array(0, shape, dtype, strides), o.region(tile))
    arrays, pad, groups, _ = call.arguments(tile, blocks)
    return Shape(call, how, arrays, (GOOD,) * 3, pad, groups).geometry


def cudnn_family(algorithms: Algorithms, single: str) -> Family:
    """Convolutions with the workspace of a class of algorithms; single: the math of f32, `fma` or `tf32`."""

    def workspace(op: Op, sizes: Sizes, backend: Any) -> Any:
        assert isinstance(op, Convolution)
        needed = _needed(op, sizes, backend, algorithms, _math(op, single))
        return cudnn_bytes(op, sizes, needed, cudnn_family(algorithms, "tf32"), backend)

    def prepare(op: Op, sizes: Sizes, workspace: Any, backend: Any) -> Kernel:
        assert isinstance(op, Convolution)
        if half_way(op, sizes):
            # TF32 has the mantissa of f16 and the exponent of bf16: no factor loses anything.
            return HalfConv(op, cudnn_family(algorithms, "tf32"), sizes, workspace, backend, backend.convert)
        how = _math(op, single)
        needed = int(_needed(op, sizes, backend, algorithms, how))
        return CudnnConv(op, workspace, backend, how, algorithms, needed, tiles_of(op, sizes))

    def beside(op: Op, sizes: Sizes, in_place: Names) -> Any:
        return beside_bytes(op, sizes, in_place, algorithms.planes)

    return Family(algorithms.why_not, workspace, prepare, empty=True, beside=beside)


def _needed(op: Convolution, sizes: Sizes, backend: Any, algorithms: Algorithms, how: str) -> Any:
    """Bytes for the algorithm: what the measured best of a plan's tiles needs, what the class wants while nothing was
    measured."""
    most = algorithm_bytes(op, sizes, algorithms)
    if any(hasattr(v, "shape") for v in sizes.values()) or not most or op.empty(middle(op, sizes)):
        return most
    # Tiles away from the edges have the room for the detour of those there besides.
    room = int(most) + int(detour_bytes(op, sizes))
    known = None if backend.repeatable else backend.cudnn.needs(usual(op, sizes, how), room)
    return most if known is None else aligned(min(known, int(most)))
