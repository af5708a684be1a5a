"""A sink that notes what is written to it."""

from __future__ import annotations

import threading

from ooc.ir.region import Region
from ooc.sources.around import Around
from ooc.sources.protocol import Array, Source


class Noted(Around):
    """A sink, with the regions that were written."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.regions, self._lock = list[Region](), threading.Lock()

    def write(self, region: Region, array: Array) -> None:
        """Copy `array` into a region, and note it."""
        super().write(region, array)
        with self._lock:
            self.regions.append(region)

    def mapped(self) -> None:
        """None: what is written to a map is not seen."""
