"""The classes of cuDNN's algorithms: which convolutions each serves, and the workspace that it wants.

Workspaces were read from the library on an H200 (cuDNN 9.19, perfmodel/results/h200/first.jsonl): the formulas of Winograd and
FFT are exact on all 2-D rows there, that of precomputed GEMM is above all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ooc.backends.conv_call import ROLES
from ooc.ir.op import Op, Operand, aligned
from ooc.ir.region import Sizes
from ooc.ops import Convolution

EXTRA = 9 << 20  # bytes that precomputed GEMM wants beside room for x, w and y: 16 to 1171, or 8 MiB and those
WORTH = 32  # channels, in and out, below which transforms move more than they save
PLANE = 4 * 17 * 32 * 2  # bytes of the spectrum of a 32 x 32 tile, half of it as the input is real
FFT_TILE, FFT_BATCH = 32, 64  # the extent of such a tile, and how many are multiplied at once


class Algorithms(NamedTuple):
    """A class of cuDNN's algorithms.

    Fields:
        codes: its number in cuDNN's list of each pass; empty: whatever cuDNN expects to be fastest.
        why_not: why it does not serve an op; None where it does.
        nbytes: the workspace that it wants for tiles of these sizes (ints or arrays).
        planes: whether it wants tensors whose planes have no gaps between rows.
    """

    codes: Mapping[str, int]
    why_not: Callable[[Op], str | None]
    nbytes: Callable[[Convolution, Sizes], Any]
    planes: bool = False


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
    if op.rank != 2 or not fits(op) or (op.stride, op.dilation, op.groups) != (ones, ones, 1):
        return f"cudnn: transforms serve two spatial axes, {taps}, stride, dilation and groups 1"
    if op.dtype != "f32" or op.layout != "channels_first":
        return "cudnn: transforms serve f32, channels first; tensor cores are faster for half types"
    return f"cudnn: transforms gain nothing below {WORTH} channels" if min(op.c, op.k) < WORTH else None


def _why_not_winograd(op: Op) -> str | None:
    return _why_not_transformed(op, "3 x 3 taps", lambda conv: conv.taps == (3, 3))


def _why_not_fft(op: Op) -> str | None:
    return _why_not_transformed(op, "taps from 3 to 32", lambda conv: min(conv.taps) >= 3 and max(conv.taps) <= FFT_TILE)


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


def _winograd_bytes(op: Convolution, sizes: Sizes) -> Any:
    """36 numbers for each 4 x 4 results of each channel, and for each filter. Source: Lavin, Gray, "Fast algorithms for
    convolutional neural networks", 2016."""
    c, k = _channels(op, sizes)
    return 4 * 36 * (_positions(op, sizes, (4, 4)) * (c + k) + k * c)


def _fft_bytes(op: Convolution, sizes: Sizes) -> Any:
    """The spectra of all filters, and of a batch of tiles of every channel."""
    c, k = _channels(op, sizes)
    steps = tuple(FFT_TILE + 1 - taps for taps in op.taps)
    return PLANE * (c * k + np.minimum(_positions(op, sizes, steps), FFT_BATCH) * (c + k))


# ---- products


def _why_not_gemm(op: Op) -> str | None:
    if isinstance(op, Convolution) and op.kind == "conv.fprop" and op.dtype in ("f32", "f64"):
        return "cudnn: without tensor cores 2 KiB are enough, which cudnn_lean has"
    return convolutions_only(op)


def _gemm_bytes(op: Convolution, sizes: Sizes) -> Any:
    """x, w and y once more, in the layout of tensor cores."""
    return sum(o.block_bytes(sizes) for o in operands_of(op)) + EXTRA


WINOGRAD = Algorithms({"fprop": 7, "dgrad": 5, "wgrad": 5}, _why_not_winograd, _winograd_bytes)
FFT = Algorithms({"fprop": 5, "dgrad": 3, "wgrad": 6}, _why_not_fft, _fft_bytes, planes=True)
# What gradients want without tensor cores was not measured yet; all that was seen of f32 wanted 2 KiB at most.
GEMM = Algorithms({}, _why_not_gemm, _gemm_bytes)
# On the H200 a resident x of 11 columns of 1024 ran at the rate of f32, with room enough.
TF32 = Algorithms({}, convolutions_only, _gemm_bytes, planes=True)
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
