"""Raw files in the temporary folder, for what is read or written otherwise than its file has it."""

from __future__ import annotations

import math
import os
import tempfile

import numpy as np

from ooc.files.unnamed import path_of, unnamed_file
from ooc.ir.region import extents, whole
from ooc.sources.base import FileSource
from ooc.sources.checks import faults
from ooc.sources.protocol import Array, Source
from ooc.sources.raw import RawSource, lengthen
from ooc.sources.units import batches

MOST = 1 << 24  # bytes that are copied at a time, or one unit


class Scratch:
    """A raw file of zeros without a name, which goes with its owner, or with the process.

    Parameters:
        shape, dtype: of the tensor.
        folder: whose disk takes it; default None: the temporary one.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, folder: str | None = None) -> None:  # type: ignore[type-arg]
        where = folder or tempfile.gettempdir()
        path = f"a raw copy in {where}"
        with faults(path, "making"):
            fd = unnamed_file(where)
        try:
            with faults(path, "making"):
                lengthen(path_of(fd), math.prod(shape) * dtype.itemsize, where)
            self.raw = RawSource(path, path_of(fd), shape, dtype, 0, writable=True, fd=fd)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Remove it."""
        self.raw.close()


def carry(source: FileSource, sink: Source) -> None:
    """Copy a whole tensor, in whole units of the source."""
    most = max(MOST // source.dtype.itemsize, math.prod(source.unit))
    for region in batches(whole(source.shape), source.unit, most):
        piece = np.empty(extents(region), source.dtype)
        source.read(region, piece)
        sink.write(region, piece)


def unpacked(source: FileSource) -> Array:
    """A source that is read from its beginning on alone, as a memory map of a raw copy: it is made once, and goes with the
    source."""
    if source.copy is None:
        scratch = Scratch(source.shape, source.dtype)
        try:
            carry(source, scratch.raw)
        except BaseException:
            scratch.close()
            raise
        source.copy = scratch.raw
    array = source.copy.mapped()
    assert array is not None
    return array
