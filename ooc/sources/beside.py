"""Results that take their place when they are whole: where they lie until then, what may be replaced, what is the same file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ooc.errors import StoreError, UnsupportedError
from ooc.files.whole import beside as folder_beside
from ooc.files.whole import move, near, sweep, turns
from ooc.sources.around import innermost
from ooc.sources.arrays import ArraySource
from ooc.sources.base import FileSource
from ooc.sources.checks import faults
from ooc.sources.hdf5 import Hdf5Source, hdf5_room, merge_hdf5
from ooc.sources.ome_zarr import announce, complete
from ooc.sources.place import TensorPath, check_room, exists, place, writable
from ooc.sources.protocol import Source
from ooc.sources.raw import RawSource
from ooc.sources.zarr_arrays import ZarrSource, folder_of, make_groups, sweep_zarr, zarr_room

ROOMS: dict[str, Callable[[TensorPath, bool], None]] = {"zarr": zarr_room, "hdf5": hdf5_room}  # of what holds several tensors


def check_place(path: str, overwrite: bool) -> None:
    """Raise OocError where a path is none that a tensor can be created at: something is there that is not to be replaced, the
    folder is missing, its format is not written. Nothing is changed."""
    at = place(path)
    writable(at)
    _check_room(at, overwrite)
    with faults(at.text, "creating"):
        os.stat(os.path.dirname(os.path.abspath(at.file)))


def _check_room(at: TensorPath, overwrite: bool) -> None:
    ROOMS.get(at.kind, check_room)(at, overwrite)


def beside(path: str, folder: Path) -> str:
    """The path of a tensor in a folder, of the same format as the one that it is to become."""
    at = place(path)
    inside = f":{at.inside}" if at.kind == "hdf5" else at.inside if at.is_label else ""
    return str(folder / os.path.basename(at.file)) + inside


@contextmanager
def making(path: str, overwrite: bool) -> Iterator[Path]:
    """A folder in which a tensor is created, by the path that `beside` tells, and from which it is moved to its place at the end.
    What killed processes left of such folders goes. Raises OocError; what is there stays then."""
    check_place(path, overwrite)
    file = Path(place(path).file).absolute()
    for one in {file, Path(location(path)).absolute()}:
        sweep(one.parent, one.name)
    with ExitStack() as stack:
        with faults(path, "creating"):
            folder = stack.enter_context(folder_beside(file))
        yield folder
        put(path, folder, overwrite)


def put(path: str, folder: Path, overwrite: bool, told: Callable[[Path], object] = lambda moved: None) -> None:
    """Move a tensor that was made in a folder to its place. told: is called with what is moved when all that can be refused is
    not. Raises OocError; what is there stays then."""
    at, draft = place(path), place(beside(path, folder))
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
        told(moved)
        try:
            move(moved, target, overwrite or merges)
        except FileExistsError:
            raise exists(at.text) from None
        if at.is_label:
            announce(at, version)


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
    with suppress(UnsupportedError):
        return place(source.path).file if isinstance(source, FileSource) else ""
    return ""


def same_tensor(one: Source, two: Source) -> bool:
    """Whether two sources are the same tensor of a file, by whatever names."""
    one, two = innermost(one), innermost(two)
    if one is two:
        return True
    if isinstance(one, ArraySource) and isinstance(two, ArraySource) and one.is_same(two):
        return True
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
    return os.path.dirname(os.path.abspath(file)) if file else ""


def state_of(path: str) -> dict[str, Any]:
    """Bytes and time of change of a file; of a folder those of all files in it, by their names. Raises StoreError."""
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
    try:
        if os.path.samefile(one, two):
            return True
    except OSError:
        pass  # one is not there yet
    a, b = (os.path.join(os.path.realpath(path), "") for path in (one, two))
    return a.startswith(b) or b.startswith(a)
