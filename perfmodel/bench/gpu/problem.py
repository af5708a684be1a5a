"""The workloads of the benchmarks on a GPU: layers and short chains whose tensors exceed a device budget, and their arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.op import Block, Op, numpy_dtype
from ooc.ir.region import Region, Span, slices
from ooc.model.calibration import closest, load_device
from ooc.ops.descriptor import parse
from ooc.runtime.device import Device

GIB = 1 << 30


class Workload(NamedTuple):
    """A problem with one size, and number of channels, per scale: tiny (tests), small, full. file: x is mapped from a file."""

    name: str
    problem: str
    sizes: tuple[int, int, int]
    tf32: tuple[bool, ...] = (False,)
    file: bool = False
    channels: tuple[int, int, int] = (16, 2048, 2048)

    def op(self, scale: int) -> Op:
        """`S` stands for the size, `C` for the channels."""
        return parse(self.problem.replace("S", str(self.sizes[scale])).replace("C", str(self.channels[scale])))


WORKLOADS = (
    Workload("W1", "conv.fprop n=1 c=C h=S w=S k=C r=3 s=3 pad=1", (16, 512, 1024), (False, True)),
    Workload("W2", "conv.fprop n=1 c=32 d=S h=S w=S k=32 t=3 r=3 s=3 pad=1", (8, 320, 512), (True,)),
    Workload("W3", "conv.fprop n=1 c=3 h=S w=S k=32 r=7 s=7 stride=2 pad=3 dtype=f16", (64, 16384, 32768), (False,), True),
    Workload(
        "W4", "conv.fprop n=1 c=64 h=S w=S k=64 r=3 s=3 pad=1 bias=1 act=relu | pool.max n=1 k=64 h=S w=S window=2",
        (14, 3072, 6144), (True,),
    ),
    Workload(
        "W4 stem", "conv.fprop n=1 c=1 d=S h=S w=S k=32 t=3 r=3 s=3 pad=1 bias=1 act=relu | conv.fprop n=1 c=32 d=S h=S w=S k=32 "
        "t=3 r=3 s=3 pad=1 bias=1 act=relu | pool.max n=1 k=32 d=S h=S w=S window=2", (8, 320, 512), (True,),
    ),
    Workload("W7 depthwise", "conv.fprop n=1 c=64 h=S w=S k=64 r=3 s=3 pad=1 groups=64", (14, 2048, 6144)),
    Workload("W7 grouped", "conv.fprop n=1 c=64 h=S w=S k=64 r=3 s=3 pad=1 groups=4", (14, 2048, 6144)),
    Workload("W7 dilated", "conv.fprop n=1 c=64 h=S w=S k=64 r=3 s=3 pad=4 dilation=4", (14, 2048, 6144)),
    Workload("W7 stride 2, odd", "conv.fprop n=1 c=33 h=S w=S k=65 r=5 s=5 pad=2 stride=2", (15, 2047, 6143)),
    Workload("W7 transposed", "conv.dgrad n=1 c=64 h=S w=S k=64 r=3 s=3 pad=1 stride=2", (14, 2048, 6144)),
)  # fmt: skip
MICRO = tuple(  # the micro-benchmark of the ooc_cuDNN paper: square layers of more and more channels
    Workload(f"micro {k}", "conv.fprop n=1 c=C h=S w=S k=C r=3 s=3 pad=1", (16, 1024, 1024), (False, True), channels=(16, k, k))
    for k in (128, 256, 512, 1024, 2048)
)
TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}


class Arrays:
    """Where a contestant's tensors are, on a device: pageable, pinned, or in the device's memory. model: what ours are planned
    by; default: as shipped."""

    def __init__(self, backend: Any, torch: Any = None, torch_device: str = "cuda", model: Any = None) -> None:
        self.backend, self.torch, self.torch_device, self.model = backend, torch, torch_device, model

    def where(self, budget: int | None = None) -> Device:
        """The device with a budget."""
        return Device(self.backend, self.model or load_device(closest(self.backend.processor)), budget)

    def copy(self, lane: str, target: Any, source: Any) -> None:
        """Copy, and wait until it is done."""
        self.backend.begin()
        with self.backend.lane(lane):
            self.backend.copy(lane, target, source)

    def pinned(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Pinned memory of the host."""
        memory = self.backend._fresh("staging", math.prod(shape) * numpy_dtype(dtype).itemsize)
        return self.backend.view(memory, 0, shape, dtype, tuple(range(len(shape))))

    def device(self, shape: tuple[int, ...], dtype: str, values: Any = None) -> Any:
        """Memory of the device, with values."""
        memory = self.backend._fresh("device", math.prod(shape) * numpy_dtype(dtype).itemsize)
        array = self.backend.view(memory, 0, shape, dtype, tuple(range(len(shape))))
        if values is not None:
            self.copy("h2d", array, values)
        return array

    def link(self, nbytes: int = GIB) -> dict[str, float]:
        """Bytes per second between pinned memory and the device, each way alone; the best of three."""
        host, there = self._pair(nbytes)
        rates = {}
        for lane, target, source in (("h2d", there, host), ("d2h", host, there)):
            seconds = []
            for _ in range(3):
                begin = time.perf_counter()
                self.copy(lane, target, source)
                seconds.append(time.perf_counter() - begin)
            rates[lane] = host.nbytes / min(seconds)
        return rates

    def _pair(self, nbytes: int) -> tuple[Any, Any]:
        shape = (nbytes // 4,)
        host = self.pinned(shape, "f32")
        host[...] = 1
        return host, self.device(shape, "f32")


class Problem:
    """An op with its data in pageable memory (x perhaps in a file), and what its result is at sampled places."""

    def __init__(self, work: Workload, op: Op, folder: Path, tf32: bool) -> None:
        self.work, self.op, self.folder = work, op, folder
        self.computed_by(tf32)
        rng = default_rng(0)
        self.inputs = {o.name: noise(rng, o.shape, o.dtype) for o in op.inputs}
        if work.file:
            x = self.inputs["x"]
            mapped = np.lib.format.open_memmap(folder / "x.npy", "w+", x.dtype, x.shape)
            mapped[...] = x
            mapped.flush()
            self.inputs["x"] = np.load(folder / "x.npy", mmap_mode="r")
        self.samples = list(sampled(op, self.inputs, rng))
        self._pinned: dict[str, Any] = {}

    def computed_by(self, tf32: bool) -> None:
        """From here on with TF32 or without."""
        self.tf32, self.in_core_seconds = tf32, math.nan

    def pinned(self, arrays: Arrays, name: str) -> Any:
        """An operand in pinned memory: made once, for pinning takes longer than most measurements. x in a file stays there."""
        if self.work.file and name in self.inputs and name == self.op.inputs[0].name:
            return self.inputs[name]
        if name not in self._pinned:
            operand = next(o for o in self.op.operands if o.name == name)
            self._pinned[name] = arrays.pinned(operand.shape, operand.dtype)
            if name in self.inputs:
                self._pinned[name][...] = self.inputs[name]
        return self._pinned[name]

    def outputs(self) -> dict[str, Any]:
        return {o.name: np.empty(o.shape, numpy_dtype(o.dtype)) for o in self.op.outputs}

    def check(self, fetch: Callable[[Region], Any]) -> None:
        """Raise unless a result is right at every sampled place."""
        bound = max(TOLERANCE[self.op.dtype], 5e-3 if self.tf32 else 0)
        for region, expected in self.samples:
            error = np.max(np.abs(np.asarray(fetch(region), np.float64) - expected))
            if not error <= bound * max(1.0, float(np.max(np.abs(expected)))):
                raise RuntimeError(f"wrong by {error:.3g} at {region}")


def noise(rng: Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Random numbers, the same few millions over and over: drawing billions would take minutes."""
    count = math.prod(shape)
    block = (rng.standard_normal(min(count, 1 << 22), np.float32) / 4).astype(numpy_dtype(dtype))
    noise = np.empty(count, numpy_dtype(dtype))
    for at in range(0, count, block.size):
        noise[at : at + block.size] = block[: count - at]
    return noise.reshape(shape)


def sampled(op: Op, inputs: dict[str, Any], rng: Generator, count: int = 4) -> Iterator[tuple[Region, Any]]:
    """Random regions of the output and what they should hold: the op on the CPU, in tiles of a few elements."""
    output, backend = op.outputs[0], CpuBackend(1)
    sizes = op.legal({d: e if d in op.reduce else min(e, 3) for d, e in op.dims.items()})
    offer = backend.offers(op)[0]
    nbytes = int(offer.workspace(sizes))
    kernel = backend.kernel(op, offer.name, sizes, backend.allocate("workspace", nbytes)[:nbytes] if nbytes else None)
    for _ in range(count):
        tile = {}
        for d, e in op.dims.items():
            lo = sizes[d] * int(rng.integers(-(-e // sizes[d])))
            tile[d] = Span(lo, min(lo + sizes[d], e))
        blocks = {o.name: Block(np.ascontiguousarray(inputs[o.name][slices(o.region(tile))]), o.region(tile)) for o in op.inputs}
        region = output.region(tile)
        held = np.zeros([s.extent for s in region], numpy_dtype(output.dtype))
        order = np.argsort(output.memory_order)
        result = np.ascontiguousarray(held.transpose(output.memory_order)).transpose(order)
        kernel(tile, {**blocks, output.name: Block(result, region)}, True, True)
        yield region, result.astype(np.float64)


# ---- contestants: each a function that does the work once, and one that reads a region of the result
