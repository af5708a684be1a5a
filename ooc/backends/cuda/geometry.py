"""What cuDNN is told of tiles: shapes and strides, and the copies that it gets of operands which it would not take as they lie.

A tile is told of as it is, or for Winograd as many images: strips of a plane, planes of a volume.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ooc.backends.algorithms import Split, split_of
from ooc.backends.conv_call import ConvCall
from ooc.backends.gpu_workspace import GOOD, MOST, Axis, dense_from
from ooc.backends.views import dense_strides, lift_spatial
from ooc.ops import Convolution

Extents = tuple[int, ...]
WHOLE = (slice(None),) * 5


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


class CopiedPart(NamedTuple):
    """A piece of an operand within its copy: which piece, and its shape, strides and first element there."""

    of: tuple[slice, ...]
    shape: Extents
    strides: Extents
    begin: int


@dataclass(frozen=True)
class Room:
    """A copy of x, w or y (role 0, 1, 2) that cuDNN gets instead.

    Fields:
        role: of the operand.
        count: elements of the copy.
        parts: what of the operand lies where in it; zeros are between them.
        wished: whether cuDNN would take the operand as it is, too.
    """

    role: int
    count: int
    parts: tuple[CopiedPart, ...]
    wished: bool = False

    @property
    def full(self) -> bool:
        """Whether the operand fills the copy."""
        return sum(math.prod(part.shape) for part in self.parts) == self.count


class CudnnPass(NamedTuple):
    """One of the calls that compute a tile: at which elements of x, w and y it begins; whether it adds to what an earlier one
    made."""

    begins: Extents = (0, 0, 0)
    adds: bool = False


class Shape:
    """Tiles of one shape: what cuDNN is told of them, in which calls, and which operands need a copy.

    bases: of how many bytes the addresses of x, w and y are multiples. wishes: whether operands get a copy that could do without.
    planes: whether gaps in planes are one.
    """

    calls: tuple[CudnnPass, ...] = (CudnnPass(),)

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
        needed = [_beyond(a) or not is_dense(a, order, dense_from(i, call.direction, False)) for i, a in enumerate(fives)]
        needed[0] = needed[0] or written != x.shape
        loose = [not is_dense(a, order, dense_from(i, call.direction, planes)) for i, a in enumerate(fives)]
        wished = [wishes and not need and (gaps or base < GOOD) for need, gaps, base in zip(needed, loose, bases, strict=True)]
        shapes, shifts = (written, w.shape, y.shape), (shift, (0,) * 5, (0,) * 5)
        strides = []
        self.rooms: list[Room] = []
        for role, (array, shape, begin) in enumerate(zip(fives, shapes, shifts, strict=True)):
            alone = dense_strides(shape, 1, order)
            strides.append(canonical(array, order))
            if needed[role] or wished[role]:
                strides[-1], offset = alone, sum(a * b for a, b in zip(begin, alone, strict=True))
                part = CopiedPart(WHOLE, array.shape, alone, offset)
                self.rooms.append(Room(role, math.prod(shape), (part,), wished[role]))
        self.rooms.sort(key=lambda room: room.wished)
        copied = {room.role for room in self.rooms}
        flat = slice(int(op.rank < 3), None)  # cuDNN wants two spatial axes or three
        self.geometry = Geometry(
            call.direction, op.dtype, _flat(written, flat), _flat(strides[0], flat), _flat(w.shape, flat),
            op.layout == "channels_last", _flat(y.shape, flat), _flat(strides[2], flat),
            tuple(a.pad if a.even else 0 for a in axes)[flat], call.stride[flat], call.dilation[flat], groups, how,
            min(GOOD if i in copied else base for i, base in enumerate(bases)),
        )  # fmt: skip


class Images:
    """Tiles of one shape as many images, of which Winograd's algorithms take 16 at a time: strips of each plane, with a halo, and
    the planes of a volume, for which there is a call for each tap along its depth."""

    def __init__(self, call: ConvCall, how: str, arrays: list[Any], pad: Extents, split: Split) -> None:
        x, w, y = (five(a) for a in arrays)
        dgrad = call.direction == "dgrad"
        source, other = (y, x) if dgrad else (x, y)
        taps = w.shape[2:]
        halo = tuple(t - 1 for t in taps)
        before = tuple(h - p if dgrad else p for h, p in zip(halo, pad, strict=True))  # of the source, ahead of the first result
        n, (depth, *plane) = other.shape[0], other.shape[2:]
        parts = tuple(-(-e // s) for e, s in zip(plane, split, strict=True))
        inner = tuple(e + h for e, h in zip(parts, halo[1:], strict=True))
        strips = math.prod(split)
        of_source = (depth + halo[0], strips, n, source.shape[1], *inner)
        of_other = (depth, strips, n, other.shape[1], *parts)
        cuts = list(_strips(split, parts))
        roles = (2, 0) if dgrad else (0, 2)
        rooms = [
            Room(roles[0], math.prod(of_source), tuple(_strip(source, of_source, i, (0, *lo), before) for i, lo in cuts)),
            Room(roles[1], math.prod(of_other), tuple(_strip(other, of_other, i, (0, *lo), (0, 0, 0)) for i, lo in cuts)),
        ]
        k, c = w.shape[:2]
        filters = dense_strides((k, c, 1, *taps[1:]), 1, (0, 1, 2, 3, 4))
        if taps[0] > 1 or not is_dense(w, (0, 1, 2, 3, 4)):
            each = k * c * math.prod(taps[1:])
            of = [(*WHOLE[:2], slice(t, t + 1), *WHOLE[:2]) for t in range(taps[0])]
            rooms.append(
                Room(1, each * taps[0], tuple(CopiedPart(s, (k, c, 1, *taps[1:]), filters, t * each) for t, s in enumerate(of)))
            )
        self.rooms = [Room(r.role, r.count, tuple(p for p in r.parts if math.prod(p.shape))) for r in rooms]
        self.calls = tuple(_calls(taps[0], math.prod(of_source[1:]), math.prod(w.shape) // taps[0], call.direction))
        first, second = ((math.prod(s[:3]), *s[3:]) for s in ((depth, *of_source[1:]), of_other))
        one, two = (second, first) if dgrad else (first, second)
        steps = [dense_strides(shape, 1, (0, 1, 2, 3)) for shape in (one, two)]
        self.geometry = Geometry(
            call.direction, call.op.dtype, one, steps[0], (k, c, *taps[1:]), False, two, steps[1], halo[1:] if dgrad else (0, 0),
            (1, 1), (1, 1), 1, how,
        )  # fmt: skip


def _strips(split: Split, parts: Extents) -> Iterator[tuple[int, Extents]]:
    """Each strip's number, and where it begins in a plane."""
    for i in range(split[0]):
        for j in range(split[1]):
            yield i * split[1] + j, (i * parts[0], j * parts[1])


