"""What the host does for each step of a run on a GPU: measured on a driver that does nothing, so that nothing else is in it."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from ooc.backends.cuda.backend import CudaBackend
from ooc.backends.device_array import host_array
from ooc.errors import BackendError
from ooc.ops.descriptor import parse
from ooc.runtime.executor import Run, run
from ooc.runtime.store import Store, open_store
from ooc.schedule.emit import emit
from ooc.schedule.lowering import lower, schedule_of
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

DEVICE, PINNED, GAP = 1 << 44, 1 << 45, 1 << 20  # where addresses of the two memories begin; bytes between pieces
NOTHING = nullcontext()
PROBLEMS = {  # of one tile each, but for n
    "convolution": "conv.fprop n={} c=16 h=32 w=32 k=16 r=3 s=3 dtype=f32",
    "convolution, bias, relu": "conv.fprop n={} c=16 h=32 w=32 k=16 r=3 s=3 bias=1 act=relu dtype=f32",
    "convolution, padded unevenly": "conv.fprop n={} c=16 h=32 w=32 k=16 r=3 s=3 pad=1:0x1:0 dtype=f32",
    "relu": "pointwise n={} k=16 h=32 w=32 act=relu dtype=f32",
    "batch norm": "bn.apply n={} k=16 h=32 w=32 dtype=f32",
    "pooling": "pool.max n={} k=16 h=32 w=32 window=2 dtype=f32",
}
TILES, ROUNDS, MANY = 400, 5, 50_000  # MANY: tiles of a plan whose first byte is waited for


class NullDriver:
    """A device that is told everything and does nothing: all of `ooc.backends.cuda.driver.Driver`."""

    index, total_bytes, free_bytes = 0, 1 << 40, 1 << 40

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.first_copy = 0.0  # when it was asked for
        self.free_at = {"device": DEVICE, "pinned": PINNED}

    def _take(self, where: str, nbytes: int) -> int:
        at = self.free_at[where]
        self.free_at[where] += -(-nbytes // GAP) * GAP + GAP
        return at

    def malloc(self, nbytes: int) -> int:
        return self._take("device", nbytes)

    def host_malloc(self, nbytes: int) -> int:
        return self._take("pinned", nbytes)

    def where(self, address: int) -> tuple[str, int]:
        return ("pinned", -1) if address >= PINNED else ("device", 0) if address >= DEVICE else ("host", -1)

    def current(self) -> Any:
        return NOTHING

    def identity(self) -> dict[str, Any]:
        return {"gpu": "null", "capability": "9.0"}

    def event(self) -> int:
        return next(self.numbers)

    stream = event

    def seconds(self, first: int, second: int) -> float:
        return 0.0

    def caller_streams(self) -> list[int]:
        return []

    def nothing(self, *arguments: Any) -> None:
        """Done."""

    free = host_free = register = unregister = spare = record = wait = finish = clear = launch = nothing

    def copy(self, *arguments: Any) -> None:
        self.first_copy = self.first_copy or time.perf_counter()

    def cudnn(self, stream: int) -> NullCudnn:
        return NullCudnn()


class NullCudnn:
    """cuDNN as the backend sees it, which takes every convolution."""

    own_bytes = 0

    def prepare(self, geometry: Any, most_bytes: int) -> NullCudnn:
        return self

    def needs(self, geometry: Any, most_bytes: int) -> int:
        return 0

    def run(self, *arguments: Any) -> None:
        """Done."""


def host_work(only: str = "") -> Iterator[dict[str, Any]]:
    """Rows: microseconds of a step, by what it does and in all, of making the steps, and until the first one is done."""
    for name, text in PROBLEMS.items():
        if only in name:
            yield {"problem": name, "tiles": TILES, "microseconds": _measured(text), "first_byte_milliseconds": _first_byte(text)}


class _EnoughError(Exception):
    """The first byte is on its way."""


def _first_byte(text: str) -> float:
    """Milliseconds from a plan of many tiles to its first copy, the median of some runs, each stopped after its first window."""
    seconds = []
    for _ in range(ROUNDS):
        backend = CudaBackend(NullDriver(), threads=1)  # type: ignore[arg-type]
        plan = _plan(backend, text, MANY)

        def enough(*arguments: Any) -> None:
            raise _EnoughError

        begin = time.perf_counter()
        with contextlib.suppress(_EnoughError, BackendError):
            Run(schedule_of(plan), backend, 0).go((_stores(plan),), plan.op, enough)
        seconds.append(backend.driver.first_copy - begin)  # type: ignore[attr-defined]
    return 1e3 * float(statistics.median(seconds))


def _plan(backend: CudaBackend, text: str, tiles: int) -> Plan:
    """A sample at a time, from pinned memory and back, three deep."""
    op = parse(text.format(tiles))
    sizes = {**op.dims, "n": 1}
    offer = backend.offers(op)[0]
    places = tuple((o.name, Place.PINNED) for o in op.operands)
    return Plan(op, tuple(sizes.items()), tuple(op.dims), 3, places, True, False, kernel=offer.name,
                workspace_bytes=int(offer.workspace(sizes)))  # fmt: skip


def _stores(plan: Plan) -> dict[str, Store]:
    """Arrays of pinned memory that nobody looks at."""
    outputs = {o.name for o in plan.op.outputs}
    arrays = {o.name: host_array(PINNED + i * GAP, o.shape, "f4", None) for i, o in enumerate(plan.op.operands)}
    return {name: open_store(array, writable=name in outputs) for name, array in arrays.items()}


def _measured(text: str) -> dict[str, float]:
    backend = CudaBackend(NullDriver(), threads=1)  # type: ignore[arg-type]
    plan = _plan(backend, text, TILES)
    emitting, linking, running = [], [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        steps = sum(1 for _ in emit(plan))
        emitted = time.perf_counter()
        todo = lower(plan)
        linked = time.perf_counter()
        run(todo, _stores(plan), backend)
        ended = time.perf_counter()
        emitting.append(emitted - begin)
        linking.append(linked - emitted)
        running.append(ended - linked)
    each = 1e6 / steps
    return {
        "emit": statistics.median(emitting) * each, "emit_and_link": statistics.median(linking) * each,
        "run": statistics.median(running) * each, "steps": float(steps),
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    us = row["microseconds"]
    first = f"first byte after {row['first_byte_milliseconds']:4.1f} ms"
    return f"{row['problem']:32} a step: made in {us['emit_and_link']:5.1f} us, done in {us['run']:5.1f} us; {first}"
