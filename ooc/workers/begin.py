"""The folder of a run: made once, before there are workers; or found again, and then it must be of the same run."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.errors import ArgumentError, OocError, ShapeError, StoreError
from ooc.files.locks import try_lock
from ooc.files.whole import beside, incomplete, move, sweep
from ooc.ir.op import numpy_dtype
from ooc.networks.build import Built
from ooc.networks.checkpoint import CheckpointHeader as Saved
from ooc.networks.checkpoint import bits, write
from ooc.networks.checkpoint import digest as digest_of_text
from ooc.networks.planning import NetworkRequest, plan_network
from ooc.networks.tensors import Mode
from ooc.networks.writer import network
from ooc.runtime.device import Device
from ooc.runtime.journal import store
from ooc.runtime.version import VERSION
from ooc.sources.beside import check_place
from ooc.sources.drafts import discard
from ooc.sources.remote import is_remote
from ooc.workers.believed import wrong
from ooc.workers.cut import UNITS, Cutter, whole
from ooc.workers.levels import Kind, Level
from ooc.workers.result import Result
from ooc.workers.where import Where
from ooc.workers.work import ABOUT, BETWEEN, DONE, MADE, RESULT, SUMS, WEIGHTS, WorkFolder, WorkHeader

FOLDER = ".work"  # ends the name of the folder beside a result
MANY = 16  # samples of a batch that pass in pieces of whole samples
SLOW = 1e8  # bytes per second that any disk copies: others wait so long for who does it alone
ENDLESS = 1 << 50  # bytes: the budget where there is none


class WorkRequest(NamedTuple):
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

    def same(self, about: WorkHeader) -> bool:
        """Whether a work folder is of the same network and files."""
        mine, result = self.result, about.result
        files = (about.source, result.where, result.shape, result.dtype) == (self.source, mine.where, mine.shape, mine.dtype)
        return files and about.samples == self.samples and about.graph == json.loads(self.graph.to_json())


def digest(values: Mapping[str, Any]) -> str:
    """Of arrays by name."""
    checksum = hashlib.blake2b(digest_size=16)
    for name in sorted(values):
        array = np.ascontiguousarray(values[name])
        checksum.update(f"{name} {array.dtype} {array.shape} ".encode())
        checksum.update(array.reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()


class Busy(ShapeError):
    """Somebody is at work there."""


@contextmanager
def at_work(folder: Path, shared: bool = False) -> Iterator[None]:
    """Nobody else works at a run meanwhile; shared: nobody but those who share it. Raises Busy where somebody does; where
    the file system has no locks all do."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            try_lock(fd, shared)
        except BlockingIOError:
            raise Busy(f"{folder}: another process is at work there; wait for it, or share the work by parts") from None
        yield
    finally:
        os.close(fd)


@contextmanager
def at_work_too(folder: Path) -> Iterator[None]:
    """Let others know meanwhile that somebody is at work at a run, be it that its owner holds it alone."""
    with ExitStack() as stack:
        with suppress(Busy, OSError):
            stack.enter_context(at_work(folder, shared=True))
        yield


def run_folder(result: Where, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of a run: one that is wanted, else the one beside the result; None: across a network there is none. Raises
    ArgumentError."""
    if folder and is_remote(os.fspath(folder)):
        raise ArgumentError(f"{os.fspath(folder)}: expected a folder on a disk, which all workers see")
    if not folder and is_remote(result.file):
        return None
    return Path(folder or f"{result.beside}{FOLDER}").absolute()


def check_idle(folder: Path | None, shared: bool = False) -> None:
    """Raise ShapeError where somebody is at work at a run; shared: but for those who share it."""
    if folder is not None and folder.is_dir():
        with at_work(folder, shared):
            pass


def forget(folder: Path | None) -> None:
    """Remove what an older run left; a folder that is somebody's own stays. Raises ShapeError where it is at work."""
    if folder is not None and _of_run(folder):
        check_idle(folder)
        remove(folder)


def is_begun(folder: Path | None) -> bool:
    """Whether there is a run that can be resumed."""
    return folder is not None and (folder / ABOUT).is_file()


def begun(request: WorkRequest, folder: Path) -> WorkFolder:
    """A new run; what another one left in the folder goes. Raises OocError."""
    result = request.result
    if result.made:
        check_place(result.where.path, result.overwrite, _making(folder))
    about = planned(request)
    if os.path.lexists(folder):
        remove(folder)
    try:
        with beside(folder) as room:
            new = room / folder.name
            new.mkdir()
            for name in (BETWEEN, DONE, SUMS):
                (new / name).mkdir()
            write(new / WEIGHTS, Saved("", 0, 0, "", 0), ((name, bits(values)) for name, values in request.values.items()))
            store(new / ABOUT, about.to_json().encode())
            make(WorkFolder(new))
            move(new, folder, False)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"{folder}: {error.strerror or error}") from error
    return WorkFolder(folder)


