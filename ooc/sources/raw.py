"""Numbers that lie in a file as they would in memory: no decoding, a region is its own unit."""

from __future__ import annotations

import math
import os
import shutil
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from ooc import native
from ooc.errors import StoreError
from ooc.files.mapped import note_inode
from ooc.files.reached import regular
from ooc.ir.region import Region, extents
from ooc.sources.base import FileSource
from ooc.sources.checks import faults
from ooc.sources.protocol import Array
from ooc.sources.units import batches, inside

PIECE = 1 << 14  # elements that change their byte order at once on the way into a file


def strides_of(shape: tuple[int, ...], itemsize: int, fortran: bool = False) -> tuple[int, ...]:
    """Of an array without gaps.

    >>> strides_of((2, 3, 4), 1), strides_of((2, 3, 4), 1, fortran=True)
    ((12, 4, 1), (1, 2, 6))
    """
    strides, step = [], itemsize
    for extent in shape if fortran else reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(strides if fortran else reversed(strides))


class RawSource(FileSource):
    """An array without gaps at an offset of a file. Read through a file descriptor, never by page faults: resident memory
    stays as it is, and a file that shrinks gives an error where a mapping would give a fatal signal."""

    def __init__(
        self, path: str, file: str, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, axes: str = "",
        writable: bool = False, fortran: bool = False, fd: int = -1,
    ) -> None:  # fmt: skip
        """fd: of the file if it is open already; it is closed with this then."""
        super().__init__(path, shape, dtype, axes, writable=writable)
        self.stored, self.offset, self.file = dtype, offset, file
        self.strides = strides_of(shape, dtype.itemsize, fortran)
        self.swapped = dtype != dtype.newbyteorder("=")
        with faults(path, "opening"):
            if fd < 0:
                regular(file, path)
            self.fd = os.open(file, os.O_RDWR if writable else os.O_RDONLY) if fd < 0 else fd
        self._finish = weakref.finalize(self, os.close, self.fd)
        need, have = offset + math.prod(shape) * dtype.itemsize, os.fstat(self.fd).st_size
        if have < need:
            self._finish()
            raise StoreError(f"{path}: the array needs {need} bytes but the file has {have}; it was truncated")

    def mapped(self) -> Array | None:
        """The tensor as a memory map, unless its bytes are swapped."""
        if self.swapped or not math.prod(self.shape):
            return None
        order: Any = "C" if self.strides == strides_of(self.shape, self.dtype.itemsize) else "F"
        mode: Any = "r+" if self.writable else "r"
        with faults(self.path, "mapping"), open(self.file, f"{mode}b") as file:
            array = np.memmap(file, self.dtype, mode, self.offset, self.shape, order)
            note_inode(array, file.fileno())
        return array

    def _close(self, whole: bool) -> None:
        self._finish()

    def _read(self, region: Region, out: Array) -> None:
        if native.kernels is None:
            self._read_plain(region, out)
        else:
            native.kernels.read_region(
                self.fd,
                -1,
                self._at(region),
                self.strides,
                extents(region),
                self.dtype.itemsize,
                native.address(out),
                out.strides,
            )
        if self.swapped:
            out.byteswap(inplace=True)

    def _write(self, region: Region, array: Array) -> None:
        if self.swapped:
            for part in batches(region, self.unit, PIECE):
                self._write_stored(part, array[inside(part, region)].byteswap())
        else:
            self._write_stored(region, array)

    def _write_stored(self, region: Region, array: Array) -> None:
        if native.kernels is None:
            self._write_plain(region, array)
        else:
            native.kernels.write_region(
                self.fd, -1, self._at(region), self.strides, extents(region), array.itemsize, native.address(array), array.strides
            )

    def _at(self, region: Region) -> int:
        return self.offset + sum(span.lo * step for span, step in zip(region, self.strides, strict=True))

    def _read_plain(self, region: Region, out: Array) -> None:
        """Without the extension: a call per row, or per element where rows of the file lie across."""
        for at, piece in self._pieces(region, out):
            data = os.pread(self.fd, piece.nbytes, at)
            if len(data) < piece.nbytes:
                raise EOFError(f"expected {piece.nbytes} bytes at {at}, got {len(data)}; the file was truncated")
            piece[...] = np.frombuffer(data, piece.dtype)

    def _write_plain(self, region: Region, array: Array) -> None:
        for at, piece in self._pieces(region, array):
            data = memoryview(piece.tobytes())
            while data:
                done = os.pwrite(self.fd, data, at)
                data, at = data[done:], at + done

    def _pieces(self, region: Region, array: Array) -> Iterator[tuple[int, Array]]:
        rows = bool(array.ndim) and self.strides[-1] == array.itemsize
        start = self._at(region)
        for index in np.ndindex(*(array.shape[:-1] if rows else array.shape)):
            at = start + sum(i * step for i, step in zip(index, self.strides))
            yield at, array[index] if rows else array[(*index, None)]


def lengthen(file: str, nbytes: int, folder: str = "") -> None:
    """Give a new file its length at once; the disk is asked first whether there is room. folder: of a file without a name."""
    free = shutil.disk_usage(folder or os.path.dirname(os.path.abspath(file))).free
    if nbytes > free:
        raise StoreError(f"{folder or file}: the file will have {nbytes} bytes but the disk has {free} left")
    os.truncate(file, nbytes)
