"""What the lanes of a machine without a device cost each other: bandwidth and processors that they share, threads to wake."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng

from ooc import native
from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.op import Op, numpy_dtype
from ooc.ir.region import Region, Span
from ooc.model.cost import FETCH, Model
from ooc.model.simulate import simulate
from ooc.ops.descriptor import parse
from ooc.runtime.device import Device
from ooc.runtime.store import FileStore, open_store
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.steps import LANES
from ooc.schedule.work import Work
from perfmodel.calibrate.entries import MIB, whole_kernel, workspace_bytes
from perfmodel.calibrate.timed_runs import along_batch, plan_of, rehearse
from perfmodel.calibrate.trial import TimedProblem, forget

SLICE, FEWEST_CALLS = 0.01, 3  # seconds and calls that are timed at once
LAYER = "n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1"
HANDOFFS = (  # tiles from tens of microseconds to milliseconds
    "n=1 c=16 h=14 w=14 k=16 r=3 s=3 pad=1",
    "n=1 c=32 h=28 w=28 k=32 r=3 s=3 pad=1",
    "n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1",
    "n=1 c=8 h=56 w=56 k=8 r=3 s=3 pad=1",
    "n=1 c=32 h=56 w=56 k=32 r=3 s=3 pad=1",
    "n=2 c=64 h=28 w=28 k=64 r=1 s=1",
)


class _File:
    """A file of 256 MiB, read or fetched cold, or written where it has no room yet, piece after piece and all over again."""

    ROWS, PIECE = 2048, 16  # rows of 128 KiB: of the file, and of what is moved at once

    def __init__(self, folder: Path, lane: str) -> None:
        self.lane, self.path, self.row = lane, folder / f"{lane}.npy", 0
        array = np.lib.format.open_memmap(self.path, "w+", np.float32, (self.ROWS, 32768))
        for lo in range(0, 0 if lane == "write" else self.ROWS, 256):
            array[lo : lo + 256] = lo
        array.flush()
        del array  # pages in use by a mapping cannot be dropped from the cache
        store = open_store(np.load(self.path, mmap_mode="r+"), writable=True)
        assert isinstance(store, FileStore)
        self.store, self.block = store, np.ones((self.PIECE, 32768), np.float32)
        self.bounce = np.empty(MIB + 4096, np.uint8)
        self.bounce = self.bounce[-native.address(self.bounce) % 4096 :][:MIB]

    def move(self) -> None:
        """Move the next piece."""
        if self.row == 0:
            forget(self.path, 0 if self.lane == "write" else None)
        region: Region = (Span(self.row, self.row + self.PIECE), Span(0, 32768))
        if self.lane == FETCH:
            self.store.fetch((region,), 0)
            os.pread(self.store.fd, 1, self.store.file_offset(region) + self.block.nbytes - 1)  # waits for it
        else:
            (self.store.read if self.lane == "read" else self.store.write)(region, self.block, self.bounce)
        self.row = (self.row + self.PIECE) % self.ROWS


def measure_contention(backend: CpuBackend, folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """The share of its speed that each lane loses while each other one is busy.

    The median over the rounds, in each of which every pair has its turn: alone and beside, one right after the other. Others on
    a shared machine slow both down then, and not for all of a pair's rounds.
    """
    op = parse(f"conv.fprop {LAYER}")
    files = {lane: _File(folder, lane) for lane in ("read", "write", FETCH)}
    works: dict[str, Callable[[], Any]] = {
        "compute": _bound_kernel(backend, op, backend.offers(op)[0].name),
        **{lane: _copying(backend, lane) for lane in ("h2d", "d2h")},
        **{lane: file.move for lane, file in files.items()},
    }
    pairs = [*itertools.permutations(LANES, 2), ("compute", FETCH)]  # copies lose nothing to the latter that noise would not hide
    lost: dict[tuple[str, str], list[float]] = {pair: [] for pair in pairs}
    for lane, other in pairs * rounds:
        alone = _pace(works[lane])
        with _busy(works[other]):
            lost[lane, other].append(1 - alone / _pace(works[lane]))
    for file in files.values():
        file.store.close()
    shares: dict[str, dict[str, float]] = {lane: {} for lane in LANES}
    for (lane, other), measured in lost.items():
        shares[lane][other] = min(1.0, max(0.0, statistics.median(measured)))
    return shares


def _copying(backend: CpuBackend, lane: str) -> Callable[[], None]:
    """Copies of 1 MiB, from or to memory that is in no cache."""
    large, small = np.ones((64, MIB), np.uint8), np.ones(MIB, np.uint8)
    rows = itertools.cycle(large)
    return lambda: backend.copy(lane, small, next(rows)) if lane == "h2d" else backend.copy(lane, next(rows), small)


def _pace(work: Callable[[], Any]) -> float:
    """Seconds of a call among some."""
    work()
    begin, calls = time.perf_counter(), 0
    while calls < FEWEST_CALLS or time.perf_counter() - begin < SLICE:
        work()
        calls += 1
    return (time.perf_counter() - begin) / calls


@contextlib.contextmanager
def _busy(work: Callable[[], Any]) -> Iterator[None]:
    """Another thread does some work again and again."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _bound_kernel(backend: CpuBackend, op: Op, family: str) -> Callable[[], None]:
    """A kernel with its blocks and workspace, ready to call."""
    workspace = backend.allocate("calibration", workspace_bytes(backend, op, family))
    numbers = default_rng(0)
    arrays = {o.name: numbers.random(o.shape).astype(numpy_dtype(o.dtype)) for o in op.operands}
    return whole_kernel(backend.kernel(op, family, op.dims, workspace), op, arrays)


def measure_handoff(device: Device, model: Model, folder: str, every: int = 1) -> float:
    """Seconds until a lane that sleeps goes on: what makes simulations right about how much longer threads take than turns,
    of steps that take as long as measured in turn. every: one of so many tiles."""
    cases = []
    for text, (place, depth) in itertools.product(HANDOFFS[::every], ((Place.HOST, 1), (Place.HOST, 2), (Place.DISK, 2))):
        op = parse(f"conv.fprop {text}")
        threads = plan_of(device, along_batch(op, 32), {"n": op.dims["n"]}, device.backend.offers(op)[0].name, place, depth)
        threads, turns = replace(threads, in_turn=False), replace(threads, in_turn=True)
        timed = rehearse(device, turns, folder)
        known = {(did,) if isinstance(did, Work) else did: seconds for did, seconds in timed.items()}
        with TimedProblem(threads.op, dict(threads.places), device, folder) as trial:
            pairs = [(trial.seconds(threads), trial.seconds(turns)) for _ in range(5)]
        longer = statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
        cases.append((lower(threads).steps, known, longer))

    def error(handoff: float) -> float:
        total = 0.0
        for steps, known, longer in cases:
            candidate = replace(model, handoff_seconds=handoff)
            candidate.known.update(known)
            total += abs(math.log(simulate(steps, candidate).seconds / simulate(steps, candidate, True).seconds / longer))
        return total

    return min((i * 2e-6 for i in range(100)), key=error)
