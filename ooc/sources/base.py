"""What all formats check alike."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc.errors import ArgumentError, DtypeError, ShapeError, StoreError
from ooc.ir.region import Region, extents
from ooc.sources.around import Indexed
from ooc.sources.checks import faults, show, within
from ooc.sources.protocol import Array
from ooc.sources.units import covering

if TYPE_CHECKING:
    from typing import Self


class FileSource(Indexed):
    """What the formats share: the checks, and errors that name the file. They bring `_read`, `_write` and `_close`.

    unit: extents of what the file stores in one piece. whole_units: whether writes must be made of whole units. trust: whether it
    may lead to files elsewhere. sequential: whether it is read from its beginning on alone. header: the library's, of a format
    that has one. geometry: where positions lie in the world, by letter of an axis, as far as the file tells.
    """

    whole_units = False
    trust = False
    sequential = False
    copy: FileSource | None = None  # a raw one, of a sequential source that functions read
    header: Any = None
    geometry: Mapping[str, Any] = MappingProxyType({})

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
