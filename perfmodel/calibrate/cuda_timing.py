"""Timing copies and kernels on the lanes of a CUDA device, by events on the stream that does the work.

Samples are long enough that the host's part of a launch is hidden, as it is in a run.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from ooc.backends.base import algorithms_of
from ooc.backends.cuda.backend import CudaBackend
from ooc.backends.cuda.tuning import MEASURED_AT
from ooc.errors import OocError, UnsupportedError
from ooc.ir.op import Op, aligned, numpy_dtype
from ooc.ops.descriptor import parse
from perfmodel.calibrate.entries import MIB, Say, compute_entry, whole_kernel, workspace_bytes

MOST_CALLS = 100  # of a sample
WIDTHS = (8, 32, 128)  # output channels of convolutions, with as many images as take the same time where none are wasted
WASTED = 0.8  # of the best rate: a kernel with less computes channels that are not there


class Effort(NamedTuple):
    """How much is measured."""

    most_bytes: int  # of an op with its workspace
    copy_bytes: int  # of a copy
    every: int  # 2: every second shape
    samples: int
    sample_seconds: float  # least
    entry_seconds: float  # after which an entry measures no further shape
    least: int = 3  # problems that tell what a call, an operation and a byte cost: of fewer there is no entry


class CudaBench:
    """Times work on a backend's lanes."""

    def __init__(self, backend: CudaBackend, effort: Effort, errors: dict[str, float], say: Say) -> None:
        self.backend, self.errors, self.say, self.filled = backend, errors, say, ""
        free = backend.driver.free_bytes
        most, copied = min(effort.most_bytes, free // 4), min(effort.copy_bytes, free // 8)
        self.effort = effort._replace(most_bytes=most, copy_bytes=copied)
        self.noise = backend.allocate("staging", min(16 * MIB, self.effort.copy_bytes))
        backend.begin()
        with backend.driver.current():
            self.events = backend.driver.event(), backend.driver.event()

    def once(self, lane: str, work: Callable[[], Any], calls: int = 1) -> float:
        """Seconds of a call, when so many are issued one after the other."""
        driver, stream, (begin, end) = self.backend.driver, self.backend.streams[lane], self.events
        with self.backend.lane(lane):
            driver.record(begin, stream)
            for _ in range(calls):
                work()
            driver.record(end, stream)
        with driver.current():
            return max(driver.seconds(begin, end), 1e-7) / calls

    def time(self, lane: str, work: Callable[[], Any], warm: int = 2) -> float:
        """Median seconds of a call."""
        self.once(lane, work, warm)
        calls = max(1, min(MOST_CALLS, int(self.effort.sample_seconds / self.once(lane, work))))
        return statistics.median(self.once(lane, work, calls) for _ in range(self.effort.samples))

    def beside(self, lane: str, work: Callable[[], Any], other: str, noise: Callable[[], Any]) -> tuple[float, float]:
        """Seconds of some work alone, and while another lane is busy."""
        alone, each = self.time(lane, work), self.time(other, noise)
        calls = max(1, min(MOST_CALLS, math.ceil(4 * each / alone)))
        together = []
        for _ in range(self.effort.samples):
            with self.backend.lane(other):
                for _ in range(math.ceil(3 * calls * alone / each) + 1):
                    noise()
                together.append(self.once(lane, work, calls))
        return alone, statistics.median(together)

    def warm_up(self, shapes: tuple[str, ...]) -> None:
        """Compile our own kernels, and let the device's clocks rise."""
        for dtype in ("f16", "bf16", "f64", "f32"):
            with BoundKernel(self, self.fitting("conv.fprop", shapes, dtype, "cuda")[0], "cuda") as (run, _):
                end = time.perf_counter() + 50 * self.effort.sample_seconds
                self.once("compute", run)
                while time.perf_counter() < end:
                    self.once("compute", run)

    def fill(self, memory: Any, dtype: str) -> None:
        """Write random numbers (power, and so clocks, depend on them), or zeros where indices are meant."""
        if self.filled != dtype:
            kind = numpy_dtype(dtype)
            room = self.backend.view(self.noise, 0, (self.noise.nbytes // kind.itemsize,), dtype, (0,))
            room[...] = 0 if dtype == "i64" else default_rng(0).random(room.size, np.float32) - 0.5
            self.filled = dtype
        with self.backend.lane("h2d"):
            for lo in range(0, memory.nbytes, self.noise.nbytes):
                piece = memory[lo : lo + self.noise.nbytes]
                self.backend.copy("h2d", piece, self.noise[: piece.nbytes])

    def fitting(self, kind: str, shapes: tuple[str, ...], dtype: str, family: str) -> list[Op]:
        """The ops of an entry that its family serves and that are not too large, or the smallest; none where it serves none."""
        ops = [parse(f"{kind} {s} dtype={dtype}") for s in shapes[:: self.effort.every]]
        ops = [op for op in ops if family not in self.backend.why_not(op)]
        if not ops:
            return []
        sizes = [self._bytes(op, family) for op in ops]
        return [op for op, n in zip(ops, sizes, strict=True) if n <= self.effort.most_bytes] or [ops[int(np.argmin(sizes))]]

    def _bytes(self, op: Op, family: str) -> int:
        """Of an op's tensors and its workspace."""
        return sum(o.nbytes for o in op.operands) + workspace_bytes(self.backend, op, family)

    def entry(self, kind: str, shapes: tuple[str, ...], dtype: str, family: str) -> dict[str, float] | None:
        """The entry of a kernel; None where no shape could be measured."""
        ops, seconds, end = [], [], math.inf
        for op in self.fitting(kind, shapes, dtype, family):
            if time.perf_counter() > end:
                self.say(f"{op}: {family}: left out, the time is over")
                continue
            try:
                with BoundKernel(self, op, family) as (run, check):
                    seconds.append(self.time("compute", run, MEASURED_AT))
                    check()
                ops.append(op)
            except OocError as error:
                del seconds[len(ops) :]
                self.say(f"{op}: {family}: left out: {' '.join(str(error).split())}")
            end = min(end, time.perf_counter() + self.effort.entry_seconds)  # the first one also loads libraries
        if len(ops) < max(1, min(self.effort.least, len(shapes))):
            if ops:
                self.say(f"{kind} {dtype}: {family}: left out, {len(ops)} problem(s) tell too little")
            return None
        width = self.width(kind, dtype, family)
        entry, self.errors[f"{kind}/{dtype}/{family}"] = compute_entry(ops, seconds, width, family)
        return entry

    def width(self, kind: str, dtype: str, family: str) -> int:
        """Output channels that a convolution computes at a time: fewer take as long. 1 where that shows at no number of them."""
        if not kind.startswith("conv."):
            return 1
        rates = {}
        for channels in WIDTHS:
            c, k = (channels, 128) if kind == "conv.dgrad" else (128, channels)
            op = parse(f"{kind} n={128 // channels} c={c} h=96 w=96 k={k} r=3 s=3 pad=1 dtype={dtype}")
            if family in self.backend.why_not(op) or self._bytes(op, family) > self.effort.most_bytes:
                continue
            try:
                with BoundKernel(self, op, family) as (run, check):
                    rates[float(op.width(op.dims))] = op.effort(op.dims) / self.time("compute", run, MEASURED_AT)
                    check()
            except OocError as error:
                self.say(f"{op}: {family}: left out: {' '.join(str(error).split())}")
        most, best = max(rates, default=1), max(rates.values(), default=1.0)
        wide = [channels * best / rate for channels, rate in rates.items() if rate < WASTED * best]
        return round(min(max(wide, default=1), most))


class BoundKernel:
    """A context: a kernel with operands and workspace on the device, ready to call, and a check to be made after that."""

    def __init__(self, bench: CudaBench, op: Op, family: str) -> None:
        self.bench, self.op, self.family = bench, op, family

    def __enter__(self) -> tuple[Callable[[], None], Callable[[], None]]:
        op, backend = self.op, self.bench.backend
        need = workspace_bytes(backend, op, self.family)
        self.memory = backend.allocate("device", sum(int(aligned(o.nbytes)) for o in op.operands) + need)
        lo, arrays = 0, {}
        for o in op.operands:
            self.bench.fill(self.memory[lo : lo + o.nbytes], o.dtype)
            arrays[o.name] = backend.view(self.memory, lo, o.shape, o.dtype, o.memory_order)
            lo += int(aligned(o.nbytes))
        self.kernel = backend.kernel(op, self.family, op.dims, self.memory[lo : lo + need])
        return whole_kernel(self.kernel, op, arrays), self.check

    def __exit__(self, *error: Any) -> None:
        self.bench.backend.release("device", self.memory)

    def check(self) -> None:
        """Raises UnsupportedError where a library left the work to our own kernels."""
        if "cuda" in algorithms_of(self.kernel) and self.family.startswith(("cudnn", "cufft")):
            raise UnsupportedError(f"{self.family} does not compute it")
