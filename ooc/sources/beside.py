"""Results that take their place when they are whole: where they lie until then, what may be replaced, what is the same file."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ooc.errors import OocError, StoreError
from ooc.files.whole import beside as folder_beside
from ooc.files.whole import move, near, sweep, turns
from ooc.sources.around import innermost
from ooc.sources.arrays import ArraySource
from ooc.sources.base import FileSource
from ooc.sources.checks import faults
from ooc.sources.drafts import check_free, discard, draft_of, mark, publish, published, tidy
from ooc.sources.hdf5 import Hdf5Source, hdf5_room, merge_hdf5
from ooc.sources.objects import MOST_JSON, NODES
from ooc.sources.ome_zarr import announce, complete
from ooc.sources.place import TensorPath, check_room, exists, home, place, writable
from ooc.sources.protocol import Source
from ooc.sources.raw import RawSource
from ooc.sources.remote import KeyStore, is_remote
from ooc.sources.zarr_arrays import ZarrSource, folder_of, make_groups, sweep_zarr, zarr_room

ROOMS: dict[str, Callable[[TensorPath, bool], None]] = {"zarr": zarr_room, "hdf5": hdf5_room}  # of what holds several tensors


def check_place(path: str, overwrite: bool, room: Path | None = None) -> None:
    """Raise OocError where a path is none that a tensor can be created at: something is there that is not to be replaced, the
    folder is missing, its format is not written. Nothing is changed. room: the folder of a run that has begun it."""
    at = place(path)
    writable(at)
    _check_room(at, overwrite)
    if is_remote(at.file):
        check_free(at.text, folder_of(at), overwrite, "" if room is None else draft_of(folder_of(at), room))
        return
    with faults(at.text, "creating"):
        os.stat(os.path.dirname(os.path.abspath(at.file)))


def _check_room(at: TensorPath, overwrite: bool) -> None:
    ROOMS.get(at.kind, check_room)(at, overwrite)


def beside(path: str, folder: Path) -> str:
    """The path of a tensor in a folder, of the same format as the one that it is to become; of one across a network, of its
    draft."""
    at = place(path)
    if is_remote(at.file):
        return draft_of(folder_of(at), folder)
    inside = f":{at.inside}" if at.kind == "hdf5" else at.inside if at.is_label else ""
    return str(folder / os.path.basename(at.file)) + inside


@contextmanager
def making(path: str, overwrite: bool) -> Iterator[Path]:
    """A folder in which a tensor is created, by the path that `beside` tells, and from which it is moved to its place at the end.
    What killed processes left of such folders goes. Raises OocError; what is there stays then."""
    check_place(path, overwrite)
    if is_remote(place(path).file):
        with _drafting(path, overwrite) as room:
            yield room
        return
    file = Path(place(path).file).absolute()
    for one in {file, Path(location(path)).absolute()}:
        sweep(one.parent, one.name)
    with ExitStack() as stack:
        with faults(path, "creating"):
            folder = stack.enter_context(folder_beside(file))
        yield folder
        put(path, folder, overwrite)


@contextmanager
def _drafting(path: str, overwrite: bool) -> Iterator[Path]:
    """The same across a network."""
    room = Path(secrets.token_hex(16))
    try:
        yield room
        put(path, room, overwrite)
    except BaseException:
        with suppress(OocError):
            if not published(path, beside(path, room)):
                discard(path, beside(path, room))
        raise


def put(path: str, folder: Path, overwrite: bool, told: Callable[[int | str], object] = lambda mark: None) -> None:
    """Move a tensor that was made in a folder to its place. told: is called with the mark by which it will be known there when
    all that can be refused is not. Raises OocError; what is there stays then."""
    at, draft = place(path), place(beside(path, folder))
    if is_remote(at.file):
        _publish(at, draft, overwrite, told)
        return
    with ExitStack() as stack, faults(at.text, "creating"):
        target = Path(file_of(at))
        if at.kind == "hdf5":  # others may bring their datasets into the same file
            target = Path(os.path.realpath(target))
            stack.enter_context(turns(target.parent))
        _check_room(at, overwrite)
        if at.kind == "zarr":
            sweep_zarr(draft.file)
            version = complete(file_of(draft)) if at.is_ome else 0
            if at.is_label:
                announce(at, version, listed=False)
            else:
                make_groups(at)
        merges = at.kind == "hdf5" and target.exists()
        if merges:
            merge_hdf5(at, draft.file, overwrite)
        moved = stack.enter_context(near(Path(file_of(draft)), target))
        told(os.stat(moved).st_ino)
        try:
            move(moved, target, overwrite or merges)
        except FileExistsError:
            raise exists(at.text) from None
        if at.is_label:
            announce(at, version)


def _publish(at: TensorPath, draft: TensorPath, overwrite: bool, told: Callable[[int | str], object]) -> None:
    """The same across a network, where a tensor lies at its place already, unseen."""
    with faults(at.text, "creating"):
        version = complete(file_of(draft)) if at.is_ome else 0
        zarr_room(at, overwrite)
        if at.is_label:
            announce(at, version, listed=False)
        else:
            make_groups(at)
        publish(at.text, file_of(draft), told)
        if at.is_label:
            announce(at, version)


def tidied(path: str, folder: Path) -> None:
    """What may be left of a tensor that was put at its place goes."""
    at = place(path)
    if is_remote(at.file):
        tidy(at.text, beside(path, folder))


def mark_of(path: str) -> int | str | None:
    """What tells the tensor at a path from one that was there before, or will be; None: there is none."""
    folder = location(path)
    if is_remote(folder):
        return mark(folder) or None
    with suppress(OSError):
        return os.stat(folder).st_ino
    return None


def file_of(at: TensorPath) -> str:
    """The file of a tensor, or the folder that stands for one."""
    return folder_of(at) if at.kind == "zarr" else at.file


def location(source: Source | str) -> str:
    """The file or folder that holds the numbers of a source, or of the tensor at a path; "" where none is known."""
    if isinstance(source, str):
        return file_of(place(source))
    source = innermost(source)
    if isinstance(source, ZarrSource):
        return source.folder
    if isinstance(source, RawSource | ArraySource):
        return source.file
    return _named(source)


def _named(source: Source) -> str:
    """The file that the path of a source names; "" where it names none."""
    with suppress(OocError):
        return place(source.path).file if isinstance(source, FileSource) else ""
    return ""


def same_tensor(one: Source, two: Source) -> bool:
    """Whether two sources are the same tensor of a file, by whatever names."""
    one, two = innermost(one), innermost(two)
    if one is two:
        return True
    if isinstance(one, ArraySource) and isinstance(two, ArraySource) and one.is_same(two):
        return True
    if is_remote(location(one)):
        return location(one) == location(two)
    try:
        return os.path.samefile(location(one), location(two)) and _inside(one) == _inside(two)
    except OSError:
        return False  # one lies in no file


def _inside(source: Source) -> str:
    """What is named inside a file of several tensors, of which a folder has none."""
    if isinstance(source, ArraySource):
        return source.inside
    return place(source.path).inside.strip("/") if isinstance(source, Hdf5Source) else ""


def folder_of_file(source: Source) -> str:
    """The folder that a source's file lies in; "" where none is known."""
    source = innermost(source)
    file = source.file if isinstance(source, RawSource | ArraySource) else _named(source)
    return os.path.dirname(os.path.abspath(file)) if file and not is_remote(file) else ""


