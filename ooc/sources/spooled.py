"""A sink that is written by whole units alone, for writers whose regions are others: through a raw file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ooc.ir.region import Region
from ooc.sources.base import Array, Source
from ooc.sources.scratch import Scratch

if TYPE_CHECKING:
    from typing import Self


class Spooled:
    """A sink behind a raw file in a temporary folder; what was written reaches it when this is closed without an error."""

    def __init__(self, sink: Source, folder: str | None = None) -> None:
        self.sink = sink
        self.shape, self.dtype, self.axes, self.buffer_bytes = sink.shape, sink.dtype, sink.axes, 0
        self._scratch = Scratch(self.shape, self.dtype, folder)
        self._raw = self._scratch.raw

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
        """The raw file."""
        return self._raw.mapped()

    def settle(self) -> None:
        """Nothing: it is handed on when this is closed."""

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
                self._scratch.hand_on(self.sink)
        except BaseException as error:
            self.sink.__exit__(type(error), error, None)
            raise
        else:
            self.sink.__exit__(*((None,) * 3 if whole else (Exception, None, None)))
        finally:
            self._scratch.close()
