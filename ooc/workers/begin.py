"""The folder of a run: made once, before there are workers; or found again, and then it must be of the same run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.errors import ShapeError, StoreError
from ooc.files.whole import holds_only, sweep
from ooc.networks.build import Built
from ooc.networks.calls import network
from ooc.networks.checkpoint import About as Saved
from ooc.networks.checkpoint import digest as digest_of_text
from ooc.networks.checkpoint import write
from ooc.networks.planning import Asked, plan_network
from ooc.networks.session import bits
from ooc.networks.tensors import Mode
from ooc.runtime.device import Device
from ooc.runtime.journal import store
from ooc.runtime.version import VERSION
from ooc.workers.cut import UNITS, Cutter, whole
from ooc.workers.levels import Kind, Level
from ooc.workers.where import Where
from ooc.workers.work import ABOUT, BETWEEN, DONE, MADE, SUMS, WEIGHTS, About, Result, Work

PLAIN = "plain"  # is there while a result is made without a journal
FOLDER = ".work"  # ends the name of the folder beside a result
MANY = 16  # samples of a batch that pass in pieces of whole samples
ENDLESS = 1 << 50  # bytes: the budget where there is none


class Wanted(NamedTuple):
    """What is to be computed.

    Fields:
        graph: the network.
        samples: of the batch.
        device: what workers compute with: kernels are chosen for it.
        budget: bytes of each worker; None: no limit.
        deterministic: whether sums are taken in one order.
        values: of parameters and statistics, by name.
        source, result: where they are.
    """

    graph: Built
    samples: int
    device: Device
    budget: int | None
    deterministic: bool
    values: Mapping[str, Any]
    source: Where
    result: Result

    def fingerprint(self) -> dict[str, Any]:
        """What has to be the same when a run is resumed, by its name."""
        backend = self.device.backend
        return {
            "version": VERSION, "network": digest_of_text(self.graph.to_json()), "weights": digest(self.values),
            "batch": self.samples, "budget": self.budget, "deterministic": self.deterministic, "backend": backend.name,
            "calibration": self.device.model.name, "source": self.source.identity(),
            "result": [self.result.where.path, list(self.result.shape), self.result.dtype],
        }  # fmt: skip

    def same(self, about: About) -> bool:
        """Whether a work folder is of the same network and files."""
        mine, result = self.result, about.result
        files = (about.source, result.where, result.shape, result.dtype) == (self.source, mine.where, mine.shape, mine.dtype)
        return files and about.samples == self.samples and about.graph == json.loads(self.graph.to_json())


def digest(values: Mapping[str, Any]) -> str:
    """Of arrays by name."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(values):
        array = np.ascontiguousarray(values[name])
        found.update(f"{name} {array.dtype} {array.shape} ".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


@contextmanager
def unfinished(file: str) -> Iterator[None]:
    """Mark a result that is made without a journal, until it is whole: who resumes it begins it anew. What an older run left
    beside it goes; a folder that is somebody's own stays, and there is no mark. Raises StoreError."""
    folder = Path(f"{file}{FOLDER}")
    try:
        if folder.exists():
            remove(folder)
        folder.mkdir()
        store(folder / PLAIN, b"")
    except ShapeError:
        yield
        return
    except OSError as error:
        raise StoreError(error.errno, f"{folder}: {error.strerror or error}") from error
    yield
    shutil.rmtree(folder, ignore_errors=True)


def begun(wanted: Wanted, folder: Path) -> Work:
    """A new run; what another one left in the folder goes. Raises OocError."""
    about, result = planned(wanted), wanted.result
    if (folder / PLAIN).is_file():  # it was begun without a journal
        about = replace(about, result=replace(result, made={**result.made, "overwrite": True}))
        result = about.result
    if result.made and result.there and not result.made["overwrite"]:
        raise ShapeError(f"{result.where.path}: exists already; pass overwrite=True to replace it")
    if folder.exists():
        remove(folder)
    try:
        folder.mkdir()
        for name in (BETWEEN, DONE, SUMS):
            (folder / name).mkdir()
        write(folder / WEIGHTS, Saved("", 0, 0, "", 0), ((name, bits(values)) for name, values in wanted.values.items()))
        store(folder / ABOUT, about.to_json().encode())
        make(result, folder)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise StoreError(error.errno, f"{folder}: {error.strerror or error}") from error
        raise
    return Work(folder)


def make(result: Result, folder: Path, overwrite: bool = False) -> None:
    """Create the file of a result, unless it is there or comes last; a mark tells that it is whole."""
    if result.made and not result.opens_late:
        result.created(overwrite).close()
        store(folder / MADE, b"")


def remove(folder: Path) -> None:
    """Remove what a run left; raises ShapeError for a folder that is none of a run."""
    own = {BETWEEN, DONE, SUMS, WEIGHTS, ABOUT, MADE, PLAIN}
    if not holds_only(folder, own):
        raise ShapeError(f"{folder}: is no folder of a run, and is not replaced")
    shutil.rmtree(folder)


def resumed(wanted: Wanted, folder: Path) -> Work:
    """A run that was begun before, to go on with. Raises ShapeError where something changed, by its name."""
    work = Work(folder)
    have, now = work.about.fingerprint, json.loads(json.dumps(wanted.fingerprint()))
    changed = [name for name in {**now, **have} if have.get(name) != now.get(name)]
    if changed:
        told = "; ".join(f"{name} was {_brief(have.get(name))}, is {_brief(now.get(name))}" for name in changed)
        raise ShapeError(f"{folder}: resume: of another {', '.join(changed)}: {told}")
    if not wanted.same(work.about):  # which says that it is, and is not
        raise ShapeError(f"{folder / ABOUT}: damaged; begin anew")
    if not work.finished and not (folder / WEIGHTS).is_file():
        raise StoreError(f"{folder}: resume: its weights are gone; begin anew")
    for own in (folder, folder / SUMS):
        sweep(own)
    work.journal.begin()
    work.journal.doubt()
    result = work.about.result
    if result.made and not result.opens_late and not (folder / MADE).is_file():
        make(result, folder, overwrite=True)
    if not result.there and (work.finished or not result.opens_late):
        raise StoreError(f"{result.where.path}: resume: the result that was begun is gone; begin anew")
    return work


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:40]}..."


def planned(wanted: Wanted) -> About:
    """The levels of all pieces of the batch. Raises BudgetError where a call does not fit."""
    each = -(-wanted.samples // UNITS) if wanted.samples >= MANY else 1
    sizes = dict.fromkeys([min(each, wanted.samples), wanted.samples % each or each])
    levels = {str(size): tuple(_levels(wanted, size)) for size in sizes}
    return About(
        json.loads(wanted.graph.to_json()), wanted.samples, each, wanted.budget, wanted.deterministic, levels, wanted.source,
        wanted.result, wanted.fingerprint(),
    )  # fmt: skip


def _levels(wanted: Wanted, size: int) -> Iterator[Level]:
    """Of a piece of so many samples."""
    net = network(wanted.graph, size, Mode.INFER, None, wanted.deterministic)
    if wanted.samples >= MANY:
        plan = plan_network(
            wanted.graph, size, wanted.budget, "auto", Asked(Mode.INFER), wanted.device, None, "disk", None,
            wanted.deterministic, {},
        )  # fmt: skip
        yield from whole(net, plan)
    else:
        yield from Cutter(net, wanted.device, wanted.budget or ENDLESS, wanted.deterministic).levels()
    if not wanted.result.direct:
        yield Level(Kind.FLUSH)