def _strip(array: Any, copy: Extents, strip: int, begin: Extents, before: Extents) -> CopiedPart:
    """A strip of an operand within its copy of (planes, strips, n, channels, h, w), as far as the operand has it. begin: of the
    strip in the results; before: positions that the copy has ahead of that."""
    planes, _, n, channels, *inner = copy
    strides = dense_strides(copy, 1, tuple(range(6)))
    five_strides = (strides[2], strides[3], strides[0], *strides[4:])
    slices, shape, at = [], [n, channels], strip * strides[1]
    for extent, room, lo, halo, stride in zip(array.shape[2:], (planes, *inner), begin, before, five_strides[2:], strict=True):
        first, last = max(0, lo - halo), min(extent, lo - halo + room)
        slices.append(slice(first, max(first, last)))
        shape.append(max(0, last - first))
        at += (first - (lo - halo)) * stride
    return CopiedPart((*WHOLE[:2], *slices), tuple(shape), five_strides, at)


def _calls(taps: int, plane: int, filters: int, direction: str) -> Iterator[CudnnPass]:
    """A call for each tap along the depth: which planes of the source it begins at, and which filters are its own. plane:
    elements of a plane of all images; filters: of a tap."""
    for t in range(taps):
        from_source = plane * (taps - 1 - t if direction == "dgrad" else t)
        begins = (0, t * filters, from_source) if direction == "dgrad" else (from_source, t * filters, 0)
        yield CudnnPass(begins, t > 0 and direction != "wgrad")


def shapes_of(
    call: ConvCall, how: str, arrays: list[Any], bases: Extents, pad: Extents, groups: int, planes: bool, images: bool
) -> Iterator[Shape | Images]:
    """Ways to tell cuDNN of tiles, the best first: as images where an algorithm takes many at a time, with copies of all that its
    fast algorithms want otherwise, and without. planes: whether they want planes without gaps."""
    if images and (split := _split(call, arrays)) is not None:
        yield Images(call, how, arrays, pad, split)
    args = call, how, arrays, bases, pad, groups
    wishing = Shape(*args, wishes=True, planes=planes)
    yield wishing
    if any(room.wished for room in wishing.rooms):
        yield Shape(*args)


def _split(call: ConvCall, arrays: list[Any]) -> Split | None:
    """Into how many strips planes are cut; None where a tile is told of as it is."""
    x, _, y = (five(a) for a in arrays)
    target = x if call.direction == "dgrad" else y
    n, (depth, *plane) = target.shape[0], target.shape[2:]
    split = split_of(call.direction, n * depth, x.shape[1], y.shape[1], (plane[0], plane[1]))
    return split if call.op.rank == 3 or split != (1, 1) else None


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
