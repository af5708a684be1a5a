"""Tensors in files, read and written by region: the protocol, and what all formats check alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

from ooc.errors import ArgumentError, DtypeError, ShapeError, StoreError
from ooc.ir.region import Region, extents
from ooc.sources.checks import faults, show, within
from ooc.sources.units import covering

if TYPE_CHECKING:
    from typing import Self

Array = np.ndarray[Any, Any]


@runtime_checkable
class Source(Protocol):
    """A tensor in a file.

    shape: extents. dtype: native byte order, whatever the file has. axes: a lower-case letter per axis, as the format tells
    them (of 'tczyxsn', s: samples of a pixel), or '' where it does not. buffer_bytes: what a read or a write of a region of
    whole units takes besides the caller's array, at most, and what the source holds anyway; 0 for raw files.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: str
    buffer_bytes: int

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`, an array of its extents and of the source's dtype, whatever its strides. Threads may too."""

    def write(self, region: Region, array: Array) -> None:
        """Copy an array into a region; a source that was opened for reading raises StoreError."""

    def own(self, region: Region) -> Region:
        """The smallest region of whole units (chunks, shards, tiles, strips) that covers a region, within the shape."""

    def mapped(self) -> Array | None:
        """The tensor as a memory map, where its numbers lie in the file as they do in memory; else None."""

    def settle(self) -> None:
        """Make the file say what was written, for others that open it. Whoever writes a whole result calls it at the end."""

    def close(self) -> None:
        """Finish the file. Again does nothing."""

    def __enter__(self) -> Self:
        """The source itself."""

    def __exit__(self, *error: object) -> None:
        """Close; where an error left the block, without finishing what only a whole tensor would finish."""


# What no other library's arrays have, all of them.
METHODS = ("read", "write", "own", "mapped", "settle", "close", "__enter__", "__exit__")
FIELDS = ("shape", "dtype", "axes", "buffer_bytes")


def is_source(array: Any) -> TypeGuard[Source]:
    """Whether an object is a source. Its class is looked at first: other libraries' arrays raise what they like when they are
    asked for attributes, a closed one for its shape."""
    return all(hasattr(type(array), name) for name in METHODS) and all(hasattr(array, name) for name in FIELDS)


class Around:
    """A source around another one. What it does not say otherwise is the other's."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.shape, self.dtype, self.axes, self.buffer_bytes = source.shape, source.dtype, source.axes, source.buffer_bytes

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`."""
        self.source.read(region, out)

    def write(self, region: Region, array: Array) -> None:
        """Copy `array` into a region."""
        self.source.write(region, array)

    def own(self, region: Region) -> Region:
        """The smallest region of whole units that covers a region."""
        return self.source.own(region)

    def mapped(self) -> Array | None:
        """The source's memory map, if it has one."""
        whole = self.source.mapped()
        return None if whole is None else self.see(whole)

    def see(self, array: Array) -> Array:
        """An array of the source's shape, seen as this is."""
        return array

    def settle(self) -> None:
        """Make the file say what was written."""
        self.source.settle()

    def close(self) -> None:
        """Close the source."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.source.__exit__(*error)


def innermost(source: Source) -> Source:
    """The source around which others may lie."""
    while isinstance(source, Around):
        source = source.source
    return source


class FileSource:
    """What the formats share: the checks, and errors that name the file. They bring `_read`, `_write` and `_close`.

    unit: extents of what the file stores in one piece. whole_units: whether writes must be made of whole units. trust: whether it
    may lead to files elsewhere. sequential: whether it is read from its beginning on alone. header: the library's, of a format
    that has one.
    """

    whole_units = False
    trust = False
    sequential = False
    copy: FileSource | None = None  # a raw one, of a sequential source that functions read
    header: Any = None

    def __init__(
        self, path: str, shape: tuple[int, ...], dtype: np.dtype[Any], axes: str = "", unit: tuple[int, ...] | None = None,
        writable: bool = False, buffer_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.path, self.shape, self.dtype = path, shape, dtype.newbyteorder("=")
        self.axes = axes if len(axes) == len(shape) else ""
        self.unit = unit or (1,) * len(shape)
        self.writable, self.buffer_bytes, self.closed = writable, buffer_bytes, False

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`."""
        region = self._checked("read", region, out)
        if not out.flags.writeable:
            raise ArgumentError(f"{self.path}: read: out is read-only")
        if out.size:
            with faults(self.path, "reading"):
                self._read(region, out)

    def write(self, region: Region, array: Array) -> None:
        """Copy `array` into a region."""
        if not self.writable:
            raise StoreError(f"{self.path}: opened for reading; open it with mode='r+', or create a new file")
        region = self._checked("write", region, array)
        if self.whole_units and self.own(region) != region:
            raise ArgumentError(
                f"{self.path}: write of {show(region)}: not made of whole units of {self.unit}, of which two writers at once "
                f"would lose data; the whole units around it are {show(self.own(region))}"
            )
        if array.size:
            with faults(self.path, "writing"):
                self._write(region, array)

    def absent(self, unit: Region) -> bool:
        """Whether the file is known to have nothing of a unit, which is zero then. False, unless a format says otherwise."""
        return False

    def own(self, region: Region) -> Region:
        """The smallest region of whole units that covers a region."""
        return covering(within(self.path, region, self.shape), self.unit, self.shape)

    def mapped(self) -> Array | None:
        """None, unless a format says otherwise."""
        return None

    def settle(self) -> None:
        """Make the file say what was written."""
        if self.writable and not self.closed:
            with faults(self.path, "writing"):
                self._settle()

    def close(self) -> None:
        """Finish the file."""
        self._end(True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end(not any(error))

    def _end(self, whole: bool) -> None:
        if not self.closed:
            self.closed = True
            if self.copy is not None:
                self.copy.close()
            with faults(self.path, "closing"):
                self._close(whole)

    def _checked(self, doing: str, region: Region, array: Array) -> Region:
        if self.closed:
            raise StoreError(f"{self.path}: {doing}: the source is closed")
        region = within(self.path, region, self.shape)
        if not isinstance(array, np.ndarray):
            raise ArgumentError(f"{self.path}: {doing}: expected a NumPy array, got {type(array).__name__}")
        if array.shape != extents(region):
            raise ShapeError(f"{self.path}: {doing} of {show(region)}: expected an array {extents(region)}, got {array.shape}")
        if array.dtype != self.dtype:
            raise DtypeError(f"{self.path}: {doing}: the file has {self.dtype}, the array {array.dtype}")
        return region

    def _read(self, region: Region, out: Array) -> None:
        raise NotImplementedError

    def _write(self, region: Region, array: Array) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        """Make the file say what was written, for others that open it now."""

    def _close(self, whole: bool) -> None:
        """Release what is open. whole: the caller wrote all that it wanted to."""
