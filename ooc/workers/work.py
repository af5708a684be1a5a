"""What is to be done, in a folder beside the result: workers need nothing else, and whoever comes back finds what is finished."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ArgumentError, StoreError
from ooc.files.records import plain, record, understood
from ooc.files.whole import turns
from ooc.ir.op import numpy_dtype
from ooc.ir.region import Region, Span, extents, whole
from ooc.networks.build import Built
from ooc.networks.calls import Network
from ooc.networks.checkpoint import saved, stored, unbits
from ooc.networks.segments import crossing, segment
from ooc.networks.tensors import Mode
from ooc.networks.writer import network
from ooc.runtime.journal import Journal, load, store
from ooc.sources import Source
from ooc.sources.around import Arranged
from ooc.sources.beside import location, mark_of, put, tidied
from ooc.sources.checks import faults
from ooc.sources.objects import is_there
from ooc.sources.raw import RawSource
from ooc.sources.units import batches
from ooc.workers.levels import AT_THE_END, Kind, Level
from ooc.workers.result import Result
from ooc.workers.where import ALONE, Where, piece_of, settled

ABOUT, WEIGHTS = "work.json", "weights.zip"
MADE = "made"  # is there when the result was created, and says what it is known by before it is moved to its place
RESULT = "result"  # the folder in which it is made
BETWEEN, DONE, SUMS = "between", "done", "sums"  # folders: tensors that cross levels, the journal, partial sums
FLUSHED = 1 << 26  # bytes that a unit brings into the file that is wanted, or one unit of that


@dataclass(frozen=True)
class WorkHeader:
    """What a work folder says of itself.

    Fields:
        graph: the network, as JSON.
        samples: of the whole batch.
        piece: samples that pass at a time; the last ones may be fewer.
        budget: bytes of each worker; None: no limit.
        deterministic: whether sums are taken in one order.
        levels: of whole pieces, and of the last one where that is smaller.
        source, result: where they are.
        fingerprint: what must not have changed when it is resumed.
        token: drawn for each run, and in the names of its files: workers of an older one find none that are its own.
    """

    graph: Mapping[str, Any]
    samples: int
    piece: int
    budget: int | None
    deterministic: bool
    levels: Mapping[str, tuple[Level, ...]]
    source: Where
    result: Result
    fingerprint: Mapping[str, Any]
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    def to_json(self) -> str:
        """As text."""
        return json.dumps(plain(self))

    @classmethod
    def of(cls, folder: Path) -> WorkHeader:
        """What is in a folder. Raises StoreError, ShapeError where it is none of a work, or damaged."""
        with understood(folder / ABOUT, "not one that ooc.tasks wrote, or damaged"):
            return record(cls, load(folder / ABOUT))


class WorkFolder:
    """A work folder while its units are computed; threads may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.about = folder, WorkHeader.of(folder)
        self.journal = Journal(folder / DONE, digest_of(self.about))
        self.graph = Built.from_json(json.dumps(self.about.graph))
        self._lock = threading.RLock()
        self._networks: dict[int, Network] = {}
        self._segments: dict[tuple[int, int, int, bool], Network] = {}
        self._levels: dict[int, tuple[Level, ...]] = {}

    @cached_property
    def pieces(self) -> list[Span]:
        """Samples that pass at a time."""
        each, total = self.about.piece, self.about.samples
        return [Span(lo, min(lo + each, total)) for lo in range(0, total, each)]

    def levels(self, piece: int = 0) -> tuple[Level, ...]:
        """Of a piece of the batch. Raises ArgumentError where they are not of the network."""
        size = self.pieces[piece].extent
        with self._lock:
            if size not in self._levels:
                levels, calls = self.about.levels.get(str(size), ()), len(self.network(piece).calls)
                if not levels or not all(level.among(calls) for level in levels):
                    raise ArgumentError(f"{self.folder / ABOUT}: damaged: its levels are not of its network; begin anew")
                self._levels[size] = levels
            return self._levels[size]

    def network(self, piece: int) -> Network:
        """The calls of a piece."""
        size = self.pieces[piece].extent
        with self._lock:
            if size not in self._networks:
                self._networks[size] = network(self.graph, size, Mode.INFER, None, self.about.deterministic)
            return self._networks[size]

    def segment(self, level: int, piece: int) -> Network:
        """The calls of a level."""
        entry = self.levels(piece)[level]
        return self._part(piece, entry.begin, entry.end, entry.own)

    def single(self, call: int, piece: int) -> Network:
        """One call, with tensors as it sees them."""
        return self._part(piece, call, call + 1, True)

    def _part(self, piece: int, begin: int, end: int, as_operands: bool) -> Network:
        net, key = self.network(piece), (self.pieces[piece].extent, begin, end, as_operands)
        with self._lock:
            if key not in self._segments:
                self._segments[key] = segment(net, begin, end, as_operands)
            return self._segments[key]

    def parameters(self, net: Network) -> dict[str, Any]:
        """The values of what a segment has of its own."""
        parameters = net.graph.parameters
        if not parameters:
            return {}
        with saved(self.folder / WEIGHTS) as file:
            return {name: unbits(file.tensor(name, w.shape, stored(w.dtype)), w.dtype) for name, w in parameters.items()}

    # ---- tensors

    def reads_source(self, level: int, piece: int) -> bool:
        """Whether the units of a level read what is given."""
        entry, net = self.levels(piece)[level], self.network(piece)
        if entry.kind in AT_THE_END or entry.kind is Kind.MERGE:
            return False
        return not set(self.graph.inputs).isdisjoint(crossing(net, entry.begin, entry.end)[0])

    def check_source(self) -> None:
        """Raise StoreError where what is read is not what it was when the run began."""
        told = self.about.fingerprint.get("source")
        if json.loads(json.dumps(self.about.source.identity())) != told:
            raise StoreError(f"{self.about.source.path}: changed since the run began; remove {self.folder.name} to begin anew")

    def open(self, stack: ExitStack, name: str, net: Network, piece: int, writing: bool = False) -> Source:
        """A tensor that crosses levels, or the source, or the result, with the axes that a segment's network gives it."""
        samples, tensor = self.pieces[piece], net.tensors[name]
        if name in self.graph.inputs:
            source = stack.enter_context(self.about.source.open())
            return piece_of(source, samples)
        full, result = self.network(piece), self.about.result
        if name not in full.outputs:
            number = list(full.tensors).index(name)
            return stack.enter_context(self._file(f"{piece}-{number}", tensor.shape, tensor.dtype, writing))
        if result.direct:
            part = piece_of(stack.enter_context(self.sink("r+" if writing else "r")), samples)
            more = len(tensor.shape) - len(part.shape)  # axes of extent 1, which some layers have for one sample alone
            return Arranged(part, (*range(len(part.shape)), *[None] * more)) if more else part
        shape = (self.about.samples, *tensor.shape[1:])
        return piece_of(stack.enter_context(self._file("result", shape, tensor.dtype, writing)), samples)

    def _file(self, name: str, shape: tuple[int, ...], dtype: str, writing: bool = False) -> RawSource:
        """A file of plain numbers."""
        path = str(self.folder / BETWEEN / f"{name}.{self.about.token}")
        if writing:
            lengthened(path, math.prod(shape) * numpy_dtype(dtype).itemsize)
        return RawSource(path, path, shape, numpy_dtype(dtype), 0, writable=writing)

    def sums_file(self, call: int, piece: int, unit: int) -> Path:
        """Of the sums of a call, over the tiles of a unit."""
        return self.folder / SUMS / f"{call}-{piece}-{unit}.{self.about.token}"

    # ---- the result

    @property
    def making(self) -> Path:
        """The folder that the result is made in."""
        return self.folder / f"{RESULT}.{self.about.token}"

    def sink(self, mode: str) -> Source:
        """The result: where it is made, or at its place. Raises OocError."""
        result = self.about.result
        if not self.placed:
            try:
                return result.within(self.making).open(mode)
            except StoreError:
                if not self.placed:  # just now
                    raise
        return result.where.open(mode)

    @property
    def placed(self) -> bool:
        """Whether the result is at its place."""
        if not self.about.result.made:
            return True
        if not (self.folder / MADE).is_file():
            return False
        mark = load(self.folder / MADE).get("mark")
        return mark is not None and mark == mark_of(self.about.result.where.path)

    def place(self) -> None:
        """Move the result, which is whole, to its place. Again does nothing. Raises OocError."""
        result = self.about.result
        if self.placed:
            tidied(result.where.path, self.making)
            return
        with faults(result.where.path, "placing"), turns(self.making):
            if self.placed:  # by another worker, just now
                return
            overwrite = result.overwrite or bool(load(self.folder / MADE).get("overwrite"))
            put(result.where.path, self.making, overwrite, lambda mark: self._tell(mark=mark))

    def may_overwrite(self) -> None:
        """Whoever resumes it lets the result take the place of another. Raises StoreError."""
        if self.about.result.made:
            self._tell(overwrite=True)

    def _tell(self, **told: Any) -> None:
        """What is known of the result besides."""
        store(self.folder / MADE, json.dumps({**load(self.folder / MADE), **told}).encode())

    @cached_property
    def flushes(self) -> list[Region]:
        """The regions that each unit brings into the file that is wanted: whole units of that."""
        result = self.about.result
        if result.where.shared == ALONE:
            return [whole(result.shape)]
        with self.sink("r") as sink:
            return self._portions(sink, whole(result.shape))

    def _portions(self, sink: Source, region: Region) -> list[Region]:
        """A region in whole units of a file, a few at a time."""
        unit = extents(sink.own(tuple(Span(0, 1) for _ in region)))
        most = max(FLUSHED // sink.dtype.itemsize, math.prod(unit))
        return list(batches(region, unit, most))

    def flush(self, unit: int) -> None:
        """Bring a part of the result into its file."""
        result = self.about.result
        if result.opens_late:
            with turns(self.making):  # another may have begun it, and hang
                self._flush_alone()
            return
        with self.sink("r+") as sink:
            self._bring(sink, self.flushes[unit])

    def _flush_alone(self) -> None:
        if self.placed and self.about.result.made:
            return
        path = Path(location(self.about.result.within(self.making).path))
        path.unlink(missing_ok=True)  # what was killed may have left half a file
        with self.about.result.created(self.making) as sink:
            self._bring(sink, whole(self.about.result.shape))

    def _bring(self, sink: Source, region: Region) -> None:
        result = self.about.result
        with self._file("result", result.shape, result.dtype) as file:
            for part in self._portions(sink, region):
                values = np.empty(extents(part), file.dtype)
                file.read(part, values)
                sink.write(part, values)
            settled(sink)

    def sweep(self, level: int) -> None:
        """Remove what no level after this one reads."""
        later: set[str] = set()
        levels = self.levels()
        for after in levels[level + 1 :]:
            if after.kind is not Kind.MERGE:  # which has files of its own
                later |= set(crossing(self.network(0), after.begin, after.end)[0])
        numbers = {str(i) for i, name in enumerate(self.network(0).tensors) if name in later}
        for path in (self.folder / BETWEEN).glob("*-*"):
            if path.name.partition("-")[2].partition(".")[0] not in numbers:
                path.unlink(missing_ok=True)

    # ---- what is finished

    @property
    def over(self) -> bool:
        """Whether all is done."""
        last = len(self.levels()) - 1
        if self.about.result.made:
            return self.journal.done(f"{last}-0-0")
        return self.names <= self.journal.finished()

    @property
    def there(self) -> bool:
        """Whether the result is there, as far as it was made."""
        result = self.about.result
        if not result.made or self.over or self.placed:
            return is_there(result.where.file if result.where.raw else location(result.where.path))
        return is_there(location(result.within(self.making).path))

    @property
    def names(self) -> set[str]:
        """Of all units."""
        return {name for level in range(len(self.levels())) for name in self.names_of(level)}

    def names_of(self, level: int) -> list[str]:
        """Of the units of a level."""
        return [f"{level}-{piece}-{unit}" for piece, unit in self.units_of(level)]

    def units_of(self, level: int) -> Iterator[tuple[int, int]]:
        """Piece and number of the units of a level."""
        kind = self.levels()[level].kind
        if kind in AT_THE_END:
            yield from ((0, unit) for unit in range(len(self.flushes) if kind == Kind.FLUSH else 1))
            return
        for piece in range(len(self.pieces)):
            yield from ((piece, unit) for unit in range(self.levels(piece)[level].units))

    def tidy(self) -> None:
        """All is done: what only the work needed goes, the journal stays."""
        for path in (self.folder / BETWEEN, self.folder / SUMS, self.making):
            shutil.rmtree(path, ignore_errors=True)
        (self.folder / WEIGHTS).unlink(missing_ok=True)


def lengthened(path: str, nbytes: int) -> None:
    """Make a file, or make it longer; others may do the same at the same time. Raises StoreError."""
    with faults(path, "making"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(fd).st_size < nbytes:
                os.ftruncate(fd, nbytes)
        finally:
            os.close(fd)


def digest_of(about: WorkHeader) -> str:
    """What a run is told apart by."""
    return hashlib.sha256(about.to_json().encode()).hexdigest()


@lru_cache(maxsize=4)
def opened(folder: str, digest: str) -> WorkFolder:
    """A work folder, read once by a process; another run in the same folder has another digest. Raises ShapeError."""
    check_current(Path(folder), digest)
    return WorkFolder(Path(folder))


def check_current(folder: Path, digest: str) -> None:
    """Raise ArgumentError where another run has begun in a folder; StoreError where there is none."""
    try:
        told = (folder / ABOUT).read_bytes()
    except OSError as error:
        raise StoreError(error.errno, f"{folder / ABOUT}: {error.strerror or error}") from error
    if hashlib.sha256(told).hexdigest() != digest:
        raise ArgumentError(f"{folder}: another run has begun there since these tasks were made")