def state_of(path: str) -> dict[str, Any]:
    """Bytes and time of change of a file; of a folder those of all files in it, by their names; of one across a network what its
    node says, and which version of that it is, as listings tell no more. Raises StoreError."""
    if is_remote(path):
        store = KeyStore(path)
        told = hashlib.blake2b(b"".join(store.read(name, MOST_JSON) or b"" for name in NODES), digest_size=16)
        return {"versions": [store.version(name) for name in NODES], "says": told.hexdigest()}
    try:
        if not os.path.isdir(path):
            status = os.stat(path)
            return {"bytes": status.st_size, "changed": status.st_mtime_ns}
        told, total = hashlib.blake2b(digest_size=16), 0
        for at, folders, names in os.walk(path, onerror=_raise):
            folders.sort()
            for name in sorted(names):
                status = os.stat(os.path.join(at, name))
                total += status.st_size
                told.update(
                    f"{os.path.relpath(at, path)}/{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(
                        "utf-8", "surrogateescape"
                    )
                )
        return {"bytes": total, "changed": told.hexdigest()}
    except OSError as error:
        raise StoreError(error.errno, f"{path}: {error.strerror or error}") from error


def _raise(error: OSError) -> None:
    raise error


def meet(one: str, two: str) -> bool:
    """Whether two files or folders are the same, by whatever names, or one lies in the other."""
    if not one or not two:
        return False
    if is_remote(one) or is_remote(two):
        a, b = (os.path.join(home(path), "") for path in (one, two))
        return a.startswith(b) or b.startswith(a)
    try:
        if os.path.samefile(one, two):
            return True
    except OSError:
        pass  # one is not there yet
    a, b = (os.path.join(os.path.realpath(path), "") for path in (one, two))
    return a.startswith(b) or b.startswith(a)
