"""A sink that notes what is written to it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ooc.ir.region import Region
from ooc.sources.base import Array, Source

if TYPE_CHECKING:
    from typing import Self


class Noted:
    """A sink, with the regions that were written."""

    def __init__(self, source: Source) -> None:
        self.source, self.regions, self._lock = source, list[Region](), threading.Lock()
        self.shape, self.dtype, self.axes, self.buffer_bytes = source.shape, source.dtype, source.axes, source.buffer_bytes

    def read(self, region: Region, out: Array) -> None:
        """Copy a region into `out`."""
        self.source.read(region, out)

    def write(self, region: Region, array: Array) -> None:
        """Copy `array` into a region, and note it."""
        self.source.write(region, array)
        with self._lock:
            self.regions.append(region)

    def own(self, region: Region) -> Region:
        """The smallest region of whole units that covers a region."""
        return self.source.own(region)

    def mapped(self) -> Array | None:
        """None: what is written to a map is not seen."""
        return None

    def settle(self) -> None:
        """Bring what was written into the file."""
        self.source.settle()

    def close(self) -> None:
        """Close the sink."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.source.__exit__(*error)
