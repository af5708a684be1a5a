"""Where a tensor is: the text that a user writes, in its parts; and what is asked of a new one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, ShapeError, UnsupportedError, shown
from ooc.sources.base import FileSource
from ooc.sources.checks import faults
from ooc.sources.protocol import Source
from ooc.sources.remote import check_url, is_remote, is_writable

# Format -> file, and what is named inside it.
PATTERNS = {
    "npy": r"(.*\.npy)",
    "zarr": r"(.*?\.zarr)((?:/[^:]*)?(?::[^:]*)?)",
    "tiff": r"(.*?\.(?:tiff?|svs|ndpi|scn|btf|qptiff|lsm))(?::(.*))?",
    "hdf5": r"(.*?\.(?:h5|hdf5))(?::(.*))?",
    "nifti": r"(.*\.nii(?:\.gz)?)",
    "mrc": r"(.*\.(?:mrcs?|map|rec))",
    "imaris": r"(.*?\.ims)(?::(.*))?",
    "image": r"(.*\.(?:png|jpe?g|bmp))",
}
DRAFT = ".draft-"  # begins the name of a node in a node across a network: what that will say of itself when it is whole
LABELS = "labels"  # of an image of OME-Zarr: the group that they are in
TIFFS = (".tif", ".tiff")  # names of those that are written; microscopes and scanners have others
KNOWN = ".npy, .zarr, .tif (.svs, .ndpi, .scn, .btf, .qptiff, .lsm), .h5:/dataset, .nii, .nii.gz, .mrc, .ims, .png, .jpg or .bmp"


@dataclass(frozen=True)
class TensorPath:
    """A tensor's place. text: as it was given. kind: of `PATTERNS`. inside: what follows the file's name. slices: after '::'.
    trust: whether it may lead to files elsewhere."""

    text: str
    kind: str
    file: str
    inside: str = ""
    slices: str | None = None
    trust: bool = False

    @property
    def is_ome(self) -> bool:
        """Whether it is a new image with levels, or labels of one."""
        return self.kind == "zarr" and self.file.lower().endswith(".ome.zarr") and (not self.named or self.is_label)

    @property
    def is_pyramid(self) -> bool:
        """Whether it is a new OME-TIFF."""
        return self.kind == "tiff" and self.file.lower().endswith((".ome.tif", ".ome.tiff"))

    @property
    def is_spooled(self) -> bool:
        """Whether it is written whole at the end, from its beginning on."""
        return self.is_pyramid or (self.kind == "nifti" and self.file.lower().endswith(".gz"))

    @property
    def is_draft(self) -> bool:
        """Whether it is a tensor across a network that is not whole yet."""
        return self.named != self.inside

    @property
    def named(self) -> str:
        """What follows the file's name, without what it is a draft by."""
        return home(self.file + self.inside)[len(self.file) :]

    @property
    def is_label(self) -> bool:
        """Whether it is `image.ome.zarr/labels/name`."""
        parts = [part for part in self.named.split("/") if part]
        return self.kind == "zarr" and self.file.lower().endswith(".ome.zarr") and len(parts) == 2 and parts[0] == LABELS


def place(path: str | os.PathLike[str]) -> TensorPath:
    """The parts of a path; raises UnsupportedError for a format that is none of ooc's.

    >>> place("a/b.zarr/cells/0::0,:,10:20").inside, place("x.tif:1/2").inside, place("x.ome.zarr:3").inside
    ('/cells/0', '1/2', ':3')
    """
    try:
        text = os.fspath(path)
    except TypeError:
        raise ArgumentError(f"path: expected a text or a path, got {shown(path)}") from None
    if not isinstance(text, str) or "\0" in text:
        raise ArgumentError(f"path: expected a text without zero bytes, got {shown(text)}")
    name, mark, slices = text.partition("::")
    check_url(name)
    for kind, pattern in PATTERNS.items():
        if match := re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL):
            file, *inside = match.groups()
            if kind != "zarr" and is_remote(file):
                raise UnsupportedError(f"path: {text}: across a network only .zarr is read; copy it here, or mount the store")
            return TensorPath(text, kind, file, next((i for i in inside if i), ""), slices if mark else None)
    raise UnsupportedError(f"path: {text}: expected a file whose name ends with {KNOWN}")


