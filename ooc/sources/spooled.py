"""A sink that is written by whole units alone, for writers whose regions are others: through a raw file."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ooc.ir.region import Region, Span, extents
from ooc.sources.base import Array, Source
from ooc.sources.npy import create_npy
from ooc.sources.place import Wanted, place
from ooc.sources.units import batches

if TYPE_CHECKING:
    from typing import Self

MOST = 1 << 24  # bytes that are copied at a time, or one unit


class Spooled:
    """A sink behind a raw file in a temporary folder; what was written reaches it when this is closed without an error."""

    def __init__(self, sink: Source, folder: str | None = None) -> None:
        self.sink = sink
        self.shape, self.dtype, self.axes, self.buffer_bytes = sink.shape, sink.dtype, sink.axes, 0
        self._folder = tempfile.TemporaryDirectory(dir=folder)
        try:
            path = str(Path(self._folder.name) / "spool.npy")
            self._raw = create_npy(place(path), Wanted(self.shape, self.dtype, "", None, None, None, False))
        except BaseException:
            self._folder.cleanup()
            raise

    def read(self, region: Region, out: Array) -> None:
        """Copy a region of what was written."""
        self._raw.read(region, out)

    def write(self, region: Region, array: Array) -> None:
        """Copy `array` into a region."""
        self._raw.write(region, array)

    def own(self, region: Region) -> Region:
        """The region itself."""
        return region

    def mapped(self) -> Array | None:
        """None: what is written goes elsewhere."""
        return None

    def close(self) -> None:
        """Hand all on, and close the sink."""
        self._end(True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end(not any(error))

    def _end(self, whole: bool) -> None:
        if self._raw.closed:
            return
        try:
            if whole:
                self._hand_on()
        except BaseException as error:
            self.sink.__exit__(type(error), error, None)
            raise
        else:
            self.sink.__exit__(*((None,) * 3 if whole else (Exception, None, None)))
        finally:
            self._raw.close()
            self._folder.cleanup()

    def _hand_on(self) -> None:
        everything = tuple(Span(0, e) for e in self.shape)
        unit = extents(self.sink.own(tuple(Span(0, 1) for _ in self.shape)))
        most = max(MOST // self.dtype.itemsize, math.prod(unit))
        for region in batches(everything, unit, most):
            piece = np.empty(extents(region), self.dtype)
            self._raw.read(region, piece)
            self.sink.write(region, piece)
