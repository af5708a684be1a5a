"""A call that may be killed: its outermost loops in units, each written down when its bytes are on the disk."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import ArgumentError, OptionError, UnsupportedError
from ooc.files.whole import holds_only, sweep
from ooc.ir.region import Region, Span, slices, spans, whole
from ooc.runtime.aliasing import overlap
from ooc.runtime.journal import Journal, checksum, load, store
from ooc.runtime.store import FileStore, Store, UnitStore
from ooc.runtime.tensors import Tensor
from ooc.runtime.version import VERSION
from ooc.schedule.plan import Plan
from ooc.sources.beside import state_of
from ooc.sources.zarr_arrays import sweep_zarr

UNITS = 64  # of a call at most: each is a file
ABOUT, DONE = "call.json", "done"
WHOLE = "0"  # the one unit of a call of several plans


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
    chapters = itertools.product(*map(range, counts))
    return [some for _ in range(-(-math.prod(counts) // each)) if (some := list(itertools.islice(chapters, each)))]


class Resumed:
    """What of a call is finished, in a folder.

    Parameters:
        folder: of the journal; made where it is missing.
        plans: of the call.
        tensors: its arrays, by name.
        outputs: which of them are written.
        budget: bytes of the device; None: no limit.

    Raises OptionError, ShapeError where such a call cannot be resumed or is not the one that was begun, StoreError.
    """

    def __init__(
        self, folder: Path, plans: Sequence[Plan], tensors: Mapping[str, Tensor], outputs: Collection[str], budget: int | None
    ) -> None:
        read = {name: t.array for name, t in tensors.items() if name not in outputs and isinstance(t.array, np.ndarray)}
        targets = {name: tensors[name].array for name in outputs}
        for name, target in targets.items():
            if not tensors[name].path:
                raise ArgumentError(
                    f"resume: {name} goes to memory, which does not outlive the process; pass a memory map or a file of chunks"
                )
            shared = next((o for o, array in read.items() if overlap(target, array)), None)
            if shared is not None:
                raise OptionError(f"resume: {name} replaces what is read as {shared}; what is half replaced cannot be read again")
        self.journal, about = Journal(folder / DONE), folder / ABOUT
        now = json.loads(json.dumps(fingerprint(plans, tensors, outputs)))
        if about.is_file():
            refuse(about, now)
            self.journal.begin()
            self.journal.doubt()
            for name in outputs:
                _sweep(tensors[name])
        else:
            if folder.exists() and not (folder.is_dir() and holds_only(folder, {DONE, ABOUT}) and not self.journal.finished()):
                raise ArgumentError(f"resume: {folder} is not empty, and no folder of a call")
            self.journal.begin()
            sweep(folder)
            store(about, json.dumps(now).encode())
        self.whole, self.targets, self.budget = len(plans) > 1, targets, budget

    def units(self, plan: Plan, stores: Mapping[str, Store]) -> Iterator[tuple[str, list[Chapter] | None]]:
        """The units that are not finished, each with its indices of the outermost loops; None: all. One whose results are not as
        they were written down, since their file was made anew, say, is not. Raises OocError."""
        if self.whole:
            yield WHOLE, None
            return
        finished = self.journal.finished()
        for i, chapters in enumerate(units_of(plan)):
            if str(i) not in finished or not self._holds(str(i), written(plan, chapters), stores):
                yield str(i), chapters

    def complete(self, stores: Mapping[str, Store]) -> bool:
        """Whether a call of several plans, which is one unit, is finished. Raises OocError."""
        return self.whole and self.journal.done(WHOLE) and self._holds(WHOLE, self._everything, stores)

    def finish(
        self, unit: str, plan: Plan, chapters: Sequence[Chapter] | None, stores: Mapping[str, Store], seconds: float
    ) -> None:
        """Write down that a unit is finished, when what it wrote is on the disk, with a checksum of that. Raises StoreError."""
        regions = self._everything if chapters is None else written(plan, chapters)
        for name in regions:
            if isinstance(store := stores[name], FileStore | UnitStore):
                store.settle()
        told = {"seconds": seconds, "process": os.getpid(), "sums": self._sums(regions, stores)}
        self.journal.finish(unit, True, told)

    @property
    def _everything(self) -> dict[str, list[Region]]:
        return {name: [whole(tuple(array.shape))] for name, array in self.targets.items()}

    def _holds(self, unit: str, regions: Mapping[str, list[Region]], stores: Mapping[str, Store]) -> bool:
        return bool(self.journal.told(unit).get("sums") == self._sums(regions, stores))

    def _sums(self, regions: Mapping[str, list[Region]], stores: Mapping[str, Store]) -> dict[str, str]:
        """Checksums of regions of the results, by name."""
        checksums = {}
        for name, some in regions.items():
            read = partial(_read, stores[name])
            checksums[name] = checksum(read, some, self.targets[name].dtype, (1,) * len(some[0]), self.budget)
        return checksums


def _read(store: Store, region: Region, out: Any) -> None:
    store.read(region, out, None)


def written(plan: Plan, chapters: Iterable[Chapter]) -> dict[str, list[Region]]:
    """The regions of the results that some indices of the outermost loops write, by name."""
    op, regions = plan.op, {o.name: list[Region]() for o in plan.op.outputs}
    for chapter in chapters:
        tile = {dim: Span(0, extent) for dim, extent in op.dims.items()}
        for dim, index in zip(plan.order, chapter, strict=False):
            tile[dim] = spans(op.dims[dim], plan.sizes[dim])[index]
        for o in op.outputs:
            regions[o.name].append(o.region(tile))
    return regions


def refuse(about: Path, now: Mapping[str, Any]) -> None:
    """Raise ArgumentError where a call is another one than was begun, by the name of what differs."""
    have = load(about)
    changed = [name for name in {**now, **have} if have.get(name) != now.get(name)]
    if changed:
        raise ArgumentError(
            f"resume: {about.parent}: of a call with another {', '.join(changed)}; pass another folder to begin anew"
        )


def fingerprint(plans: Sequence[Plan], tensors: Mapping[str, Tensor], outputs: Collection[str]) -> dict[str, Any]:
    """What a call must have in common with the one that it resumes, by name."""
    written = {tensors[name].path for name in outputs}
    states = {n: "made" if n in outputs else "beside" if t.path in written else "read" for n, t in tensors.items()}
    decided = json.dumps([plan.decision for plan in plans])
    common: dict[str, Any] = {"version": VERSION, "plan": hashlib.sha256(decided.encode()).hexdigest()}
    return common | {name: identity(name, tensor, states[name]) for name, tensor in tensors.items()}


def _sweep(tensor: Tensor) -> None:
    """Remove what a killed library left beside chunks, where all of a file is written, so that nobody else writes it."""
    path = tensor.path if tensor.stored is not None else ""
    if path and os.path.isdir(path) and tensor.stored and math.prod(tensor.stored.source.shape) == tensor.array.size:
        sweep_zarr(path)


def identity(name: str, tensor: Tensor, role: str) -> list[Any]:
    """What tells an array from others: its file, and when that changed last, or its contents. role: "made", "read", or "beside"
    what is made, in the same file, which changes then. Raises UnsupportedError."""
    array = tensor.array
    if not isinstance(array, np.ndarray):
        raise UnsupportedError(f"resume: {name} is a {type(array).__name__}; expected an array of NumPy or a memory map")
    about = [list(array.shape), array.dtype.str, list(array.strides)]
    if tensor.stored is None and tensor.file is None:
        digest = hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=16).hexdigest()
        return [*about, digest]
    if not tensor.path:
        raise UnsupportedError(f"resume: {name} is an array whose file is not known; pass ooc.open(path)")
    at = tensor.stored.start if tensor.stored else (tensor.file[1],) if tensor.file else ()
    changes = {"made": lambda _: [], "read": lambda t: [*state_of(t.path).values()], "beside": lambda t: [_contents(t)]}
    return [*about, os.path.abspath(tensor.path), *at, *changes[role](tensor)]


def _contents(tensor: Tensor) -> str:
    """A checksum of all that an array holds."""

    def copied(region: Region, out: Any) -> None:
        if tensor.stored is None:
            out[...] = tensor.array[slices(region)]
            return
        for piece, part in tensor.stored.pieces(region, out):
            tensor.stored.source.read(piece, part)

    shape = tuple(tensor.array.shape)
    return checksum(copied, [whole(shape)], tensor.array.dtype, (1,) * len(shape), None)
