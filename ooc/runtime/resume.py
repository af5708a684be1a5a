"""A call that may be killed: its outermost loops in units, each written down when its bytes are on the disk."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import OptionError, ShapeError, StoreError, UnsupportedError
from ooc.files.whole import holds_only, sweep
from ooc.runtime.aliasing import overlap
from ooc.runtime.journal import Journal, load, store
from ooc.runtime.store import FileStore, Store, file_behind
from ooc.runtime.version import VERSION
from ooc.schedule.plan import Plan

UNITS = 64  # of a call at most: each is a file
ABOUT, DONE = "call.json", "done"


Chapter = tuple[int, ...]  # indices of the outermost loops


def units_of(plan: Plan) -> list[list[Chapter]]:
    """The indices of the outermost loops that sum nothing, in units that do not need each other, few enough to count."""
    counts: list[int] = []
    for dim in plan.order:
        count = -(-plan.op.dims[dim] // plan.sizes[dim])
        sums = any(dim in fold.reduce or dim in fold.idle for fold in plan.op.folds)
        if math.prod(counts) >= UNITS or (sums and count > 1):
            break
        counts.append(count)
    each = -(-math.prod(counts) // UNITS)
    found = itertools.product(*map(range, counts))
    return [some for _ in range(-(-math.prod(counts) // each)) if (some := list(itertools.islice(found, each)))]


class Resumed:
    """What of a call is finished, in a folder.

    Parameters:
        folder: of the journal; made where it is missing.
        plans: of the call.
        operands, targets: its arrays.

    Raises OptionError, ShapeError where such a call cannot be resumed or is not the one that was begun, StoreError.
    """

    def __init__(self, folder: Path, plans: Sequence[Plan], operands: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
        for name, target in targets.items():
            if file_behind(target) is None:
                raise ShapeError(f"resume: {name} goes to memory, which does not outlive the process; pass a memory map as out")
            shared = next((o for o, array in operands.items() if isinstance(array, np.ndarray) and overlap(target, array)), None)
            if shared is not None:
                raise OptionError(f"resume: {name} replaces what is read as {shared}; what is half replaced cannot be read again")
        self.journal, about = Journal(folder / DONE), folder / ABOUT
        now = json.loads(json.dumps(fingerprint(plans, operands, targets)))
        if about.is_file():
            refuse(about, now)
            self.journal.begin()
            self.journal.doubt()
        else:
            if folder.exists() and not (folder.is_dir() and holds_only(folder, {DONE, ABOUT}) and not self.journal.finished()):
                raise ShapeError(f"resume: {folder} is not empty, and no folder of a call")
            self.journal.begin()
            sweep(folder)
            store(about, json.dumps(now).encode())
        self.whole = len(plans) > 1

    def units(self, plan: Plan) -> Iterator[tuple[str, list[Chapter] | None]]:
        """The units that are not finished, each with its indices of the outermost loops; None: all."""
        if self.whole:
            yield "0", None
            return
        finished = self.journal.finished()
        yield from ((str(i), indices) for i, indices in enumerate(units_of(plan)) if str(i) not in finished)

    @property
    def complete(self) -> bool:
        """Whether a call of several plans, which is one unit, is finished."""
        return self.whole and bool(self.journal.finished())

    def finish(self, unit: str, stores: Iterable[Store], seconds: float) -> None:
        """Write down that a unit is finished, when what it wrote is on the disk. Raises StoreError."""
        for own in stores:
            if isinstance(own, FileStore):
                own.settle()
        self.journal.finish(unit, True, {"seconds": seconds, "process": os.getpid()})


def refuse(about: Path, now: Mapping[str, Any]) -> None:
    """Raise ShapeError where a call is another one than was begun, by the name of what differs."""
    have = load(about)
    changed = [name for name in {**now, **have} if have.get(name) != now.get(name)]
    if changed:
        raise ShapeError(
            f"resume: {about.parent}: of a call with another {', '.join(changed)}; pass another folder to begin anew"
        )


def fingerprint(plans: Sequence[Plan], operands: Mapping[str, Any], targets: Mapping[str, Any]) -> dict[str, Any]:
    """What a call must have in common with the one that it resumes, by name."""
    written = {file_behind(array)[0] for array in targets.values()}  # type: ignore[index]
    found: dict[str, Any] = {"version": VERSION, "plan": hashlib.sha256("".join(p.to_json() for p in plans).encode()).hexdigest()}
    return found | {name: identity(name, array, written) for name, array in (*operands.items(), *targets.items())}


def identity(name: str, array: Any, written: set[str]) -> list[Any]:
    """What tells an array from others: its file, and when that changed last, or its contents. Raises UnsupportedError."""
    if not isinstance(array, np.ndarray):
        raise UnsupportedError(f"resume: {name} is a {type(array).__name__}; expected an array of NumPy or a memory map")
    about = [list(array.shape), array.dtype.str, list(array.strides)]
    behind = file_behind(array)
    if behind is None:
        digest = hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=16).hexdigest()
        return [*about, digest]
    path, offset = behind
    try:
        status = os.stat(path)
    except OSError as error:
        raise StoreError(error.errno, f"{path}: {error.strerror or error}") from error
    return [*about, os.path.abspath(path), offset, *(() if path in written else (status.st_size, status.st_mtime_ns))]
