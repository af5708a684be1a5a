"""Zarr arrays, versions 2 and 3, sharded or not: by tensorstore where it is installed, else by zarr-python."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from ooc.errors import ArgumentError, DtypeError, OocError, ShapeError, StoreError, UnsupportedError
from ooc.files.reached import inside as within
from ooc.ir.region import Region, slices
from ooc.sources.base import FileSource
from ooc.sources.checks import check_unit, faults, library, sizes
from ooc.sources.drafts import begin, claim, foreign, levels_begun
from ooc.sources.objects import NODES, entries, files_below, is_node, is_there, put_content, remove_all
from ooc.sources.place import DRAFT, NewTensor, TensorPath, exists, home
from ooc.sources.protocol import Array
from ooc.sources.remote import CONTEXT, answer, is_remote, spec_of
from ooc.sources.units import batches, inside
from ooc.sources.zarr_metadata import MOST_SHARD, Metadata, array_at, array_json, levels_of, node

BATCH = 2 << 20  # bytes that are decoded at once where chunks are small
LEAST = 1 << 16
FAR_BATCH = 4 << 20  # the same across a network
CHUNK = 2 << 20  # bytes: of the chunks of a new array, about
SPARE = 8 << 20  # bytes: what allocators of the libraries' threads keep
# Files of an array: metadata, chunks, and what systems hide.
OWN = re.compile(r"zarr\.json|(c[./])?\d+([./]\d+)*|c|(.*/)?\.(?!zarray|zgroup)[^/]*|\.zarray|\.draft-[^/]*/[^/]*")
MOST_TOLD = 4
HALF = re.compile(r".+\.([0-9a-f]{32}\.partial|__lock)")  # what the libraries write beside a chunk, and rename


class _TensorStore:
    """Version 3, through tensorstore; across a network both."""

    def __init__(self, path: str, meta: Metadata, writable: bool, doing: str) -> None:
        remote = is_remote(meta.folder)
        if meta.version != 3 and not remote:
            raise StoreError(f"{path}: version {meta.version} is read by zarr")
        ts = library("tensorstore", path, doing, "remote" if remote else "zarr")
        spec: dict[str, Any] = {
            "driver": "zarr3" if meta.version == 3 else "zarr", "store_data_equal_to_fill_value": True, "context": CONTEXT,
            "kvstore": spec_of(home(meta.folder)) if remote else {"driver": "file", "path": meta.folder + "/"},
            "recheck_cached_data": True,
        }  # fmt: skip
        draft = home(meta.folder) != meta.folder  # whose array says nothing of itself yet
        if draft:
            spec["metadata"] = node(path, meta.folder)[1]
        self.array = answer(ts.open(spec, open=True, read=True, write=writable, assume_metadata=draft))

    def read(self, region: Region, out: Array) -> None:
        out[...] = answer(self.array[slices(region)].read())

    def write(self, region: Region, array: Array) -> None:
        answer(self.array[slices(region)].write(array))


class _Zarr:
    """Both versions, through zarr-python."""

    def __init__(self, path: str, meta: Metadata, writable: bool, doing: str) -> None:
        zarr = library("zarr", path, doing, "zarr")
        self.buffer = library("zarr.core.buffer.cpu", path, doing, "zarr").NDBuffer
        from ooc.sources.zarr_codecs import guarded

        self.array = guarded(zarr.open_array(meta.folder, mode="r+" if writable else "r", zarr_format=meta.version))

    def read(self, region: Region, out: Array) -> None:
        self.array.get_basic_selection(slices(region), out=self.buffer(out))

    def write(self, region: Region, array: Array) -> None:
        self.array[slices(region)] = array


def _library(path: str, meta: Metadata, writable: bool, doing: str) -> _TensorStore | _Zarr:
    with faults(path, "opening"):
        try:
            return _TensorStore(path, meta, writable, doing)
        except Exception as first:
            if is_remote(meta.folder):
                raise
            try:
                return _Zarr(path, meta, writable, doing)  # which knows more codecs
            except UnsupportedError:
                if isinstance(first, OocError):
                    raise
                raise first from None


class ZarrSource(FileSource):
    """A Zarr array. Its writers write whole chunks, or whole shards: whoever writes a part of one reads the rest of it first,
    and what another writes meanwhile is lost."""

    whole_units = True
    zeros = False  # whether units without a file are known to be zeros

    def __init__(self, path: str, meta: Metadata, writable: bool, doing: str = "reading zarr", root: str = "") -> None:
        super().__init__(path, meta.shape, meta.dtype, meta.axes, meta.unit, writable)
        self.folder, self.chunks, self.shards = meta.folder, meta.chunks, None if meta.unit == meta.chunks else meta.unit
        self.buffer_bytes = _most_bytes(meta, writable)
        self._array, self._batch = _library(path, meta, writable, doing), _batch(meta)
        self.geometry = dict(meta.geometry)
        self._meta, self._root, self._seen = meta, root, set[str]()  # folders of chunks that lie in the root

    def _read(self, region: Region, out: Array) -> None:
        """Few chunks at a time, though they lie in one shard, so that few are in memory."""
        for part in batches(region, self.chunks, self._batch // self.dtype.itemsize):
            self._check(part)
            at: Any = (*inside(part, region), ...)  # a view, though there be no axis
            self._array.read(part, out[at])

    def _write(self, region: Region, array: Array) -> None:
        for part in batches(region, self.unit, self._batch // self.dtype.itemsize):
            self._check(part)
            at: Any = (*inside(part, region), ...)
            self._array.write(part, array[at])

    def absent(self, unit: Region) -> bool:
        """Whether a unit has no file, and is zeros."""
        return self.zeros and not os.path.lexists(self._file([span.lo // u for span, u in zip(unit, self.unit, strict=True)]))

    def _file(self, numbers: Iterable[int]) -> str:
        return os.path.join(self._meta.folder, self._meta.key(numbers))

    def _check(self, region: Region) -> None:
        """Raise StoreError where a file of the region is no regular one, or leads out of the root ("": it may)."""
        if not self._root:
            return
        for numbers in itertools.product(*(range(s.lo // u, -(-s.hi // u)) for s, u in zip(region, self.unit, strict=True))):
            file = self._file(numbers)
            if (folder := os.path.dirname(file)) not in self._seen:
                within(folder, self._root, self.path)
                self._seen.add(folder)
            with suppress(FileNotFoundError):  # a chunk of zeros
                if not stat.S_ISREG(os.lstat(file).st_mode):
                    within(file, self._root, self.path)


def _batch(meta: Metadata) -> int:
    """Bytes that are decoded at once where chunks are small: more across a network, where each chunk is waited for."""
    return min(FAR_BATCH if is_remote(meta.folder) else BATCH, max(LEAST, math.prod(meta.shape) * meta.dtype.itemsize))


def _most_bytes(meta: Metadata, writable: bool) -> int:
    """Of a read: encoded and decoded chunks of a batch, and one result; of a write: a batch of units padded to whole ones, its
    chunks encoded, a shard put together of them. Two more of each are freed late. Indices of shards are objects in Python."""
    size = meta.dtype.itemsize
    chunk, unit = (max(_batch(meta), math.prod(u) * size) for u in (meta.chunks, meta.unit))
    index = 256 * (math.prod(meta.unit) // math.prod(meta.chunks))
    return SPARE + index + 5 * (unit if writable else chunk)


def open_zarr(at: TensorPath, writable: bool) -> ZarrSource:
    """The array that a path names."""
    root = "" if at.trust or is_remote(at.file) else os.path.realpath(at.file)
    meta = array_at(at.text, at.file, at.inside)
    for name in (".", "zarr.json", ".zarray", ".zattrs") if root else ():
        within(os.path.join(meta.folder, name), root, at.text)
    return ZarrSource(home(at.text), meta, writable, root=root)


def create_zarr(at: TensorPath, tensor: NewTensor) -> ZarrSource:
    """A Zarr array of version 3, in which nothing is written yet."""
    zarr_room(at, tensor.overwrite)
    check_dtype(at.text, tensor.dtype)
    chunks, shards = chunks_of(at.text, tensor)
    needed(at)
    make_room(at, tensor.overwrite)
    names, _ = begin(home(at.text), folder_of(at), tensor.overwrite, len(tensor.shape)) if at.is_draft else (("default", "/"), "")
    make_groups(at)
    with faults(at.text, "creating"):
        store(folder_of(at), 3, array_json(tensor.shape, tensor.dtype, chunks, shards, tensor.axes, names))
        if at.is_draft:
            claim(home(at.text), folder_of(at), tensor.overwrite)
    root = "" if is_remote(at.file) else os.path.realpath(at.file)
    source = ZarrSource(home(at.text), array_at(at.text, at.file, at.inside), True, "writing zarr", root)
    source.zeros = not is_remote(at.file)
    return source


def check_dtype(path: str, dtype: Any) -> None:
    """Raise DtypeError for one that the format has not."""
    if (dtype.kind == "f" and dtype.itemsize > 8) or dtype.itemsize > 16:
        raise DtypeError(f"{path}: zarr has no {dtype}")


def needed(at: TensorPath, version: int = 3) -> None:
    """Some library that writes a version, before anything is written."""
    if is_remote(at.file):
        library("tensorstore", at.text, "writing zarr", "remote")
        return
    with suppress(UnsupportedError):
        if version == 2:
            raise UnsupportedError("zarr alone writes it")
        library("tensorstore", at.text, "writing zarr", "zarr")
        return
    library("zarr", at.text, "writing zarr", "zarr")


def chunks_of(path: str, tensor: NewTensor) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Extents of chunks and shards, checked against each other."""
    size, rank = tensor.dtype.itemsize, len(tensor.shape)
    chunks = sizes(path, tensor.chunks, "chunks", 1) if tensor.chunks else default_chunks(tensor.shape, size, tensor.shards)
    shards = sizes(path, tensor.shards, "shards", 1) if tensor.shards else None
    if len(chunks) != rank or (shards and len(shards) != rank):
        raise ShapeError(f"{path}: chunks {chunks}, shards {shards}: expected an extent for each axis of {tensor.shape}")
    if shards and any(s % c for s, c in zip(shards, chunks)):
        raise ShapeError(f"{path}: shards {shards}: expected multiples of the chunks {chunks}")
    check_unit(path, chunks, size, "chunks")
    check_unit(path, shards or chunks, size, "shards", MOST_SHARD)
    return chunks, shards


