"""What a session saves of itself: one file, which is the old one or the new one whatever happens while it is written.

A zip archive without compression: `about.json`, and an .npy member for everything that lasts from step to step. NumPy and
zipfile read it without ooc; nothing in it is code.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.errors import ArgumentError, ShapeError, StoreError
from ooc.files.npy import read_header
from ooc.files.reached import regular
from ooc.files.records import plain, record, understood
from ooc.files.whole import sweep, whole
from ooc.ir.op import numpy_dtype
from ooc.networks.calls import Network
from ooc.networks.tensors import Role, Slot

ABOUT, FORMAT = "about.json", 1
PIECE = 1 << 20  # bytes that are read at a time


@dataclass(frozen=True)
class CheckpointHeader:
    """What a checkpoint is of.

    Fields:
        graph: a digest of the graph as JSON.
        batch: samples of a step.
        seed: of the session.
        optimizer: its kind; "" without one.
        steps: that were done.
    """

    graph: str
    batch: int
    seed: int
    optimizer: str
    steps: int


def digest(text: str) -> str:
    """Of a graph's JSON."""
    return hashlib.sha256(text.encode()).hexdigest()


def write(path: str | Path, about: CheckpointHeader, tensors: Iterable[tuple[str, Any]], settled: bool = True) -> None:
    """Write a checkpoint, one tensor in memory at a time. settled: wait until it is on the disk. Raises StoreError; what was at
    the path is then still there."""
    final = Path(path)
    try:
        with whole(final, settled) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(ABOUT, json.dumps({"format": FORMAT, **plain(about)}))
            for name, values in tensors:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)
    except OSError as error:
        raise StoreError(error.errno, f"checkpoint {final}: {error.strerror or error}") from error


class Saved(NamedTuple):
    """An open checkpoint: what it is of, and its tensors, read when they are asked for."""

    about: CheckpointHeader
    path: Path
    archive: zipfile.ZipFile

    @property
    def names(self) -> set[str]:
        """The tensors that it has."""
        return {n.removesuffix(".npy") for n in self.archive.namelist() if n != ABOUT}

    def tensor(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """One tensor, whose bytes are checked. Raises ShapeError for another shape or dtype."""
        with _readable(self.path), self.archive.open(f"{name}.npy") as member:
            array = _array(member, shape, dtype, f"checkpoint {self.path}: {name}")
            if member.read(1):  # at the end the sum of all bytes is looked at
                raise ValueError(f"{name} has more than its values")
        return array


def _array(member: Any, shape: tuple[int, ...], dtype: Any, what: str) -> Any:
    """An .npy member that is as it should be; no more memory is taken than that needs."""
    have, _, kind = read_header(member, what)
    if tuple(have) != tuple(shape) or kind.hasobject or kind.itemsize != np.dtype(dtype).itemsize:
        raise ShapeError(f"{what}: expected shape {tuple(shape)} of {np.dtype(dtype)}, the file has {tuple(have)} of {kind}")
    array = np.empty(shape, dtype)
    flat, at = array.reshape(-1).view(np.uint8), 0
    while at < flat.size:
        some = member.read(min(PIECE, flat.size - at))
        if not some:
            raise ArgumentError(f"{what}: the file ends early")
        flat[at : at + len(some)] = np.frombuffer(some, np.uint8)
        at += len(some)
    return array


def _readable(path: Path) -> AbstractContextManager[None]:
    """Turn what is wrong with a file into one line. Raises StoreError, ShapeError."""
    return understood(f"checkpoint {path}", "not one that session.save wrote, or damaged")


@contextmanager
def saved(path: str | Path) -> Iterator[Saved]:
    """Open a checkpoint. What an interrupted save left beside it is removed. Raises StoreError, ShapeError."""
    final = Path(path)
    with suppress(OSError):
        sweep(final.parent, final.name)
    with ExitStack() as stack:
        with _readable(final):
            regular(final, f"checkpoint {final}")
            archive = stack.enter_context(zipfile.ZipFile(final))
            if archive.getinfo(ABOUT).file_size > 1 << 16:
                raise ValueError("its description is too long")
            raw = json.loads(archive.read(ABOUT))
            if raw.pop("format") != FORMAT:
                raise ValueError("another version of the format")
            about = record(CheckpointHeader, raw)
        yield Saved(about, final, archive)


def refuse(about: CheckpointHeader, expected: Mapping[str, Any], path: str | Path) -> None:
    """Raise ArgumentError where a checkpoint is of something else, by the name of what differs."""
    for name, value in expected.items():
        have = getattr(about, name)
        if have != value:
            told = f": it has {have!r}, the plan {value!r}" if name != "graph" else ""
            raise ArgumentError(f"checkpoint {path}: of another {name}{told}")


def saving(net: Network) -> list[Slot]:
    """What the next step depends on."""
    return [t for t in net.lasting if t.role in (Role.PARAMETER, Role.STATE, Role.STATISTIC)]


def stored(dtype: str) -> Any:
    """How a dtype is written to a file that NumPy alone reads: bfloat16 as 16 bits."""
    return np.dtype("<u2") if dtype == "bf16" else numpy_dtype(dtype)


def bits(values: Any) -> Any:
    """An array as it is stored."""
    return values.view("<u2") if values.dtype.name == "bfloat16" else values


def unbits(values: Any, dtype: str) -> Any:
    """An array as it was before it was stored."""
    return values.view(numpy_dtype(dtype)) if dtype == "bf16" else values
