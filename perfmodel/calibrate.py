"""Measuring this machine's processors: copies, files and kernels -> a calibration that `load_device` reads.

Everything is measured with the code that runs later: the stores, the backend's copies, the kernels on strided blocks.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import os
import platform
import tempfile
import threading
from collections.abc import Callable
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

CONVS = (
    "conv.fprop n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1",
    "conv.fprop n=1 c=64 h=224 w=224 k=64 r=3 s=3 pad=1",
    "conv.fprop n=1 c=64 h=448 w=448 k=64 r=3 s=3 pad=1",
    "conv.fprop n=1 c=3 h=224 w=224 k=64 r=3 s=3 pad=1",
    "conv.fprop n=1 c=3 h=640 w=640 k=64 r=3 s=3 pad=1",
    "conv.fprop n=2 c=256 h=28 w=28 k=256 r=3 s=3 pad=1",
    "conv.fprop n=1 c=512 h=14 w=14 k=512 r=3 s=3 pad=1",
    "conv.fprop n=1 c=256 h=28 w=28 k=64 r=1 s=1",
    "conv.fprop n=1 c=16 h=12 w=12 k=16 r=3 s=3 pad=1",
    "conv.fprop n=1 c=32 h=4 w=112 k=32 r=3 s=3 pad=1",
    "conv.fprop n=1 c=16 d=24 h=24 w=24 k=16 t=3 r=3 s=3 pad=1",
)
SMALL_CONVS = (
    "conv.fprop n=1 c=4 h=8 w=8 k=8 r=3 s=3 pad=1",
    "conv.fprop n=1 c=8 h=16 w=16 k=16 r=3 s=3 pad=1",
    "conv.fprop n=1 c=2 h=4 w=4 k=4 r=3 s=3 pad=1",
    "conv.fprop n=1 c=16 h=12 w=12 k=16 r=3 s=3 pad=1",
)
PLANES = ("n=1 k=64 h=224 w=224", "n=1 k=64 h=56 w=56", "n=1 k=8 h=16 w=16")
WINDOWS = ("n=1 k=64 h=112 w=112 window=2", "n=1 k=8 h=32 w=32 window=2", "n=1 k=64 h=56 w=56 window=3 stride=2 pad=1")
OTHERS = others(PLANES, PLANES[1:], WINDOWS)


def calibrate_cpu(
    threads: int | None = None, directory: str | None = None, say: Say = print, quick: bool = False
) -> dict[str, Any]:
    """Measure this machine (under a minute on two cores). directory: where to measure the disk; quick: with a third of the
    convolutions. Returns the JSON object."""
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
        contention = _measure_contention(backend, Path(folder))
    computes: dict[str, Any] = {}
    for family in FAMILIES:
        if _measurable(family, parse(CONVS[0])):
            say(f"kernels: {family}")
            computes |= _measure_family(backend, family, errors, 3 if quick else 1)
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

    def mover(self, rows: int, columns: int) -> Callable[[], None]:
        """Moves one region, its buffer lying in memory as the region lies in the file's pages."""
        region: Region = (Span(64, 64 + rows), Span(0, columns))
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
    """Regions of a file on disk through direct I/O where there is any: whole rows, and pieces of rows."""
    file, columns = _File(folder, lane), 32768
    features, seconds = [], []
    sizes = ((8, columns), (64, columns), (256, columns), (1000, columns), (256, 4096), (512, 1024), (1024, 1024))
    for rows, width in sizes:
        seconds.append(median(file.mover(rows, width), 0.1, 20, file.forget))
        features.append([1.0, 1.0 if width == columns else float(rows), float(rows * width * 4)])
    file.store.close()
    return copy_entry(features, seconds)


def _measure_contention(backend: CpuBackend, folder: Path) -> dict[str, float]:
    """Compute seconds lost per second that a copy lane is busy beside it."""
    op = parse(CONVS[0].replace("n=1", "n=8"))
    kernel = _bound_kernel(backend, op, backend.offers(op)[0].name)
    alone = median(kernel, 0.3)
    source = np.ones(32 * MIB, np.uint8)
    target = np.ones_like(source)
    copied = _lost_share(kernel, alone, lambda: backend.copy("h2d", target, source))
    lost = {"h2d": copied, "d2h": copied}
    for lane in ("read", "write"):
        file = _File(folder, lane)
        move = file.mover(512, 16384)  # pieces of 64 KiB, through the bounce buffer, as tiles of images are
        lost[lane] = _lost_share(kernel, alone, lambda f=file, m=move: (f.forget(), m()))  # type: ignore[misc]
        file.store.close()
    return lost


def _lost_share(kernel: Callable[[], None], alone: float, work: Callable[[], Any]) -> float:
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        beside = median(kernel, 0.5)
    finally:
        stop.set()
        thread.join()
    return max(0.0, min(1.0, (beside - alone) / beside))


def _bound_kernel(backend: CpuBackend, op: Op, family: str) -> Callable[[], None]:
    """A kernel with its blocks and workspace, ready to call."""
    workspace = backend.allocate("calibration", workspace_bytes(backend, op, family))
    numbers = np.random.default_rng(0)
    arrays = {o.name: numbers.random(o.shape).astype(numpy_dtype(o.dtype)) for o in op.operands}
    return whole_kernel(backend.kernel(op, family, op.dims, workspace), op, arrays)


def _measure_family(backend: CpuBackend, family: str, errors: dict[str, float], every: int) -> dict[str, Any]:
    """Entries of one family of convolution kernels, per pass and dtype. every: 3 for each third shape."""
    entries = {}
    for kind, dtype in itertools.product(("conv.fprop", "conv.dgrad", "conv.wgrad"), ("f32", "f64", "f16")):
        shapes = CONVS if family in ("onednn", "native") else SMALL_CONVS
        ops = [parse(f"{t.replace('conv.fprop', kind)} dtype={dtype}") for t in shapes[::every]]
        if _measurable(family, ops[0]):
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
