"""Datasets of HDF5 files. h5py runs one call of the library at a time, whatever the threads."""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, StoreError
from ooc.files.whole import PART
from ooc.ir.region import Region, slices
from ooc.sources.base import FileSource
from ooc.sources.checks import check_unit, faults, library, numeric, sizes
from ooc.sources.hdf5_links import check_dataset
from ooc.sources.place import NewTensor, TensorPath, creating, exists
from ooc.sources.protocol import Array
from ooc.sources.units import batches, inside
from ooc.sources.zarr_metadata import letters

MOST_CACHE = 64 << 20  # bytes of chunks that the library keeps
PIECE = 1 << 20  # bytes that are read at once into an array with gaps
SPARE = 2 << 20  # bytes: the library's buffers for conversions


class Hdf5Source(FileSource):
    """A dataset, chunked or in one run. The library keeps a row of chunks, up to 64 MiB."""

    def __init__(self, at: TensorPath, dataset: Any, file: Any, writable: bool) -> None:
        self.file, self.dataset, self.chunks = file, dataset, dataset.chunks
        dtype = numeric(at.text, dataset.dtype)
        shape = sizes(at.text, dataset.shape or () if dataset.shape is not None else (0,))
        axes = letters([d.label for d in dataset.dims])
        chunk = math.prod(dataset.chunks) * dtype.itemsize if dataset.chunks else 0
        # The cache, the chunk at hand encoded and decoded, and a piece on its way into an array with gaps.
        held = _row(shape, dataset.chunks, dtype.itemsize) + 3 * chunk + max(chunk, PIECE) + SPARE
        super().__init__(at.text, shape, dtype, axes, dataset.chunks, writable, held)

    def _read(self, region: Region, out: Array) -> None:
        if out.flags.c_contiguous:
            self._straight(region, out)
            return
        for part in batches(region, self.unit, PIECE // self.dtype.itemsize):
            piece = np.empty([s.extent for s in part], self.dtype)
            self._straight(part, piece)
            out[inside(part, region)] = piece

    def _straight(self, region: Region, out: Array) -> None:
        if out.ndim:
            self.dataset.read_direct(out, slices(region))
        else:
            out[...] = self.dataset[()]

    def _write(self, region: Region, array: Array) -> None:
        for part in batches(region, self.unit, PIECE // self.dtype.itemsize):
            piece = np.ascontiguousarray(array[inside(part, region)]).reshape([s.extent for s in part])
            self.dataset[slices(part) if array.ndim else ()] = piece

    def _settle(self) -> None:
        self.file.flush()

    def _close(self, whole: bool) -> None:
        self.file.close()


def _row(shape: tuple[int, ...], chunks: tuple[int, ...] | None, itemsize: int) -> int:
    """Bytes of the chunks along the last axis, as far as they are kept."""
    if not chunks or not shape:
        return 0
    chunk = math.prod(chunks) * itemsize
    return min(chunk * -(-shape[-1] // chunks[-1]), max(MOST_CACHE // chunk, 1) * chunk)


def open_hdf5(at: TensorPath, writable: bool) -> Hdf5Source:
    """A dataset of a file, or its only one."""
    h5py = library("h5py", at.text, "reading hdf5", "hdf5")
    with faults(at.text, "opening"):
        return _closing(
            h5py.File(at.file, "r+" if writable else "r"), lambda f: Hdf5Source(at, _dataset(h5py, at, f), f, writable)
        )


def _closing(file: Any, then: Callable[[Any], Hdf5Source]) -> Hdf5Source:
    """What `then` makes of a file, which is closed where that fails."""
    try:
        return then(file)
    except BaseException:
        with suppress(Exception):
            file.close()
        raise


def _dataset(h5py: Any, at: TensorPath, file: Any) -> Any:
    """The dataset, opened with a cache that holds a row of its chunks."""
    name = at.inside
    if not name:
        keys = [key for key in file if at.trust or file.get(key, getlink=True, getclass=True) is h5py.HardLink]
        names = [key for key in keys if isinstance(file[key], h5py.Dataset)]
        if len(names) != 1:
            raise ArgumentError(
                f"{at.text}: name the dataset, as in x.h5:/name; at the root lie {', '.join(names[:9]) or 'none'}"
            )
        name = names[0]
    if not at.trust:
        check_dataset(h5py, at, file, name)
    plain = file.get(name)
    if not isinstance(plain, h5py.Dataset):
        raise StoreError(f"{at.text}: no dataset {name!r} in the file")
    if plain.chunks:
        check_unit(at.text, plain.chunks, plain.dtype.itemsize, "chunks")
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    cache = _row(plain.shape, plain.chunks, plain.dtype.itemsize)
    access.set_chunk_cache(max(521, 10 * cache // max(1, math.prod(plain.chunks or (1,)) * plain.dtype.itemsize) | 1), cache, 1.0)
    return h5py.Dataset(h5py.h5d.open(file.id, name.encode(), access))


def hdf5_room(at: TensorPath, overwrite: bool) -> None:
    """Raise ShapeError where a dataset is there that is not to be replaced, or a group; StoreError for a file of another kind."""
    h5py = library("h5py", at.text, "writing hdf5", "hdf5")
    if os.path.lexists(at.file):
        with faults(at.text, "opening"), h5py.File(at.file, "r") as file:
            _check_free(h5py, at, file, overwrite)


def _check_free(h5py: Any, at: TensorPath, file: Any, overwrite: bool) -> None:
    if at.inside in file:
        if not overwrite:
            raise exists(at.text)
        if not isinstance(file[at.inside], h5py.Dataset):
            raise ArgumentError(f"{at.text}: is a group, which is not overwritten")


def merge_hdf5(at: TensorPath, draft: str, overwrite: bool) -> None:
    """Copy the file that is there into one that holds a new dataset alone, so that it can take its place, with its mode. Raises
    OocError."""
    h5py = library("h5py", at.text, "writing hdf5", "hdf5")
    whole = f"{draft}{PART}{secrets.token_hex(4)}"
    with faults(at.text, "copying"), h5py.File(at.file, "r") as there:  # open: the library keeps other writers out
        _check_free(h5py, at, there, overwrite)
        shutil.copyfile(at.file, whole)
        with h5py.File(whole, "r+") as file, h5py.File(draft, "r") as new:
            if at.inside in file:
                del file[at.inside]
            new.copy(at.inside, file, name=at.inside)
        shutil.copymode(at.file, whole)
        os.replace(whole, draft)


def create_hdf5(at: TensorPath, tensor: NewTensor) -> Hdf5Source:
    """A dataset of a new file or of one that is there, in one run unless chunks are given."""
    tensor.plain(at.text, chunks=True)
    hdf5_room(at, tensor.overwrite)
    if tensor.chunks:
        check_unit(at.text, tensor.chunks, tensor.dtype.itemsize, "chunks")
    h5py = library("h5py", at.text, "writing hdf5", "hdf5")
    new = not os.path.lexists(at.file)
    with faults(at.text, "creating"):
        file = h5py.File(at.file, "x" if new else "r+")
        with creating(at.text, at.file) if new else nullcontext():
            return _closing(file, lambda f: _created(h5py, at, f, tensor))


def _created(h5py: Any, at: TensorPath, file: Any, tensor: NewTensor) -> Hdf5Source:
    check_dataset(h5py, at, file, at.inside)
    _check_free(h5py, at, file, tensor.overwrite)
    if at.inside in file:
        del file[at.inside]
    fitting = tuple(map(min, tensor.chunks, tensor.shape)) if tensor.chunks else None  # the library takes none that are longer
    dataset = file.create_dataset(at.inside, tensor.shape, tensor.dtype, chunks=fitting)
    for axis, letter in enumerate(tensor.axes):
        dataset.dims[axis].label = letter
    return Hdf5Source(at, _dataset(h5py, at, file), file, True)
