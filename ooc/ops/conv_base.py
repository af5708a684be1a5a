"""Convolution (cross-correlation, as in cuDNN) in one, two or three spatial dimensions: what its passes share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ooc.cache import cached_property
from ooc.errors import ShapeError
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Along, AxisMap, Grouped, Sizes, Tile, Whole
from ooc.ops import transforms
from ooc.ops.activation import activate
from ooc.ops.spatial import SpatialOp, channel_axis, check_positive, out_extent

# Gathering a column takes these kernels as long as summing so many channels of it. Measured, 3 x 3, 32 -> 1 to 32 channels.
GATHERING = {"native": 3, "native_lean": 3}
# Packing filters again for each tile takes it as long as summing at so many positions. Measured, 128 -> 128 to 1024 -> 2048.
PACKING = {"native_lean": 25}
# Transforms of cuDNN compute squares of so many results and taps less one: at the edges of a tile they are filled up.
SQUARES = {"cudnn_winograd": 6, "cudnn_fft": 32}
# Operations that take as long as a byte of x or y: planes of a volume are walked through for each tap of the depth. Measured.
PASSED = 300

PART = "r"  # the loop dim of taps along the first spatial axis
LEAST_PARTED, MANY_TAPS = 8, 512  # taps along that axis, and of a filter, from which on it may pay to have some in a tile


@dataclass(frozen=True)
class Convolution(SpatialOp):
    """The sizes that all passes of a convolution share, in the terms of its forward pass.

    x: n x c x extent, w: k x c/groups x taps, y: n x k x out. Descriptor: `conv.PASS n= c= [[d=] h=] w= k= [[t=] r=] s=
    [stride=] [dilation=] [pad=] [bias=1] [act=] [coef=] [groups=] [dtype=] [layout=] [parted=1]`. parted: whether tiles may have
    some of the taps along the first spatial axis, which the loop dim `PART` counts; only sums over channels and taps do.
    """

    n: int
    c: int
    extent: tuple[int, ...]
    k: int
    taps: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    pad: tuple[tuple[int, int], ...] = ()
    bias: bool = False
    act: str = "identity"
    coef: float = 0.0
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"
    parted: bool = False

    quiet: ClassVar[dict[str, int]] = {"stride": 1, "dilation": 1}
    vectored: ClassVar[str]  # the channels of which kernels compute many at a time

    def __post_init__(self) -> None:
        ones = (1,) * self.rank
        self.normalise(stride=ones, dilation=ones, pad=((0, 0),) * self.rank)
        check_positive(self.kind, n=self.n, c=self.c, k=self.k, extent=self.extent, filter=self.taps)
        check_positive(self.kind, stride=self.stride, dilation=self.dilation, groups=self.groups)
        self.check_words()
        if any(before < 0 or after < 0 for before, after in self.pad):
            raise ShapeError(f"{self.kind}: padding must not be negative, got {self.pad}")
        if self.c % self.groups or self.k % self.groups:
            raise ShapeError(f"{self.kind}: groups={self.groups} must divide c={self.c} and k={self.k}")
        if any(o < 1 for o in self.out):
            reach = tuple((r - 1) * d + 1 for r, d in zip(self.taps, self.dilation, strict=True))
            raise ShapeError(f"{self.kind}: a filter reaching {reach} does not fit extents {self.extent} with padding {self.pad}")

    @property
    def walked(self) -> str:
        """The loop dims of positions, a letter each."""
        raise NotImplementedError

    def effort(self, sizes: Sizes, kernel: str = "") -> Any:
        """Operations of a tile with what is wasted: by half empty vectors of channels, or of groups of one channel each; by
        gathering columns for a few channels, and packing filters for a few positions; by squares that are not full; by
        planes of volumes, one call for each tap of the depth. Those of transforms by their kernels."""
        if kernel in transforms.KERNELS:
            return transforms.effort(self, sizes, kernel)
        if kernel in SQUARES:
            steps = (SQUARES[kernel] + 1 - taps for taps in self.taps[-2:])
            filled = (-(-sizes[d] // step) * step / sizes[d] for d, step in zip(self.walked[-2:], steps, strict=True))
            again = (self.taps[0] - 1) * 4 * PASSED if self.rank == 3 else 0
            passes = again * (1 / sizes["c"] + 1 / sizes["k"]) / (2 * math.prod(self.taps))
            return math.prod(filled, start=self.flops(sizes)) + self.flops(sizes) * passes
        if self.groups > 1 and not self.c == self.k == self.groups:
            return self.flops(sizes)
        if self.groups == 1 and kernel in GATHERING:
            packed = PACKING.get(kernel, 0) if self.fixed else 0
            positions = math.prod((sizes[d] / self.dims[d] for d in ("n", *self.walked)), start=self.n * math.prod(self.out))
            return self.flops(sizes) * (1 + GATHERING[kernel] / sizes[self.vectored]) * (1 + packed / positions)
        count, lanes = (sizes[self.vectored], 8) if self.groups == 1 else (sizes["g"], 16)
        return self.flops(sizes) * (-(-count // lanes) * lanes / count)

    def preparation(self, kernel: str) -> float:
        return self._turning[kernel] if kernel in transforms.KERNELS and self.fixed else 0.0

    @cached_property
    def _turning(self) -> dict[str, float]:
        return {kernel: transforms.preparation(self, kernel) for kernel in transforms.KERNELS}

    @cached_property
    def out(self) -> tuple[int, ...]:
        """Output extents."""
        axes = zip(self.extent, self.taps, self.stride, self.dilation, self.pad, strict=True)
        return tuple(out_extent(*axis) for axis in axes)

    def taps_of(self, sizes: Sizes) -> tuple[Any, ...]:
        """How many taps tiles of these sizes have along each axis."""
        return (sizes[PART], *self.taps[1:]) if self.parted else self.taps

    @property
    def c_axis(self) -> AxisMap:
        """Axis map of x's channels."""
        return Along("c") if self.groups == 1 else Grouped("g", "c", self.c // self.groups)

    @property
    def k_axis(self) -> AxisMap:
        """Axis map of y's channels."""
        return channel_axis(self.k, self.groups)

    def like_x(self, name: str, spatial: Iterable[AxisMap]) -> Operand:
        """A tensor of the shape of x whose spatial axes follow these maps."""
        axes = (Along("n"), self.c_axis, *spatial)
        return Operand(name, (self.n, self.c, *self.extent), self.dtype, axes, self.memory_order)

    def like_y(self, name: str, spatial: Iterable[AxisMap]) -> Operand:
        """A tensor of the shape of y whose spatial axes follow these maps."""
        axes = (Along("n"), self.k_axis, *spatial)
        return Operand(name, (self.n, self.k, *self.out), self.dtype, axes, self.memory_order)

    def filters(self, name: str) -> Operand:
        """The filters, or their gradient."""
        first: AxisMap = Along(PART) if self.parted else Whole(self.taps[0])
        axes = (self.k_axis, Along("c"), first, *map(Whole, self.taps[1:]))
        return Operand(name, (self.k, self.c // self.groups, *self.taps), self.dtype, axes, self.memory_order)

    def summed(self, output: Operand) -> tuple[Operand, ...]:
        """The partial sum of an output: the output itself where it has the compute type."""
        compute = compute_dtype(self.dtype)
        return (output if compute == self.dtype else Operand("acc", output.shape, compute, output.axes, output.order),)

    def grouped(self, array: Any, tile: Tile) -> Any:
        """An array in the compute type, its channel axis as groups x channels."""
        groups = tile["g"].extent if "g" in tile else 1
        wide = array.astype(numpy_dtype(compute_dtype(self.dtype)))
        return wide.reshape(array.shape[0], groups, array.shape[1] // groups, *array.shape[2:])

    def grouped_filters(self, block: Block, tile: Tile) -> Any:
        """The filters that a tile needs, in the compute type, as groups x k x c x taps."""
        w = crop(block, self.filters("w").region(tile)).array
        groups = tile["g"].extent if "g" in tile else 1
        return w.astype(numpy_dtype(compute_dtype(self.dtype))).reshape(groups, w.shape[0] // groups, *w.shape[1:])

    def finish(self, total: Any, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        """The fold of every pass: add the partial sum of a tile; at the end bias and activation."""
        acc = blocks.get(self.state[0].name)
        if not first and acc is not None:
            total += acc.array
        if not last and acc is not None:
            acc.array[...] = total
            return
        if self.bias:
            total += crop(blocks["b"], self.inputs[-1].region(tile)).array.reshape(-1, *(1,) * self.rank)
        blocks[self.outputs[0].name].array[...] = activate(self.act, self.coef, total)
