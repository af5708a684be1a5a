"""Convolution by Fourier transforms (overlap-save): the segments that a tile is cut into, and what they take.

A block of outputs needs a segment of inputs that is longer by the reach of the filters. Each segment of each channel is
transformed once, there and back; for every frequency a product sums over channels, or over blocks for the gradient of filters.
Counted as operations of a direct convolution, at whose rate they would take as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ooc.ir.op import ITEM_BYTES, Op, compute_dtype
from ooc.ir.region import Sizes

TAPS = 128  # of a filter: fewer are summed directly, exactly where numbers are
# Kernels that convolve so, and what each block of outputs costs them beside its transforms: on a GPU some calls, 10 us and more.
KERNELS = {"fft": 0.0, "cufft": 1e8}
LINE_BYTES = 64  # of the real parts of neighbouring frequencies, which are multiplied together
EACH, DOUBLING, PRODUCT = (
    20,
    10,
    14,
)  # measured: of a number that is transformed, of each doubling of a segment, of a complex product
RATIOS = (1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 11, 16, 23, 32, 64)  # of a segment to the reach of the filters
CACHED, SLOWER = 1 << 17, 1.3  # numbers of a segment that caches hold, and how much longer those of larger ones take
BETTER = 0.95  # of the operations for which a segment may be larger
FOLDED = 2048  # numbers from which on kernels may make a plane of a line: of lengths that halve six times alone
SMOOTH = (2**a * 3**b * 5**c for a in range(23) for b in range(3) for c in range(3))
LENGTHS = np.asarray(sorted(n for n in SMOOTH if n < 1 << 23 and (n < FOLDED or n % 64 == 0)))


@runtime_checkable
class Convolved(Protocol):
    """What is asked of a convolution."""

    @property
    def kind(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def stride(self) -> tuple[int, ...]: ...

    @property
    def taps(self) -> tuple[int, ...]: ...

    @property
    def dilation(self) -> tuple[int, ...]: ...

    @property
    def dims(self) -> dict[str, int]: ...

    @property
    def walked(self) -> str: ...

    def taps_of(self, sizes: Sizes) -> tuple[Any, ...]: ...


class Segments(NamedTuple):
    """Of one tile, or of many.

    Fields:
        lengths: along the spatial axes.
        blocks: of outputs, of all images.
        places: of blocks in an image, positions along axes that are not transformed not counted.
        numbers: of a segment.
        frequencies: of its spectrum, filled up to whole lines.
        turning: operations of a transform.
    """

    lengths: tuple[Any, ...]
    blocks: Any
    places: Any
    numbers: Any
    frequencies: Any
    turning: Any


def why_not(op: Op, kernel: str) -> str | None:
    """Why a kernel that transforms does not serve an op; None where it may."""
    if not isinstance(op, Convolved):
        return f"{kernel}: serves convolutions, not {op.kind}"
    if max(op.stride) > 1:
        return f"{kernel}: transforms give all positions, at stride 1"
    return f"{kernel}: serves filters of {TAPS} taps and more" if math.prod(op.taps) < TAPS else None


def segments(op: Convolved, sizes: Sizes, kernel: str = "fft") -> Segments:
    """The segments that take a kernel the fewest operations, or hardly more than larger ones."""
    best, *others = _candidates(op, sizes)
    prepared = _share(op, sizes) * _pairs(sizes)
    least = _effort(op, sizes, best, kernel) + prepared * best.turning
    for some in others:
        effort = _effort(op, sizes, some, kernel) + prepared * some.turning
        better = effort < BETTER * least
        least = np.where(better, effort, least)
        lengths = tuple(np.where(better, *both) for both in zip(some.lengths, best.lengths, strict=True))
        best = Segments(lengths, *(np.where(better, *both) for both in zip(some[1:], best[1:], strict=True)))
    return best


def _candidates(op: Convolved, sizes: Sizes) -> Iterator[Segments]:
    line = LINE_BYTES // ITEM_BYTES[compute_dtype(op.dtype)]
    outs = [sizes[d] for d in op.walked]
    reaches = [(r - 1) * u + 1 for r, u in zip(op.taps_of(sizes), op.dilation, strict=True)]
    turned = [r > 1 for r in op.taps]
    last = max((i for i, along in enumerate(turned) if along), default=0)
    for ratio in RATIOS:
        lengths = [_length(ratio, r, o) if along else 1 for r, o, along in zip(reaches, outs, turned, strict=True)]
        all_of = list(zip(outs, reaches, lengths, turned, strict=True))
        places = math.prod(-(-o // (n - r + 1)) for o, r, n, along in all_of if along)
        blocks = sizes["n"] * places * math.prod(o for o, _, _, along in all_of if not along)
        numbers = math.prod(lengths)
        frequencies = numbers // lengths[last] * (-(-(lengths[last] // 2 + 1) // line) * line)
        turning = numbers * (EACH + DOUBLING * np.log2(numbers)) * np.where(numbers > CACHED, SLOWER, 1)
        yield Segments(tuple(lengths), blocks, places, numbers, frequencies, turning)


def _length(ratio: float, reach: int, outputs: Any) -> Any:
    """The next length that transforms fast, not longer than a block of all outputs."""
    return LENGTHS[np.searchsorted(LENGTHS, np.minimum(np.ceil(ratio * reach), outputs + reach - 1))]


def _pairs(sizes: Sizes) -> Any:
    """Filters of one input and one output channel."""
    return sizes.get("g", 1) * sizes["c"] * sizes["k"]


def _share(op: Convolved, sizes: Sizes) -> Any:
    """Of an op that a tile is, in images and positions: filters are transformed once for all of them."""
    return math.prod((sizes[d] / op.dims[d] for d in ("n", *op.walked)), start=1.0) * (op.kind != "conv.wgrad")


def _effort(op: Convolved, sizes: Sizes, some: Segments, kernel: str) -> Any:
    channels = sizes.get("g", 1) * (sizes["c"] + sizes["k"])
    summed = _pairs(sizes) * some.turning if op.kind == "conv.wgrad" else 0
    products = some.blocks * (channels * some.turning + PRODUCT * some.frequencies * _pairs(sizes))
    return products + summed + some.places * KERNELS[kernel]


def effort(op: Convolved, sizes: Sizes, kernel: str) -> Any:
    """Operations of a tile whose filters are transformed already."""
    return _effort(op, sizes, segments(op, sizes, kernel), kernel)


def preparation(op: Convolved, kernel: str) -> float:
    """Operations for each byte of filters that come anew."""
    return float(segments(op, op.dims, kernel).turning) / (math.prod(op.taps) * ITEM_BYTES[op.dtype])
