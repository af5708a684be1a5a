"""Tensors across a network while they are made. Nothing is moved there, so they are made at their place, unseen: what a node
will say of itself lies in a draft below it until it is whole, and numbers of a node that it replaces have other names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ooc.errors import ArgumentError, OocError, StoreError
from ooc.sources.objects import NODES
from ooc.sources.place import DRAFT, home
from ooc.sources.remote import Store
from ooc.sources.zarr_metadata import MOST_JSON, about_ome, attributes_of, node

OURS = re.compile(rf"c|(c[./]|s?\d+/|{re.escape(DRAFT)}).*|\d+([./]\d+)*|zarr\.json|\.z(array|group|attrs|metadata)")  # in a node


class Names(NamedTuple):
    """How numbers of a node are called.

    Fields:
        separator: in names of chunks, of an array.
        levels: what names of levels begin with, of an image.
    """

    separator: str = "/"
    levels: str = ""

    def chunks(self) -> re.Pattern[str]:
        """Names of chunks and of what lies in levels."""
        return re.compile(rf"c{re.escape(self.separator)}.*|{self.levels}\d+/.*")


def draft_of(folder: str, room: Path) -> str:
    """The draft of a node by the folder in which a run would make it, whose name is drawn for each run."""
    token = hashlib.blake2b(room.name.encode(), digest_size=8).hexdigest()
    return f"{folder.rstrip('/')}/{DRAFT}{token}"


def drafts(folder: str) -> list[str]:
    """All drafts of a node."""
    begun = {name.partition("/")[0] for name in Store(folder).names(DRAFT)}
    return [f"{folder.rstrip('/')}/{name}" for name in sorted(begun)]


def check_free(path: str, folder: str, overwrite: bool, mine: str = "") -> None:
    """Raise ArgumentError where another than `mine` is begun at a node and may not be thrown away."""
    if not overwrite and any(draft != mine for draft in drafts(folder)):
        raise ArgumentError(
            f"{path}: another run writes there, or was killed before it was done; where none does, pass overwrite=True"
        )


def begin(path: str, draft: str) -> Names:
    """How numbers of a new draft are called: otherwise than those of what it is to replace. What other drafts left goes."""
    folder = home(draft)
    there = named(folder)
    names = Names() if there is None else Names("." if there.separator == "/" else "/", "" if there.levels else "s")
    Store(folder, path).clear(DRAFT)
    _remove(path, folder, names.chunks())
    return names


def named(folder: str) -> Names | None:
    """How numbers of a node are called; None: there is none."""
    with suppress(OocError, KeyError, IndexError, TypeError, AttributeError):
        version, array = node(folder, folder)
        if array is not None:
            told = array["chunk_key_encoding"]["configuration"] if version == 3 else {"separator": "."}
            return Names(separator=told["separator"])
        _, told = attributes_of(folder, folder, version)
        first = str(about_ome(told)["multiscales"][0]["datasets"][0]["path"])
        return Names(levels="s" if first.startswith("s") else "")
    return None


def publish(path: str, draft: str, told: Callable[[str], object]) -> None:
    """A draft that is whole becomes its node; what that replaces goes. told: is called with the mark of it before."""
    folder = home(draft)
    store, names = Store(folder, path), named(draft)
    says = _says(path, draft)
    if not says or names is None:
        raise StoreError(f"{path}: what was begun is gone: another run writes there")
    told(_mark(says))
    for name in sorted(says, key=NODES.index, reverse=True):  # which tells of all the others last
        store.write(name, says[name])
    tidy(path, draft)


def tidy(path: str, draft: str) -> None:
    """Remove a draft that became its node, and what that replaced. Again does nothing."""
    folder = home(draft)
    store, names = Store(folder, path), named(folder)
    if names is None or draft not in drafts(folder):
        return
    kept, says = names.chunks(), _says(path, folder).keys() & _says(path, draft).keys()
    old = [name for name in store.names() if OURS.fullmatch(name) and not kept.fullmatch(name) and name not in says]
    mine = [name for name in old if name.startswith(f"{draft.rpartition('/')[2]}/")]
    store.remove([name for name in old if name not in mine])
    store.remove(mine)  # last: who is killed before finds it


def discard(path: str, draft: str) -> None:
    """Remove a draft with its numbers."""
    names = named(draft)
    Store(draft, path).clear()
    if names is not None:
        _remove(path, home(draft), names.chunks())


def mark(folder: str) -> str:
    """What tells a node from the one that it replaced, or that will replace it; "": there is none."""
    return _mark(_says(folder, folder))


def _mark(says: dict[str, bytes]) -> str:
    return hashlib.blake2b(b"".join(says[name] for name in sorted(says)), digest_size=16).hexdigest() if says else ""


def _says(path: str, folder: str) -> dict[str, bytes]:
    """What a node says of itself, by file."""
    store = Store(folder, path)
    files = {name: store.read(name, MOST_JSON) for name in NODES}
    return {name: content for name, content in files.items() if content is not None}


def _remove(path: str, folder: str, pattern: re.Pattern[str]) -> None:
    store = Store(folder, path)
    store.remove([name for name in store.names() if pattern.fullmatch(name)])
