"""What this process has mapped into its memory, as Linux tells it."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np


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


_inodes: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()  # of mapped files: they stay the same


def inode_of(mapping: mmap.mmap, address: int) -> int:
    """The number of the file that is mapped at an address; 0: of none. Raises OSError as `spans` does."""
    inode = _inodes.get(mapping)
    if inode is None:
        span = span_at(address)
        inode = _inodes[mapping] = span.inode if span is not None else 0
    return inode


def note_inode(array: np.memmap[Any, Any], fd: int) -> None:
    """Remember which file was mapped, by a descriptor of it: the system's list of what is mapped is long."""
    if isinstance(array.base, mmap.mmap):
        _inodes[array.base] = os.fstat(fd).st_ino


def _read(line: bytes) -> MappedFile:
    span, _, _, _, inode, *path = line.rstrip(b"\n").split(maxsplit=5)
    lo, hi = span.split(b"-")
    return MappedFile(int(lo, 16), int(hi, 16), int(inode), os.fsdecode(path[0]) if path else "")
