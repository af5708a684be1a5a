"""Files of results: lines of JSON behind a header, each in the file when it is measured."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from perfmodel.bench.gpu.machine import sources


class Rows:
    """A file of JSON lines that begins with a header. fresh: what is there is forgotten; otherwise lines of the same sources
    are kept and added to."""

    def __init__(self, path: Path, head: dict[str, Any], fresh: bool = False) -> None:
        self.path, kept = path, [] if fresh else read_rows(path)
        same = bool(kept) and kept[0].get("system", {}).get("sources") == head["system"]["sources"]
        self.rows = [r for r in kept[1:] if "done" not in r] if same else []
        self.tried: set[str] = set()  # keys of which a process of this call has died, or made an error
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")
        for row in (head, *self.rows):
            self._write(row)

    def add(self, row: dict[str, Any]) -> None:
        """Write a line; it is in the file when this returns."""
        self.rows.append(row)
        self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def has(self, key: str) -> bool:
        """Whether there is a line of this key, without an error but one of this call."""
        return key in self.tried or any(r.get("key") == key and "error" not in r for r in self.rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; a line cut short, as by a full disk, is left out."""
    rows = []
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return [r for r in rows if isinstance(r, dict)]


def complete(path: Path) -> bool:
    """Whether a part came to its end, not only to that of its time, with the sources that are here."""
    rows = read_rows(path)
    same = bool(rows) and rows[0].get("system", {}).get("sources") == sources()
    return same and "done" in rows[-1] and not rows[-1].get("cut_off")
