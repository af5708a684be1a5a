"""Raw copies in the temporary folder, for what is read or written otherwise than its file has it."""

from __future__ import annotations

import math
import os
import tempfile

import numpy as np

from ooc.files.unnamed import path_of, unnamed_file
from ooc.ir.region import extents, whole
from ooc.sources.base import Array, FileSource, Source, innermost
from ooc.sources.checks import faults
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

    def hand_on(self, sink: Source) -> None:
        """Write all of it to a sink, in whole units of that."""
        carry(self.raw, sink, sink)

    def close(self) -> None:
        """Remove it."""
        self.raw.close()


def carry(source: Source, sink: Source, units: Source) -> None:
    """Copy a whole tensor, in whole units of one of the two."""
    unit = extents(units.own(tuple([span._replace(hi=min(1, span.hi)) for span in whole(source.shape)])))
    most = max(MOST // source.dtype.itemsize, math.prod(unit))
    for region in batches(whole(source.shape), unit, most):
        piece = np.empty(extents(region), source.dtype)
        source.read(region, piece)
        sink.write(region, piece)


def mapped(source: Source) -> Array | None:
    """A source as a memory map: of its file, where its numbers lie there as they do in memory, else of a raw copy, made in the
    first call; what is written to that goes into the file when the source is closed. None: it has neither."""
    found, own = source.mapped(), innermost(source)
    if found is not None or not isinstance(own, FileSource) or own.closed or not math.prod(own.shape):
        return found
    made = Scratch(own.shape, own.dtype)
    try:
        if not own.blank:
            carry(own, made.raw, own)
    except BaseException:
        made.close()
        raise
    own.copy = made
    return source.mapped()
