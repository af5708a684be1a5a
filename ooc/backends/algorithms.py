"""The classes of cuDNN's algorithms: which convolutions each serves, and the workspace that it wants.

Workspaces were read from the library on an H200 (cuDNN 9.19, rows in perfmodel/results/h200): the formulas
of Winograd and FFT are exact on all 2-D rows there, that of precomputed GEMM is above all of them.

Winograd's algorithms transform 16 images at a time; a tile of fewer is cut in strips, each with a halo, which count as images,
and so do the planes of a volume. Both go by way of copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ooc.backends.conv_call import ROLES
from ooc.ir.op import ITEM_BYTES, Op, Operand, aligned
from ooc.ir.region import Sizes
from ooc.ops import Convolution

# Bytes that precomputed GEMM wants beside room for x, w and y: at most 32 were seen without tensor cores; with them 16 to 1171,
# or 8 MiB and those, and for sums of w in parts: twice as many blocks of 128 x 128 as there are processors are made at once.
EXACT_EXTRA = 4096
EXTRA = {"fprop": 9 << 20, "dgrad": 9 << 20, "wgrad": 18 << 20}
VECTOR, FEW = 16, 4  # bytes of channels that tensor cores take at a time; channels for which half of that does, but in dgrad
WORTH = 32  # channels, in and out, below which transforms move more than they save
PLANE = 4 * 17 * 32 * 2  # bytes of the spectrum of a 32 x 32 tile, half of it as the input is real
REFUSED = 2**55  # bytes of a workspace that no budget holds: sums of many are numbers, too
FFT_TILE = 32  # the extent of such a tile
FFT_BATCH = 2  # tiles of each image that are multiplied at once
FFT_IMAGES = 16  # below which its rate falls to a tenth
IMAGES = 16  # that Winograd transforms at a time, the last with as many as are left, but in wgrad
MOST_IMAGE = 2**31  # bytes of an image
SPLITS = tuple((1 << i, 1 << j) for i in range(5) for j in range(5 - i))  # strips along h and w: 16 at most
MOST_WASTED = 2  # times the 4 x 4 results that there are, above which Winograd loses what it wins

Split = tuple[int, int]


class Algorithms(NamedTuple):
    """A class of cuDNN's algorithms.

    Fields:
        codes: its number in cuDNN's list of each pass; empty: whatever cuDNN expects to be fastest.
        why_not: why it does not serve an op; None where it does.
        nbytes: the workspace that it wants for tiles of these sizes (ints or arrays).
        planes: whether it wants tensors whose planes have no gaps between rows.
        images: whether it takes many images at a time, for which tiles are copied.
        copies: bytes of those copies, of what it wants.
    """

    codes: Mapping[str, int]
    why_not: Callable[[Op], str | None]
    nbytes: Callable[[Convolution, Sizes], Any]
    planes: bool = False
    images: bool = False
    copies: Callable[[Convolution, Sizes], Any] = lambda op, sizes: 0


def operands_of(op: Convolution) -> tuple[Operand, ...]:
    """The operands that play x, w and y."""
    named = {o.name: o for o in op.operands}
    return tuple(named[role] for role in ROLES[op.kind])


def convolutions_only(op: Op) -> str | None:
    """Why cuDNN does not serve an op; None where it does."""
    return None if isinstance(op, Convolution) else f"cudnn: serves convolutions, not {op.kind}"


# ---- transforms


def _why_not_transformed(op: Op, taps: str, fits: Callable[[Convolution], bool]) -> str | None:
    if not isinstance(op, Convolution):
        return convolutions_only(op)
    ones = (1,) * op.rank
    if not fits(op) or (op.stride, op.dilation, op.groups) != (ones, ones, 1):
        return f"cudnn: transforms serve {taps}, stride, dilation and groups 1"
    if op.dtype != "f32" or op.layout != "channels_first":
        return "cudnn: transforms serve f32, channels first; tensor cores are faster for half types"
    return f"cudnn: transforms gain nothing below {WORTH} channels" if min(op.c, op.k) < WORTH else None


def _why_not_winograd(op: Op) -> str | None:
    return _why_not_transformed(op, "two or three spatial axes, 3 x 3 taps in planes", lambda op: op.taps[-2:] == (3, 3))


def _why_not_fft(op: Op) -> str | None:
    taps = "two spatial axes, taps from 3 to 32"
    return _why_not_transformed(op, taps, lambda op: op.rank == 2 and min(op.taps) >= 3 and max(op.taps) <= FFT_TILE)


def _positions(op: Convolution, sizes: Sizes, steps: tuple[int, ...]) -> Any:
    """How many squares of so many results a tile has."""
    output, slack = (op.outputs[0], 1) if op.kind == "conv.dgrad" else (operands_of(op)[2], 0)
    squares: Any = output.axes[0].extent(sizes)
    for axis, step, taps in zip(output.axes[2:], steps, op.taps, strict=True):
        squares = squares * -(-(axis.extent(sizes) + slack * (taps - 1)) // step)  # dgrad at an edge computes its padding too
    return squares


def _channels(op: Convolution, sizes: Sizes) -> tuple[Any, Any]:
    x, _, y = operands_of(op)
    return x.axes[1].extent(sizes), y.axes[1].extent(sizes)


class _Images(NamedTuple):
    """A tile for Winograd: how many images before planes are cut, their extent, channels in and out, taps along the depth and
    planes that the source has more than the result, all of which may be arrays."""

    count: Any
    extent: tuple[Any, Any]
    c: Any
    k: Any
    taps: int
    more: Any

    def nbytes(self, direction: str, split: Split) -> tuple[Any, Any, Any]:
        """The workspace that cuDNN wants with planes cut so; bytes of copies; and 4 x 4 results that are computed. 36 numbers for
        each of those of each channel, and for each filter. Source: Lavin, Gray, "Fast algorithms for convolutional neural
        networks", 2016."""
        strips, parts = math.prod(split), [-(-e // s) for e, s in zip(self.extent, split, strict=True)]
        images = self.count * strips
        if direction != "wgrad":
            images = -(-images // IMAGES) * IMAGES
        squares = images * -(-parts[0] // 4) * -(-parts[1] // 4)
        inner = (parts[0] + 2) * (parts[1] + 2)
        source, sink = (self.k, self.c) if direction == "dgrad" else (self.c, self.k)
        copied = ((self.count + self.more) * source * inner, self.count * sink * parts[0] * parts[1])
        copies = sum(aligned(4 * strips * elements) for elements in copied) + (self.taps > 1) * aligned(
            36 * self.taps * self.k * self.c
        )
        as_it_is = strips == 1 and self.taps == 1
        return 4 * 36 * (squares * (self.c + self.k) + self.k * self.c), copies * (not as_it_is), squares


def _images(op: Convolution, sizes: Sizes) -> _Images:
    output, slack = (op.outputs[0], 1) if op.kind == "conv.dgrad" else (operands_of(op)[2], 0)
    n, (*depth, h, w) = output.axes[0].extent(sizes), [axis.extent(sizes) for axis in output.axes[2:]]
    deep, (c, k) = (depth or [1])[0], _channels(op, sizes)
    taps = 1 if op.rank == 2 else op.taps[0]
    # dgrad that is told of as it is computes its padding too, where it is at an edge.
    return _Images(n * deep, (h + 2 * slack * (taps == 1), w + 2 * slack * (taps == 1)), c, k, taps, n * (taps - 1))


def split_of(direction: str, images: int, c: int, k: int, extent: tuple[int, int]) -> Split:
    """Into how many strips Winograd's planes are cut along h and w: as it has to compute least."""
    tile = _Images(images, extent, c, k, 1, 0)
    return min(SPLITS if direction != "wgrad" else SPLITS[:1], key=lambda split: sum(tile.nbytes(direction, split)[:2]))


def _winograd(op: Convolution, sizes: Sizes) -> tuple[Any, Any]:
    """All bytes that Winograd wants, and those of its copies, where planes are cut best."""
    tile, direction = _images(op, sizes), op.kind.removeprefix("conv.")
    best: tuple[Any, Any, Any] | None = None
    for split in SPLITS if direction != "wgrad" else SPLITS[:1]:
        algorithm, copies, squares = tile.nbytes(direction, split)
        wants = algorithm + copies, copies, squares
        if best is None:
            best = wants
        else:
            less = wants[0] < best[0]
            best = tuple(np.where(less, new, old) for new, old in zip(wants, best, strict=True))
    assert best is not None
    wasted = best[2] * 16 > MOST_WASTED * tile.count * tile.extent[0] * tile.extent[1]
    return best[0] + wasted * REFUSED, best[1]


def _winograd_bytes(op: Convolution, sizes: Sizes) -> Any:
    return _winograd(op, sizes)[0]


def _winograd_copies(op: Convolution, sizes: Sizes) -> Any:
    return _winograd(op, sizes)[1]


def _fft_bytes(op: Convolution, sizes: Sizes) -> Any:
    """The spectra of all filters, and of a batch of tiles of every channel."""
    c, k = _channels(op, sizes)
    steps = tuple(FFT_TILE + 1 - taps for taps in op.taps)
    n = operands_of(op)[2].axes[0].extent(sizes)
    return PLANE * (c * k + np.minimum(_positions(op, sizes, steps), FFT_BATCH * n) * (c + k)) + (n < FFT_IMAGES) * REFUSED


# ---- products


def _why_not_gemm(op: Op) -> str | None:
    if isinstance(op, Convolution) and op.kind == "conv.fprop" and op.dtype in ("f32", "f64"):
        return "cudnn: without tensor cores 2 KiB are enough, which cudnn_lean has"
    return convolutions_only(op)


def _gemm_bytes(op: Convolution, sizes: Sizes) -> Any:
    """x, w and y once more, for half types as tensor cores want them."""
    if op.dtype in ("f16", "bf16"):
        return _tensor_bytes(op, sizes)
    return sum(o.block_bytes(sizes) for o in operands_of(op)) + EXACT_EXTRA


def _tensor_bytes(op: Convolution, sizes: Sizes) -> Any:
    """x, w and y once more, in the layout of tensor cores, which fills up channels, and takes planar images of less than 2^31
    bytes."""
    if op.dtype == "f64":
        return _gemm_bytes(op, sizes)
    x, w, y = operands_of(op)
    c, k = _channels(op, sizes)
    full_c, full_k = (_filled(op, channels) for channels in (c, k))
    turned = x.block_bytes(sizes) // c * full_c + y.block_bytes(sizes) // k * full_k
    turned = turned + w.block_bytes(sizes) * full_c // c * full_k // k
    over: Any = False
    for image in (x, y):
        over = over | (image.block_bytes(sizes) >= MOST_IMAGE * image.axes[0].extent(sizes))
    return turned + EXTRA[op.kind.removeprefix("conv.")] + (over if op.rank < 3 else False) * REFUSED


def _filled(op: Convolution, channels: Any) -> Any:
    """Channels as tensor cores take them."""
    lanes = VECTOR // ITEM_BYTES[op.dtype]
    full = -(-channels // lanes) * lanes
    return full if op.kind == "conv.dgrad" else np.where(channels <= FEW, FEW, full)


WINOGRAD = Algorithms(
    {"fprop": 7, "dgrad": 5, "wgrad": 5}, _why_not_winograd, _winograd_bytes, images=True, copies=_winograd_copies
)
FFT = Algorithms({"fprop": 5, "dgrad": 3, "wgrad": 6}, _why_not_fft, _fft_bytes, planes=True)
GEMM = Algorithms({}, _why_not_gemm, _gemm_bytes)
# On the H200 a resident x of 11 columns of 1024 ran at the rate of f32, with room enough.
TF32 = Algorithms({}, convolutions_only, _tensor_bytes, planes=True)
LEAN = Algorithms({}, convolutions_only, lambda op, sizes: 0)

# By the names of families, the fastest first, with the math of f32: `fma` or `tf32`.
EXACT = {"cudnn_winograd": (WINOGRAD, "fma"), "cudnn_fft": (FFT, "fma"), "cudnn": (GEMM, "fma"), "cudnn_lean": (LEAN, "fma")}
ROUNDED = {"cudnn_tf32": (TF32, "tf32"), "cudnn_tf32_lean": (LEAN, "tf32")}


def algorithm_bytes(op: Op, sizes: Sizes, algorithms: Algorithms) -> Any:
    """What a class of algorithms may have while none was measured."""
    assert isinstance(op, Convolution)
    return aligned(algorithms.nbytes(op, sizes))


def tiles_of(op: Op, sizes: Sizes) -> int:
    """How many tiles of these sizes an op has."""
    return math.prod(-(-e // int(sizes[d])) for d, e in op.dims.items())
