"""Files that are there as a whole or not at all: written beside their place, then moved there.

What a killed process leaves beside it goes with the next start. A lock that its writer holds, and that dies with it, tells a
file that is being written from one that was left.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ooc.errors import StoreError

PART = ".part"  # in the name of a file that is not complete yet, and then some digits
INCOMPLETE = re.compile(rf"(.+){re.escape(PART)}[0-9a-f]{{8}}")


@contextmanager
def whole(path: Path, settled: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which takes its place at the end; after an error what was there is there still. settled: wait until it is
    on the disk. Raises OSError."""
    part, file = _part(path)
    try:
        with file:
            yield file
            file.flush()
            if settled:
                os.fsync(file.fileno())
            os.replace(part, path)
        if settled:
            _settle(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def incomplete(name: str) -> str:
    """The name that a file will have, of the name that it has while it is written; "": it is no such file."""
    found = INCOMPLETE.fullmatch(name)
    return found[1] if found else ""


def sweep(folder: Path, name: str = "") -> None:
    """Remove what killed processes left of files in a folder, of all or of one name; no folder: nothing. What is being written
    stays. Raises StoreError."""
    try:
        for left in folder.iterdir() if folder.is_dir() else ():
            if (own := incomplete(left.name)) and name in ("", own):
                _sweep(left)
    except OSError as error:
        raise StoreError(error.errno, f"{folder}: {error.strerror or error}") from error


def holds_only(folder: Path, names: Set[str]) -> bool:
    """Whether nothing is in a folder but these names, complete or not. Raises OSError."""
    return all((incomplete(path.name) or path.name) in names for path in folder.iterdir())


def _part(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside another, which is locked."""
    while True:
        part = path.with_name(f"{path.name}{PART}{secrets.token_hex(4)}")
        file = open(part, "xb")  # noqa: SIM115 - whole closes it
        with suppress(OSError):  # a file system without locks: nothing is swept there
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return part, file
        file.close()  # swept before it was locked


def _sweep(left: Path) -> None:
    with suppress(FileNotFoundError), open(left, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        left.unlink()


def _settle(folder: Path) -> None:
    """Make a new name in a folder outlive the machine."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
