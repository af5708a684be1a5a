"""What was measured in use: tiles of a machine, kept in the user's cache folder and read back by every later process.

A file of JSON lines is data, never code; a line that is no measurement is left out with a warning.
"""

from __future__ import annotations

import json
import os
import re
import threading
import warnings
from collections.abc import Mapping, Sequence

from ooc.cache import cache_folder
from ooc.model.calibration import read_samples
from ooc.model.gaussian import MOST, Sample

MOST_BYTES = 4 << 20  # of a file: what is older is left out


class TileCache:
    """Measured tiles of one machine, by kind/dtype/kernel. A file that cannot be read or written is no failure."""

    def __init__(self, machine: str) -> None:
        self.path = cache_folder() / f"tiles-{re.sub(r'[^A-Za-z0-9.]+', '-', machine)[:80]}.jsonl"
        self._lock = threading.Lock()

    def read(self) -> dict[str, tuple[Sample, ...]]:
        """The newest tiles of every key."""
        found: dict[str, list[Sample]] = {}
        broken = 0
        for line in self._lines():
            try:
                key, row = json.loads(line)
                if not isinstance(key, str) or key.count("/") != 2 or "*" in key:
                    raise ValueError(key)
                measured = read_samples([row], "line")
                found.setdefault(key, []).extend(measured)
            except (ValueError, TypeError, RecursionError):
                broken += 1
        if broken:
            warnings.warn(f"{self.path}: {broken} line(s) are not measurements and were ignored", stacklevel=2)
        return {key: tuple(samples[-MOST:]) for key, samples in found.items()}

    def _lines(self) -> list[str]:
        try:
            if not self.path.is_file():  # a pipe would wait for ever
                return []
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MOST_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        return lines[1:] if size > MOST_BYTES else lines

    def add(self, tiles: Mapping[str, Sequence[Sample]]) -> None:
        """Append tiles, in one write: lines of several processes do not mix."""
        rows = [(key, [s.effort, s.nbytes, *s.shape, s.seconds]) for key, samples in tiles.items() for s in samples]
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                kept = self._lines() if self.path.exists() and self.path.stat().st_size > MOST_BYTES else []
                if kept:
                    self.path.write_text("".join(f"{line}\n" for line in kept[len(kept) // 2 :]))
                with self.path.open("a") as file:
                    file.write("".join(f"{json.dumps(row)}\n" for row in rows))
        except OSError:
            pass
