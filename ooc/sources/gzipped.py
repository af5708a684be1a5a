"""Numbers without gaps in a gzip file: read from its beginning on, or from points of an index where indexed_gzip is installed."""

from __future__ import annotations

import gzip
import importlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from ooc.ir.region import Region
from ooc.sources.base import FileSource
from ooc.sources.checks import faults
from ooc.sources.protocol import Array
from ooc.sources.raw import strides_of

PIECE = 1 << 16  # bytes that are read at once into an array with gaps
SPARE = 1 << 20  # bytes: what the decoder holds
POINTS, WINDOW, SPACING = 2048, 40 << 10, 4 << 20  # of an index: how many, bytes held for each, bytes between two at least
READING = 16 << 20  # bytes: what indexed_gzip holds beside


class GzipSource(FileSource):
    """An array at an offset of what a gzip file holds. Reads come one after the other; one that lies before the last begins at
    the start of the file again, or at the point of the index before it."""

    sequential = True

    def __init__(self, path: str, file: str, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, axes: str) -> None:
        super().__init__(path, shape, dtype, axes)
        self.offset, self.strides = offset, strides_of(shape, dtype.itemsize)
        self.swapped = dtype != dtype.newbyteorder("=")
        self._lock = threading.Lock()
        with faults(path, "opening"):
            self._stream, held = _stream(file, offset + math.prod(shape) * dtype.itemsize)
        self.buffer_bytes = held + PIECE

    def _close(self, whole: bool) -> None:
        with self._lock:
            self._stream.close()

    def _read(self, region: Region, out: Array) -> None:
        with self._lock:
            for at, run in self._runs(region, out):
                self._stream.seek(at)
                self._fill(run)
        if self.swapped:
            out.byteswap(inplace=True)

    def _runs(self, region: Region, out: Array) -> Iterator[tuple[int, Array]]:
        """Where the file has what follows one another in both, and that part of `out`, in the order of the file."""
        outer = max(out.ndim - 1, 0)
        while out.flags.c_contiguous and outer and out.shape[outer] == self.shape[outer]:
            outer -= 1
        start = self.offset + sum(span.lo * step for span, step in zip(region, self.strides, strict=True))
        for index in np.ndindex(*out.shape[:outer]):
            at = start + sum(i * step for i, step in zip(index, self.strides))
            yield at, out[index] if out.ndim else out[None]

    def _fill(self, run: Array) -> None:
        if run.flags.c_contiguous:
            self._into(run.reshape(-1).view(np.uint8))
            return
        step = max(1, PIECE // run.itemsize)
        for lo in range(0, len(run), step):
            piece = np.empty(len(run[lo : lo + step]), run.dtype)
            self._into(piece.view(np.uint8))
            run[lo : lo + step] = piece

    def _into(self, data: Any) -> None:
        view = memoryview(data)
        while view:
            done = self._stream.readinto(view)
            if not done:
                raise EOFError("the file was truncated")
            view = view[done:]


def _stream(file: str, nbytes: int) -> tuple[Any, int]:
    """What decodes a file, and the bytes that it holds at most."""
    try:
        indexed = importlib.import_module("indexed_gzip")
    except ImportError:
        return gzip.open(file), SPARE
    spacing = max(SPACING, nbytes // POINTS)
    return indexed.IndexedGzipFile(file, spacing=spacing), READING + (nbytes // spacing + 2) * WINDOW
