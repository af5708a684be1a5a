"""Which of cuDNN's algorithms computes a tile: as measured on this machine, else the one that its workspace was planned for, else
as cuDNN expects.

Measurements are kept on disk, one file per GPU, cuDNN and driver. For every shape of tile only those algorithms are kept
than which none is both faster and smaller (Oyama et al., "Accelerating deep learning frameworks with micro-batches",
2018), so that the planner finds the best under any budget; and within how much workspace they were measured.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple

from ooc.backends.cuda.geometry import Geometry
from ooc.cache import Cache, cache_folder
from ooc.errors import BackendError, UnsupportedError
from ooc.native import DTYPE_CODES

FMA = 3  # CUDNN_FMA_MATH
MATH = {"fma": FMA, "tf32": 0, "tensor": 1}  # what cuDNN calls each
SCRATCH = 16 << 20  # bytes of workspace that every convolution has: without any, cuDNN is left with its slowest algorithms
MEASURED_AT = 4  # tiles of a shape from which on measuring its algorithms is worth it


PREPARED = 4096  # shapes whose descriptors and candidates are remembered
Call = tuple[int, int]


class AlgorithmChoice(NamedTuple):
    """An algorithm with its math, its workspace, and its seconds (infinite while not measured)."""

    seconds: float
    algorithm: int
    math: int
    workspace_bytes: int

    @property
    def call(self) -> Call:
        """What cuDNN is asked for."""
        return self.algorithm, self.math


class TunedAlgorithms(NamedTuple):
    """The winners among the algorithms of a shape of tile that want at most so many bytes of workspace; -1: none was measured."""

    choices: tuple[AlgorithmChoice, ...] = ()
    most_bytes: int = -1


class Measurements:
    """Choices by shape of tile, in memory and in a file of JSON lines. A file that cannot be read or written is no
    failure: what was measured is then forgotten."""

    def __init__(self, identity: Mapping[str, Any]) -> None:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(str(v) for v in identity.values()))
        folder = cache_folder()
        self.path = None if folder is None else folder / f"cudnn-{name}.jsonl"
        self.known: dict[str, TunedAlgorithms] = {}
        self._lock = threading.Lock()
        self._read()

    def _read(self) -> None:
        if self.path is None:
            return
        try:
            lines = self.path.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return
        broken = 0
        for line in lines:
            try:
                raw = json.loads(line)
                choices = tuple(AlgorithmChoice(float(s), int(a), int(m), int(w)) for s, a, m, w in raw["choices"])
                self.known[_text(raw["tile"])] = TunedAlgorithms(choices, int(raw["within_bytes"]))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                broken += 1
        if broken:
            warnings.warn(f"{self.path}: {broken} line(s) are not measurements and were ignored", stacklevel=2)

    def best(self, key: str, most_bytes: int, without: Collection[Call] = ()) -> AlgorithmChoice | None:
        """The fastest choice within so much workspace, without some; None when this shape was not measured."""
        with self._lock:
            known = self.known.get(key, TunedAlgorithms()).choices
            return min((c for c in known if c.workspace_bytes <= most_bytes and c.call not in without), default=None)

    def within(self, key: str) -> int:
        """Within how many bytes of workspace all algorithms of a shape were measured; -1: none was."""
        with self._lock:
            return self.known.get(key, TunedAlgorithms()).most_bytes

    def add(self, key: str, choices: list[AlgorithmChoice], most_bytes: int) -> None:
        """Keep the winners among these, which were measured within so much workspace, and those known before."""
        with self._lock:
            known = self.known.get(key, TunedAlgorithms())
            kept = self.known[key] = TunedAlgorithms(winners([*choices, *known.choices]), max(most_bytes, known.most_bytes))
            if self.path is None:
                return
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:  # one write: lines of several processes do not mix
                    file.write(json.dumps({"tile": key, "choices": kept.choices, "within_bytes": kept.most_bytes}) + "\n")
            except OSError:
                pass


def winners(choices: list[AlgorithmChoice]) -> tuple[AlgorithmChoice, ...]:
    """Those than which none is both faster and smaller, fastest first."""
    kept: list[AlgorithmChoice] = []
    for choice in sorted(choices):
        if not kept or choice.workspace_bytes < kept[-1].workspace_bytes:
            kept.append(choice)
    return tuple(kept)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value


class TunedCudnn:
    """cuDNN on one device. library: `_kernels.Cudnn`; stream: of the lane that computes, on which one convolution follows the
    other; free: bytes free on the device; malloc: for SCRATCH bytes of it, which all convolutions share."""

    def __init__(
        self, library: Any, stream: int, identity: Mapping[str, Any], free: Callable[[], int], malloc: Callable[[int], int]
    ) -> None:
        self.library, self.stream, before = library, stream, free()
        self.handle = library.handle()
        self.scratch = malloc(SCRATCH)
        self.own_bytes = max(0, before - free())
        self.measured = Measurements({**identity, "cudnn": library.version})
        self.calls: dict[str, int] = {}
        self.convs, self.candidates = Cache[Any](PREPARED), Cache[tuple[AlgorithmChoice, ...]](PREPARED)

    def prepare(
        self, geometry: Geometry, most_bytes: int, planned: int | None = None, tiles: int = 1, repeatable: bool = False
    ) -> Prepared:
        """Tiles of a shape, within so much workspace or SCRATCH. Raises UnsupportedError where cuDNN has no algorithm.

        planned: the algorithm that the workspace is for, if any. tiles: how many like them the run has. repeatable: with
        algorithms alone that give the same bits each time, chosen without measuring.
        """
        return Prepared(self, geometry, most_bytes, planned, tiles, repeatable)

    def needs(self, geometry: Geometry, most_bytes: int) -> int | None:
        """Workspace of the algorithm that tiles of a shape will be computed with, beside SCRATCH, if that is known."""
        choice = self.measured.best(key_of(geometry), max(most_bytes, SCRATCH))
        return None if choice is None else 0 if choice.workspace_bytes <= SCRATCH else choice.workspace_bytes


@lru_cache(PREPARED)
def key_of(geometry: Geometry) -> str:
    """The text by which a shape of tile is remembered."""
    return json.dumps(asdict(geometry), separators=(",", ":"))


class Prepared:
    """Tiles of one shape, ready to run. An algorithm that fails is not tried again."""

    def __init__(
        self, device: TunedCudnn, geometry: Geometry, most_bytes: int, planned: int | None, tiles: int, repeatable: bool
    ) -> None:
        g = geometry
        self.device, self.key, self.math, self.exact = device, key_of(g), MATH[g.math], g.math == "fma"
        self.planned, self.many, self.repeatable = planned, tiles >= MEASURED_AT, repeatable
        self.most_bytes = max(most_bytes, SCRATCH)
        self.failed: set[Call] = set()
        self.conv = device.convs.made(
            g,
            lambda: device.library.conv(
                g.direction, DTYPE_CODES[g.dtype], g.x, g.x_strides, g.w, g.channels_last, g.y, g.y_strides, g.pad, g.stride,
                g.dilation, g.groups, g.math,
            ),
        )  # fmt: skip
        self.telling = not repeatable and self._measuring_tells()
        self.choice = self._best()

    def _measuring_tells(self) -> bool:
        """Whether nothing was measured yet, or not within room that an algorithm would use."""
        within = self.device.measured.within(self.key)
        return within < 0 or any(within < choice.workspace_bytes <= self.most_bytes for choice in self._candidates())

    def _best(self) -> AlgorithmChoice:
        """The measured best; what was planned for where that was never measured, for want of room."""
        unknown = self.repeatable or (self.telling and self.planned is not None)
        measured = None if unknown else self.device.measured.best(self.key, self.most_bytes, self.failed)
        return measured or self._expected()

    def _expected(self) -> AlgorithmChoice:
        """What was planned for, else what cuDNN takes for the fastest within the workspace, of what has not failed."""
        for choice in self._candidates():
            if choice.call not in self.failed and choice.workspace_bytes <= self.most_bytes:
                return choice
        raise UnsupportedError(f"cuDNN: no algorithm for {self.key} within {self.most_bytes} bytes of workspace")

    def _candidates(self) -> tuple[AlgorithmChoice, ...]:
        """Algorithms, the one first that was planned for, which is repeatable, then as cuDNN expects."""
        return self.device.candidates.made((self.key, self.planned, self.repeatable), lambda: tuple(self._asked()))

    def _asked(self) -> Iterator[AlgorithmChoice]:
        proposals = [] if self.planned is None else [(self.planned, self.math, True)]
        proposals += [(algorithm, how, same) for algorithm, how, _, same in self.conv.heuristics(self.device.handle)]
        for algorithm, proposed, same in proposals:
            how = FMA if self.exact else proposed  # whatever it proposes: nobody has allowed rounding
            if same or not self.repeatable:
                with contextlib.suppress(UnsupportedError, BackendError):
                    yield AlgorithmChoice(math.inf, algorithm, how, self.conv.workspace(self.device.handle, algorithm, how))

    def run(self, first: int, second: int, result: int, workspace: int, accumulate: bool) -> int:
        """result = conv(first, second), added to what is there or not; addresses. Returns the algorithm. Raises UnsupportedError
        where every one has failed."""
        if not accumulate:
            self._measure(first, second, result, workspace)
        beta = 1.0 if accumulate else 0.0
        while True:
            _, algorithm, how, nbytes = self.choice
            room = self._room(workspace, nbytes)
            try:
                self.conv.run(
                    self.device.handle, self.device.stream, algorithm, how, 1.0, first, second, beta, result, room, nbytes
                )
                return algorithm
            except (UnsupportedError, BackendError):
                self.failed.add(self.choice.call)
                self.choice = self._best()

    def _room(self, workspace: int, nbytes: int) -> int:
        return self.device.scratch if nbytes <= SCRATCH else workspace

    def _measure(self, first: int, second: int, result: int, workspace: int) -> None:
        """Time every algorithm where a shape is used again and again: in the first of many tiles, so that all are computed alike,
        and once more where there is room for algorithms that had none before. Overwrites the result."""
        device, key = self.device, self.key
        calls = device.calls[key] = device.calls.get(key, 0) + 1
        if not self.telling or not (self.many or calls >= MEASURED_AT):
            return
        self.telling = False
        if device.measured.within(key) >= self.most_bytes:  # by another kernel meanwhile
            self.choice = self._best()
            return
        room = self._room(workspace, self.most_bytes)
        try:
            timed = self.conv.measure(device.handle, device.stream, first, second, result, room, self.most_bytes)
        except (UnsupportedError, BackendError):
            timed = []
        choices = [
            AlgorithmChoice(s, algorithm, how, nbytes) for s, algorithm, how, nbytes, _ in timed if how == FMA or not self.exact
        ]
        device.measured.add(key, choices, self.most_bytes)
        self.choice = self._best()
