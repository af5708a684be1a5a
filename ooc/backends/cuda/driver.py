"""The few calls of the CUDA runtime that the backend makes, and CuPy as the one that makes them."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ooc.backends.cuda.blas import CupyBlas
from ooc.backends.cuda.code import machine_code
from ooc.backends.cuda.cudnn import cudnn_reason, open_cudnn
from ooc.backends.cuda.cufft import CupyFft
from ooc.backends.cuda.source import part_of
from ooc.backends.cuda.tuning import TunedCudnn
from ooc.errors import BackendError, UnsupportedError

THREADS = 256  # of a block
BLOCKS = 1 << 16  # kernels walk over what is more


class Driver(Protocol):
    """A device and its runtime. Addresses, streams and events are integers; copies and launches return at once."""

    index: int
    total_bytes: int
    free_bytes: int  # when it was opened

    def current(self) -> Any:
        """A context in which the device is the calling thread's own."""

    def identity(self) -> dict[str, Any]:
        """What measurements of this device depend on: its name, driver and library versions."""

    def available(self) -> int:
        """Bytes of the device that are free now."""

    def malloc(self, nbytes: int) -> int: ...

    def free(self, address: int) -> None: ...

    def host_malloc(self, nbytes: int) -> int:
        """Pinned host memory."""

    def host_free(self, address: int) -> None: ...

    def register(self, address: int, nbytes: int) -> None:
        """Pin host memory that is somebody else's."""

    def unregister(self, address: int) -> None: ...

    def spare(self) -> None:
        """Have the libraries that share the device give back what they keep of it for later."""

    def where(self, address: int) -> tuple[str, int]:
        """What memory an address is: `device` with the index of that, `pinned`, or `host`."""

    def stream(self) -> int:
        """A stream that does not wait for the legacy default stream."""

    def event(self) -> int:
        """An event that is timed, and for which threads wait asleep: a core that spins is one that copies no more."""

    def record(self, event: int, stream: int) -> None: ...

    def wait(self, stream: int, event: int) -> None:
        """Work issued on a stream from now on waits for an event."""

    def finish(self, event: int) -> None:
        """The calling thread waits for an event."""

    def seconds(self, first: int, second: int) -> float:
        """Seconds from one completed event to another."""

    def copy(self, rows: Any, stream: int) -> None:
        """Copy `PitchedRows`, between any memories."""

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Set device memory to zero."""

    def launch(self, name: str, dtype: str, threads: int, args: Any, index: int, stream: int) -> None:
        """Start a kernel of kernels/device/ with an ARGS record, and coordinates of `index` bits."""

    def caller_streams(self) -> list[int]:
        """The streams on which the calling thread's other libraries work."""

    def cudnn(self, stream: int) -> Any:
        """cuDNN for this device, computing on a stream. Raises UnsupportedError where there is none."""

    def blas(self, stream: int) -> Any:
        """cuBLAS for this device, computing on a stream. Raises UnsupportedError where there is none."""

    def fft(self, stream: int) -> Any:
        """cuFFT for this device, computing on a stream. Raises UnsupportedError where there is none."""


