"""A CUDA device that is not there: its memory is this machine's, its streams run behind the host in a hostile order.

What is issued on a stream is done later, when somebody waits for it or when the adversary likes; streams overtake each
other wherever no event forbids it. Kernels are the real ones, compiled for the host. Device memory may be touched by
nobody else: the host's reads and writes of it are fatal, as on a device.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from emulated import HostLauncher
from stand_in_blas import StandInBlas
from stand_in_cudnn import stand_in
from stand_in_fft import StandInFft

from ooc.backends.cuda.backend import CudaBackend
from ooc.backends.device_array import at, device_array, host_array
from ooc.backends.views import dense_strides
from ooc.errors import UnsupportedError

LIBC = ctypes.CDLL(None, use_errno=True)
PROTECTED, OPEN = 0, 3  # PROT_NONE; PROT_READ | PROT_WRITE


@dataclass
class Piece:
    """Memory that was handed out."""

    address: int
    nbytes: int
    pages: mmap.mmap

    def holds(self, lo: int, hi: int) -> bool:
        return self.address <= lo and hi <= self.address + self.nbytes


@dataclass
class Call:
    """One entry of the log."""

    thread: str
    what: str
    stream: int = 0
    event: int = 0
    note: Any = None


class EmulatedDriver:
    """A `Driver` without a device. cudnn: a factory of what stands in for cuDNN, or None for a device without it."""

    index, total_bytes, free_bytes = 0, 1 << 30, 1 << 30

    def __init__(self, seed: int = 0, cudnn: Callable[[Any, int], Any] | None = None, grid: int | None = None) -> None:
        self.rng, self.lock, self.own = random.Random(seed), threading.RLock(), threading.local()
        self.launcher, self.make_cudnn = HostLauncher(grid), cudnn
        self.device: list[Piece] = []
        self.pinned: list[Piece] = []
        self.registered: list[tuple[int, int]] = []
        self.queues: dict[int, deque[Any]] = {}
        self.issued: dict[int, int] = {}  # by event: how often it was recorded
        self.reached: dict[int, tuple[int, float]] = {}  # by event: which record was reached last, and when
        self.log: list[Call] = []
        self._scratch: Piece | None = None
        self.foreign = [self.new_stream()]  # a stream of the caller's
        self.failing: Exception | None = None
        self.open_blocks = 0  # `opened`, nested; memory that the collector gives back in one must not close it

    # ---- memory

    def _pages(self, nbytes: int) -> Piece:
        pages = mmap.mmap(-1, nbytes)
        pages[:] = b"\xff" * nbytes  # NaN in every type
        return Piece(ctypes.addressof(ctypes.c_char.from_buffer(pages)), nbytes, pages)

    def available(self) -> int:
        self._mine()
        return self.free_bytes - sum(piece.nbytes for piece in self.device)

    def malloc(self, nbytes: int) -> int:
        with self.lock:
            self._log("malloc", note=nbytes)
            self.device.append(self._pages(nbytes))
            self._protect()
            return self.device[-1].address

    def free(self, address: int) -> None:
        with self.lock:
            self.device = [p for p in self.device if p.address != address]

    def host_malloc(self, nbytes: int) -> int:
        with self.lock:
            self._log("host_malloc", note=nbytes)
            self.pinned.append(self._pages(nbytes))
            return self.pinned[-1].address

    def host_free(self, address: int) -> None:
        with self.lock:
            self.pinned = [p for p in self.pinned if p.address != address]

    def register(self, address: int, nbytes: int) -> None:
        with self.lock:
            self._log("register", note=(address, nbytes))
            self.registered.append((address, address + nbytes))

    def unregister(self, address: int) -> None:
        with self.lock:
            self._log("unregister", note=address)
            self.registered = [r for r in self.registered if r[0] != address]

    def spare(self) -> None:
        self._log("spare")

    def where(self, address: int) -> tuple[str, int]:
        if any(p.holds(address, address + 1) for p in self.device):
            return "device", self.index
        return ("pinned" if self._reachable(address, address + 1) else "host"), -1

    def _reachable(self, lo: int, hi: int) -> bool:
        """Whether the device may copy from these bytes of the host."""
        return any(p.holds(lo, hi) for p in self.pinned) or any(a <= lo and hi <= b for a, b in self.registered)

    def _protect(self) -> None:
        how = OPEN if self.open_blocks else PROTECTED
        for piece in (*self.device, *filter(None, (self._scratch,))):
            LIBC.mprotect(ctypes.c_void_p(piece.address), ctypes.c_size_t(piece.nbytes), how)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Device memory, open to this thread's own hands."""
        with self.lock:
            self.open_blocks += 1
            self._protect()
            try:
                yield
            finally:
                self.open_blocks -= 1
                self._protect()

    @property
    def scratch(self) -> int:
        """The workspace that all of cuDNN's convolutions share: no memory of any plan."""
        with self.lock:
            if self._scratch is None:
                self._scratch = self._pages(1 << 16)
                self._protect()
            return self._scratch.address

    # ---- streams and events

    def new_stream(self) -> int:
        self.queues[len(self.queues) + 1] = deque()
        return len(self.queues)

    def stream(self) -> int:
        self._mine()
        with self.lock:
            return self.new_stream()

    def event(self) -> int:
        self._mine()
        with self.lock:
            self.issued[len(self.issued) + 1] = 0
            return len(self.issued)

    def record(self, event: int, stream: int) -> None:
        with self.lock:
            self.issued[event] += 1
            version = self.issued[event]
            self._issue("record", stream, event, lambda: self.reached.update({event: (version, time.perf_counter())}))

    def wait(self, stream: int, event: int) -> None:
        with self.lock:
            version = self.issued[event]
            self._issue("wait", stream, event, lambda: None, ready=lambda: self._is_reached(event, version))

    def finish(self, event: int) -> None:
        """The adversary does as much of everything else as it likes before the event is reached."""
        with self.lock:
            self._log("finish", event=event)
            version = self.issued[event]
            while not self._is_reached(event, version):
                assert self._advance(), f"deadlock: event {event} is never reached"
            self._log("finished", event=event)
            if self.failing:
                raise self.failing

    def seconds(self, first: int, second: int) -> float:
        return self.reached[second][1] - self.reached[first][1]

    def _is_reached(self, event: int, version: int) -> bool:
        return self.reached.get(event, (0, 0.0))[0] >= version

    def _issue(self, what: str, stream: int, event: int, work: Callable[[], None], ready: Callable[[], bool] = lambda: True,
               note: Any = None) -> None:  # fmt: skip
        self._mine()
        self._log(what, stream, event, note)
        self.queues[stream].append((ready, work))
        for _ in range(self.rng.choice((0, 0, 0, 1, 4))):
            self._advance()

    def _advance(self) -> bool:
        """Do the next thing of some stream whose next thing may be done."""
        able = [q for q in self.queues.values() if q and q[0][0]()]
        if able:
            _, work = self.rng.choice(able).popleft()
            work()
        return bool(able)

    def _log(self, what: str, stream: int = 0, event: int = 0, note: Any = None) -> None:
        self.log.append(Call(threading.current_thread().name, what, stream, event, note))

    # ---- work

    def copy(self, rows: Any, stream: int) -> None:
        r = replace_rows(rows)
        for address, pitch, height in ((r.target, r.target_pitch, r.target_height), (r.source, r.source_pitch, r.source_height)):
            reach = ((r.depth - 1) * height + r.height - 1) * pitch + r.width
            known = any(p.holds(address, address + reach) for p in self.device) or self._reachable(address, address + reach)
            assert known, "a copy reaches outside the device's memory and pinned memory"
        with self.lock:
            self._issue("copy", stream, 0, lambda: self._copy(r))

    def _copy(self, r: Any) -> None:
        with self.opened():
            for z in range(r.depth):
                for y in range(r.height):
                    to = r.target + (z * r.target_height + y) * r.target_pitch
                    of = r.source + (z * r.source_height + y) * r.source_pitch
                    ctypes.memmove(to, of, r.width)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        with self.lock:
            self._issue("clear", stream, 0, lambda: self._clear(address, nbytes))

    def _clear(self, address: int, nbytes: int) -> None:
        with self.opened():
            ctypes.memset(address, 0, nbytes)

    def launch(self, name: str, dtype: str, threads: int, args: Any, index: int, stream: int) -> None:
        held = args.copy()
        for tensor in held["t"]:
            data = int(tensor["data"])
            on_device = any(p.holds(data, data) for p in self.device)
            assert data == 0 or on_device or not np.prod(tensor["extent"]), f"{name}: a block is not in device memory"
        with self.lock:
            self._issue("launch", stream, 0, lambda: self._launch(name, dtype, threads, held, index), note=name)

    def _launch(self, name: str, dtype: str, threads: int, args: Any, index: int) -> None:
        with self.opened():
            self.launcher.launch(name, dtype, threads, args, index)

    # ---- the rest

    @contextmanager
    def current(self) -> Iterator[None]:
        self.own.depth = getattr(self.own, "depth", 0) + 1
        try:
            yield
        finally:
            self.own.depth -= 1

    def _mine(self) -> None:
        assert getattr(self.own, "depth", 0), "the device is not the calling thread's current one"

    def identity(self) -> dict[str, Any]:
        return {"gpu": "emulated", "capability": "9.0", "driver": 0}

    def caller_streams(self) -> list[int]:
        return self.foreign

    def cudnn(self, stream: int) -> Any:
        if self.make_cudnn is None:
            raise UnsupportedError("cudnn: the emulated device has none")
        return self.make_cudnn(self, stream)

    def blas(self, stream: int) -> Any:
        if self.make_cudnn is None:
            raise UnsupportedError("cublas: the emulated device has none")
        return StandInBlas(self, stream)

    def fft(self, stream: int) -> Any:
        if self.make_cudnn is None:
            raise UnsupportedError("cufft: the emulated device has none")
        return StandInFft(self, stream)

    def work(self, what: str, stream: int, work: Callable[[], None]) -> None:
        """Have a library's work done on a stream, by this thread's own hands."""

        def done() -> None:
            with self.opened():
                work()

        with self.lock:
            self._issue("launch", stream, 0, done, note=what)


