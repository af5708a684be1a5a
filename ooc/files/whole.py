"""Files and folders that are there as a whole or not at all: written beside their place, then moved there.

What a killed process leaves beside it goes with the next start. A lock that its writer holds, and that dies with it, tells what
is being written from what was left.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ooc.errors import StoreError
from ooc.files.locks import lock, try_lock

PART = ".part"  # in the name of a file that is not complete yet, and then some digits
INCOMPLETE = re.compile(rf"(.+){re.escape(PART)}[0-9a-f]{{8}}", re.DOTALL)
MANY = 64  # files that are settled one by one
HERE, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


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


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A new folder beside a path, in which what will be there is made; it goes at the end, with what is left in it. Raises
    OSError."""
    while True:
        folder = path.with_name(_part_of(path.name))
        folder.mkdir(0o700)
        fd = os.open(folder, os.O_RDONLY)
        lock(fd)
        if os.fstat(fd).st_nlink:
            break
        os.close(fd)  # swept before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


@contextmanager
def turns(folder: Path) -> Iterator[None]:
    """One process at a time, of those that do something in a folder; where the file system has no locks, all at once."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        lock(fd)
        yield
    finally:
        os.close(fd)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """A folder that one process has at a time, on a file system with locks. Raises BlockingIOError where another one has it."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        try_lock(fd)
        yield
    finally:
        os.close(fd)


@contextmanager
def near(path: Path, place: Path) -> Iterator[Path]:
    """A file or folder on the disk of its place: itself, or a copy, where that is another. Raises OSError."""
    if os.stat(path.parent).st_dev == os.stat(place.parent).st_dev:
        yield path
        return
    with beside(place) as folder:
        copy = folder / place.name
        shutil.copytree(path, copy) if path.is_dir() else shutil.copyfile(path, copy)
        yield copy


def move(path: Path, place: Path, overwrite: bool) -> None:
    """Move a file or folder to its place on the same disk, where there is nothing until then, or what it replaces, whole at any
    moment. Raises OSError; FileExistsError where something came there meanwhile and is not to be replaced."""
    settle_all(path)
    if not overwrite or not os.path.lexists(place):
        _move_to_nothing(path, place)
    elif not path.is_dir():
        os.replace(path, place)
    else:
        _exchange(path, place)
        shutil.rmtree(path)
    _settle(place.parent)


def _move_to_nothing(path: Path, place: Path) -> None:
    if path.is_dir():
        if os.path.lexists(place):
            raise FileExistsError(17, "exists already")
        os.rename(path, place)  # fails where something came there just now
        return
    try:
        os.link(path, place)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(place):
            raise FileExistsError(17, "exists already") from None
        os.rename(path, place)
    else:
        path.unlink()


def _exchange(one: Path, two: Path) -> None:
    """Each of two folders takes the other's place, at once where the system can."""
    with suppress(OSError, AttributeError):
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
        if exchange(HERE, os.fsencode(one), HERE, os.fsencode(two), EXCHANGE) == 0:
            return
    away = one.with_name(_part_of(one.name))
    os.rename(two, away)
    os.rename(one, two)
    os.rename(away, one)


def incomplete(name: str) -> str:
    """The name that a file will have, of the name that it has while it is written; "": it is no such file."""
    match = INCOMPLETE.fullmatch(name)
    return match[1] if match else ""


def sweep(folder: Path, name: str = "") -> None:
    """Remove what killed processes left of files in a folder, of all or of one name; no folder: nothing. What is being written
    stays. Raises StoreError."""
    try:
        for left in folder.iterdir() if folder.is_dir() else ():
            if (target := incomplete(left.name)) and name in ("", target):
                _sweep(left)
    except OSError as error:
        raise StoreError(error.errno, f"{folder}: {error.strerror or error}") from error


def holds_only(folder: Path, names: Set[str]) -> bool:
    """Whether nothing is in a folder but these names, complete or not. Raises OSError."""
    return all((incomplete(path.name) or path.name) in names for path in folder.iterdir())


def _part(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside another, which is locked."""
    while True:
        part = path.with_name(_part_of(path.name))
        file = open(part, "xb")  # noqa: SIM115 - whole closes it
        lock(file.fileno())
        if os.fstat(file.fileno()).st_nlink:
            return part, file
        file.close()  # swept before it was locked


def _part_of(name: str) -> str:
    return f"{name}{PART}{secrets.token_hex(4)}"


def _sweep(left: Path) -> None:
    """Remove what nobody holds: a file, or a folder in which nothing was made but what its name says."""
    try:
        fd = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return  # it is gone, or a link, or somebody else's
    try:
        if not try_lock(fd):
            return  # without locks nobody knows whose it is
        if not left.is_dir():
            left.unlink(missing_ok=True)
        elif holds_only(left, {incomplete(left.name)}):
            shutil.rmtree(left, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(fd)


def settle_all(root: Path) -> None:
    """Wait until a file, or all of a folder, is on the disk."""
    files = [Path(at, name) for at, _, names in os.walk(root) for name in names] if root.is_dir() else [root]
    if len(files) > MANY:
        os.sync()
        return
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _settle(folder: Path) -> None:
    """Make a new name in a folder outlive the machine."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
