"""Formats that are written whole, from their beginning on: until then the tensor lies in a raw file without a name beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ooc.files.whole import sweep
from ooc.files.whole import whole as written
from ooc.ir.region import Region
from ooc.sources.base import FileSource
from ooc.sources.checks import faults
from ooc.sources.place import NewTensor, TensorPath, check_room
from ooc.sources.protocol import Array
from ooc.sources.raw import RawSource
from ooc.sources.scratch import Scratch

Finish = Callable[[RawSource, BinaryIO], Any]


class SpooledSource(FileSource):
    """A new tensor, whose file is written when it is closed as a whole, or settled.

    Parameters:
        at, tensor: where, and what.
        axes: its letters.
        buffer_bytes: what writing the file takes.
        finish: writes the file of the raw tensor.
    """

    def __init__(self, at: TensorPath, tensor: NewTensor, axes: str, buffer_bytes: int, finish: Finish) -> None:
        check_room(at, tensor.overwrite)  # what is there stays until the new file is whole
        folder = os.path.dirname(os.path.abspath(at.file))
        with faults(at.text, "creating"):
            sweep(Path(folder), os.path.basename(at.file))
            if not os.path.lexists(at.file):
                open(at.file, "xb").close()  # a folder that is missing or read-only is told now
                os.remove(at.file)
        super().__init__(at.text, tensor.shape, tensor.dtype, axes, None, True, buffer_bytes)
        self.file, self.finish, self._raw = at.file, finish, Scratch(tensor.shape, tensor.dtype, folder)
        self._told = False  # whether the file has what was written

    def _read(self, region: Region, out: Array) -> None:
        self._raw.raw.read(region, out)

    def _write(self, region: Region, array: Array) -> None:
        self._told = False
        self._raw.raw.write(region, array)

    def _settle(self) -> None:
        if not self._told:
            with written(Path(self.file)) as file:
                self.finish(self._raw.raw, file)
            self._told = True

    def _close(self, whole: bool) -> None:
        try:
            if whole:  # an error that left the block left half a tensor, which helps nobody
                self._settle()
        finally:
            self._raw.close()