def make(work: WorkFolder) -> None:
    """Create the file of a result where it is made; one that a worker writes alone is made anew then, and here to be refused."""
    result = work.about.result
    if result.made:
        work.making.mkdir()
        result.created(work.making).close()
        store(work.folder / MADE, b"{}")


def remove(folder: Path) -> None:
    """Remove what a run left; raises ArgumentError for a folder that is none of a run."""
    if not _of_run(folder):
        raise ArgumentError(f"{folder}: is no folder of a run, and is not replaced")
    _discard_draft(folder)
    with beside(folder) as room:
        os.rename(folder, room / folder.name)  # at once, so that no half of it is left


def _making(folder: Path) -> Path | None:
    """Where an older run makes its result; None: there is none."""
    with suppress(OocError):
        return WorkFolder(folder).making
    return None


def _discard_draft(folder: Path) -> None:
    """What a run has begun across a network goes with it, as what it has begun in its folder does."""
    with suppress(OocError):
        work = WorkFolder(folder)
        where = work.about.result.where
        if is_remote(where.file) and not work.placed:
            discard(where.path, work.about.result.within(work.making).path)


def _of_run(folder: Path) -> bool:
    """Whether all in a folder is a run's, or nothing is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = {incomplete(path.name) or path.name for path in folder.iterdir()}
    making = {name for name in names if name.startswith(f"{RESULT}.")}
    return not names or (ABOUT in names and names - making <= {BETWEEN, DONE, SUMS, WEIGHTS, ABOUT, MADE})


def resumed(request: WorkRequest, folder: Path) -> WorkFolder:
    """A run that was begun before, to go on with: what is not as it was written down is computed again. Raises ArgumentError
    where something changed, by its name, a finished result too, which may be somebody's own now; StoreError where what it needs
    is gone."""
    work = WorkFolder(folder)
    have, now = work.about.fingerprint, json.loads(json.dumps(request.fingerprint()))
    changed = [name for name in {**now, **have} if have.get(name) != now.get(name)]
    if changed:
        told = "; ".join(f"{name} was {_brief(have.get(name))}, is {_brief(now.get(name))}" for name in changed)
        raise ArgumentError(f"{folder}: resume: of another {', '.join(changed)}: {told}; remove {folder.name} to begin anew")
    if not request.same(work.about):  # which says that it is, and is not
        raise ArgumentError(f"{folder / ABOUT}: damaged; remove {folder.name} to begin anew")
    result, over = work.about.result, work.over
    if result.made and not over:
        check_place(result.where.path, request.result.overwrite or work.placed, work.making)
    if not over and not (folder / WEIGHTS).is_file():
        raise StoreError(f"{folder}: resume: its weights are gone; remove it to begin anew")
    for path in (folder, folder / SUMS):
        sweep(path)
    work.journal.begin()
    work.journal.doubt()
    if not work.there:
        raise StoreError(f"{result.where.path}: resume: the result that was begun is gone; remove {folder.name} to begin anew")
    if request.result.overwrite:
        work.may_overwrite()
    try:
        with at_work(folder):
            doubted = wrong(work)
            if doubted and over and result.made:
                raise ArgumentError(f"{result.where.path}: changed since it was finished; pass overwrite=True to begin anew")
            work.journal.forget([] if over else doubted)
    except Busy:
        return work  # who is at work there has looked, and moves files meanwhile
    return begun(request, folder) if doubted and over else work


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:40]}..."


def planned(request: WorkRequest) -> WorkHeader:
    """The levels of all pieces of the batch. Raises BudgetError where a call does not fit."""
    each = -(-request.samples // UNITS) if request.samples >= MANY else 1
    sizes = dict.fromkeys([min(each, request.samples), request.samples % each or each])
    levels = {str(size): tuple(_levels(request, size)) for size in sizes}
    return WorkHeader(
        json.loads(request.graph.to_json()), request.samples, each, request.budget, request.deterministic, levels, request.source,
        request.result, request.fingerprint(),
    )  # fmt: skip


def _levels(request: WorkRequest, size: int) -> Iterator[Level]:
    """Of a piece of so many samples."""
    net = network(request.graph, size, Mode.INFER, None, request.deterministic)
    if request.samples >= MANY:
        plan = plan_network(
            request.graph, size, request.budget, "auto", NetworkRequest(Mode.INFER), request.device, None, "disk", None,
            request.deterministic, {},
        )  # fmt: skip
        yield from whole(net, plan)
    else:
        yield from Cutter(net, request.device, request.budget or ENDLESS, request.deterministic).levels()
    result = request.result
    nbytes = math.prod(result.shape) * numpy_dtype(result.dtype).itemsize
    if not result.direct:
        yield Level(Kind.FLUSH, seconds=nbytes / SLOW if result.opens_late else 0.0)
    if result.made:
        there = os.path.getsize(result.where.file) if os.path.isfile(result.where.file) else 0
        yield Level(Kind.PUT, seconds=(nbytes + there) / SLOW)
