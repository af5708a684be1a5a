"""What this process has mapped into its memory, as Linux tells it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple


class MappedFile(NamedTuple):
    """Addresses from `lo` to before `hi`, of the file of a number (0: of none) and a path, as it was when it was mapped."""

    lo: int
    hi: int
    inode: int
    path: str


def spans() -> Iterator[MappedFile]:
    """All of them, in order. Raises OSError where the system does not tell."""
    with open("/proc/self/maps", "rb") as maps:  # names of files are bytes, of any encoding
        for line in maps:
            span, _, _, _, inode, *path = line.rstrip(b"\n").split(maxsplit=5)
            lo, _, hi = span.partition(b"-")
            yield MappedFile(int(lo, 16), int(hi, 16), int(inode), os.fsdecode(path[0]) if path else "")
