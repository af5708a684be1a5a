"""Convolutions by cuDNN, tile by tile.

cuDNN pads both ends of an axis alike; a tile at the edge of a tensor does not. Its x (or dx) goes by way of a copy in the
workspace in which the padding is written out. So does what is used in place where cuDNN would not take it as it lies: tiles that
span 2^31 elements, filters or gradients with gaps; and, where the workspace has room, what its fast algorithms want otherwise:
planes without gaps, addresses that are multiples of 16 bytes, many images (`geometry.py`). Where cuDNN refuses or fails, its next
algorithm is tried, and in the end our own kernels, of which the report and one warning tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ooc.backends.algorithms import Algorithms, algorithm_bytes, tiles_of
from ooc.backends.base import Kernel
from ooc.backends.conv_call import ConvCall, HalfConv
from ooc.backends.cuda.geometry import CudnnPass, Extents, Geometry, Images, Room, Shape, base_of, five, shapes_of
from ooc.backends.cuda.kernels import Ending, own_kernel, tell_slow
from ooc.backends.device_array import at, device_array
from ooc.backends.families import Family, Names
from ooc.backends.gpu_workspace import GOOD, beside_bytes, cudnn_bytes, detour_bytes, half_way
from ooc.backends.views import dense_strides
from ooc.errors import BackendError, UnsupportedError
from ooc.ir.op import Block, Op, aligned, numpy_dtype
from ooc.ir.region import Sizes, Span, Tile, extents
from ooc.ops import Convolution

ROLE_OF = {"fprop": (0, 1, 2), "dgrad": (1, 2, 0), "wgrad": (0, 2, 1)}  # of x w y: cuDNN's first, second and result


class _Copy(NamedTuple):
    """A copy of an operand: its memory in the workspace, and where in it the parts of the operand lie."""

    room: Room
    memory: Any
    parts: tuple[Any, ...]


class _Known(NamedTuple):
    """Tiles of one shape, ready to run: what cuDNN prepared, in which calls, and the copies, the first bytes of the workspace."""

    prepared: Any
    calls: tuple[CudnnPass, ...]
    copies: tuple[_Copy, ...]
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
        self.fallback, self.ending = own_kernel(op, backend), Ending(op, backend)

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
            self.fallback(tile, blocks, first, last)
            return
        ran = known if isinstance(known, str) else self._run(known, arrays, told, first)
        if isinstance(ran, str):
            self.known[key] = ran  # where cuDNN has failed it is not asked again
            self._fall_back(ran, tile, blocks, first, last)
            return
        self._count(f"cudnn {ran}")
        if last:
            self.ending(arrays[self.roles.index(self.made)], tile, blocks)

    def _count(self, what: str) -> None:
        self.ran[what] = self.ran.get(what, 0) + 1

    def _fall_back(self, reason: str, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        """Compute a tile by our own kernel; the first time, tell why."""
        self._count("cuda")
        tell_slow(self.backend, self.op, "cuDNN", reason)
        self.fallback(tile, blocks, first, last)

    def _prepare(self, arrays: list[Any], bases: Extents, pad: Extents, groups: int) -> _Known | str:
        """What is known of tiles of a shape, or why our own kernels compute them."""
        reason = ""
        wants = self.algorithms.planes, self.algorithms.images
        for shape in shapes_of(self, self.how, arrays, bases, pad, groups, *wants):
            try:
                return self._with(shape, arrays)
            except (UnsupportedError, BackendError) as error:
                reason = str(error)
        return reason

    def _with(self, shape: Shape | Images, arrays: list[Any]) -> _Known:
        """Raises UnsupportedError where copies do not fit, or cuDNN refuses."""
        copies, used = [], 0
        for room in shape.rooms:
            dtype = arrays[room.role].dtype
            begin, used = used, used + int(aligned(room.count * dtype.itemsize))
            if used > self.workspace.nbytes:
                which = "xwy"[room.role]
                raise UnsupportedError(
                    f"cuDNN: no room for a copy of {which}, which has gaps, another order of axes, or uneven padding"
                )
            memory, item = self.workspace[begin : begin + room.count * dtype.itemsize], dtype.itemsize
            parts = [
                device_array(at(memory) + p.begin * item, p.shape, dtype, tuple(s * item for s in p.strides)) for p in room.parts
            ]
            copies.append(_Copy(room, memory, tuple(parts)))
        room = self.workspace.nbytes - used
        if room < self.needed and any(r.wished for r in shape.rooms):
            raise UnsupportedError("cuDNN: copies would take the room of the algorithm")
        prepared = self.backend.cudnn.prepare(
            shape.geometry, room, self.algorithms.codes.get(self.direction), self.tiles, self.backend.repeatable
        )
        return _Known(prepared, shape.calls, tuple(copies), used)

    def _run(self, known: _Known, arrays: list[Any], told: list[int], first: bool) -> int | str:
        """Compute a tile, but for bias and activation. Returns cuDNN's algorithm, or how cuDNN has failed."""
        one, two, target = ROLE_OF[self.direction]
        for room, memory, parts in known.copies:
            told[room.role] = at(memory)
            if room.role == target and first:
                continue
            if room.role != target and not room.full:
                self.backend.clear(memory)
            for part, of in zip(parts, room.parts, strict=True):
                self.backend.copy("compute", part, five(arrays[room.role])[of.of])
        workspace, algorithm, item = at(self.workspace) + known.copied_bytes, 0, arrays[0].itemsize
        for call in known.calls:
            begins = [address + begin * item for address, begin in zip(told, call.begins, strict=True)]
            try:
                algorithm = known.prepared.run(begins[one], begins[two], begins[target], workspace, call.adds or not first)
            except (UnsupportedError, BackendError) as error:
                return str(error)
        for room, _, parts in known.copies:
            if room.role == target:
                for part, of in zip(parts, room.parts, strict=True):
                    self.backend.copy("compute", five(arrays[target])[of.of], part)
        return int(algorithm)


# ---- what the family says of itself


def _math(op: Convolution, single: str) -> str:
    """How cuDNN multiplies: `fma` exactly, `tf32` with the factors of f32 rounded to 11 bits, `tensor` half types."""
    return {"f64": "fma", "f32": single}.get(op.dtype, "tensor")


def middle(op: Convolution, sizes: Sizes) -> Tile:
    """A tile away from the edges, as most of a plan's are."""
    begins = {d: sizes[d] if e > sizes[d] else 0 for d, e in op.dims.items()}  # of the second piece, where there are two
    return {d: Span(begins[d], min(begins[d] + sizes[d], e)) for d, e in op.dims.items()}


def usual(op: Convolution, sizes: Sizes, how: str, images: bool = False) -> Geometry:
    """What cuDNN is told of most tiles of a plan, whose blocks are dense; images: where its algorithm takes many at a time."""
    call, tile = ConvCall(op), middle(op, sizes)
    blocks = {}
    for o in op.operands:
        shape, dtype = extents(o.region(tile)), numpy_dtype(o.dtype)
        strides = dense_strides(shape, dtype.itemsize, o.memory_order)
        blocks[o.name] = Block(device_array(0, shape, dtype, strides), o.region(tile))
    arrays, pad, groups, _ = call.arguments(tile, blocks)
    return next(shapes_of(call, how, arrays, (GOOD,) * 3, pad, groups, False, images)).geometry


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
    copies = int(algorithms.copies(op, sizes))
    room = int(most) + int(detour_bytes(op, sizes)) - copies
    known = None if backend.repeatable else backend.cudnn.needs(usual(op, sizes, how, algorithms.images), room)
    return most if known is None else aligned(min(known + copies, int(most)))
