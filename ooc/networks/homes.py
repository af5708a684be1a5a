"""Where tensors live that left the device: one file, made whole before the first step, or pageable memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc.backends.views import dense
from ooc.ir.op import Operand, numpy_dtype
from ooc.ir.region import Region, Span, elements
from ooc.runtime.codec import pack_zeros, unpack_zeros
from ooc.runtime.store import ArrayStore, NullStore, Store
from ooc.runtime.swap import FilePart, SwapFile
from ooc.schedule.arena import Buffer, Layout
from ooc.schedule.place import FILE, PAGEABLE


class PackedStore:
    """Bytes at home, packed with the zeros left out where that makes them fewer. Pieces are read as they were written.

    inner: the bytes as they lie. item: bytes of an item. threads: that pack. rooms: where it is done, for "store" and "load".
    """

    def __init__(self, inner: Store, item: int, threads: int) -> None:
        self.inner, self.item, self.threads = inner, item, threads
        self.shape = inner.shape
        self.rooms: dict[str, Any] = {}
        self.lengths: dict[Region, int] = {}  # of the pieces that were packed; 0: this one was not

    @property
    def packed(self) -> int:
        """Bytes that the pieces take."""
        return sum(nbytes or elements(region) for region, nbytes in self.lengths.items())

    @property
    def raw(self) -> int:
        """Bytes that the pieces have."""
        return sum(map(elements, self.lengths))

    def write(self, region: Region, source: Any, bounce: Any | None) -> None:
        room = self.rooms["store"][: elements(region)]
        nbytes = pack_zeros(source, room, item=self.item, threads=self.threads)
        self.lengths[region] = nbytes or 0
        if nbytes is None:
            self.inner.write(region, source, bounce)
        else:
            self.inner.write(_first(region, nbytes), room[:nbytes], bounce)

    def read(self, region: Region, target: Any, bounce: Any | None) -> None:
        nbytes = self.lengths[region]
        if not nbytes:
            self.inner.read(region, target, bounce)
            return
        room = self.rooms["load"][:nbytes]
        self.inner.read(_first(region, nbytes), room, bounce)
        unpack_zeros(room, elements(region) // self.item, target, item=self.item, threads=self.threads)

    def fetch(self, regions: Sequence[Region], bounce_bytes: int) -> None:
        self.inner.fetch([_first(r, self.lengths.get(r) or elements(r)) for r in regions], bounce_bytes)

    def view(self, region: Region) -> None:
        return None

    def file_offset(self, region: Region) -> int:
        return self.inner.file_offset(region)

    def close(self) -> None:
        self.inner.close()


def _first(region: Region, nbytes: int) -> Region:
    """The first bytes of a piece."""
    (span,) = region
    return (Span(span.lo, span.lo + nbytes),)


class Homes:
    """What holds the tensors that a schedule keeps in a file or in pageable memory. threads: for copying, and for reading. holds:
    False for a device that computes nothing, and needs no room."""

    def __init__(self, layout: Layout, threads: int, holds: bool = True) -> None:
        self.layout, self.threads, self.holds = layout, threads, holds
        self.file = SwapFile(layout.peaks[FILE]) if holds and layout.peaks.get(FILE) else None
        self.memory = np.zeros(layout.peaks.get(PAGEABLE, 0) if holds else 0, np.uint8)

    def store(self, operand: Operand, home: Buffer, layout: Layout | None = None) -> Store:
        """A tensor at home, with the axes of an operand."""
        if not self.holds:
            return NullStore(operand.shape)
        at = (layout or self.layout).offsets[home]
        if home.space == FILE:
            assert self.file is not None
            return FilePart(operand, self.file, at, self.threads)
        return ArrayStore(dense(self.memory, at, operand.shape, numpy_dtype(operand.dtype), operand.memory_order), self.threads)

    def close(self) -> None:
        """Give the room back."""
        if self.file is not None:
            self.file.close()
        self.memory = np.zeros(0, np.uint8)
