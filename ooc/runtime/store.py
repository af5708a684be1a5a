"""Where a whole tensor lives, behind two questions: read a region, write a region.

`ArrayStore` serves memory, `FileStore` the file behind an `np.memmap`, `NullStore` nothing. Files are read and written by
region through file descriptors, never by page faults: resident memory stays within the budget, the data may bypass the page
cache (direct I/O), and a file that shrinks gives an error where a mapping would give a fatal signal.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ooc import native
from ooc.errors import StoreError
from ooc.files.mapped import inode_of
from ooc.files.unnamed import path_of
from ooc.files.whole import settle_all
from ooc.ir.region import Region, extents, slices
from ooc.runtime.stored import Stored
from ooc.runtime.units import Units
from ooc.schedule.place import DIRECT
from ooc.sources.beside import location
from ooc.sources.checks import faults
from ooc.sources.remote import is_remote


class Store(Protocol):
    """A whole tensor, somewhere."""

    shape: tuple[int, ...]

    def view(self, region: Region) -> Any | None:
        """The region as an array in memory, or None when it must be read."""

    def read(self, region: Region, target: Any, bounce: Any | None) -> None:
        """Copy a region into an array; `bounce` is an aligned byte buffer to gather small pieces in, and for direct I/O if it is
        as large as `DIRECT`, or None."""

    def fetch(self, regions: Sequence[Region], bounce_bytes: int) -> None:
        """These will be read soon, with such a bounce buffer or none (0): the system may fetch them meanwhile."""

    def write(self, region: Region, source: Any, bounce: Any | None) -> None:
        """Copy an array into a region."""

    def file_offset(self, region: Region) -> int:
        """Where the region starts in its file, in bytes; 0 for memory."""

    def close(self) -> None:
        """Release what the store opened."""


class ArrayStore:
    """A tensor in memory: any strides, host or device. threads: for copying."""

    def __init__(self, array: Any, threads: int = 1) -> None:
        self.array, self.threads = array, threads
        self.shape = tuple(array.shape)

    def view(self, region: Region) -> Any:
        return self.array[slices(region)]

    def read(self, region: Region, target: Any, bounce: Any | None) -> None:
        native.copy(target, self.view(region), self.threads)

    def fetch(self, regions: Sequence[Region], bounce_bytes: int) -> None:
        """Memory is there already."""

    def write(self, region: Region, source: Any, bounce: Any | None) -> None:
        native.copy(self.view(region), source, self.threads)

    def file_offset(self, region: Region) -> int:
        return 0

    def close(self) -> None:
        self.array = None


class NullStore:
    """A tensor of which only the shape exists."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def view(self, region: Any) -> None:
        return None

    def read(self, region: Any, target: Any, bounce: Any | None) -> None:
        """Nothing to read."""

    def fetch(self, regions: Any, bounce_bytes: int) -> None:
        """Nothing to fetch."""

    def write(self, region: Any, source: Any, bounce: Any | None) -> None:
        """Nothing to write."""

    def file_offset(self, region: Any) -> int:
        return 0

    def close(self) -> None:
        """Nothing to release."""


class UnitStore:
    """A part of a source, of which units are kept, as an array sees it."""

    def __init__(self, units: Units, stored: Stored, shape: tuple[int, ...]) -> None:
        self.units, self.stored, self.shape = units, stored, shape

    def view(self, region: Region) -> None:
        return None

    def read(self, region: Region, target: Any, bounce: Any | None) -> None:
        for piece, array in self.stored.pieces(region, target):
            self.units.read(piece, array)

    def fetch(self, regions: Sequence[Region], bounce_bytes: int) -> None:
        """The library reads when it is asked."""

    def write(self, region: Region, source: Any, bounce: Any | None) -> None:
        for piece, array in self.stored.pieces(region, source):
            self.units.write(piece, array)

    def file_offset(self, region: Region) -> int:
        return 0

    def settle(self) -> None:
        """Wait until what was written is on the disk. Raises StoreError."""
        self.units.finish()
        if (file := location(self.units.source)) and not is_remote(file):
            with faults(file, "writing"):
                settle_all(Path(file))

    def close(self) -> None:
        """Whoever made the units closes them: several stores may have the same."""


