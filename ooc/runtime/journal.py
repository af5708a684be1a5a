"""What is finished, beside what is being made: one small file per unit, written when its data is on the disk."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, StoreError
from ooc.files.records import content, understood
from ooc.files.whole import incomplete, sweep, whole
from ooc.ir.region import Region, extents
from ooc.sources.units import batches

MOST = 1 << 26  # bytes of a file that is read
SUMMED = 1 << 22  # bytes that are read at a time for a checksum, or one unit


def boot() -> str:
    """Since when this machine runs, as its kernel says it; "": it does not."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def store(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all. Raises StoreError."""
    try:
        with whole(path) as file:
            file.write(content)
    except OSError as error:
        raise StoreError(error.errno, f"{path}: {error.strerror or error}") from error


def load(path: Path) -> dict[str, Any]:
    """The JSON object of a file. Raises StoreError, ShapeError for what is none."""
    with understood(path, "not a journal's, or damaged: it cannot be resumed"):
        entries = json.loads(content(path, MOST))
        if not isinstance(entries, dict):
            raise ValueError("not an object")
        return entries


def checksum(
    read: Callable[[Region, Any], object], regions: Iterable[Region], dtype: np.dtype[Any], unit: tuple[int, ...],
    budget: int | None,
) -> str:  # fmt: skip
    """Of regions of a tensor, in their order, as they are in its file. read: copies a region into an array. unit: what costs
    least to read at once. budget: bytes that are read at a time at most, but for a unit. Raises OocError."""
    digest = hashlib.blake2b(digest_size=16)
    most = max(min(SUMMED, budget or SUMMED) // dtype.itemsize, math.prod(unit))
    for region in regions:
        for part in batches(region, unit, most):
            values = np.empty(extents(part), dtype)
            read(part, values)
            digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class Journal:
    """The finished units of a run, in a folder.

    Parameters:
        folder: of the files, one per unit; made where it is missing.
        run: what tells this run from others: units of another one, whose workers may have woken up late, are not believed.
    """

    def __init__(self, folder: Path, run: str = "") -> None:
        self.folder, self.run = folder, run
        self._believed: set[str] = set()

    def begin(self) -> None:
        """Make the folder; what a killed process left half written goes. Raises StoreError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(error.errno, f"{self.folder}: {error.strerror or error}") from error
        sweep(self.folder)

    def done(self, unit: str) -> bool:
        """Whether a unit is finished. Raises StoreError, ShapeError for a file that is damaged."""
        return (self.folder / unit).exists() and self._believes(unit)

    def _believes(self, unit: str) -> bool:
        """Whether a unit's file is of this run."""
        if self.run and unit not in self._believed:
            try:
                if self.told(unit).get("run") == self.run:
                    self._believed.add(unit)
            except StoreError as error:
                if error.errno != errno.ENOENT:  # it was forgotten just now
                    raise
        return not self.run or unit in self._believed

    def finish(self, unit: str, settled: bool, told: Mapping[str, Any]) -> None:
        """Write down that a unit is finished. settled: whether what it made is on the disk. Raises StoreError."""
        mark = {"settled": settled, "host": socket.gethostname(), "boot": boot(), "run": self.run}
        store(self.folder / unit, json.dumps({**told, **mark}).encode())

    def doubt(self) -> None:
        """Forget units whose bytes went down with a machine, if there are some: those that this machine had on their way to the
        disk before it began anew, and with them all that were on their way. Raises StoreError, ShapeError."""
        loose = {name: told for name in self.finished() if not (told := self.told(name))["settled"]}
        here, now = socket.gethostname(), boot()
        if any(told["host"] == here and told["boot"] != now for told in loose.values()):
            self.forget(loose)

    def forget(self, units: Iterable[str]) -> None:
        """They are not finished. Raises StoreError."""
        for name in units:
            try:
                (self.folder / name).unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(error.errno, f"{self.folder / name}: {error.strerror or error}") from error
            self._believed.discard(name)

    def finished(self) -> set[str]:
        """All finished units. Raises StoreError, ShapeError for a file that is damaged."""
        if not self.folder.is_dir():
            return set()
        names = (name for name in os.listdir(self.folder) if not incomplete(name) and not name.startswith("."))
        return {name for name in names if self._believes(name)}

    def told(self, unit: str) -> Any:
        """What was written down of a unit. Raises StoreError, ArgumentError for a file that is damaged."""
        entries = load(self.folder / unit)
        if not {"settled", "host", "boot", "seconds"} <= entries.keys():
            raise ArgumentError(f"{self.folder / unit}: not a journal's, or damaged; remove it: something is missing")
        return entries
