"""What moves data to and from a CUDA device: its link, the staging copies of the host, and the cost of pinning memory."""

from __future__ import annotations

import functools
import itertools
import platform
import subprocess
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.cuda.backend import CudaBackend
from ooc.backends.cuda.copy import PitchedRows
from ooc.backends.device_array import at
from ooc.errors import OocError
from perfmodel.calibrate.cuda_timing import BoundKernel, CudaBench
from perfmodel.calibrate.entries import MIB, Point, copy_curve, copy_entry, copy_points, median, processor

COPIES = (16 << 10, 64 << 10, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
ROWS = (512, 4 << 10, 32 << 10, MIB)
LINK = ("pcie.link.gen.current", "pcie.link.width.current")  # the generation is lower while nothing happens
SMI_SECONDS = 10


class Link:
    """Pageable, pinned and device memory of one size, and what copies between them take."""

    def __init__(self, bench: CudaBench) -> None:
        self.bench, self.backend = bench, bench.backend
        self.nbytes = bench.effort.copy_bytes
        self.device = self.backend.allocate("device", self.nbytes)
        self.pinned = self.backend.allocate("staging", self.nbytes)
        self.host = np.ones(self.nbytes, np.uint8)
        self.pinned[...] = 1

    def copies(self) -> dict[str, Any]:
        """The curves of all copy lanes: what is strided lies on the host, blocks on the device are dense."""
        copy, on_host = self.backend.copy, functools.partial(native.copy, threads=self.backend.copy_threads)
        clocks = {lane: functools.partial(self.bench.time, lane) for lane in ("h2d", "d2h")}
        curves = {}
        for lane, large, small, move, clock in (
            ("h2d", self.pinned, self.device, lambda block, dense: copy("h2d", dense, block), clocks["h2d"]),
            ("d2h", self.pinned, self.device, lambda block, dense: copy("d2h", block, dense), clocks["d2h"]),
            ("read", self.host, self.pinned, lambda block, dense: on_host(dense, block), self._on_host),
            ("write", self.host, self.pinned, lambda block, dense: on_host(block, dense), self._on_host),
        ):
            self.bench.say(f"copies: {lane}")
            curves[lane], self.bench.errors[lane] = copy_curve(_points(large, small), move, clock)
        return curves

    def _on_host(self, work: Any) -> float:
        return median(work, 20 * self.bench.effort.sample_seconds)

    def duplex(self) -> dict[str, dict[str, float]]:
        """The share of its speed that each direction loses while the other one is busy."""
        self.bench.say("copies: both directions")
        half, copy = self.nbytes // 2, self.backend.copy
        work = {
            "h2d": lambda: copy("h2d", self.device[:half], self.pinned[:half]),
            "d2h": lambda: copy("d2h", self.pinned[half:], self.device[half:]),
        }
        shares = {}
        for lane, other in (("h2d", "d2h"), ("d2h", "h2d")):
            alone, together = self.bench.beside(lane, work[lane], other, work[other])
            shares[lane] = {other: max(0.0, 1 - alone / together)}
        return shares

    def contention(self, shapes: tuple[str, ...]) -> dict[str, float]:
        """The share of its speed that a convolution loses while a copy lane is busy."""
        self.bench.say("contention")
        op = self.bench.fitting("conv.fprop", shapes, "f32", "cuda")[0]
        copy, shares = self.backend.copy, {}
        work = {
            "h2d": lambda: copy("h2d", self.device, self.pinned),
            "d2h": lambda: copy("d2h", self.pinned, self.device),
        }
        with BoundKernel(self.bench, op, self.backend.offers(op)[0].name) as (run, _):
            for lane, noise in work.items():
                alone, together = self.bench.beside("compute", run, lane, noise)
                shares[lane] = max(0.0, 1 - alone / together)
        return shares

    def register(self) -> dict[str, float] | None:
        """Pinning memory of the caller and giving it back, as one cost; None where the system refuses."""
        self.bench.say("pinning")
        driver, memory = self.backend.driver, np.ones(4 * self.nbytes, np.uint8)

        def both(nbytes: int) -> None:
            driver.register(native.address(memory), nbytes)
            driver.unregister(native.address(memory))

        sizes = [memory.nbytes // part for part in (64, 16, 4, 1)]
        try:
            with driver.current():
                seconds = [median(functools.partial(both, n), 0.0) for n in sizes]
        except Exception as error:  # the runtime's own: locked memory may be limited
            self.bench.say(f"pinning: left out: {error}")
            return None
        entry, self.bench.errors["register"] = copy_entry([[1.0, 0.0, float(n)] for n in sizes], seconds)
        return entry

    def pageable(self) -> dict[str, float]:
        """For comparison, what nothing here does: copies from and to memory that is not pinned. Only a runtime makes them."""
        driver, rates = self.backend.driver, {}
        if hasattr(driver, "cupy"):
            to, of = at(self.device), native.address(self.host)
            for lane, rows in (("h2d", PitchedRows(to, of, self.nbytes)), ("d2h", PitchedRows(of, to, self.nbytes))):
                move = functools.partial(driver.copy, rows, self.backend.streams[lane])
                rates[f"pageable_{lane}_bytes_per_second"] = self.nbytes / self.bench.time(lane, move)
        return rates


def _points(large: Any, small: Any) -> itertools.chain[Point]:
    """Contiguous copies, rows, and slices of rows."""
    return itertools.chain(copy_points(large, small, COPIES, ROWS), copy_points(large, small, COPIES[:4], ROWS[:3], 8))


def describe(backend: CudaBackend) -> dict[str, Any]:
    """What the measurements depend on."""
    driver = backend.driver
    try:
        version = {"cudnn": backend.cudnn.library.version}
    except (OocError, AttributeError):
        version = {}
    try:
        bus = str(driver.runtime.deviceGetPCIBusId(driver.index))  # type: ignore[attr-defined]
    except Exception:  # not every runtime tells
        bus = str(driver.index)
    return {
        **driver.identity(), **version, **pcie(bus), "processor": processor(), "copy_threads": backend.copy_threads,
        "numpy": np.__version__, "kernel": platform.release(),
    }  # fmt: skip


def pcie(bus: str) -> dict[str, int]:
    """Generation and width of a device's link as nvidia-smi tells them; nothing where it does not."""
    command = ["nvidia-smi", "-i", bus, f"--query-gpu={','.join(LINK)}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, timeout=SMI_SECONDS, check=True).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [v.strip() for v in told.strip().split("\n")[0].split(",")]
    if len(values) != len(LINK) or not all(v.isascii() and v.isdecimal() for v in values):
        return {}
    return dict(zip(("pcie_generation", "pcie_width"), map(int, values), strict=True))
