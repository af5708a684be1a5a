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


MAPS = "/proc/self/maps"  # a line for each; names of files are bytes, of any encoding


def spans() -> Iterator[MappedFile]:
    """All of them, in order. Raises OSError where the system does not tell."""
    with open(MAPS, "rb") as maps:
        yield from map(_read, maps)


def span_at(address: int) -> MappedFile | None:
    """The one that holds an address. Raises OSError as `spans` does."""
    with open(MAPS, "rb") as maps:
        for line in maps:  # some hundred, of which one is read whole
            lo, hi = line[: line.index(b" ")].split(b"-")
            if int(lo, 16) <= address < int(hi, 16):
                return _read(line)
    return None


def _read(line: bytes) -> MappedFile:
    span, _, _, _, inode, *path = line.rstrip(b"\n").split(maxsplit=5)
    lo, hi = span.split(b"-")
    return MappedFile(int(lo, 16), int(hi, 16), int(inode), os.fsdecode(path[0]) if path else "")
