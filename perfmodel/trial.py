"""Running plans of one problem on real arrays: what `check` compares predictions with."""

from __future__ import annotations

import contextlib
import math
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ooc.device import Device
from ooc.op import Op, Operand, numpy_dtype
from ooc.plan import Place, Plan
from ooc.run import run
from ooc.store import open_store


class Trial:
    """A problem with its arrays: a context that holds files in a temporary folder. budget: see `ooc.device`."""

    def __init__(self, op: Op, places: Mapping[str, Place], device: Device, folder: str | None = None) -> None:
        self.op, self.places, self.device = op, dict(places), device
        self.folder = tempfile.TemporaryDirectory(dir=folder)
        self.arrays: dict[str, Any] = {}

    def __enter__(self) -> Trial:
        numbers = np.random.default_rng(0)
        for operand in self.op.operands:
            self.arrays[operand.name] = self._array(operand, numbers, any(operand is o for o in self.op.inputs))
        os.sync()  # pages not yet written cannot be dropped from the cache
        return self

    def __exit__(self, *error: object) -> None:
        self.arrays.clear()
        self.folder.cleanup()

    def _array(self, operand: Operand, numbers: np.random.Generator, given: bool) -> Any:
        """Random numbers (zeros where indices are meant), where the operand lives."""
        dtype = numpy_dtype(operand.dtype)
        if self.places[operand.name] is not Place.DISK:
            array = np.zeros(operand.shape, dtype)
        else:
            path = Path(self.folder.name) / f"{operand.name}.npy"
            array = np.lib.format.open_memmap(path, "w+", dtype, operand.shape)
        if given and operand.dtype != "i64":
            for lo in range(0, operand.shape[0], step := max(1, operand.shape[0] // 16)):
                part = array[lo : lo + step]
                part[...] = numbers.standard_normal(part.shape, np.float32)
        return array

    def seconds(self, plan: Plan) -> float:
        """Seconds of one run of a plan, its files out of the page cache."""
        for name, place in self.places.items():
            if place is Place.DISK:
                forget(Path(self.folder.name) / f"{name}.npy")
        todo, made = self.device.schedule(plan), {o.name for o in plan.op.outputs}
        with contextlib.ExitStack() as stack:
            stores = {}
            for name, array in self.arrays.items():
                stores[name] = open_store(array, writable=name in made, threads=self.device.backend.copy_threads)
                stack.callback(stores[name].close)
            begin = time.perf_counter()
            run(todo, stores, self.device.backend)
            return time.perf_counter() - begin


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


KINDS = ("conv.fprop",) * 6 + ("conv.dgrad", "conv.wgrad", "conv.fprop 3d", "pool.max", "pointwise", "fused")
CHANNELS = (3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LEAST_FLOPS, MOST_FLOPS, MOST_BYTES = 2e8, 1.2e10, 160 << 20


def random_problems(seed: int) -> Iterator[str]:
    """Descriptors of problems that take milliseconds to a fraction of a second, without end."""
    rng = random.Random(seed)
    while True:
        text = _random_problem(rng)
        if text:
            yield text


def _random_problem(rng: random.Random) -> str | None:
    kind, dtype = rng.choice(KINDS), rng.choice(("f32",) * 5 + ("f64",))
    n, size, c, k = 1 << rng.randrange(6), rng.choice((7, 14, 28, 56, 112, 200)), rng.choice(CHANNELS), rng.choice(CHANNELS)
    r = rng.choice((1, 3, 3, 3, 5))
    if kind == "conv.fprop 3d":
        size = rng.choice((12, 24, 40))
        text = f"conv.fprop n={n} c={min(c, 64)} d={size} h={size} w={size} k={min(k, 64)} t=3 r=3 s=3 pad=1"
        points, work = n * size**3, 54 * min(c, 64) * min(k, 64)
    elif kind in ("pool.max", "pointwise"):
        n, c = 4 * n, k
        text = f"{kind} n={n} k={k} h={size} w={size} " + ("window=2" if kind == "pool.max" else "act=relu")
        points, work = n * size * size, 20 * k
    else:
        stride = rng.choice((1, 1, 1, 2)) if r > 1 and size > 7 else 1
        text = f"{kind} n={n} c={c} h={size} w={size} k={k} r={r} s={r} pad={r // 2} stride={stride}"
        points, work = n * (size // stride) ** 2, 2 * r * r * c * k
        if kind == "fused":
            text = text.replace("fused", "conv.fprop") + " bias=1 act=relu | pool.max window=2"
    text += "" if dtype == "f32" else " dtype=f64" if kind != "fused" else ""
    moved = points * (c + k) * (8 if dtype == "f64" else 4)
    busy = points * work
    fits = moved < MOST_BYTES and busy < MOST_FLOPS and (busy > LEAST_FLOPS or moved > 8 << 20)
    return text if fits and math.isfinite(busy) else None
