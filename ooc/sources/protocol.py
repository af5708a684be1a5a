"""Tensors in files, read and written by region: the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

from ooc.ir.region import Region

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
