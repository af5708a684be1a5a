"""What is finished, beside what is being made: one small file per unit, written when its data is on the disk."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ooc.errors import ShapeError, StoreError
from ooc.files.records import content, understood
from ooc.files.whole import incomplete, sweep, whole

MOST = 1 << 26  # bytes of a file that is read


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
        found = json.loads(content(path, MOST))
        if not isinstance(found, dict):
            raise ValueError("not an object")
        return found


class Journal:
    """The finished units of a run, in a folder.

    Parameters:
        folder: of the files, one per unit; made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self) -> None:
        """Make the folder; what a killed process left half written goes. Raises StoreError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(error.errno, f"{self.folder}: {error.strerror or error}") from error
        sweep(self.folder)

    def done(self, unit: str) -> bool:
        """Whether a unit is finished."""
        return (self.folder / unit).exists()

    def finish(self, unit: str, settled: bool, told: Mapping[str, Any]) -> None:
        """Write down that a unit is finished. settled: whether what it made is on the disk. Raises StoreError."""
        mark = {"settled": settled, "host": socket.gethostname(), "boot": boot()}
        store(self.folder / unit, json.dumps({**told, **mark}).encode())

    def doubt(self) -> None:
        """Forget units whose bytes went down with a machine, if there are some: those that this machine had on their way to the
        disk before it began anew, and with them all that were on their way. Raises StoreError, ShapeError."""
        loose = {name: told for name in self.finished() if not (told := self.told(name))["settled"]}
        here, now = socket.gethostname(), boot()
        if any(told["host"] == here and told["boot"] != now for told in loose.values()):
            for name in loose:
                (self.folder / name).unlink(missing_ok=True)

    def finished(self) -> set[str]:
        """All finished units."""
        return {name for name in os.listdir(self.folder) if not incomplete(name)} if self.folder.is_dir() else set()

    def told(self, unit: str) -> Any:
        """What was written down of a unit. Raises StoreError, ShapeError for a file that is damaged."""
        found = load(self.folder / unit)
        if not {"settled", "host", "boot", "seconds"} <= found.keys():
            raise ShapeError(f"{self.folder / unit}: not a journal's, or damaged; remove it: something is missing")
        return found