def default_chunks(shape: tuple[int, ...], itemsize: int, shards: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Chunks of 1 to 2 MiB, the longest axis halved until they are so small; divisors of shards where there are some.

    >>> default_chunks((100, 2000, 3000), 2), default_chunks((30, 40), 4)
    ((100, 63, 94), (30, 40))
    """
    chunks = [*(shards or shape)]
    while math.prod(chunks) * itemsize > CHUNK:
        axis = chunks.index(max(chunks))
        if shards and chunks[axis] % 2:
            break  # an odd shard stays as it is
        chunks[axis] = -(-chunks[axis] // 2)
    return tuple(chunks)


def folder_of(at: TensorPath) -> str:
    """Where the array lies, or the group whose level is named."""
    return os.path.join(at.file, *[part for part in at.inside.partition(":")[0].split("/") if part])


def zarr_room(at: TensorPath, overwrite: bool) -> None:
    """Raise ArgumentError where something is there that is not to be replaced: only an array is, an empty group, or by an image
    another that holds levels alone."""
    if at.is_draft:
        return  # its node was looked at
    folder = folder_of(at)
    outer = next((above for above in _above(at.file, folder) if _is_array(above)), None)
    if outer is not None:
        raise ArgumentError(f"{at.text}: {outer} is an array, in which no other is made")
    remote = is_remote(folder)
    if remote and not is_node(folder):
        _check_held(at, foreign(at.text, folder), folder)
        return
    if not remote and not is_there(folder):
        return
    if not overwrite:
        raise exists(at.text)
    if os.path.islink(folder) or not is_node(folder):
        raise ArgumentError(f"{at.text}: is no Zarr array or group, and is not replaced")
    levels = levels_of(folder) | (levels_begun(at.text, folder) if remote else set()) if at.is_ome else ()
    _check_held(at, [name for name in _held(folder) if name not in levels], at.text)


def _check_held(at: TensorPath, held: Sequence[str], above: str) -> None:
    if held:
        raise ArgumentError(
            f"{at.text}: holds {', '.join(held[:3])}{' and more' if held[3:] else ''}, and is not replaced; name an array in it, "
            f"as in {above}/name"
        )


def _held(folder: str) -> list[str]:
    """What else than chunks of its own an array holds, or whatever a group holds."""
    if not _is_array(folder):
        return sorted(name for name in entries(folder) - {*NODES, ".zmetadata"} if not name.startswith(DRAFT))
    return sorted(file for file in files_below(folder) if not OWN.fullmatch(file) and not HALF.fullmatch(file))[:MOST_TOLD]


def _is_array(folder: str) -> bool:
    with suppress(OocError, OSError):
        return node(folder, folder)[1] is not None
    return not is_remote(folder) and os.path.isfile(os.path.join(folder, ".zarray"))


def make_room(at: TensorPath, overwrite: bool) -> None:
    """What is to be replaced goes."""
    zarr_room(at, overwrite)
    with faults(at.text, "replacing"):
        remove_all(folder_of(at))


def _above(root: str, folder: str) -> list[str]:
    """The folders from the root to an array, without its own."""
    folders = []
    while len(folder) > len(root):
        folder = os.path.dirname(folder)
        folders.append(folder)
    return folders[::-1]


def sweep_zarr(folder: str) -> None:
    """Remove what writers that were killed left of chunks."""
    for at, _, names in os.walk(folder):
        for name in names:
            if HALF.fullmatch(name):
                os.remove(os.path.join(at, name))


def make_groups(at: TensorPath) -> None:
    """Make groups of the folders from the root to an array that are none yet; a draft's are made when it is whole."""
    with faults(at.text, "creating"):
        for folder in _above(at.file, folder_of(at)) if not at.is_draft else ():
            if not is_node(folder):
                store_group(folder, 3, {})


def store_group(folder: str, version: int, attributes: dict[str, Any]) -> None:
    """Write the metadata of a group."""
    if version == 3:
        store(folder, version, {"zarr_format": 3, "node_type": "group", "attributes": attributes})
        return
    _write_json(folder, ".zgroup", {"zarr_format": 2})
    _write_json(folder, ".zattrs", attributes)


def store(folder: str, version: int, metadata: dict[str, Any]) -> None:
    """Write the metadata of an array, or of a group of version 3."""
    _write_json(folder, "zarr.json" if version == 3 else ".zarray", metadata)


def _write_json(folder: str, name: str, told: dict[str, Any]) -> None:
    put_content(folder, name, json.dumps(told, indent=2).encode())
