"""Running plans of one problem on real arrays: what calibrations measure, and what `check` compares predictions with."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

from ooc.files import npy
from ooc.ir.op import Op, Operand, numpy_dtype
from ooc.ir.region import Region
from ooc.ops.descriptor import parse
from ooc.runtime.device import Device
from ooc.runtime.executor import Run, run
from ooc.runtime.report import Part
from ooc.runtime.store import Store, open_store
from ooc.schedule.lowering import Schedule, lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

SOME = 1 << 20  # random numbers, again and again
RATIOS = (2, 5, 10, 20, 50)  # of the tensors to the budget
LEAST_BUDGET = 64 << 10
KINDS = ("conv.fprop",) * 6 + ("conv.dgrad", "conv.wgrad", "conv.fprop 3d", "pool.max", "pointwise", "fused")
CHANNELS = (3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LEAST_WORK, MOST_WORK = 5e7, 1.2e10  # flops
LEAST_BYTES, MOST_BYTES = 8 << 20, 160 << 20


class TimedProblem:
    """A problem with its arrays: a context that holds files in a temporary folder."""

    def __init__(self, op: Op, places: Mapping[str, Place], device: Device, folder: str | None = None) -> None:
        self.op, self.places, self.device = op, dict(places), device
        self.folder = tempfile.TemporaryDirectory(dir=folder)
        self.arrays: dict[str, Any] = {}

    def __enter__(self) -> TimedProblem:
        numbers = default_rng(0)
        for operand in self.op.operands:
            self.arrays[operand.name] = self._array(operand, numbers, any(operand is o for o in self.op.inputs))
        if Place.DISK in self.places.values():
            os.sync()  # pages not yet written cannot be dropped from the cache
        return self

    def __exit__(self, *error: object) -> None:
        self.arrays.clear()
        self.folder.cleanup()

    def _array(self, operand: Operand, numbers: Generator, is_input: bool) -> Any:
        """Random numbers (zeros where indices are meant), where the operand lives."""
        dtype, path = numpy_dtype(operand.dtype), self._path(operand.name)
        on_disk = self.places[operand.name] is Place.DISK
        if on_disk and not is_input:
            return np.lib.format.open_memmap(path, "w+", dtype, operand.shape)
        array = np.zeros(operand.shape, dtype)
        if is_input and operand.dtype != "i64":
            some = numbers.random(min(array.size, SOME), np.float32)
            array[...] = np.resize(some, operand.shape)
        if not on_disk:
            return array
        npy.save(path, array)
        return np.load(path, mmap_mode="r")  # pages that were touched through a mapping could not be dropped from the cache

    def _path(self, name: str) -> Path:
        return Path(self.folder.name) / f"{name}.npy"

    def seconds(self, plan: Plan) -> float:
        """Seconds of one run of a plan, as `run` does it."""
        return self.run(plan)[0]

    def run(self, plan: Plan, most_steps: int | None = None, cached: bool = False) -> tuple[float, Part]:
        """One run of a plan, or of its first steps, and its seconds: the inputs' files out of the page cache, unless they are
        to be `cached`, those of its outputs as new files are."""
        self._forget_files(plan, cached)
        whole = lower(plan)
        return self._run(replace(whole, steps=whole.steps[:most_steps]))

    def read(self, plan: Plan, most_steps: int | None = None, cached: bool = False) -> Part:
        """The reads alone of a plan whose steps take turns, or of its first steps, one right after the other. cached: of files
        in the page cache, as far as an earlier run has left them there."""
        if not cached:
            self._forget_files(plan)
        return self._run(self._reads(plan, most_steps))[1]

    def read_twice(self, plan: Plan, most_steps: int | None = None) -> tuple[Part, Part]:
        """The same of files in the page cache, and once more into the same memory, where no page has to be made."""
        todo, parts = self._reads(plan, most_steps), list[Part]()
        with self._stores(plan) as stores:
            runs = Run(todo, self.device.backend, most=0)
            try:
                for _ in range(2):
                    runs.go((stores,), plan.op, lambda _, measured: parts.append(Part(todo, measured())))
            finally:
                runs.release()
        first, second = parts
        return first, second

    def _reads(self, plan: Plan, most_steps: int | None) -> Schedule:
        """The reads of a plan's first steps, which wait for nothing."""
        whole = lower(plan)
        reads = tuple(step._replace(after=()) for step in whole.steps[:most_steps] if step.lane == "read")
        return replace(whole, steps=reads)

    def fetch(self, plan: Plan, most_steps: int | None = None) -> float:
        """Seconds that it takes to have the system fetch all that a plan reads, or its first steps, into the page cache."""
        self._forget_files(plan)
        told: dict[str, list[Region]] = {}
        for step in lower(plan).steps[:most_steps]:
            if step.lane == "read":
                told.setdefault(step.what, []).append(step.region)
        with self._stores(plan) as stores:
            begin = time.perf_counter()
            for name, regions in told.items():
                stores[name].fetch(regions, plan.bounce_bytes)
            return time.perf_counter() - begin

    def _forget_files(self, plan: Plan, cached: bool = False) -> None:
        outputs = {o.name for o in plan.op.outputs}
        for name in (name for name, place in self.places.items() if place is Place.DISK):
            if name in outputs or not cached:
                forget(self._path(name), self.arrays[name].offset if name in outputs else None)

    def _run(self, todo: Schedule) -> tuple[float, Part]:
        with self._stores(todo.plan) as stores:
            begin = time.perf_counter()
            measured = run(todo, stores, self.device.backend)
            return time.perf_counter() - begin, Part(todo, measured)

    @contextlib.contextmanager
    def _stores(self, plan: Plan) -> Iterator[dict[str, Store]]:
        outputs = {o.name for o in plan.op.outputs}
        with contextlib.ExitStack() as stack:
            stores = {}
            for name, array in self.arrays.items():
                stores[name] = open_store(array, writable=name in outputs, threads=self.device.backend.copy_threads)
                stack.callback(stores[name].close)
            yield stores


