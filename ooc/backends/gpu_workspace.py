"""Workspace of a GPU's kernels: arithmetic on the sizes of tiles, which asks no device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooc import ops
from ooc.backends.algorithms import REFUSED, operands_of
from ooc.backends.conv_call import half_bytes
from ooc.backends.families import Family
from ooc.ir.op import ITEM_BYTES, Op, Operand, aligned, compute_dtype
from ooc.ir.region import Sizes
from ooc.ops import Convolution
from ooc.ops.transforms import segments, why_not

FFT_AT_ONCE = 1 << 25  # numbers that it transforms at once, in and out
MOST = 2**31  # elements from the first to the last: from here on cuDNN refuses a tensor
GOOD = 16  # bytes of which cuDNN's fast kernels want addresses to be multiples
RESULTS = 1 << 17  # threads that fill a device: sums with fewer results than that are shared among threads
MOST_PARTS = 4096  # most that share one
LEAST_TERMS = 64  # terms that each of them takes at least
SLOPED = ("q", "k", "scores")  # parts of attention that need the slopes of scores, not their weights
# Ops whose sums threads may share, and how many values a part has for each element of their first result.
SHARED: dict[type[Op], int] = {
    ops.ConvWgrad: 1, ops.Reduce: 1, ops.BnMoments: 3, ops.BnSums: 2, ops.SoftmaxSum: 1, ops.SoftmaxDot: 1,
    ops.DiceSums: 1,
}  # fmt: skip


# ---- our own kernels


def parts_of(op: Op, sizes: Sizes) -> Any:
    """How many threads share each result of a tile."""
    terms: Any = 1
    for d in op.reduce:
        terms = terms * sizes[d]
    return np.clip(np.minimum(RESULTS // np.maximum(op.outputs[0].count(sizes), 1), terms // LEAST_TERMS), 1, MOST_PARTS)


def shared_bytes(op: Op, sizes: Sizes, parts: Any) -> Any:
    """Bytes that the parallel form of an op needs for tiles of these sizes (all ints or arrays); 0 where it has none."""
    return op.outputs[0].count(sizes) * (SHARED.get(type(op), 0) * parts * 8 * (parts > 1))


def in_order(op: Op) -> bool:
    """Whether no sums of an op are shared among threads, so that none depends on the tiling."""
    return type(op) not in SHARED


# ---- cuBLAS


def why_not_products(op: Op) -> str | None:
    """Why cuBLAS does not serve an op; None where it does."""
    if not (isinstance(op, ops.MatMul) or (isinstance(op, ops.Attention) and op.how != "dots")):
        return f"cublas: serves products of matrices and attention, not {op.kind}"
    return None if op.layout == "channels_first" else "cublas: serves channels first, heads ahead of rows"


def products_bytes(op: Op, sizes: Sizes) -> Any:
    """Room for the scores of a tile of attention, their slopes, weights of a half type, and a number for each query."""
    if not isinstance(op, ops.Attention):
        return 0
    count, rounded = op.tensor("dx").count(sizes), ITEM_BYTES[op.dtype] == 2 and op.how != "scores"
    scores = aligned(count * ITEM_BYTES[compute_dtype(op.dtype)])
    factors = aligned(op.operand("dots").count(sizes) * 8) * (op.how == "forward")
    return scores * (1 + (op.how in SLOPED)) + aligned(count * 2) * rounded + factors


# ---- cuFFT


def why_not_fft(op: Op) -> str | None:
    """Why cuFFT does not serve an op; None where it does."""
    half = None if op.dtype in ("f32", "f64") else f"cufft: computes f32 and f64, not {op.dtype}"
    return why_not(op, "cufft") or half


def fft_places(op: Op, sizes: Sizes) -> Any:
    """At how many places of an image blocks are transformed at once, in all images."""
    assert isinstance(op, Convolution)
    some = segments(op, sizes, "cufft")
    each = some.blocks // some.places * sizes.get("g", 1) * (sizes["c"] + sizes["k"])
    return np.minimum(some.places, np.maximum(FFT_AT_ONCE // (some.numbers * each), 1))


def fft_bytes(op: Op, sizes: Sizes) -> tuple[Any, ...]:
    """Room for numbers; for spectra of what is met, of what is walked over, and of filters; and for cuFFT to work in: twice the
    largest spectra, while no card has told."""
    assert isinstance(op, Convolution)
    some, groups, item = segments(op, sizes, "cufft"), sizes.get("g", 1), ITEM_BYTES[op.dtype]
    blocks = fft_places(op, sizes) * (some.blocks // some.places) * groups
    met, walked = ("k", "c") if op.kind == "conv.dgrad" else ("c", "k")
    counts = blocks * sizes[met], blocks * sizes[walked], groups * sizes["c"] * sizes["k"]
    most, spectrum = np.maximum(np.maximum(counts[0], counts[1]), counts[2]), 2 * item * some.frequencies
    numbers = most * some.numbers
    return (numbers + (numbers >= MOST) * REFUSED) * item, *(n * spectrum for n in counts), 2 * most * spectrum


def fft_workspace(op: Op, sizes: Sizes, means: Any) -> Any:
    """All of that."""
    return sum(aligned(n) for n in fft_bytes(op, sizes))


# ---- cuDNN


class Axis(NamedTuple):
    """A spatial axis of a tile: what x has, how far that begins inside the first window, how far all windows reach."""

    extent: int
    pad: int
    reach: int
    stride: int

    @property
    def even(self) -> bool:
        """Whether equal padding at both ends gives exactly these windows."""
        return 0 <= 2 * self.pad + self.extent - self.reach < self.stride

    @property
    def written(self) -> int:
        """The extent with all padding written out."""
        return max(self.pad + self.extent, self.reach)


def cudnn_bytes(op: Op, sizes: Sizes, algorithm: Any, single: Family, means: Any) -> Any:
    """Workspace of a convolution by cuDNN. algorithm: bytes of that; single: the family that computes f32, by way of which half
    types go where their sum is split."""
    assert isinstance(op, Convolution)
    nbytes = detour_bytes(op, sizes) + algorithm + _too_large(op, sizes)
    half = half_way(op, sizes)
    return nbytes if half is False else nbytes * (1 - half) + half_bytes(op, single, sizes, means) * half


def detour_bytes(op: Convolution, sizes: Sizes) -> Any:
    """Room for x with its padding written out, where some tile of these sizes may need that."""
    x, _, y = operands_of(op)
    needed: Any = False
    room: Any = x.axes[0].extent(sizes) * x.axes[1].extent(sizes) * ITEM_BYTES[op.dtype]
    loop = op.outputs[0] if op.kind == "conv.dgrad" else y
    for i, (r, s, u, pad) in enumerate(zip(op.taps, op.stride, op.dilation, op.pad, strict=True), 2):
        window, pieces = (r - 1) * u + 1, loop.axes[i].extent(sizes)
        whole = Axis(op.extent[i - 2], pad[0], (op.out[i - 2] - 1) * s + window, s)
        cut = pieces < loop.shape[i]
        needed = needed | (cut if pad != (0, 0) or (op.kind == "conv.dgrad" and (r > 1 or s > 1)) else False) | (not whole.even)
        room = room * ((y.axes[i].extent(sizes) - 1) * s + window + s - 1)
    return aligned(room * needed)


def dense_from(role: int, direction: str, planes: bool) -> int:
    """The first axis from which on cuDNN wants x, w or y (role 0, 1, 2) to have no gaps in a pass; 5: it takes any. planes:
    whether the algorithms want planes without gaps. dgrad wants its dy dense, wgrad its x, as an H200 showed
    (perfmodel/results/h200/second/images.jsonl)."""
    if role == 1:
        return 0
    if (role, direction) in ((2, "dgrad"), (0, "wgrad")):
        return 1
    return 2 if planes else 5


def beside_bytes(op: Op, sizes: Sizes, in_place: frozenset[str], planes: bool = False) -> Any:
    """Room for copies of operands that are used in place, where cuDNN does not take tiles of these sizes as they lie there.
    planes: whether the algorithms want planes without gaps."""
    if not isinstance(op, Convolution):
        return 0
    nbytes: Any = 0
    for role, operand in enumerate(operands_of(op)):
        if operand.name in in_place:
            first = dense_from(role, op.kind.removeprefix("conv."), planes)
            nbytes = nbytes + aligned(operand.block_bytes(sizes)) * _loose(operand, sizes, first)
    return nbytes * (1 - half_way(op, sizes))


def _loose(operand: Operand, sizes: Sizes, first: int) -> Any:
    """Whether tiles of a dense tensor span too much, or have gaps along the axes from `first` on."""
    step, reach = 1, 0  # elements
    gaps: Any = False
    cut: Any = False
    for axis in reversed(operand.memory_order):
        extent, whole = operand.axes[axis].extent(sizes), operand.shape[axis]
        gaps = gaps | (cut & (extent > 1) if axis >= first else False)
        cut = cut | (extent < whole)
        reach = reach + np.minimum(extent - 1, whole - 1) * step
        step *= whole
    return gaps | (reach >= MOST)


def half_way(op: Convolution, sizes: Sizes) -> Any:
    """Whether a half type goes by way of f32: where its sum is split, since cuDNN's results have the type of its factors."""
    cut: Any = False
    for d in op.reduce:
        cut = cut | (sizes[d] < op.dims[d])
    return cut if ITEM_BYTES[op.dtype] == 2 else False


def _too_large(op: Convolution, sizes: Sizes) -> Any:
    """Where a tile has more elements than cuDNN takes, a workspace that no budget holds."""
    over: Any = False
    for operand in operands_of(op):
        over = over | (operand.count(sizes) >= MOST)
    return over * REFUSED