class _Extent(ctypes.Structure):
    _fields_ = (("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t))


class _Pitched(ctypes.Structure):
    _fields_ = (("ptr", ctypes.c_void_p), ("pitch", ctypes.c_size_t), ("xsize", ctypes.c_size_t), ("ysize", ctypes.c_size_t))


class _Copy3D(ctypes.Structure):
    """cudaMemcpy3DParms."""

    _fields_ = (
        ("srcArray", ctypes.c_void_p), ("srcPos", _Extent), ("srcPtr", _Pitched),
        ("dstArray", ctypes.c_void_p), ("dstPos", _Extent), ("dstPtr", _Pitched),
        ("extent", _Extent), ("kind", ctypes.c_int),
    )  # fmt: skip


class CupyDriver:
    """A device through CuPy. Raises UnsupportedError where there is none."""

    def __init__(self, index: int = 0) -> None:
        try:
            import cupy
            from cupy_backends.cuda.api import driver, runtime
            from cupy_backends.cuda.libs import nvrtc
        except ImportError as error:
            raise UnsupportedError(
                f"device 'cuda': CuPy is missing ({error}); install cupy-cuda13x, or use device('cpu')"
            ) from None
        try:
            count = runtime.getDeviceCount()
        except Exception as error:
            raise UnsupportedError(f"device 'cuda': no usable CUDA device ({error}); use device('cpu')") from None
        if index >= count:
            raise UnsupportedError(f"device 'cuda:{index}': this machine has {count} CUDA device(s)")
        self.index, self.cupy, self.runtime, self.driver, self.nvrtc = index, cupy, runtime, driver, nvrtc
        self._functions: dict[tuple[str, str, int], int] = {}
        self._modules: dict[tuple[str, str, int], Any] = {}
        self._lock = threading.Lock()
        with self.current():
            self.free_bytes, self.total_bytes = runtime.memGetInfo()
            self.malloc, self.free = runtime.malloc, runtime.free
            self.host_free, self.unregister = runtime.freeHost, runtime.hostUnregister
            self.record, self.finish = runtime.eventRecord, runtime.eventSynchronize

    @contextmanager
    def current(self) -> Iterator[None]:
        with self.cupy.cuda.Device(self.index):
            yield

    def identity(self) -> dict[str, Any]:
        properties = self.runtime.getDeviceProperties(self.index)
        return {
            "gpu": properties["name"].decode(),
            "capability": f"{properties['major']}.{properties['minor']}",
            "driver": self.runtime.driverGetVersion(),
            "runtime": self.runtime.runtimeGetVersion(),
            "cupy": self.cupy.__version__,
        }

    def available(self) -> int:
        return int(self.runtime.memGetInfo()[0])

    def host_malloc(self, nbytes: int) -> int:
        return int(self.runtime.hostAlloc(nbytes, self.runtime.hostAllocPortable))

    def register(self, address: int, nbytes: int) -> None:
        self.runtime.hostRegister(address, nbytes, 1)  # cudaHostRegisterPortable

    def spare(self) -> None:
        self.cupy.get_default_memory_pool().free_all_blocks()
        self.cupy.get_default_pinned_memory_pool().free_all_blocks()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def where(self, address: int) -> tuple[str, int]:
        runtime = self.runtime
        try:
            pointer = runtime.pointerGetAttributes(address)
        except runtime.CUDARuntimeError:
            return "host", -1
        on_device = pointer.type in (runtime.memoryTypeDevice, runtime.memoryTypeManaged)
        return "device" if on_device else "pinned" if pointer.type == runtime.memoryTypeHost else "host", int(pointer.device)

    def stream(self) -> int:
        return int(self.runtime.streamCreateWithFlags(self.runtime.streamNonBlocking))

    def event(self) -> int:
        return int(self.runtime.eventCreateWithFlags(self.runtime.eventBlockingSync))

    def wait(self, stream: int, event: int) -> None:
        self.runtime.streamWaitEvent(stream, event)

    def seconds(self, first: int, second: int) -> float:
        return float(self.runtime.eventElapsedTime(first, second)) * 1e-3

    def copy(self, rows: Any, stream: int) -> None:
        kind = self.runtime.memcpyDefault
        if rows.depth > 1:
            self._copy_slices(rows, kind, stream)
        elif rows.height > 1:
            self.runtime.memcpy2DAsync(
                rows.target, rows.target_pitch, rows.source, rows.source_pitch, rows.width, rows.height, kind, stream
            )
        else:
            self.runtime.memcpyAsync(rows.target, rows.source, rows.width, kind, stream)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        self.runtime.memsetAsync(address, 0, nbytes, stream)

    def _copy_slices(self, rows: Any, kind: int, stream: int) -> None:
        what = _Copy3D()
        what.srcPtr = _Pitched(rows.source, rows.source_pitch, rows.width, rows.source_height)
        what.dstPtr = _Pitched(rows.target, rows.target_pitch, rows.width, rows.target_height)
        what.extent, what.kind = _Extent(rows.width, rows.height, rows.depth), kind
        self.runtime.memcpy3DAsync(ctypes.addressof(what), stream)

    def launch(self, name: str, dtype: str, threads: int, args: Any, index: int, stream: int) -> None:
        blocks = min(-(-threads // THREADS), BLOCKS)
        parameter = ctypes.c_void_p(args.ctypes.data)  # the driver copies the record before it returns
        function = self._function(name, dtype, index)
        self.driver.launchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(parameter), 0)

    def _function(self, name: str, dtype: str, index: int) -> int:
        """A kernel, compiled for an element type when first asked for."""
        with self._lock:
            function = self._functions.get((name, dtype, index))
            if function is None:
                module = self._module(part_of()[name], dtype, index)
                function = self._functions[name, dtype, index] = int(module.get_function(name).ptr)
            return function

    def _module(self, part: str, dtype: str, index: int) -> Any:
        if (part, dtype, index) not in self._modules:
            module = self.cupy.cuda.function.Module()
            arch = str(self.identity()["capability"]).replace(".", "")
            module.load(machine_code(self.nvrtc, part, dtype, index, arch))
            self._modules[part, dtype, index] = module
        return self._modules[part, dtype, index]

    def caller_streams(self) -> list[int]:
        """CuPy's current stream, and PyTorch's if it is in use."""
        streams = [int(self.cupy.cuda.get_current_stream(self.index).ptr)]
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            streams.append(int(torch.cuda.current_stream(self.index).cuda_stream))
        return list(dict.fromkeys(streams))

    def cudnn(self, stream: int) -> Any:
        library = open_cudnn()
        if library is None:
            raise UnsupportedError(f"cudnn: {cudnn_reason()}")
        with self.current():
            try:
                return TunedCudnn(library, stream, self.identity(), self.available, self.malloc)
            except BackendError as error:  # of another CUDA version, say: our own kernels do
                raise UnsupportedError(f"cudnn: {error}") from error

    def blas(self, stream: int) -> Any:
        return self._opened("cublas", CupyBlas, stream)

    def fft(self, stream: int) -> Any:
        return self._opened("cufft", CupyFft, stream)

    def _opened(self, name: str, library: Callable[[int, Callable[[], int]], Any], stream: int) -> Any:
        with self.current():
            try:
                return library(stream, self.available)
            except Exception as error:  # it is missing, or of another CUDA version
                raise UnsupportedError(f"{name}: {error}") from error