def forget(path: Path, empty_from: int | None = None) -> None:
    """Drop a file from the page cache; what lies from some byte on also from the disk, as a new file has no room there yet."""
    fd = os.open(path, os.O_RDONLY if empty_from is None else os.O_RDWR)
    try:
        if empty_from is not None:
            size = os.fstat(fd).st_size
            os.ftruncate(fd, empty_from)
            os.ftruncate(fd, size)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def tensors(op: Op) -> list[Operand]:
    """The operands that grow with the batch, unlike filters and biases."""
    return [o for o in op.operands if len(o.shape) > 2 and o.name[:1] != "w" and o.name != "dw"]


def placed(op: Op, place: Place) -> dict[str, Place]:
    """Where the operands live when the tensors live there: the others in host memory."""
    large = {o.name for o in tensors(op)}
    return {o.name: place if o.name in large else Place.HOST for o in op.operands}


class TrialQuestion(NamedTuple):
    """A problem, where its operands live, and its budget in bytes."""

    op: Op
    places: dict[str, Place]
    budget: int


def question(rng: random.Random, most_bytes: int = MOST_BYTES) -> TrialQuestion:
    """A random problem under a random budget, with its tensors in files half of the time."""
    op = problem(rng, most_bytes)
    total = sum(o.nbytes for o in op.operands)
    place = rng.choice((Place.DISK, Place.HOST))
    return TrialQuestion(op, placed(op, place), max(LEAST_BUDGET, total // rng.choice(RATIOS)))


def problem(rng: random.Random, most_bytes: int = MOST_BYTES) -> Op:
    """A problem that takes milliseconds to a fraction of a second."""
    while True:
        op = parse(_descriptor(rng))
        work, moved = float(op.flops(op.dims)), sum(o.nbytes for o in op.operands)
        if work < MOST_WORK and moved < most_bytes and (work > LEAST_WORK or moved > LEAST_BYTES):
            return op


def _descriptor(rng: random.Random) -> str:
    kind, dtype = rng.choice(KINDS), rng.choice(("f32",) * 5 + ("f64",))
    n, size, c, k = 1 << rng.randrange(6), rng.choice((7, 14, 28, 56, 112, 200)), rng.choice(CHANNELS), rng.choice(CHANNELS)
    r = rng.choice((1, 3, 3, 3, 5))
    stride = rng.choice((1, 1, 1, 2)) if r > 1 and size > 7 else 1
    if kind == "conv.fprop 3d":
        size = rng.choice((12, 24, 40))
        return f"conv.fprop n={n} c={c} d={size} h={size} w={size} k={k} t=3 r=3 s=3 pad=1 dtype={dtype}"
    if kind in ("pool.max", "pointwise"):
        return f"{kind} n={4 * n} k={k} h={size} w={size} {'window=2' if kind == 'pool.max' else 'act=relu'} dtype={dtype}"
    rest = f"n={n} c={c} h={size} w={size} k={k} r={r} s={r} pad={r // 2} stride={stride} dtype={dtype}"
    if kind != "fused":
        return f"{kind} {rest}"
    out = (size + 2 * (r // 2) - r) // stride + 1
    return f"conv.fprop {rest} bias=1 act=relu | pool.max n={n} k={k} h={out} w={out} window=2 dtype={dtype}"
