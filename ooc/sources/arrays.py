"""Arrays of other libraries (zarr, h5py, dask, tensorstore, xarray and whatever is indexed as they are) as sources."""

from __future__ import annotations

import os
import weakref
from bisect import bisect_left, bisect_right
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.ma import MaskedArray, is_masked

from ooc.errors import DtypeError, OocError, ShapeError, StoreError
from ooc.ir.region import Region, Span, extents, slices
from ooc.sources.around import Indexed
from ooc.sources.checks import check_unit, faults, numeric, sizes, within
from ooc.sources.protocol import Array

if TYPE_CHECKING:
    from typing import Self

READ_ONLY = {"dask", "xarray"}  # libraries whose arrays change in memory alone when they are written to


class ArraySource(Indexed):
    """An array of another library, read and written by its own indexing. It is never closed: whoever opened it does that.

    Fields:
        array: what is indexed.
        writable: whether it takes what is written.
        file, inside: the file or folder that holds its numbers, and its name in there; "": not known.
    """

    def __init__(self, array: Any) -> None:
        self.array, self.path = array, kind_of(array)
        self.shape = sizes(self.path, array.shape)
        self.dtype = numeric(self.path, getattr(array.dtype, "numpy_dtype", array.dtype)).newbyteorder(
            "="
        )  # tensorstore has its own
        self.axes = ""
        self.edges = [_edges(extent, chunks) for extent, chunks in zip(self.shape, _chunks(array, self.shape), strict=True)]
        unit = tuple([max((hi - lo for lo, hi in pairwise(e)), default=1) for e in self.edges])
        self.buffer_bytes = 2 * check_unit(self.path, unit, self.dtype.itemsize, "chunks")  # encoded, and decoded by the library
        self.writable = _is_writable(array)
        self.file, self.inside = _place(array)

    def is_same(self, other: ArraySource) -> bool:
        """Whether another one is the same array, by whatever object."""
        one, two = self.array, other.array
        if one is two:
            return True
        with suppress(Exception):
            if isinstance(getattr(one, "file", None), type(getattr(two, "file", None))) and hasattr(one, "id"):  # h5py
                return bool(one.id == two.id)
            return type(one) is type(two) and bool(one.store == two.store) and one.path == two.path  # zarr
        return False

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`."""
        region = self._checked("read", region, out)
        with faults(self.path, "reading"):
            values = self.array[slices(region)]
            values = values if isinstance(values, np.ndarray) else np.asarray(values)
        if isinstance(values, MaskedArray):
            if is_masked(values):
                raise DtypeError(f"{self.path}: reading: masked values; fill them first")
            values = values.data
        if values.shape != out.shape:
            raise StoreError(f"{self.path}: reading: expected {out.shape}, got {values.shape}")
        out[...] = values

    def write(self, region: Region, array: Array) -> None:
        """Copy an array into a region."""
        region = self._checked("write", region, array)
        if not self.writable:
            raise StoreError(f"{self.path}: is read-only")
        with faults(self.path, "writing"):
            self.array[slices(region)] = np.ascontiguousarray(array) if array.ndim else array[()]

    def own(self, region: Region) -> Region:
        """The smallest region of whole chunks that covers a region."""
        region = within(self.path, region, self.shape)
        return tuple([_around(span, edges) for span, edges in zip(region, self.edges, strict=True)])

    def mapped(self) -> None:
        """None: the library reads it."""

    def settle(self) -> None:
        """Have the library write what it keeps, where it has a word for that."""
        flush = getattr(getattr(self.array, "file", None), "flush", None) or getattr(self.array, "flush", None)
        if self.writable and callable(flush):
            with faults(self.path, "writing"):
                flush()

    def close(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing."""

    def _checked(self, doing: str, region: Region, array: Array) -> Region:
        region = within(self.path, region, self.shape)
        if array.shape != extents(region) or array.dtype != self.dtype:
            raise ShapeError(
                f"{self.path}: {doing}: expected an array {extents(region)} of {self.dtype}, got {array.shape} of {array.dtype}"
            )
        return region


# By the array that each is of, which lives as long as it does: a call that reads and writes one array sees one source.
_sources: weakref.WeakValueDictionary[int, ArraySource] = weakref.WeakValueDictionary()


def kind_of(array: Any) -> str:
    """The library and the class of an object."""
    return f"{type(array).__module__.split('.')[0]}.{type(array).__name__}"


def as_source(array: Any) -> ArraySource:
    """An array of another library as a source: read and, where it can be, written by region.

    Every function does this by itself with arrays of zarr, h5py and tensorstore, with those of dask and xarray where it computes
    at once, and with all others that make their numbers anew each time they are indexed. A dask array is an input alone.

    Parameters:
        array: an object with shape, dtype, and indexing by slices, as in array[0:1, 5:9]; of NumPy's, what comes of that is
            seen as an array. To be written it has item assignment too. Its chunks (shards, where it has them) are decoded
            and encoded whole, one at a time.

    Returns:
        source: with shape, dtype, read, write, own and buffer_bytes, as of `ooc.open`. Closing it leaves the array open.

    Raises:
        DtypeError: an object without shape, dtype or indexing, or of other things than numbers.
        StoreError: chunks of more than 2 GiB.

    Example:
        >>> import numpy as np
        >>> import ooc
        >>> source = ooc.as_source(np.arange(12.0).reshape(3, 4))
        >>> part = np.empty((2, 2))
        >>> source.read(((0, 2), (1, 3)), part)
        >>> part.tolist()
        [[1.0, 2.0], [5.0, 6.0]]
    """
    return source_of("array", array)


def source_of(name: str, array: Any) -> ArraySource:
    """An argument as a source; the same array is the same source as long as that is used. Raises as `as_source`."""
    known = _sources.get(id(array))
    try:
        if not all(hasattr(array, name) for name in ("shape", "dtype", "__getitem__")):
            raise DtypeError(f"{name}: expected an object with shape, dtype and indexing, got a {kind_of(array)}")
        if known is None or known.shape != tuple(array.shape):
            known = _sources[id(array)] = ArraySource(array)
    except OocError:
        raise
    except Exception as error:  # of whatever library the object is: it is closed, say
        raise DtypeError(f"{name}: a {kind_of(array)} has no shape or dtype: {type(error).__name__}: {error}") from None
    return known


def _edges(extent: int, chunks: int | tuple[int, ...]) -> list[int]:
    """Where chunks begin along an axis, and where the last one ends. chunks: their extent, or one for each."""
    if isinstance(chunks, int):
        return [*range(0, extent, chunks), extent]
    edges = [0, *accumulate(chunks)]
    return edges if edges[-1] == extent and all(c > 0 for c in chunks) else [0, extent]


def _around(span: Span, edges: list[int]) -> Span:
    if span.lo == span.hi:
        return span
    return Span(edges[bisect_right(edges, span.lo) - 1], edges[bisect_left(edges, span.hi)])


def _chunks(array: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """What an array stores in one piece, along each axis: an extent, or those of all pieces. Without chunks a position."""
    chunks = getattr(array, "shards", None) or getattr(array, "chunks", None)
    if chunks is None and hasattr(array, "chunk_layout"):  # tensorstore
        with suppress(Exception):
            chunks = tuple(array.chunk_layout.write_chunk.shape)
    with suppress(TypeError, ValueError):  # what is called chunks may be anything
        if isinstance(chunks, tuple) and len(chunks) == len(shape):
            return tuple(
                [c if isinstance(c, tuple) else min(max(int(c), 1), max(e, 1)) for c, e in zip(chunks, shape, strict=True)]
            )
    return (1,) * len(shape)


def _is_writable(array: Any) -> bool:
    if not callable(getattr(array, "__setitem__", None)) or type(array).__module__.split(".")[0] in READ_ONLY:
        return False
    if getattr(array, "read_only", False) or getattr(array, "writable", True) is False:
        return False
    file = getattr(array, "file", None)
    return not isinstance(mode := getattr(file, "mode", None), str) or mode != "r"


def _place(array: Any) -> tuple[str, str]:
    """The file or folder of an array of zarr or h5py, and what is named in it."""
    with suppress(Exception):
        if isinstance(name := getattr(getattr(array, "file", None), "filename", None), str):
            return os.path.abspath(name), str(array.name).strip("/")
        root = getattr(getattr(array, "store", None), "root", None)
        if root is not None:
            return os.path.join(os.path.abspath(os.fspath(root)), *str(array.path).split("/")), ""
    return "", ""
