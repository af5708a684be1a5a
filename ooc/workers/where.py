"""Where a tensor is, in words that another process understands."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.errors import ArgumentError
from ooc.ir.region import Span
from ooc.runtime.store import file_behind
from ooc.sources import Source
from ooc.sources import open as open_source
from ooc.sources.around import Arranged, innermost
from ooc.sources.base import FileSource
from ooc.sources.beside import location, meet, state_of
from ooc.sources.checks import faults
from ooc.sources.place import place
from ooc.sources.raw import RawSource
from ooc.sources.remote import is_remote
from ooc.sources.view import View

REGIONS, UNITS, ALONE = "regions", "units", "alone"  # how several processes may write a format
KINDS = {"npy": REGIONS, "tiff": REGIONS, "nifti": REGIONS, "zarr": UNITS}


@dataclass(frozen=True)
class Where:
    """A tensor in a file.

    Fields:
        path: as `ooc.open` takes it, or of a file of plain numbers; absolute.
        order: which of its axes each axis is, -1: a new one of extent 1; (): as they are.
        raw: shape, dtype and byte offset, of a file of plain numbers; (): the file tells.
        trust: whether it may lead to files elsewhere.
    """

    path: str
    order: tuple[int, ...] = ()
    raw: tuple[()] | tuple[tuple[int, ...], str, int] = ()
    trust: bool = False

    def open(self, mode: str = "r") -> Source:
        """The tensor. Raises OocError."""
        if self.raw:
            shape, dtype, offset = self.raw
            source: Source = RawSource(self.path, self.path, tuple(shape), np.dtype(dtype), offset, writable=mode != "r")
        else:
            source = open_source(self.path, mode, trust=self.trust)
        return self.turned(source)

    def turned(self, source: Source) -> Source:
        """The tensor of the file with its axes as they are wanted."""
        return Arranged(source, tuple(None if a < 0 else a for a in self.order)) if self.order else source

    @classmethod
    def of(cls, what: str, tensor: Any) -> Where:
        """Where a path, a source or a memory map is. Raises ArgumentError for arrays that other processes cannot reach."""
        if isinstance(tensor, str | os.PathLike):
            return cls(absolute(os.fspath(tensor)))
        if isinstance(tensor, Arranged):
            inner = cls.of(what, tensor.source)
            return cls(inner.path, tuple(-1 if a is None else a for a in tensor.order), inner.raw, inner.trust)
        if isinstance(tensor, RawSource) and tensor.path == tensor.file and not tensor.path.endswith(".npy"):
            return cls(absolute(tensor.file), (), (tensor.shape, tensor.stored.str, tensor.offset))
        if isinstance(tensor, FileSource | View):
            return cls(absolute(tensor.path), trust=getattr(innermost(tensor), "trust", False))
        behind = file_behind(tensor)
        if behind is None or not tensor.flags.c_contiguous:
            told = f"an array {tensor.shape} in memory" if isinstance(tensor, np.ndarray) else f"a {type(tensor).__name__}"
            raise ArgumentError(
                f"{what}: workers read and write files; expected a path, a source or a memory map in C order, got {told}"
            )
        file, offset = behind[:2]
        return cls(absolute(file), (), (tuple(tensor.shape), tensor.dtype.str, int(offset)))

    @property
    def shared(self) -> str:
        """How several processes may write it."""
        if self.raw:
            return REGIONS
        at = place(self.path)
        return ALONE if at.is_spooled else KINDS.get(at.kind, ALONE)

    @property
    def file(self) -> str:
        """The file, or the folder that stands for one."""
        return self.path if self.raw else place(self.path).file

    @property
    def beside(self) -> str:
        """What names of folders beside it begin with: the file, and what is named inside it."""
        inside = "" if self.raw else place(self.path).inside
        return ".".join([self.file, *[part for part in inside.replace(":", "/").split("/") if part]])

    def identity(self) -> dict[str, Any]:
        """What tells whether it is still the same: path, bytes and times of change of all files that hold its numbers. Raises
        OocError."""
        if self.raw:
            return {"path": self.path, **state_of(self.path)}
        with self.open() as source:
            return {"path": self.path, **state_of(location(source))}


def check_apart(source: Where, sink: Where) -> None:
    """Raise ArgumentError where what is written is, or lies in, what is read, by whatever name."""
    one, two = (where.path if where.raw else location(where.path) for where in (source, sink))
    if not meet(one, two):
        return
    if source.raw and sink.raw:
        (lo, hi), (start, end) = map(_bytes, (source.raw, sink.raw))
        if hi <= start or end <= lo:
            return
    raise ArgumentError(f"{sink.path}: is, or lies in, what is read, {source.path}; write another file")


def _bytes(raw: tuple[tuple[int, ...], str, int]) -> tuple[int, int]:
    shape, dtype, offset = raw
    return offset, offset + math.prod(shape) * np.dtype(dtype).itemsize


def absolute(path: str) -> str:
    """A path, with what may follow the file's name, wherever a worker runs."""
    return path if is_remote(path) else os.path.join(os.getcwd(), path)


def piece_of(whole: Source, samples: Span) -> View:
    """Some samples of a tensor."""
    picked = (samples, *(Span(0, e) for e in whole.shape[1:]))
    return View(str(getattr(whole, "path", "a part")), whole, picked, tuple(range(len(whole.shape))))


def settled(source: Source) -> None:
    """Wait until what was written is on the disk; libraries that write chunks as files see to it themselves."""
    source = innermost(source)
    if isinstance(source, RawSource):
        with faults(source.path, "writing"):
            os.fsync(source.fd)
