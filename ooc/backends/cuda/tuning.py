"""Which of cuDNN's algorithms computes a tile: as measured on this machine, else as cuDNN expects.

Measurements are kept on disk, one file per GPU, cuDNN and driver. For every shape of tile only those algorithms are kept
than which none is both faster and smaller (Oyama et al., "Accelerating deep learning frameworks with micro-batches",
2018), so that the planner finds the best under any budget.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from ooc.backends.cuda.conv import Geometry
from ooc.cache import cache_folder
from ooc.errors import BackendError, UnsupportedError
from ooc.native import DTYPE_CODES

FMA = 3  # CUDNN_FMA_MATH
SCRATCH = 16 << 20  # bytes of workspace that every convolution has: without any, cuDNN is left with its slowest algorithms
MEASURED_AT = 4  # calls with a shape before its algorithms are measured: shapes used once or twice are not worth it


Call = tuple[int, int]


class Choice(NamedTuple):
    """An algorithm with its math, its workspace, and its seconds (infinite while not measured)."""

    seconds: float
    algorithm: int
    math: int
    workspace_bytes: int

    @property
    def call(self) -> Call:
        """What cuDNN is asked for."""
        return self.algorithm, self.math


class Measurements:
    """Choices by shape of tile, in memory and in a file of JSON lines. A file that cannot be read or written is no
    failure: what was measured is then forgotten."""

    def __init__(self, identity: Mapping[str, Any]) -> None:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(str(v) for v in identity.values()))
        self.path = cache_folder() / f"cudnn-{name}.jsonl"
        self.known: dict[str, tuple[Choice, ...]] = {}
        self._lock = threading.Lock()
        self._read()

    def _read(self) -> None:
        try:
            lines = self.path.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return
        broken = 0
        for line in lines:
            try:
                raw = json.loads(line)
                self.known[_text(raw["tile"])] = tuple(Choice(float(s), int(a), int(m), int(w)) for s, a, m, w in raw["choices"])
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                broken += 1
        if broken:
            warnings.warn(f"{self.path}: {broken} line(s) are not measurements and were ignored", stacklevel=2)

    def best(self, key: str, most_bytes: int, without: Collection[Call] = ()) -> Choice | None:
        """The fastest choice within so much workspace, without some; None when this shape was not measured."""
        with self._lock:
            known = (c for c in self.known.get(key, ()) if c.workspace_bytes <= most_bytes and c.call not in without)
            return min(known, default=None)

    def add(self, key: str, choices: list[Choice]) -> None:
        """Keep the winners among these and those known before."""
        with self._lock:
            kept = self.known[key] = winners([*choices, *self.known.get(key, ())])
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:  # one write: lines of several processes do not mix
                    file.write(json.dumps({"tile": key, "choices": kept}) + "\n")
            except OSError:
                pass


def winners(choices: list[Choice]) -> tuple[Choice, ...]:
    """Those than which none is both faster and smaller, fastest first."""
    kept: list[Choice] = []
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

    def prepare(self, geometry: Geometry, most_bytes: int) -> Prepared:
        """Tiles of a shape, within so much workspace or SCRATCH. Raises UnsupportedError where cuDNN has no algorithm."""
        return Prepared(self, geometry, most_bytes)

    def needs(self, geometry: Geometry, most_bytes: int) -> int | None:
        """Workspace of the algorithm that tiles of a shape will be computed with, beside SCRATCH, if that is known."""
        found = self.measured.best(key_of(geometry), max(most_bytes, SCRATCH))
        return None if found is None else 0 if found.workspace_bytes <= SCRATCH else found.workspace_bytes


def key_of(geometry: Geometry) -> str:
    """The text by which a shape of tile is remembered."""
    return json.dumps(asdict(geometry), separators=(",", ":"))


class Prepared:
    """Tiles of one shape, ready to run. An algorithm that fails is not tried again."""

    def __init__(self, device: TunedCudnn, geometry: Geometry, most_bytes: int) -> None:
        g = geometry
        self.device, self.key, self.exact = device, key_of(g), g.math == "fma"
        self.most_bytes = max(most_bytes, SCRATCH)
        self.failed: set[Call] = set()
        self.conv = device.library.conv(
            g.direction, DTYPE_CODES[g.dtype], g.x, g.x_strides, g.w, g.channels_last, g.y, g.y_strides, g.pad, g.stride,
            g.dilation, g.groups, g.math,
        )  # fmt: skip
        self.choice = self._best()

    def _best(self) -> Choice:
        return self.device.measured.best(self.key, self.most_bytes, self.failed) or self._expected()

    def _expected(self) -> Choice:
        """What cuDNN takes for the fastest within the workspace, of what has not failed."""
        for algorithm, math, _, _ in self.conv.heuristics(self.device.handle):
            math = FMA if self.exact else math  # whatever it proposes: nobody has allowed rounding
            if (algorithm, math) in self.failed:
                continue
            with contextlib.suppress(UnsupportedError, BackendError):
                nbytes = self.conv.workspace(self.device.handle, algorithm, math)
                if nbytes <= self.most_bytes:
                    return Choice(float("inf"), algorithm, math, nbytes)
        raise UnsupportedError(f"cuDNN: no algorithm for {self.key} within {self.most_bytes} bytes of workspace")

    def run(self, first: int, second: int, result: int, workspace: int, accumulate: bool) -> None:
        """result = conv(first, second), added to what is there or not; addresses. Raises UnsupportedError where every algorithm
        has failed."""
        if not accumulate:
            self._measure(first, second, result, workspace)
        beta = 1.0 if accumulate else 0.0
        while True:
            _, algorithm, math, nbytes = self.choice
            room = self._room(workspace, nbytes)
            try:
                self.conv.run(
                    self.device.handle, self.device.stream, algorithm, math, 1.0, first, second, beta, result, room, nbytes
                )
                return
            except (UnsupportedError, BackendError):
                self.failed.add(self.choice.call)
                self.choice = self._best()

    def _room(self, workspace: int, nbytes: int) -> int:
        return self.device.scratch if nbytes <= SCRATCH else workspace

    def _measure(self, first: int, second: int, result: int, workspace: int) -> None:
        """Time every algorithm, once, when a shape turns out to be used again and again. Overwrites the result."""
        calls = self.device.calls[self.key] = self.device.calls.get(self.key, 0) + 1
        if calls != MEASURED_AT or self.choice.seconds < float("inf"):
            return
        room, device = self._room(workspace, self.most_bytes), self.device
        try:
            found = self.conv.measure(device.handle, device.stream, first, second, result, room, self.most_bytes)
        except (UnsupportedError, BackendError):
            return
        choices = [Choice(s, algorithm, math, nbytes) for s, algorithm, math, nbytes, _ in found if math == FMA or not self.exact]
        if choices:
            self.device.measured.add(self.key, choices)
            self.choice = self.device.measured.best(self.key, self.most_bytes, self.failed) or self.choice
