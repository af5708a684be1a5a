"""The small files of a Zarr hierarchy: of a folder here, or of one across a network."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ooc.errors import StoreError
from ooc.files.whole import whole
from ooc.sources.remote import KeyStore, is_remote

MOST_JSON = 16 << 20  # bytes of metadata
NODES = ("zarr.json", ".zarray", ".zgroup", ".zattrs")  # files that tell of a node


def content_of(path: str, folder: str, name: str, most: int) -> bytes | None:
    """A file of a folder; None: there is none. path: how errors call it. Raises StoreError, for one of more bytes too."""
    if is_remote(folder):
        return KeyStore(folder, path).read(name, most)
    file = os.path.join(folder, name)
    if not os.path.isfile(file):
        return None
    if os.path.getsize(file) > most:
        raise StoreError(f"{path}: {name} is larger than {most} bytes")
    return Path(file).read_bytes()


def put_content(folder: str, name: str, content: bytes) -> None:
    """Write a file of a folder, whole at once; folders that are missing are made. Raises OSError, StoreError."""
    if is_remote(folder):
        KeyStore(folder).write(name, content)
        return
    os.makedirs(folder, exist_ok=True)
    with whole(Path(folder, name), settled=False) as file:
        file.write(content)


def is_there(folder: str) -> bool:
    """Whether there is a folder; across a network, where keys are all there is, whether there is a node."""
    if is_remote(folder):
        return is_node(folder)
    return os.path.lexists(folder)


def is_node(folder: str) -> bool:
    """Whether a folder says that it is an array or a group."""
    if is_remote(folder):
        store = KeyStore(folder)
        return any(store.read(name, MOST_JSON) is not None for name in NODES)
    return any(os.path.isfile(os.path.join(folder, name)) for name in NODES)


def entries(folder: str) -> set[str]:
    """Names in a folder, of files and of folders."""
    if is_remote(folder):
        return {name.partition("/")[0] for name in KeyStore(folder).names()}
    return {*os.listdir(folder)}


def files_below(folder: str) -> list[str]:
    """Names of all files in a folder and in those below it."""
    if is_remote(folder):
        return KeyStore(folder).names()
    return [os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names]


def remove_all(folder: str) -> None:
    """Remove a folder with all that is in it. Raises OSError, StoreError."""
    if is_remote(folder):
        KeyStore(folder).clear()
    elif os.path.lexists(folder):
        shutil.rmtree(folder)
