"""Measuring this machine's processors: copies, files and kernels -> a calibration that `load_device` reads.

Everything is measured with the code that runs later: the stores, the backend's copies, the kernels on strided blocks.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import os
import platform
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.cpu import CpuBackend
from ooc.backends.cpu_kernels import FAMILIES
from ooc.descriptor import parse
from ooc.op import Op, numpy_dtype
from ooc.region import Region, Span
from ooc.store import FileStore, open_store
from perfmodel.measuring import (
    MIB,
    SAME,
    Say,
    compute_entry,
    copy_curve,
    copy_entry,
    copy_points,
    median,
    others,
    processor,
    whole_kernel,
    workspace_bytes,
)

LAYERS = (  # whole layers, as a generous budget leaves them
    "n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1",
    "n=1 c=64 h=224 w=224 k=64 r=3 s=3 pad=1",
    "n=1 c=3 h=224 w=224 k=64 r=3 s=3 pad=1",
    "n=1 c=3 h=448 w=448 k=64 r=3 s=3 pad=1",
    "n=2 c=256 h=28 w=28 k=256 r=3 s=3 pad=1",
    "n=1 c=512 h=14 w=14 k=512 r=3 s=3 pad=1",
    "n=1 c=256 h=28 w=28 k=64 r=1 s=1",
    "n=1 c=16 d=24 h=24 w=24 k=16 t=3 r=3 s=3 pad=1",
    "n=8 c=1024 h=1 w=1 k=1024 r=1 s=1",
    "n=1 c=32 h=4 w=112 k=32 r=3 s=3 pad=1",
)
TILES = 40  # random shapes of tiles besides, as tight budgets cut them
SMALL_CONVS = (
    "n=1 c=4 h=8 w=8 k=8 r=3 s=3 pad=1",
    "n=1 c=8 h=16 w=16 k=16 r=3 s=3 pad=1",
    "n=1 c=2 h=4 w=4 k=4 r=3 s=3 pad=1",
    "n=1 c=16 h=12 w=12 k=16 r=3 s=3 pad=1",
)
PLANES = ("n=1 k=64 h=224 w=224", "n=1 k=64 h=56 w=56", "n=1 k=8 h=16 w=16", "n=4 k=16 h=14 w=28", "n=2 k=32 h=112 w=112")
WINDOWS = (
    "n=1 k=64 h=112 w=112 window=2", "n=1 k=8 h=32 w=32 window=2", "n=1 k=64 h=56 w=56 window=3 stride=2 pad=1",
    "n=4 k=16 h=14 w=28 window=2", "n=4 k=64 h=112 w=112 window=2",
)  # fmt: skip
OTHERS = others(PLANES, PLANES[1:4], WINDOWS)


def tiles(count: int) -> list[str]:
    """Random shapes, the same ones every time, that take from microseconds to milliseconds."""
    found: list[str] = []
    rng = random.Random(0)
    while len(found) < count:
        n, r, c, k = (
            rng.choice((1, 1, 1, 2, 4)),
            rng.choice((1, 3, 3, 3, 5)),
            round(2 ** rng.uniform(1, 8)),
            round(2 ** rng.uniform(2, 8)),
        )
        h, w = round(2 ** rng.uniform(1, 7)), round(2 ** rng.uniform(2, 7.8))
        stride = rng.choice((1, 1, 1, 2)) if r > 1 else 1
        if 3e5 < 2 * n * c * k * r * r * h * w / stride**2 < 4e8 and min(h, w) >= r:
            found.append(f"n={n} c={c} h={h} w={w} k={k} r={r} s={r} pad={r // 2} stride={stride}")
    return found


def calibrate_cpu(
    threads: int | None = None, directory: str | None = None, say: Say = print, quick: bool = False
) -> dict[str, Any]:
    """Measure this machine (quick: under a minute on two cores). directory: where to measure the disk. Returns the JSON
    object."""
    backend = CpuBackend(threads)
    copies, errors = {}, {}
    for lane in ("h2d", "d2h"):
        say(f"copies: {lane}")
        copies[lane], errors[lane] = _measure_copies(backend)
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        for lane in ("read", "write"):
            say(f"files: {lane}")
            copies[lane], errors[lane] = _measure_files(Path(folder), lane)
        say("contention")
        contention = _measure_contention(backend, Path(folder), 0.15 if quick else 0.4)
    computes: dict[str, Any] = {}
    for family in FAMILIES:
        if _measurable(family, parse(f"conv.fprop {LAYERS[0]}")):
            say(f"kernels: {family}")
            computes |= _measure_family(backend, family, errors, 2 if quick else 1)
    say("kernels: other operations")
    computes |= _measure_others(backend, errors)
    computes["*/*/*"] = computes["conv.fprop/f32/reference"]
    # The null backend computes nothing; its plans assume the best kernel of this machine.
    computes["*/*/null"] = computes.get("conv.fprop/f32/native", computes["*/*/*"])
    return {
        "name": f"{processor()}, {backend.threads} threads",
        "source": "measured",
        "date": datetime.date.today().isoformat(),
        "system": {"processor": processor(), "threads": backend.threads, "isa": native.kernels.isa() if native.kernels else "",
                   "numpy": np.__version__, "kernel": platform.release()},
        "fit_error": errors, "copies": copies, "contention": contention, "computes": computes,
    }  # fmt: skip


def _measure_copies(backend: CpuBackend) -> tuple[dict[str, float], float]:
    """Copies of blocks out of a larger array: contiguous, and in rows of 256 bytes to 64 KiB."""
    source, target = np.ones(256 * MIB, np.uint8), np.ones(64 * MIB, np.uint8)
    points = copy_points(source, target, (4 << 10, 64 << 10, MIB, 8 * MIB, 32 * MIB), (256, 4 << 10, 64 << 10))
    return copy_curve(points, lambda block, dense: backend.copy("h2d", dense, block), median)


class _File:
    """A file of 256 MiB and a region of it with a buffer: cold reads, or writes into room not yet allocated."""

    def __init__(self, folder: Path, lane: str) -> None:
        self.lane, self.path = lane, folder / f"{lane}.npy"
        array = np.lib.format.open_memmap(self.path, "w+", np.float32, (2048, 32768))
        for lo in range(0, 2048 if lane == "read" else 0, 256):
            array[lo : lo + 256] = lo
        array.flush()
        del array  # pages in use by a mapping cannot be dropped from the cache
        store = open_store(np.load(self.path, mmap_mode="r+"), writable=True)
        assert isinstance(store, FileStore)
        self.store, self.block = store, np.ones(129 * MIB, np.uint8)
        self.bounce = np.empty(4 * MIB + 4096, np.uint8)
        self.bounce = self.bounce[-native.address(self.bounce) % 4096 :][: 4 * MIB]

    def mover(self, rows: int, columns: int, left: int = 0) -> Callable[[], None]:
        """Moves one region, its buffer lying in memory as the region lies in the file's pages."""
        region: Region = (Span(64, 64 + rows), Span(left, left + columns))
        at = (self.store.file_offset(region) - native.address(self.block)) % 4096
        dense = self.block[at : at + rows * columns * 4].view(np.float32).reshape(rows, columns)
        move = self.store.read if self.lane == "read" else self.store.write
        return functools.partial(move, region, dense, self.bounce)

    def forget(self) -> None:
        """Drop the file's pages from the cache; before a write, also its disk space, as a new output has none yet."""
        if self.lane == "write":
            size = os.fstat(self.store.fd).st_size
            os.ftruncate(self.store.fd, 0)
            os.ftruncate(self.store.fd, size)
        os.posix_fadvise(self.store.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _measure_files(folder: Path, lane: str) -> tuple[dict[str, float], float]:
    """Regions of a file on disk through direct I/O where there is any: whole rows, and rows of tiles side by side, of which
    one may find in the cache what was read ahead for the one before."""
    file, columns = _File(folder, lane), 32768
    features, seconds = [], []
    for rows, width in ((8, columns), (64, columns), (256, columns), (1000, columns), (256, 8192), (256, 2048), (128, 512)):
        count = min(columns // width, 16)
        tiles = [file.mover(rows, width, i * width) for i in range(count)]
        seconds.append(median(lambda tiles=tiles: [move() for move in tiles], 0.1, 20, file.forget) / count)  # type: ignore[misc]
        features.append([1.0, 1.0 if width == columns else float(rows), float(rows * width * 4)])
    file.store.close()
    return copy_entry(features, seconds)


def _measure_contention(backend: CpuBackend, folder: Path, seconds: float) -> dict[str, dict[str, float]]:
    """The share of its speed that each lane loses while each other one is busy. seconds: of each measurement."""
    op = parse(f"conv.fprop {LAYERS[0].replace('n=1', 'n=8')}")
    source, target, room = np.ones(32 * MIB, np.uint8), np.ones(32 * MIB, np.uint8), np.ones(16 * MIB, np.uint8)
    reading, writing = _File(folder, "read"), _File(folder, "write")
    works: dict[str, Callable[[], Any]] = {
        "compute": _bound_kernel(backend, op, backend.offers(op)[0].name),
        "h2d": lambda: backend.copy("h2d", target, source),
        "d2h": lambda: backend.copy("d2h", source[: room.size], room),
        "read": reading.mover(512, 16384),  # pieces of 64 KiB, through the bounce buffer, as tiles of images are
        "write": writing.mover(512, 16384),
    }
    prepare = {"read": reading.forget, "write": writing.forget}
    found = {}
    for lane, work in works.items():
        alone = median(work, seconds, prepare=prepare.get(lane))
        beside = {}
        for other, noise in works.items():
            if other != lane:
                with _busy(noise, prepare.get(other)):
                    together = median(work, seconds, prepare=prepare.get(lane))
                beside[other] = max(0.0, min(1.0, 1 - alone / together))
        found[lane] = beside
    reading.store.close()
    writing.store.close()
    return found


@contextlib.contextmanager
def _busy(work: Callable[[], Any], prepare: Callable[[], None] | None) -> Iterator[None]:
    """Another thread does some work again and again."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            if prepare:
                prepare()
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
    numbers = np.random.default_rng(0)
    arrays = {o.name: numbers.random(o.shape).astype(numpy_dtype(o.dtype)) for o in op.operands}
    return whole_kernel(backend.kernel(op, family, op.dims, workspace), op, arrays)


def _measure_family(backend: CpuBackend, family: str, errors: dict[str, float], every: int) -> dict[str, Any]:
    """Entries of one family of convolution kernels, per pass and dtype. every: 2 for half the shapes; f32 has all of them."""
    entries = {}
    for kind, dtype in itertools.product(("conv.fprop", "conv.dgrad", "conv.wgrad"), ("f32", "f64", "f16")):
        shapes = SMALL_CONVS if family == "reference" else [*LAYERS, *tiles(TILES)]
        step = every if dtype == "f32" or family == "reference" else 3 * every
        ops = [parse(f"{kind} {text} dtype={dtype}") for text in shapes[::step]]
        ops = [op for op in ops if _measurable(family, op)]
        if ops:
            entries[f"{kind}/{dtype}/{family}"] = _measure_ops(backend, family, ops, errors)
    entries |= {k.replace("f16", "bf16"): e for k, e in entries.items() if "f16" in k}
    return entries


def _measure_others(backend: CpuBackend, errors: dict[str, float]) -> dict[str, Any]:
    """Entries of all other operations, which are computed in one way."""
    entries = {}
    for kind, shapes in OTHERS.items():
        ops = [parse(f"{kind} {s}") for s in shapes]
        entries[f"{kind}/*/*"] = _measure_ops(backend, backend.offers(ops[0])[0].name, ops, errors)
    return entries | {f"{kind}/*/*": entries[f"{like}/*/*"] for kind, like in SAME.items()}


def _measurable(family: str, op: Op) -> bool:
    """Whether a family can compute an op; the reference always can, also where it is not offered."""
    return family == "reference" or not FAMILIES[family].why_not(op)


def _measure_ops(backend: CpuBackend, family: str, ops: list[Op], errors: dict[str, float]) -> dict[str, float]:
    seconds = [median(_bound_kernel(backend, op, family), 0.05) for op in ops]
    entry, errors[f"{ops[0].kind}/{ops[0].dtype}/{family}"] = compute_entry(ops, seconds)
    return entry