def home(folder: str) -> str:
    """The folder that a draft is of; any other folder itself.

    >>> home("s3://bucket/x.zarr/.draft-0a1b"), home("x.zarr/.draft-0")
    ('s3://bucket/x.zarr', 'x.zarr/.draft-0')
    """
    above, _, name = folder.rstrip("/").rpartition("/")
    return above if name.startswith(DRAFT) and is_remote(folder) else folder


@dataclass(frozen=True)
class NewTensor:
    """A tensor that is to be created, checked but for what its format adds. position: where it lies in `like`: by letter of an
    axis its first position and its step. ome: a version of OME-Zarr; "": the newest, of labels their image's."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: str = ""
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    like: Source | None = None
    overwrite: bool = False
    position: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    ome: str = ""

    def plain(self, path: str, chunks: bool = False) -> None:
        """Refuse chunks (unless `chunks`) and shards for a format that has none."""
        if (self.chunks and not chunks) or self.shards:
            raise ArgumentError(f"{path}: {'shards' if self.shards else 'chunks'}: this format has none; write .zarr")


def writable(at: TensorPath) -> None:
    """Refuse what is written by no path of its kind, before anything else is known."""
    if at.slices is not None:
        raise ArgumentError(f"{at.text}: slices select from a tensor that is there; create the whole one")
    if is_remote(at.file) and not is_writable(at.file):
        raise UnsupportedError(f"{at.text}: is only read; write to s3:// or to a file")
    if at.kind in ("mrc", "imaris"):
        raise UnsupportedError(f"{at.text}: is only read; write .ome.zarr, .tif or .nii")
    if at.kind == "image" and not at.file.lower().endswith(".png"):
        raise UnsupportedError(f"{at.text}: of pictures only .png is written, which loses nothing")
    if at.kind == "hdf5" and not at.inside.strip("/"):
        raise ArgumentError(f"{at.text}: name the dataset, as in x.h5:/name")
    if at.kind == "tiff" and not at.file.lower().endswith(TIFFS):
        raise UnsupportedError(f"{at.text}: files of this maker are only read; write .tif")
    if at.kind == "zarr" and ":" in at.inside:
        raise ArgumentError(f"{at.text}: expected x.zarr or x.zarr/name; levels of OME-Zarr are not written one by one")


def check_room(at: TensorPath, overwrite: bool) -> None:
    """Raise ArgumentError where there is a file that is not to be replaced, or a folder."""
    if not os.path.lexists(at.file):
        return
    if not overwrite:
        raise exists(at.text)
    if os.path.isdir(at.file) and not os.path.islink(at.file):
        raise ArgumentError(f"{at.text}: is a folder, which is not overwritten")


def exists(path: str) -> ShapeError:
    """The error for a result that is there and is not to be replaced."""
    return ArgumentError(f"{path}: exists already; pass overwrite=True to replace it")


def fresh(at: TensorPath, overwrite: bool) -> None:
    """Make room for a file. Raises ShapeError where there is one and it is not to be overwritten."""
    check_room(at, overwrite)
    if os.path.lexists(at.file):
        with faults(at.text, "replacing"):
            os.remove(at.file)  # not truncated: who has the old file open keeps it


@contextmanager
def creating(path: str, file: str) -> Iterator[None]:
    """Errors name the file; a file that could not be finished does not stay."""
    try:
        with faults(path, "creating"):
            yield
    except BaseException:
        with suppress(OSError):
            os.remove(file)
        raise


def header_of(like: Source | None) -> Any:
    """What a source of a format with a header remembers of it, or None."""
    return getattr(like, "header", None) if isinstance(like, FileSource) else None
