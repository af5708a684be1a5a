"""The CUDA backend: memory of a device and pinned memory of the host, copies, and kernels of cuDNN and of our own."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ooc.backends import algorithms
from ooc.backends.base import Kernel
from ooc.backends.cpu.backend import default_threads
from ooc.backends.cuda.conv import cudnn_family
from ooc.backends.cuda.copy import rows
from ooc.backends.cuda.driver import CupyDriver, Driver
from ooc.backends.cuda.fft import CUFFT
from ooc.backends.cuda.kernels import move, own_kernel
from ooc.backends.cuda.products import blas_family
from ooc.backends.cuda.streams import LaneStreams
from ooc.backends.device_array import DeviceArray, at, device_array, host_array
from ooc.backends.families import Family, FamilyBackend, Spare, always, ever, no_workspace
from ooc.backends.gpu_workspace import in_order, parts_of, shared_bytes
from ooc.backends.views import dense
from ooc.cache import Cache, lock_across_forks
from ooc.errors import BackendError, OutOfMemoryError, UnsupportedError
from ooc.ir.op import Op, dtype_name, numpy_dtype
from ooc.ir.region import Sizes
from ooc.native import bounds

RING = 128 << 20  # bytes of pinned memory that stay for the next staging ring: pinning a GiB takes two thirds of a second
TOLD = 1024  # things that are remembered as told


def _own(op: Op, sizes: Sizes, scratch: Any, backend: CudaBackend) -> Kernel:
    return own_kernel(op, backend, int(parts_of(op, sizes)), scratch)


def _plain(op: Op, sizes: Sizes, scratch: Any, backend: CudaBackend) -> Kernel:
    return own_kernel(op, backend)


OWN = {
    "cuda": Family(
        always, lambda op, sizes, backend: shared_bytes(op, sizes, parts_of(op, sizes)), _own, empty=True, ordered=in_order
    ),
    "plain": Family(always, no_workspace, _plain, empty=True, ordered=ever),
}
# Without TF32 and with it.
EXACT, ROUNDED = (
    {"cufft": CUFFT} | {name: cudnn_family(*how) for name, how in classes.items()} | {blas: blas_family("tf32" in blas)} | OWN
    for classes, blas in ((algorithms.EXACT, "cublas"), (algorithms.ROUNDED, "cublas_tf32"))
)


class _Held:
    """Memory that is given back when nobody uses it any more."""

    def __init__(self, address: int, free: Callable[[int], None], driver: Driver) -> None:
        self.address, self.free, self.driver = address, free, driver

    def __del__(self) -> None:
        with contextlib.suppress(Exception), self.driver.current():  # the interpreter may be half gone
            self.free(self.address)


class _On(NamedTuple):
    """A backend whose kernels go to one of its lanes."""

    backend: CudaBackend
    lane: str

    def launch(self, name: str, dtype: str, threads: int, args: Any, index: int) -> None:
        self.backend.launch(name, dtype, threads, args, index, self.lane)


class CudaBackend(FamilyBackend, LaneStreams):
    """One CUDA device.

    tf32: whether f32 convolutions may round their factors to TF32. threads: for staging copies. repeatable: whether cuDNN
    computes with those algorithms alone that give the same bits each time, and which measurements do not choose.

    Families of kernels: `cufft` convolutions of many taps by cuFFT and cuBLAS; `cudnn...` convolutions by cuDNN, one for each
    class of its algorithms; `cublas...` products of matrices and attention by cuBLAS; `cuda` everything by our own kernels;
    `plain` the same with sums in an order that does not depend on the tiling.
    """

    name = "cuda"
    staged = True  # the device reaches pinned host memory only
    shared = False

    def __init__(
        self,
        driver: Driver | None = None,
        tf32: bool = False,
        threads: int | None = None,
        index: int = 0,
        repeatable: bool = False,
    ) -> None:
        self.driver = driver if driver is not None else CupyDriver(index)
        self.families, self.repeatable = ROUNDED if tf32 else EXACT, repeatable
        self.copy_threads = self.turn_threads = threads or min(default_threads(), 8)
        with self.driver.current():
            LaneStreams.__init__(self, self.driver)
        self.total_bytes, self.streaming_bytes = self.driver.total_bytes, self.driver.free_bytes // 4 * 3
        identity = self.driver.identity()
        self.processor, self.capability = str(identity["gpu"]), str(identity["capability"])
        self.index = self.driver.index
        self._libraries: dict[str, Any] = {}
        self._opening, self._told = threading.Lock(), Cache[bool](TOLD)
        self._memory, self._process = Spare(math.inf, {"staging": RING}), os.getpid()

    @property
    def means(self) -> CudaBackend:  # type: ignore[override]
        """What kernels are made with: no field, so that memory goes with the last who holds it."""
        return self

    @property
    def workspace_bytes(self) -> int:
        """Half of what is free of the device, kept memory included; in powers of two, so that plans stay the same while others
        take and give a little."""
        with self.driver.current():
            free = self.driver.available() + self._memory.nbytes("device")
        return 1 << max(free // 2, 1).bit_length() - 1

    def bare(self) -> None:
        """What may be used depends on what is free of the device when it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        """The device of this number is opened, where the copy is; streams and memory stay here."""
        return cuda_backend, (self.index, self.families is ROUNDED, self.copy_threads, self.repeatable)

    # ---- memory

    def allocate(self, space: str, nbytes: int) -> Any:
        """Device memory, or pinned host memory for the staging ring and for spilled sums."""
        kept = self._memory.take(space, nbytes)
        return kept if kept is not None else self._fresh(space, nbytes)

    def _fresh(self, space: str, nbytes: int) -> Any:
        driver, on_device = self.driver, space == "device"
        if not nbytes:
            return device_array(0, (0,), np.uint8) if on_device else np.empty(0, np.uint8)
        take = driver.malloc if on_device else driver.host_malloc
        with driver.current():
            try:
                try:
                    address = take(nbytes)
                except Exception:
                    self._free_all()
                    address = take(nbytes)
            except Exception as error:
                what = f"{nbytes} bytes of {'device' if on_device else 'pinned host'} memory"
                raise OutOfMemoryError(f"cuda:{driver.index}: cannot allocate {what}: {error}") from error
        held = _Held(address, driver.free if on_device else driver.host_free, driver)
        return (device_array if on_device else host_array)(address, (nbytes,), np.uint8, owner=held)

    def _free_all(self) -> None:
        """Give back what nobody uses: of finished runs, of circles of objects, of libraries that share the device."""
        self._memory.empty()
        gc.collect()
        self.driver.spare()

    def release(self, space: str, memory: Any) -> None:
        """Keep the memory for the next run: freeing it would stop the whole device."""
        self._memory.give(space, memory)

    def idle(self) -> None:
        self._memory.rest()

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Any:
        if dtype == "bytes":
            return memory[offset : offset + shape[0]]
        return dense(memory, offset, shape, numpy_dtype(dtype), order)

    def place(self, array: Any) -> str:
        """Where an array lies, as the device sees it: `device`, `pinned` (what copy engines can walk), or `host`.

        Raises UnsupportedError for the memory of another device, and in a forked child, where the driver is of no use.
        """
        if os.getpid() != self._process:
            raise UnsupportedError("cuda: a forked process cannot use the GPU of its parent; start it by spawn")
        if not array.size:
            return "device" if isinstance(array, DeviceArray) else "host"
        lo, hi = bounds(array)
        kinds = {self.driver.where(lo), self.driver.where(hi - 1)}
        if isinstance(array, DeviceArray):
            if kinds != {("device", self.driver.index)}:
                have = ", ".join(f"{kind} {index}" for kind, index in sorted(kinds))
                raise UnsupportedError(f"an array lies in other memory ({have}) than that of device cuda:{self.driver.index}")
            return "device"
        return "pinned" if self.walks(array) and {kind for kind, _ in kinds} == {"pinned"} else "host"

    def walks(self, array: Any) -> bool:
        """Whether copy engines can walk over an array of the host, were it pinned: in rows, forwards."""
        strides = [s for s, e in zip(array.strides, array.shape, strict=True) if e > 1]
        return bool(min(strides, default=0) == array.itemsize)

    @contextmanager
    def pin(self, array: Any) -> Iterator[None]:
        """Pin an array of the host for a while. Raises BackendError where the system refuses."""
        lo, hi = bounds(array)
        with self.driver.current():
            try:
                self.driver.register(lo, hi - lo)
            except Exception as error:
                raise BackendError(f"cuda:{self.driver.index}: cannot pin {hi - lo} bytes: {error}") from error
            try:
                yield
            finally:
                self.driver.unregister(lo)

    def fetch(self, array: Any) -> Any:
        if not isinstance(array, DeviceArray):
            return array
        held = self._fresh("staging", array.nbytes)
        staged = self.view(held, 0, array.shape, dtype_name(array.dtype, stored=True), tuple(range(array.ndim)))
        self._now("d2h", staged, array)
        return np.array(staged)

    def put(self, array: Any, values: Any) -> None:
        if not isinstance(array, DeviceArray):
            array[...] = values
            return
        held = self._fresh("staging", array.nbytes)
        staged = self.view(held, 0, array.shape, dtype_name(array.dtype, stored=True), tuple(range(array.ndim)))
        staged[...] = values
        self._now("h2d", array, staged)

    def _now(self, lane: str, target: Any, source: Any) -> None:
        self.begin()
        with self.lane(lane):
            self.copy(lane, target, source)

    # ---- work

    def _library(self, name: str) -> Any:
        """One of the driver's libraries on this device, opened when first used. Raises UnsupportedError where it is missing."""
        with self._opening:  # what it takes of the device is measured while it opens
            if name not in self._libraries:
                self._libraries[name] = getattr(self.driver, name)(self.streams["compute"])
            return self._libraries[name]

    @property
    def cudnn(self) -> Any:
        """cuDNN on this device. Raises UnsupportedError where it is missing."""
        return self._library("cudnn")

    @property
    def blas(self) -> Any:
        """cuBLAS on this device. Raises UnsupportedError where it is missing."""
        return self._library("blas")

    @property
    def fft(self) -> Any:
        """cuFFT on this device. Raises UnsupportedError where it is missing."""
        return self._library("fft")

    @property
    def own_bytes(self) -> int:
        """What cuDNN took of the device for itself, and cuBLAS and cuFFT where they were opened."""
        with contextlib.suppress(UnsupportedError):
            self._library("cudnn")
        return sum(int(library.own_bytes) for library in self._libraries.values())

    def why_not(self, op: Op) -> dict[str, str]:
        reasons = super().why_not(op)
        for prefix, libraries in (("cudnn", ("cudnn",)), ("cublas", ("blas",)), ("cufft", ("fft", "blas"))):
            served = [name for name in self.families if name.startswith(prefix) and name not in reasons]
            try:
                for library in libraries if served else ():
                    self._library(library)
            except UnsupportedError as error:
                reasons |= dict.fromkeys(served, str(error))
        return reasons

    def tells_once(self, what: Any) -> bool:
        """Whether something has not been told yet; it counts as told from now on."""
        return self._told.get(what) is None and self._told.keep(what, True)

    def copy(self, lane: str, target: Any, source: Any) -> None:
        """Copy on a lane: rows by the copy engines; within the device, what is not contiguous by a kernel."""
        calls = list(rows(target, source))
        inside = isinstance(target, DeviceArray) and isinstance(source, DeviceArray)
        if inside and (len(calls) > 1 or any(c.height > 1 for c in calls)):
            move(_On(self, lane), "copy_block", "f32", target, source, target.itemsize)
            return
        for call in calls:
            self.driver.copy(call, self.streams[lane])

    def clear(self, target: Any) -> None:
        """Set a dense array to zero, on the compute lane."""
        self.driver.clear(at(target), target.nbytes, self.streams["compute"])

    def convert(self, target: Any, source: Any) -> None:
        """Copy between a half type and f32, on the compute lane."""
        wider = target.itemsize > source.itemsize
        half = dtype_name((source if wider else target).dtype)
        move(self, "widen_block" if wider else "narrow_block", half, target, source)

    def launch(self, name: str, dtype: str, threads: int, args: Any, index: int, lane: str = "compute") -> None:
        """Start one of our kernels on a lane."""
        if threads:
            self.driver.launch(name, dtype, threads, args, index, self.streams[lane])


_opened: dict[tuple[int, bool, int | None, bool], CudaBackend] = {}
_opening = lock_across_forks()


def cuda_backend(index: int, tf32: bool, threads: int | None, repeatable: bool = False) -> CudaBackend:
    """The backend of a device and a mode, one in a process: streams, events and what cuDNN holds are dear, and never given back.
    Raises UnsupportedError."""
    key = index, tf32, threads, repeatable
    with _opening:
        if key not in _opened:
            _opened[key] = CudaBackend(None, tf32, threads, index, repeatable)
        return _opened[key]