class FileStore:
    """The file behind a memory-mapped array (or a view of one), read and written without the mapping.

    fd: of the file if it is open already, for reading and writing; it may have no name (path is then for errors). threads: for
    reading; the system lets one thread at a time write to a file.
    """

    def __init__(self, array: Any, path: str, offset: int, writable: bool, fd: int = -1, threads: int = 1) -> None:
        self.shape, self.strides, self.itemsize = tuple(array.shape), array.strides, array.itemsize
        self.path, self.offset, self.threads = path, offset, threads
        flags = os.O_RDWR if writable else os.O_RDONLY
        self.fd, self.direct = fd, -1
        direct_path = path if fd < 0 else path_of(fd)
        try:
            self.fd = os.open(path, flags) if fd < 0 else fd
            if native.kernels is not None and hasattr(os, "posix_fadvise"):  # all that is read is fetched by name
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
            self._check_length()
        except StoreError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise StoreError(error.errno, f"{path}: {error.strerror or error}") from error
        try:
            self.direct = os.open(direct_path, flags | getattr(os, "O_DIRECT", 0)) if hasattr(os, "O_DIRECT") else -1
        except OSError:
            self.direct = -1  # the file system has no direct I/O: buffered will do

    def _check_length(self) -> None:
        """A truncated file is refused before anything is computed."""
        last = sum((e - 1) * max(s, 0) for e, s in zip(self.shape, self.strides, strict=True))
        need, have = self.offset + last + self.itemsize, os.fstat(self.fd).st_size
        if have < need:
            raise StoreError(f"{self.path}: the array needs {need} bytes but the file has {have}; it was truncated")

    def view(self, region: Region) -> None:
        return None

    def file_offset(self, region: Region) -> int:
        return self.offset + sum(s.lo * int(st) for s, st in zip(region, self.strides, strict=True))

    def read(self, region: Region, target: Any, bounce: Any | None) -> None:
        if not target.size:
            return
        try:
            if native.kernels is None:
                self._read_plain(region, target)
                return
            if self.threads > 1:
                native.kernels.move_regions([(False, self.move(region, target, bounce))], [], self.threads)
            else:
                native.kernels.read_region(*self.move(region, target, bounce))
        except (OSError, EOFError) as error:
            raise self.fault("reading", error) from error

    def fetch(self, regions: Sequence[Region], bounce_bytes: int) -> None:
        if native.kernels is not None:
            native.kernels.fetch_regions(*self.fetching(regions, bounce_bytes))

    def fetching(self, regions: Sequence[Region], bounce_bytes: int) -> tuple[Any, ...]:
        """What the extension wants to know of regions to fetch."""
        offsets, shapes = [self.file_offset(r) for r in regions], [extents(r) for r in regions]
        direct = self.direct if bounce_bytes >= DIRECT else -1
        return self.fd, direct, offsets, self.strides, shapes, self.itemsize, bounce_bytes

    def move(self, region: Region, array: Any, bounce: Any | None) -> tuple[Any, ...]:
        """What the extension wants to know of a region to read or write: the file's side, then the memory's."""
        direct, at, size = self._bouncing(bounce)
        return (
            self.fd, direct, self.file_offset(region), self.strides, extents(region), self.itemsize,
            native.address(array), array.strides, at, size,
        )  # fmt: skip

    def write(self, region: Region, source: Any, bounce: Any | None) -> None:
        if not source.size:
            return
        try:
            if native.kernels is None:
                self._write_plain(region, source)
                return
            native.kernels.write_region(*self.move(region, source, bounce))
        except (OSError, EOFError) as error:
            raise self.fault("writing", error) from error

    def _bouncing(self, bounce: Any | None) -> tuple[int, int, int]:
        """The descriptor for direct I/O, or -1, and address and bytes of a bounce buffer."""
        if bounce is None:
            return -1, 0, 0
        return self.direct if bounce.nbytes >= DIRECT else -1, native.address(bounce), bounce.nbytes

    def fault(self, doing: str, error: Exception) -> StoreError:
        """The error to raise for one that moving a region met."""
        code = getattr(error, "errno", None)
        text = f"{self.path}: {doing} failed: {error}"
        return StoreError(code, text) if code else StoreError(text)

    def _read_plain(self, region: Region, target: Any) -> None:
        """Without the extension: one pread per innermost row (or per element when a row is strided)."""
        for at, piece in self._pieces(region, target):
            data = os.pread(self.fd, piece.nbytes, at)
            if len(data) < piece.nbytes:
                raise EOFError(f"expected {piece.nbytes} bytes at {at}, got {len(data)}")
            piece[...] = np.frombuffer(data, piece.dtype).reshape(piece.shape)

    def _write_plain(self, region: Region, source: Any) -> None:
        if os.fstat(self.fd).st_size < self.file_offset(region) + self.itemsize:
            raise EOFError("the file shrank")
        for at, piece in self._pieces(region, source):
            data = memoryview(np.ascontiguousarray(piece).tobytes())
            while data:
                done = os.pwrite(self.fd, data, at)
                data, at = data[done:], at + done

    def _pieces(self, region: Region, array: Any) -> Any:
        rows = bool(self.strides) and self.strides[-1] == self.itemsize
        outer = array.shape[:-1] if rows else array.shape
        for index in np.ndindex(*outer):
            at = self.file_offset(region) + sum(i * s for i, s in zip(index, self.strides, strict=False))
            yield at, array[index] if rows else array[(*index, None)]

    def settle(self) -> None:
        """Wait until what was written is on the disk. Raises StoreError."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise StoreError(error.errno, f"{self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        for fd in (self.fd, self.direct):
            if fd >= 0:
                os.close(fd)
        self.fd = self.direct = -1


def file_behind(array: Any) -> tuple[str, int] | None:
    """Path and byte offset of an array that views a shared file mapping; None for any other memory.

    Copy-on-write mappings (mode "c") are memory: their changes are not in the file. So is a mapping whose file was
    renamed, replaced or deleted since.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and isinstance(base.base, mmap.mmap):
            break
        base = base.base
    else:
        return None
    if base.filename is None or base.mode == "c":
        return None
    path = os.fspath(base.filename)
    offset = base.offset + native.address(array) - native.address(base) if array.size else base.offset
    return (path, offset) if _still_mapped(base.base, native.address(base), path) else None


def _still_mapped(mapping: mmap.mmap, address: int, path: str) -> bool:
    """Whether the file at a path is the one mapped at an address (Linux knows; elsewhere trust the path)."""
    try:
        return os.stat(path).st_ino == inode_of(mapping, address)
    except FileNotFoundError:
        return os.path.exists(path)


def open_store(array: Any, writable: bool = False, threads: int = 1) -> Store:
    """The store of an array: its file when it has one, its memory otherwise. threads: for copying in memory, and for reading."""
    location = file_behind(array)
    return FileStore(array, *location, writable, threads=threads) if location else ArrayStore(array, threads)
