"""The one argument of our own CUDA kernels, a record of blocks and numbers: Args in kernels/device/common.cu."""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ooc.backends.cuda.divisor import divisor
from ooc.backends.device_array import at
from ooc.ir.region import Region

SLOTS, REALS, WHOLES, DENSE = 12, 12, 32, 16  # as there
ACC, SCRATCH, GROUP, PARTS = 6, 7, 30, 31  # the slots and the numbers that every sum has
TENSOR = np.dtype([
    ("data", "u8"), ("stride", "i8", 5), ("lo", "i8", 5), ("extent", "i8", 5), ("by", "u4", 5), ("shift", "u4", 5),
])  # fmt: skip
ARGS = np.dtype([
    ("t", TENSOR, SLOTS), ("real", "f8", REALS), ("whole", "i8", WHOLES), ("dense", "u4", DENSE), ("first", "i8"), ("last", "i8"),
])  # fmt: skip
OFFSETS = {name: int(offset) for name, (_, offset, *_) in ARGS.fields.items()}  # type: ignore[union-attr]
LAID = struct.Struct("=Q40s5q80s")  # a TENSOR
SMALL = 1 << 30  # below it coordinates, extents and spans are counted in 32 bits


class _Form(NamedTuple):
    """How a block lies: its strides and its extents as bytes of a TENSOR, and whether 32 bits count it."""

    stride: bytes
    extent: bytes
    small: bool


@lru_cache(1 << 13)
def _form(shape: tuple[int, ...], extents: tuple[int, ...], strides: tuple[int, ...]) -> _Form:
    """Of a block of a tensor of some shape. strides: in elements."""
    # An axis of extent 1 is broadcast: kernels may come with any coordinate.
    step = _five([0 if whole == 1 else s for s, whole in zip(strides, shape, strict=True)], 0)
    extent = _five(list(extents), 1)
    divisors = [divisor(e) for e in extent]
    how = (*(by for by, _ in divisors), *(shift for _, shift in divisors))
    reach = sum(abs(s) * max(e - 1, 0) for s, e in zip(step, extent, strict=True))
    return _Form(struct.pack("=5q", *step), struct.pack("=5q10I", *extent, *how), max(reach, math.prod(extent), *shape) < SMALL)


def _five(values: list[int], missing: int) -> list[int]:
    """Values of the axes of a tensor, or of a vector of channels, as those of (n, channel, d, h, w)."""
    if len(values) == 1:
        return [missing, values[0], missing, missing, missing]
    return [*values[:2], *[missing] * (5 - len(values)), *values[2:]]


class Arguments:
    """An ARGS record that is filled as bytes: as fields of NumPy's it would take ten times as long. blank: one of no tile yet.

    Fields:
        record: to be given to the kernel.
        index: bits in which the kernel may count coordinates and offsets.
    """

    def __init__(self, blank: bytes) -> None:
        self.bytes = bytearray(blank)
        self.record = np.frombuffer(self.bytes, ARGS).reshape(())
        self.index = 32

    def fill(self, slot: int, shape: tuple[int, ...], region: Region, array: Any | None) -> int:
        """Describe the block of a region of a tensor and return its address. No array: a tensor that is not resident, of which
        only the extents count."""
        lo = [0 if whole == 1 else s.lo for s, whole in zip(region, shape, strict=True)]
        address = 0
        if array is None:
            form = _form(shape, tuple([s.hi - s.lo for s in region]), (0,) * len(shape))
        else:
            item, address = array.itemsize, at(array)
            form = _form(shape, array.shape, tuple([s // item for s in array.strides]))
        LAID.pack_into(self.bytes, slot * TENSOR.itemsize, address, form.stride, *_five(lo, 0), form.extent)
        if not form.small:
            self.index = 64
        return address

    def scratch(self, array: Any) -> None:
        """Where the parts of a sum are."""
        struct.pack_into("=Q", self.bytes, SCRATCH * TENSOR.itemsize, at(array))

    def dense(self, form: bytes) -> None:
        """What a dense form of a kernel wants to know."""
        begin = OFFSETS["dense"]
        self.bytes[begin : begin + len(form)] = form

    def phase(self, first: bool, last: bool) -> None:
        """Where the tile stands in its reduction."""
        struct.pack_into("=2q", self.bytes, OFFSETS["first"], first, last)
