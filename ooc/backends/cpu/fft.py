"""Convolution by Fourier transforms on the CPU: for filters of many taps (kernels/fft)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import Kernel
from ooc.backends.cpu.conv import NativeConv, in_f32
from ooc.backends.cpu.loops import why_not_native
from ooc.backends.families import Family
from ooc.backends.views import lift_spatial
from ooc.ir.op import ITEM_BYTES, Block, Op, compute_dtype
from ooc.ir.region import Sizes, Tile
from ooc.ops import Convolution
from ooc.ops.transforms import segments, why_not

VECTOR_BYTES = 64  # the widest
BLOCKS = 16  # whose spectra are multiplied together, each of the filters loaded once for all of them
TABLES = 4  # numbers for each one along an axis: the roots of unity of two transforms
FOLDS = tuple(1 << i for i in range(4, 11))  # lines that a segment may be folded into
FLAT = 8  # numbers of these lines for each of them, at least


class FftConv(NativeConv):
    """By transforms, or by the direct kernel where numbers are not finite or so large that sums may not be. Keeps the spectra of
    filters while their block is unchanged."""

    def __init__(self, op: Convolution, sizes: Sizes, workspace: Any, threads: int) -> None:
        super().__init__(op, workspace, threads)
        assert native.kernels is not None
        lengths = lift_spatial(tuple(int(n) for n in segments(op, sizes).lengths), 1)
        self.tables = native.kernels.FftTables(native.DTYPE_CODES[op.dtype], lengths, int(folded(lengths)))
        self.spectra: Any = None

    def __call__(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        assert native.kernels is not None
        args = self.arguments(tile, blocks)
        geometry, stamp = self._geometry(args), (args[3], args[0][1].shape, args[2])
        kept = self.direction != "wgrad" and bool(args[3]) and stamp == self.spectra
        call = (tile, blocks, first, last)
        if self._run(native.kernels.fft_conv, geometry, args, call, kept, self.threads, self.tables):
            self.spectra, self.packed = stamp, None  # it works where packed filters were
        else:
            self.spectra = None
            super().__call__(tile, blocks, first, last)


def _why_not(op: Op) -> str | None:
    return why_not(op, "fft") or why_not_native(op)


def folded(lengths: Sequence[Any]) -> Any:
    """Into how many lines a segment is folded: 1 unless it is one long line."""
    longest = np.maximum.reduce(np.broadcast_arrays(*lengths))
    lines = np.ones_like(longest)
    for fold in FOLDS:
        lines = np.where((math.prod(lengths) == longest) & (longest % fold == 0) & (FLAT * fold**2 <= longest), fold, lines)
    return lines


def _workspace(op: Op, sizes: Sizes, threads: int) -> Any:
    """Spectra of filters, and of some blocks of all channels; what each thread transforms; tables."""
    assert isinstance(op, Convolution)
    item, some, groups = ITEM_BYTES[compute_dtype(op.dtype)], segments(op, sizes), sizes.get("g", 1)
    lanes, folds = VECTOR_BYTES // item, folded(some.lengths)
    longest = np.maximum.reduce(np.broadcast_arrays(*some.lengths)) // folds
    across = -(-(longest // 2 + 1) // lanes)  # whole lines of frequencies
    spectrum = 2 * item * np.where(folds > 1, folds * across * lanes, some.frequencies)
    line = math.prod(some.lengths) == longest * folds
    lines = np.where(line & (folds == 1), lanes, 1)  # segments that are transformed together
    channels, filters = groups * (sizes["c"] + sizes["k"]), groups * sizes["c"] * sizes["k"]
    blocks = np.minimum(some.blocks, np.maximum(BLOCKS, lines * -(-2 * threads // channels)))
    alone = (op.kind != "conv.wgrad") & (sizes["c"] * sizes["k"] == 1) & (lines == 1)  # each channel of a block in one place
    at_once = np.where(alone, groups * some.blocks, np.maximum(filters, blocks * channels))
    passing = np.where(at_once < 2 * threads, 1, threads)  # fewer are transformed by all threads
    work = threads * 2 * VECTOR_BYTES * (np.where(line, 1, 2) * longest + lanes) + passing * spectrum
    roots = 2 * item * folds * (lanes + across) * (folds > 1) + TABLES * item * (longest + folds)
    return (filters + np.where(alone, 0, blocks * channels)) * spectrum + work + roots


def _prepare(op: Op, sizes: Sizes, workspace: Any, threads: int) -> Kernel:
    assert isinstance(op, Convolution)
    return FftConv(op, sizes, workspace, threads)


FFT = in_f32(Family(_why_not, _workspace, _prepare, rounds=True))
