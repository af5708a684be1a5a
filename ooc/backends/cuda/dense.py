"""Dense forms of our own CUDA kernels (kernels/device/dense.cu): where tensors have no gaps, and how threads share them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ooc.backends.cuda.divisor import divisor
from ooc.backends.gpu_workspace import GOOD, MOST
from ooc.backends.views import dense_strides

UNROLL = 4  # packs of 16 bytes that a thread takes at least
# Kernels with a dense form, and which of their operands may have a value for each channel; all others must be alike.
ELEMENTWISE: dict[str, tuple[str, ...]] = {
    "pointwise": ("b",), "multiply": ("b",), "activation_backward": (), "bn_apply": ("mean", "var", "scale", "b"),
    "bn_pull": ("mean", "var", "scale", "dscale", "db"), "convert_in": ("scale", "offset"), "convert_out": (),
}  # fmt: skip
ACTIVATED = ("pointwise", "multiply", "activation_backward", "bn_apply")  # a dense form for each activation
SUMMING = {"reduce": ("x",), "bn_moments": ("x",), "bn_sums": ("x", "dy")}  # kernels whose parts have one, and what they sum


class DenseKernel(NamedTuple):
    """Threads that a dense form takes, and what it wants to know of the tensors, as bytes of Args."""

    threads: int
    told: bytes


def by_channel(shape: tuple[int, ...], channels: int) -> bool:
    """Whether an operand has a value for each of so many channels, and no others."""
    return shape[min(len(shape) - 1, 1)] == channels == math.prod(shape)


def one_by_one(array: Any) -> bool:
    """Whether the values of channels follow each other."""
    axis = min(array.ndim - 1, 1)
    return bool(array.shape[axis] == 1 or array.strides[axis] == array.itemsize)


def dense_form(
    order: tuple[int, ...], arrays: Sequence[Any], item: int, for_channels: bool, addresses: int
) -> DenseKernel | None:
    """How arrays of one shape are shared, if all lie in this order of axes without gaps.

    item: bytes of an element as it is computed (integers that are converted may have fewer). for_channels: whether other operands
    have a value for each channel. addresses: theirs, by `or`.
    """
    shape = arrays[0].shape
    if addresses % GOOD or not all(a.shape == shape and _without_gaps(shape, a.strides, a.itemsize, order) for a in arrays):
        return None
    return _shared(shape, GOOD // item, for_channels and order == tuple(range(len(shape))), for_channels)


@lru_cache(1 << 12)
def _without_gaps(shape: tuple[int, ...], strides: tuple[int, ...], item: int, order: tuple[int, ...]) -> bool:
    expected = dense_strides(shape, item, order)
    return all(e <= 1 or have == want for e, have, want in zip(shape, strides, expected, strict=True))


@lru_cache(1 << 12)
def _shared(shape: tuple[int, ...], lanes: int, channels_first: bool, for_channels: bool) -> DenseKernel | None:
    """Packs as an array of three axes, of which the middle one is shared: the batch where there is one, so that a thread stays in
    its channel; else the positions of a channel."""
    count = math.prod(shape)
    inner = math.prod(shape[2:]) if for_channels else count
    if not 0 < count < MOST or inner % lanes or (for_channels and not channels_first):
        return None
    packs, inner = count // lanes, inner // lanes
    channels = shape[1] if for_channels else 1
    if for_channels and shape[0] >= UNROLL:
        middle, last = shape[0], packs // shape[0]
    else:
        middle, last = inner, 1
    part = -(-middle // UNROLL)
    threads = packs // (middle * last) * part * last
    return DenseKernel(threads, _told(threads, _by(last), _by(part), middle, _by(inner), _by(channels)))


def dense_sums(x: Any, sums_shape: tuple[int, ...], order: tuple[int, ...], addresses: int) -> DenseKernel | None:
    """How the sums of each channel, or of each channel of each sample, are shared, where what is summed is dense, channels first.

    x: what is summed; others lie as it does. sums_shape: extents of the results.
    """
    if addresses % GOOD or order != tuple(range(x.ndim)) or not _without_gaps(x.shape, x.strides, x.itemsize, order):
        return None
    return _summed(x.shape, x.itemsize, sums_shape)


@lru_cache(1 << 12)
def _summed(shape: tuple[int, ...], item: int, sums_shape: tuple[int, ...]) -> DenseKernel | None:
    lanes, positions, results = GOOD // item, math.prod(shape[2:]), math.prod(sums_shape)
    if positions % lanes or math.prod(sums_shape[2:]) > 1 or not 0 < math.prod(shape) < MOST:
        return None
    if results not in (shape[1], shape[0] * shape[1]):
        return None
    inner, each = positions // lanes, results == shape[0] * shape[1]
    return DenseKernel(results, _told(inner * (1 if each else shape[0]), _by(inner), 0 if each else inner * shape[1]))


def _by(number: int) -> tuple[int, int, int]:
    return number, *divisor(number)


def _told(*numbers: int | tuple[int, int, int]) -> bytes:
    flat = [n for one in numbers for n in (one if isinstance(one, tuple) else (one,))]
    return struct.pack(f"={len(flat)}I", *flat)
