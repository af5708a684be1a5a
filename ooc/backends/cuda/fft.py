"""Convolutions by cuFFT and cuBLAS (overlap-save): filters of many taps at stride 1.

A tile is cut into blocks of outputs (ops/transforms.py). Their inputs are copied with zeros around them and transformed, some
blocks at a time; for each frequency a product sums over channels, or over blocks for the gradient of filters; and of what comes
back the outputs are taken. Spectra of filters stay in the workspace while their block does. Axes along which filters have one tap
are not transformed: segments have all their positions side by side, as those of all images, and so few copies fetch them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ooc.backends.base import Kernel
from ooc.backends.conv_call import ConvCall
from ooc.backends.cuda.blas import AS_IT_IS, CONJUGATED, Product
from ooc.backends.cuda.cufft import Execute, Transforms
from ooc.backends.cuda.kernels import Ending, move, own_kernel, tell_slow
from ooc.backends.device_array import at
from ooc.backends.families import Family
from ooc.backends.gpu_workspace import fft_bytes, fft_places, fft_workspace, why_not_fft
from ooc.backends.views import Pieces, dense
from ooc.errors import UnsupportedError
from ooc.ir.op import Block, Op, aligned, numpy_dtype
from ooc.ir.region import Sizes, Tile
from ooc.ops import Convolution
from ooc.ops.transforms import segments

SPECTRA = {"f32": ("c64", 8), "f64": ("c128", 16)}  # their type, and bytes of a number
MOST_MATRICES = 65535  # of a call of cuBLAS: a grid has no more layers
MOST_AXES = 5  # of arrays that kernels copy

Cuts = list[tuple[slice, slice]]  # along each axis: of a segment, and of a tensor


class SegmentAxis(NamedTuple):
    """An axis of a tile.

    Fields:
        outputs: that are walked over.
        length: of a segment.
        step: outputs of a block.
        begin: of the first segment, in the tensor that is met.
        offset: of a block's outputs in its segment.
        short: whether it is not transformed.
    """

    outputs: int
    length: int
    step: int
    begin: int
    offset: int
    short: bool

    @property
    def blocks(self) -> int:
        return -(-self.outputs // self.step)

    def met(self, block: int, extent: int) -> tuple[slice, slice]:
        """What of a segment lies in the tensor, and where in it."""
        begin = self.begin + block * self.step
        lo = min(max(begin, 0), extent)
        hi = max(lo, min(begin + self.length, extent))
        return slice(lo - begin, hi - begin), slice(lo, hi)

    def walked(self, block: int, offset: int) -> tuple[slice, slice]:
        """The outputs of a block: where they are in its segment, behind `offset` numbers, and in the tensor."""
        begin = block * self.step
        end = min(begin + self.step, self.outputs)
        return slice(offset, offset + end - begin), slice(begin, end)


class FftMemory(NamedTuple):
    """The memory of a kernel: numbers that come and go, spectra of what is met, of what is walked over, and of filters; and
    what cuFFT works in."""

    numbers: Any
    met: Any
    walked: Any
    filters: Any
    work: Any


class Tensors(NamedTuple):
    """A tile: what is met, what is walked over, both n, g, channels, extent; and filters, k, c, taps."""

    met: Any
    walked: Any
    filters: Any

    @property
    def channels(self) -> tuple[int, int]:
        """Of a group: met and walked over."""
        return self.met.shape[2], self.walked.shape[2]


class CufftConv(ConvCall):
    """A convolution by transforms, or by our own kernel where cuFFT refuses them. ran: tiles by what computed them."""

    def __init__(self, op: Convolution, sizes: Sizes, workspace: Any, backend: Any) -> None:
        super().__init__(op)
        self.backend, self.fallback, self.ending = backend, own_kernel(op, backend), Ending(op, backend)
        self.lengths, self.most_places = tuple(int(n) for n in segments(op, sizes, "cufft").lengths), int(fft_places(op, sizes))
        pieces = Pieces(workspace)
        self.memory = FftMemory(*(pieces.take(int(aligned(n))) for n in fft_bytes(op, sizes)))
        self.spectra: Any = None  # the stamp of those that are there
        self.ran: dict[str, int] = {}

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        arrays, pad, groups, stamp = self.arguments(tile, blocks)
        ran = "cuda"
        if not self.op.empty(tile) and all(a.size for a in arrays):
            try:
                self._compute(self._tensors(arrays, groups), pad, stamp, first)
                ran = "cufft"
            except UnsupportedError as error:  # before anything was written
                tell_slow(self.backend, self.op, "cuFFT", str(error))
        self.ran[ran] = self.ran.get(ran, 0) + 1
        if ran == "cuda":
            self.fallback(tile, blocks, first, last)
        elif last:
            self.ending(arrays[self.roles.index(self.made)], tile, blocks)

    def _tensors(self, arrays: list[Any], groups: int) -> Tensors:
        x, w, y = arrays
        x, y = (a.reshape((a.shape[0], groups, a.shape[1] // groups, *a.shape[2:])) for a in (x, y))
        return Tensors(y, x, w) if self.direction == "dgrad" else Tensors(x, y, w)

    def _axes(self, walked: Any, pad: tuple[int, ...]) -> list[SegmentAxis]:
        """The spatial axes. pad: where what is met begins, seen from the first window."""
        op, backward, axes = self.op, self.direction == "dgrad", []
        along = zip(walked.shape[3:], self.lengths, op.taps, op.dilation, pad[-op.rank :], strict=True)
        for outputs, length, taps, dilation, before in along:
            more = (taps - 1) * dilation
            begin, offset = (before - more, more) if backward else (-before, 0)
            length, step = (length, length - more) if more else (outputs, outputs)
            axes.append(SegmentAxis(outputs, length, step, begin, offset, not more))
        return axes

    def _compute(self, tensors: Tensors, pad: tuple[int, ...], stamp: int, first: bool) -> None:
        """Raises UnsupportedError before anything is written."""
        shapes = (*(t.shape for t in tensors), pad)
        segmented = self.known.get(shapes)
        if segmented is None:
            axes = self._axes(tensors.walked, pad)
            segmented = self.known[shapes] = Segmented(self, tensors, axes, self.most_places)
        if self.direction == "wgrad":
            segmented.sum_blocks(tensors, first)
            return
        key = (stamp, tensors.filters.shape) if stamp else None
        kept, self.spectra = key is not None and key == self.spectra, key
        segmented.sum_channels(tensors, kept, first)


class Segmented:
    """Tiles of one shape in segments, those of some places at a time. Raises UnsupportedError where cuFFT refuses."""

    def __init__(self, kernel: CufftConv, tensors: Tensors, axes: list[SegmentAxis], most_places: int) -> None:
        self.kernel, self.backend, self.memory = kernel, kernel.backend, kernel.memory
        self.axes, self.dtype, self.channels = axes, kernel.op.dtype, tensors.channels
        places = list(itertools.product(*(range(1 if a.short else a.blocks) for a in axes)))  # a block along each axis
        self.at_once = min(most_places, len(places))
        extents = tensors.met.shape[3:]
        self.met = [[a.met(b, e) for a, b, e in zip(axes, place, extents, strict=True)] for place in places]
        offsets = [0 if kernel.direction == "wgrad" else a.offset for a in axes]
        self.walked = [[a.walked(b, o) for a, b, o in zip(axes, place, offsets, strict=True)] for place in places]
        self.shorts = tuple(a.outputs for a in axes if a.short)
        self.lengths = tuple(a.length for a in axes if not a.short)
        self.images, self.groups = tensors.met.shape[:2]
        self.segments = self.images * self.at_once * math.prod(self.shorts)  # of a channel, transformed at once
        self.filters = tensors.filters.shape[:2]
        met, walked, filters = (
            Transforms(self.lengths, n, False, self.dtype)
            for n in (*(self.groups * self.segments * e for e in self.channels), math.prod(self.filters))
        )
        backward = kernel.direction == "wgrad"
        self.forward = self._plan(met)
        self.other = self._plan(walked._replace(backward=not backward))
        self.of_filters = self._plan(filters._replace(backward=backward))
        self.numbers, self.frequencies = met.numbers, met.frequencies

    def _plan(self, transforms: Transforms) -> Execute:
        """Transforms of this kind, remembered; so is why there are none."""
        known: dict[Any, Execute | str] = self.kernel.known
        if transforms not in known:
            try:
                known[transforms] = self.backend.fft.prepare(transforms, at(self.memory.work), self.memory.work.nbytes)
            except UnsupportedError as error:
                known[transforms] = str(error)
        plan = known[transforms]
        if isinstance(plan, str):
            raise UnsupportedError(plan)
        return plan

    # ---- the passes

    def sum_channels(self, tensors: Tensors, kept: bool, first: bool) -> None:
        """Results and gradients of inputs. kept: whether the spectra of filters are there."""
        if not kept:
            self._transform_filters(tensors.filters)
        for some in self._some():
            self._fetch(self.channels[0], tensors.met, self.met[some])
            self.forward(at(self.memory.numbers), at(self.memory.met))
            self._multiply()
            self.other(at(self.memory.walked), at(self.memory.numbers))
            numbers = self._numbers(self.channels[1])
            for i, cuts in enumerate(self.walked[some]):
                self._store(self._part(tensors.walked, cuts), self._inner(numbers, i, cuts), first)

    def sum_blocks(self, tensors: Tensors, first: bool) -> None:
        """Gradients of filters."""
        for some in self._some():
            self._fetch(self.channels[0], tensors.met, self.met[some])
            self.forward(at(self.memory.numbers), at(self.memory.met))
            self._fetch(self.channels[1], tensors.walked, self.walked[some])
            self.other(at(self.memory.numbers), at(self.memory.walked))
            self._multiply(add=some.start > 0)
        self.of_filters(at(self.memory.filters), at(self.memory.numbers))
        self._store(self._taps(tensors.filters), self._filters(), first)

    def _some(self) -> Iterator[slice]:
        """The places, as many at a time as are transformed at once."""
        for begin in range(0, len(self.met), self.at_once):
            yield slice(begin, begin + self.at_once)

    def _transform_filters(self, filters: Any) -> None:
        self.backend.clear(self.memory.numbers)
        self._copy(self._filters(), self._taps(filters))
        self.of_filters(at(self.memory.numbers), at(self.memory.filters))

    def _fetch(self, channels: int, tensor: Any, places: list[Cuts]) -> None:
        """Segments of a tensor, zeros around what lies in it."""
        numbers = self._numbers(channels)
        self.backend.clear(numbers)
        for i, cuts in enumerate(places):
            self._copy(self._inner(numbers, i, cuts), self._part(tensor, cuts))

    def _multiply(self, add: bool = False) -> None:
        """For each frequency and group a product, as cuBLAS counts rows and columns."""
        met, walked = self.channels
        memory, rows, direction = self.memory, self.segments, self.kernel.direction
        of_met, of_walked = (memory.met, met, rows * met), (memory.walked, walked, rows * walked)
        filters, factor = (memory.filters, self.filters[1], met * walked), 1 / self.numbers
        if direction == "wgrad":
            self._product((AS_IT_IS, CONJUGATED), (met, walked, rows), factor, of_met, of_walked, filters, add)
        else:
            turned = (CONJUGATED if direction == "fprop" else AS_IT_IS, AS_IT_IS)
            self._product(turned, (walked, rows, met), factor, filters, of_met, of_walked, add)

    def _product(
        self, turned: tuple[int, int], extents: tuple[int, int, int], alpha: float, a: Any, b: Any, y: Any, add: bool
    ) -> None:  # fmt: skip
        name, item = SPECTRA[self.dtype]
        count = self.frequencies * self.groups
        for begin in range(0, count, MOST_MATRICES):
            of = [(at(memory) + begin * apart * item, name, rows, apart) for memory, rows, apart in (a, b, y)]
            matrices = min(MOST_MATRICES, count - begin)
            self.backend.blas.run(Product(turned, extents, alpha, of[0], of[1], float(add), of[2], matrices, False))

    # ---- views

    def _numbers(self, channels: int) -> Any:
        """Segments: group, place, image, positions of short axes, channel, numbers."""
        shape = (self.groups, self.at_once, self.images, *self.shorts, channels, *self.lengths)
        return dense(self.memory.numbers, 0, shape, numpy_dtype(self.dtype), tuple(range(len(shape))))

    def _inner(self, numbers: Any, place: int, cuts: Cuts) -> Any:
        """A part of the segments of a place."""
        short, long = ([cuts[i][0] for i, a in enumerate(self.axes) if a.short is kind] for kind in (True, False))
        return numbers[(slice(None), place, slice(None), *short, slice(None), *long)]

    def _part(self, tensor: Any, cuts: Cuts) -> Any:
        """A part of all images, its axes in the order of segments."""
        short, long = ([i for i, a in enumerate(self.axes, 3) if a.short is kind] for kind in (True, False))
        return tensor[(slice(None), slice(None), slice(None), *(there for _, there in cuts))].transpose((1, 0, *short, 2, *long))

    def _filters(self) -> Any:
        """Numbers at the taps of filters: k, c, taps."""
        shape = (*self.filters, *self.lengths)
        numbers = dense(self.memory.numbers, 0, shape, numpy_dtype(self.dtype), tuple(range(len(shape))))
        op = self.kernel.op
        taps = [slice(0, (n - 1) * d + 1, d) for n, d, a in zip(op.taps, op.dilation, self.axes, strict=True) if not a.short]
        return numbers[(slice(None), slice(None), *taps)]

    def _taps(self, filters: Any) -> Any:
        """Filters without the axes along which they have one tap."""
        return filters[(slice(None), slice(None), *(0 if a.short else slice(None) for a in self.axes))]

    # ---- copies

    def _copy(self, target: Any, source: Any) -> None:
        for one, other in _of_five_axes(target, source):
            self.backend.copy("compute", one, other)

    def _store(self, target: Any, source: Any, first: bool) -> None:
        """Results, added to what is there but in the first tile of a sum."""
        if first:
            self._copy(target, source)
            return
        for one, other in _of_five_axes(target, source):
            move(self.backend, "blend_block", self.dtype, one, other, 1)


def _of_five_axes(target: Any, source: Any) -> Iterator[tuple[Any, Any]]:
    """Two arrays of one shape in parts of as many axes as kernels take, cut along groups or images, whichever are fewer."""
    if not target.size:
        return
    thin = tuple(i for i, e in enumerate(target.shape) if e == 1)
    target, source = target.squeeze(thin), source.squeeze(thin)
    if target.ndim <= MOST_AXES:
        yield target, source
        return
    axis = 0 if target.shape[0] <= target.shape[1] else 1
    for i in range(target.shape[axis]):
        at_one = (slice(None),) * axis + (i,)
        yield from _of_five_axes(target[at_one], source[at_one])


def _prepare(op: Op, sizes: Sizes, workspace: Any, backend: Any) -> Kernel:
    assert isinstance(op, Convolution)
    return CufftConv(op, sizes, workspace, backend)


CUFFT = Family(why_not_fft, fft_workspace, _prepare, empty=True, rounds=True)
