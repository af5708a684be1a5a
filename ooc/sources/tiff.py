"""TIFF: series and pyramid levels by tifffile, of which only the tiles or strips are decoded that a region meets."""

from __future__ import annotations

import itertools
import math
import os
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, DtypeError, ShapeError, StoreError, UnsupportedError
from ooc.files.reached import inside as within
from ooc.ir.region import Region, Span
from ooc.sources.base import FileSource
from ooc.sources.checks import check_unit, faults, library, numeric, sizes
from ooc.sources.geometry import Spacing, spacing
from ooc.sources.place import NewTensor, TensorPath, creating, fresh
from ooc.sources.protocol import Array
from ooc.sources.raw import RawSource
from ooc.sources.units import inside

JPEG = {6, 7, 34892, 33007}  # compressions that have tables of their own
MOST_CLASSIC = (1 << 32) - (1 << 25)  # bytes whose offsets fit 32 bits, with headers
MOST_TAG = 1 << 14  # characters of one that tells sizes
PAGE, SEGMENT = 2048, 128  # bytes: what the library remembers of each


class TiffSource(FileSource):
    """A series of pages. A page is (separate samples, depth, length, width, samples together), of which the series has the
    axes that are longer than 1, behind those that count the pages."""

    def __init__(self, at: TensorPath, tif: Any, level: Any) -> None:
        shape, dtype = sizes(at.text, level.shape), numeric(at.text, level.dtype)
        key = level.keyframe
        self.tif, self.level, self.page_shape, self.chunk = tif, level, tuple(key.shaped), _chunk(key)
        self.lead = _lead(at.text, shape, len(level), self.page_shape)
        long = [a for a in range(5) if self.page_shape[a] > 1]
        # Axis of the series -> axis of a page; None where it is 1 long.
        self.tail = {a: None if shape[a] == 1 else long.pop(0) for a in range(self.lead, len(shape))}
        inner = [1 if to is None else self.chunk[to] for to in self.tail.values()]
        unit = (*[1] * self.lead, *inner)
        nbytes = check_unit(at.text, self.chunk, dtype.itemsize, "tiles or strips")
        self.counts = [-(-e // c) for e, c in zip(self.page_shape, self.chunk)]
        index = len(level) * (PAGE + SEGMENT * math.prod(self.counts))
        # Encoded, decoded, its differences undone, its colours converted.
        super().__init__(at.text, shape, dtype, level.axes.lower(), unit, buffer_bytes=4 * nbytes + index + (1 << 16))
        self.decode, self._lock = key.decode, threading.Lock()
        self.fd = os.open(at.file, os.O_RDONLY)  # of its own: threads read at once, each at its place
        self._finish, self.file_bytes = weakref.finalize(self, os.close, self.fd), os.fstat(self.fd).st_size

    def _close(self, whole: bool) -> None:
        self._finish()
        self.tif.close()

    def _read(self, region: Region, out: Array) -> None:
        lead = [range(*span) for span in region[: self.lead]]
        for index in itertools.product(*lead):
            number = int(np.ravel_multi_index(index, self.shape[: self.lead])) if index else 0
            at: Any = (*[i - span.lo for i, span in zip(index, region)], ...)  # a view, though no axis be left
            self._read_page(number, *self._normal(region, out[at]))

    def _normal(self, region: Region, out: Array) -> tuple[Region, Array]:
        """The region and its array as the five axes of a page."""
        spans, kept = [Span(0, 1)] * 5, set()
        for axis, to in self.tail.items():
            if to is not None:
                spans[to] = region[axis]
                kept.add(to)
        short: Any = (*[0 if to is None else slice(None) for to in self.tail.values()], ...)
        out = out[short]
        return tuple(spans), out[tuple([slice(None) if a in kept else None for a in range(5)])]

    def _read_page(self, number: int, region: Region, out: Array) -> None:
        with self._lock:  # the library reads pages when they are first asked for
            page = self.level[number]
        if page is None:
            out[...] = 0
            return
        if page.parent is not self.tif:
            raise UnsupportedError(f"{self.path}: pages in other files; open those")
        tables = {"jpegtables": page.jpegtables, "jpegheader": page.keyframe.jpegheader} if page.compression in JPEG else {}
        for index, part in self._segments(region):
            data = self._data(page, index)
            tile = None if data is None else self.decode(data, index, **tables)[0]
            target = out[inside(part, region)]
            target[...] = page.nodata if tile is None else self._cut(tile, part)

    def _segments(self, region: Region) -> Iterator[tuple[int, Region]]:
        """Number of each tile or strip that a region meets, and the part of the region in it."""
        for at in itertools.product(*[range(s.lo // c, -(-s.hi // c)) for s, c in zip(region, self.chunk)]):
            part = [Span(max(s.lo, i * c), min(s.hi, i * c + c)) for s, i, c in zip(region, at, self.chunk)]
            yield int(np.ravel_multi_index(at, self.counts)), tuple(part)

    def _data(self, page: Any, index: int) -> bytes | None:
        """Encoded bytes; None where the file has none."""
        if index >= min(len(page.dataoffsets), len(page.databytecounts)):
            raise StoreError(f"{self.path}: a page has no tile or strip {index}")
        at, count = int(page.dataoffsets[index]), int(page.databytecounts[index])
        if not at or not count:
            return None
        if at + count > self.file_bytes:
            raise StoreError(f"{self.path}: bytes {at} to {at + count} of a file of {self.file_bytes}; it was truncated")
        data = os.pread(self.fd, count, at)
        if len(data) < count:
            raise EOFError(f"expected {count} bytes at {at}, got {len(data)}; the file was truncated")
        return data

    def _cut(self, tile: Array, part: Region) -> Array:
        """The part of a decoded tile, which has no axis for separate samples."""
        corner = [s.lo // c * c for s, c in zip(part, self.chunk)]
        return tile[tuple([slice(s.lo - o, s.hi - o) for s, o in zip(part[1:], corner[1:])])][None]


def _chunk(key: Any) -> tuple[int, ...]:
    """Extents of a tile or strip, as the five axes of a page."""
    _, _, length, width, samples = key.shaped
    if key.is_tiled:
        return (1, key.tiledepth, key.tilelength, key.tilewidth, samples)
    return (1, 1, max(1, min(key.rowsperstrip, length)), width, samples)


def _lead(path: str, shape: tuple[int, ...], pages: int, page: tuple[int, ...]) -> int:
    """How many axes count the pages."""
    for lead in range(len(shape) + 1):
        if math.prod(shape[:lead]) == pages and [e for e in shape[lead:] if e != 1] == [e for e in page if e != 1]:
            return lead
    raise UnsupportedError(f"{path}: {pages} pages of {page} do not make {shape}; convert it to one series of equal pages")


def open_tiff(at: TensorPath, writable: bool) -> FileSource:
    """A series (the first) and a level of its pyramid (the finest) of a file."""
    tifffile = library("tifffile", at.text, "reading tiff", "tiff")
    series, _, level = at.inside.partition("/")
    if any(part and not (part.isdigit() and len(part) < 10) for part in (series, level)):
        raise ArgumentError(f"{at.text}: expected numbers, as in x.tif:series/level; got {at.inside!r}")
    with faults(at.text, "opening"):
        tif = tifffile.TiffFile(at.file)
        try:
            _check_others(at, tif)
            source = _opened(at, tif, int(series or 0), int(level or 0), writable)
        except BaseException:
            with suppress(Exception):
                tif.close()
            raise
        source.geometry = _geometry(tif, source, int(series or 0), int(level or 0))
        if isinstance(source, RawSource):
            tif.close()
        return source


def _geometry(tif: Any, source: FileSource, series: int, level: int) -> dict[str, Spacing]:
    """What OME metadata, or else the resolution of a page, tell of a series, at one of its levels; nothing where they make no
    sense."""
    with suppress(Exception):  # of metadata that may say anything
        told = _of_ome(tif.ome_metadata, series) if tif.ome_metadata else _of_page(tif.series[series].levels[0].keyframe)
        finest = dict(zip(source.axes, tif.series[series].levels[0].shape, strict=True))
        ratios = {a: finest[a] / e for a, e in zip(source.axes, source.shape, strict=True)}
        lies = {a: spacing(step * ratios[a], step * (ratios[a] - 1) / 2, unit) for a, (step, unit) in told.items() if a in ratios}
        return {a: s for a, s in lies.items() if s is not None}
    return {}


def _of_ome(text: str, series: int) -> dict[str, tuple[float, str]]:
    """Physical sizes of an image, by axis."""
    from html import unescape  # which imports a table of all entities

    images = re.findall(r"<(?:\w{1,32}:)?Pixels\b[^<>]*>", text)
    words = re.findall(r"\b(\w{1,64})\s?=\s?(?:\"([^\"]*)\"|'([^']*)')", images[series][:MOST_TAG])
    told = {name: unescape(one or other) for name, one, other in words}
    sizes = {a.lower(): (told.get(f"PhysicalSize{a}"), told.get(f"PhysicalSize{a}Unit", "µm")) for a in "XYZ"}
    return {a: (float(size), unit) for a, (size, unit) in sizes.items() if size is not None}


def _of_page(page: Any) -> dict[str, tuple[float, str]]:
    """By resolutions, in inches or centimetres."""
    unit = {2: "inch", 3: "centimeter"}.get(int(page.tags["ResolutionUnit"].value), "")
    pairs = {a: page.tags[name].value for a, name in (("x", "XResolution"), ("y", "YResolution"))}
    return {a: (below / above, unit) for a, (above, below) in pairs.items() if unit}


def _check_others(at: TensorPath, tif: Any) -> None:
    """Raise StoreError where OME metadata name files elsewhere, which the library opens."""
    from html import unescape  # which imports a table of all entities

    folder = os.path.dirname(os.path.realpath(at.file))
    for name in () if at.trust else re.findall(r"(?:FileName|MetadataFile)\s*=\s*[\"']([^\"']*)", tif.ome_metadata or ""):
        within(os.path.join(os.path.dirname(at.file), unescape(name)), folder, at.text)


def _opened(at: TensorPath, tif: Any, series: int, number: int, writable: bool) -> FileSource:
    if series >= len(tif.series) or number >= len(tif.series[series].levels):
        if series >= len(tif.series):
            raise ArgumentError(f"{at.text}: no series {series}; the file has {_counted(len(tif.series))}")
        raise ArgumentError(
            f"{at.text}: series {series} has no level {number}; it has {_counted(len(tif.series[series].levels))}"
        )
    level = tif.series[series].levels[number]
    if level.dtype is None or level.transform is not None or level.is_multifile:
        raise UnsupportedError(f"{at.text}: numbers of no NumPy type, or in several files; convert it to plain TIFF")
    dtype = numeric(at.text, level.dtype).newbyteorder(tif.byteorder)
    if level.dataoffset is not None and level.keyframe.bitspersample == 8 * dtype.itemsize:
        shape, axes = sizes(at.text, level.shape), level.axes.lower()
        return RawSource(at.text, at.file, shape, dtype, level.dataoffset, axes, writable)
    if writable:
        raise UnsupportedError(f"{at.text}: only plain uncompressed TIFF is written by region; create a new .tif")
    return TiffSource(at, tif, level)


def _counted(number: int) -> str:
    """How many there are, as their numbers."""
    return "none" if not number else "0 alone" if number == 1 else f"0 to {number - 1}"


def create_tiff(at: TensorPath, tensor: NewTensor) -> RawSource:
    """An uncompressed TIFF of zeros, whole at once; BigTIFF from 4 GB on."""
    shape, dtype = tensor.shape, tensor.dtype
    tensor.plain(at.text)
    if len(shape) < 2:
        raise ShapeError(f"{at.text}: expected at least y x, got {shape}")
    if dtype.kind == "b" or dtype.itemsize > 16:
        raise DtypeError(f"{at.text}: TIFF has no {dtype}; write uint8")
    tifffile = library("tifffile", at.text, "writing tiff", "tiff")
    fresh(at, tensor.overwrite)
    colours = tensor.axes.endswith("s") and shape[-1] in (3, 4)
    metadata = {"axes": tensor.axes.upper()} if tensor.axes else {}
    with creating(at.text, at.file):
        offset, _ = tifffile.imwrite(
            at.file, shape=shape, dtype=dtype, photometric="rgb" if colours else "minisblack", metadata=metadata,
            returnoffset=True, bigtiff=math.prod(shape) * dtype.itemsize > MOST_CLASSIC, byteorder="=",
        )  # fmt: skip
        return RawSource(at.text, at.file, shape, dtype, offset, tensor.axes, writable=True)