def replace_rows(rows: Any) -> Any:
    """Rows whose pitches are given even where there is one row."""
    return rows._replace(target_height=rows.target_height or 1, source_height=rows.source_height or 1)


class Foreign:
    """An array of some other library in device memory."""

    def __init__(self, backend: EmulatedCuda, address: int, shape: Any, dtype: Any, strides: Any) -> None:
        self.backend, self.shape, self.dtype = backend, shape, dtype
        code = "<V2" if np.dtype(dtype).name == "bfloat16" else np.dtype(dtype).str
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": tuple(shape), "typestr": code, "strides": tuple(strides), "version": 3,
        }  # fmt: skip


class EmulatedCuda(CudaBackend):
    """The CUDA backend on the emulated device; what is read before it is written shows."""

    def allocate(self, space: str, nbytes: int) -> Any:
        memory = super().allocate(space, nbytes)
        if nbytes:
            with self.driver.opened():
                ctypes.memset(at(memory), 0xFF, memory.nbytes)
        return memory

    def place_copy(self, array: Any, space: str) -> Any:
        """A copy of an array in device memory or pinned memory, with the same strides' order and a gap at every row."""
        driver = self.driver
        address = (driver.malloc if space == "device" else driver.host_malloc)(max(array.nbytes, 1))
        strides = dense_strides(array.shape, array.itemsize, tuple(np.argsort([-s for s in array.strides], kind="stable")))
        with driver.opened():
            host_array(address, array.shape, array.dtype, strides)[...] = array
        made = device_array if space == "device" else host_array
        return made(address, array.shape, array.dtype, strides, Foreign(self, address, array.shape, array.dtype, strides))

    def peek(self, array: Any) -> Any:
        """A device array's contents, whatever the streams still have to do."""
        with self.driver.opened():
            return np.array(host_array(at(array), array.shape, array.dtype, array.strides))


def emulated(
    seed: int = 0, cudnn: bool = False, grid: int | None = None, repeatable: bool = False, tf32: bool = False
) -> EmulatedCuda:
    """The CUDA backend on an emulated device, with or without a stand-in for cuDNN."""
    return EmulatedCuda(EmulatedDriver(seed, stand_in if cudnn else None, grid), tf32, threads=1, repeatable=repeatable)


def on_one_device() -> Callable[[bool], EmulatedCuda]:
    """f(tf32): backends of one emulated device, with a stand-in for cuDNN: what one has pinned the other one may copy."""
    driver = EmulatedDriver(0, stand_in, None)
    return lambda tf32: EmulatedCuda(driver, tf32, threads=1)
