"""Images of Imaris, .ims: HDF5 files that hold each level, time and channel as a dataset, filled up to whole chunks."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, OocError, StoreError, UnsupportedError
from ooc.ir.region import Region
from ooc.sources.base import FileSource
from ooc.sources.checks import faults, library, sizes
from ooc.sources.geometry import Spacing, spacing
from ooc.sources.hdf5 import Hdf5Source, open_hdf5
from ooc.sources.hdf5_links import check_dataset
from ooc.sources.place import TensorPath
from ooc.sources.protocol import Array

MOST = 4096  # datasets that are opened at once


class ImarisSource(FileSource):
    """All times and channels of a level; those that there is one of have no axis."""

    def __init__(self, path: str, parts: list[Hdf5Source], counts: tuple[int, int], extent: tuple[int, ...]) -> None:
        lead = [(a, n) for a, n in zip("tc", counts, strict=True) if n > 1]
        first = parts[0]
        unit = (*[1] * len(lead), *first.unit)
        shape = (*(n for _, n in lead), *extent)
        held = sum(part.buffer_bytes for part in parts)
        super().__init__(path, shape, first.dtype, "".join(a for a, _ in lead) + "zyx", unit, buffer_bytes=held)
        self.parts, self.lead = parts, tuple(n for _, n in lead)

    def _read(self, region: Region, out: Array) -> None:
        lead = region[: len(self.lead)]
        for index in itertools.product(*(range(*span) for span in lead)):
            number = int(np.ravel_multi_index(index, self.lead)) if index else 0
            at: Any = (*[i - span.lo for i, span in zip(index, lead, strict=True)], ...)
            self.parts[number].read(region[len(self.lead) :], out[at])

    def _close(self, whole: bool) -> None:
        for part in self.parts:
            part.close()


def open_imaris(at: TensorPath, writable: bool) -> ImarisSource:
    """A level (the finest) of a file."""
    if writable:
        raise UnsupportedError(f"{at.text}: files of this maker are only read; write .ome.zarr")
    if at.inside and not (at.inside.isdigit() and len(at.inside) < 4):
        raise ArgumentError(f"{at.text}: expected a level, as in x.ims:1; got {at.inside!r}")
    level = int(at.inside or 0)
    h5py = library("h5py", at.text, "reading Imaris files", "hdf5")
    with faults(at.text, "opening"), h5py.File(at.file, "r") as file:
        for name in () if at.trust else (f"DataSet/ResolutionLevel {level}/TimePoint 0/Channel 0/Data", "DataSetInfo/Image"):
            check_dataset(h5py, at, file, name)
        levels = _numbered(file, "DataSet", "ResolutionLevel")
        if level >= levels:
            raise ArgumentError(
                f"{at.text}: no level {level}; the file has 0 to {levels - 1}" if levels else f"{at.text}: no image"
            )
        inside = f"DataSet/ResolutionLevel {level}"
        times = _numbered(file, inside, "TimePoint")
        channels = _numbered(file, f"{inside}/TimePoint 0", "Channel") if times else 0
        if not 0 < times * channels <= MOST:
            raise StoreError(f"{at.text}: {times} times of {channels} channels; at most {MOST} together are read")
        extent = _extent(at, file, f"{inside}/TimePoint 0/Channel 0")
        lies = _geometry(file, extent)
    with ExitStack() as stack:
        parts = []
        for t, c in itertools.product(range(times), range(channels)):
            part = open_hdf5(replace(at, kind="hdf5", inside=f"/{inside}/TimePoint {t}/Channel {c}/Data"), False)
            parts.append(part)
            stack.callback(part.close)
            if (
                part.dtype != parts[0].dtype
                or len(part.shape) != 3
                or any(h < e for h, e in zip(part.shape, extent, strict=True))
            ):
                raise StoreError(f"{at.text}: channels that differ: {part.shape} of {part.dtype} for {extent}")
        source = ImarisSource(at.text, parts, (times, channels), extent)
        source.geometry = lies
        stack.pop_all()
        return source


def _numbered(file: Any, inside: str, word: str) -> int:
    """How many groups `word 0`, `word 1`, ... there are."""
    group = file.get(inside)
    return next((i for i in range(MOST + 1) if group is None or f"{word} {i}" not in group), MOST + 1)


def _told(group: Any, name: str) -> str:
    """An attribute, which Imaris writes letter by letter."""
    letters = np.asarray(group.attrs[name]).ravel().tolist()
    return "".join(one.decode("latin-1") if isinstance(one, bytes) else str(one) for one in letters)


def _extent(at: TensorPath, file: Any, inside: str) -> tuple[int, ...]:
    """Depth, height and width, without what fills up chunks."""
    group = file[inside]
    held = group["Data"].shape
    with suppress(KeyError, ValueError, IndexError):
        extent = sizes(at.text, [int(_told(group, f"ImageSize{a}")) for a in "ZYX"], "extents", 1)
        if len(held) == 3 and all(e <= h for e, h in zip(extent, held, strict=True)):
            return extent
    return sizes(at.text, held, "extents", 1)


def _geometry(file: Any, extent: tuple[int, ...]) -> dict[str, Spacing]:
    """Where the level lies: between the ends that the file tells of all levels."""
    lies = {}
    with suppress(OocError, KeyError, ValueError, IndexError):
        image = file["DataSetInfo/Image"]
        for axis, letter in enumerate("xyz"):
            low, high = (float(_told(image, f"{end}{axis}")) for end in ("ExtMin", "ExtMax"))
            step = (high - low) / extent[2 - axis]
            unit = _told(image, "Unit") if "Unit" in image.attrs else "um"
            if (told := spacing(step, low + step / 2, unit)) is not None:
                lies[letter] = told
    return lies
