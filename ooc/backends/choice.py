"""Which backend a name means."""

from __future__ import annotations

import ctypes

from ooc.backends.base import Backend
from ooc.backends.cpu.backend import CpuBackend
from ooc.backends.null import NullBackend
from ooc.errors import ArgumentError, UnsupportedError

BACKENDS = ("auto", "cpu", "cuda", "null")


def open_backend(name: str, threads: int | None, staged: bool, tf32: bool, repeatable: bool = False) -> Backend:
    """The backend of a name: auto (a CUDA device if there is one), cpu, cuda, cuda:1 and so on, or null; in capitals or not.

    threads, tf32: see `ooc.device`. staged: the CPU is reached through a ring of buffers, as a GPU is. repeatable: a plan gives
    the same bits each time (on a CPU every plan does). Raises ArgumentError for another name, UnsupportedError for a device that
    is not there.
    """
    kind, _, index = name.lower().partition(":") if isinstance(name, str) else ("", "", "")
    if kind not in BACKENDS or (index and not (kind == "cuda" and index.isdecimal())):
        raise ArgumentError(f"device {name!r}: expected one of {', '.join(BACKENDS)}, or cuda:1 and so on, as its name")
    if kind == "null":
        return NullBackend(tf32=tf32)
    if kind == "cuda" or (kind == "auto" and cuda_driver()):
        from ooc.backends.cuda.backend import cuda_backend

        try:
            return cuda_backend(int(index or 0), tf32, threads, repeatable)
        except UnsupportedError:
            if kind == "cuda":
                raise
    return CpuBackend(threads, staged)


def names_backend(name: str) -> bool:
    """Whether a name is meant for `open_backend`."""
    return name.lower().partition(":")[0] in BACKENDS


def cuda_driver() -> bool:
    """Whether a CUDA driver is installed: only then is it worth importing CuPy to look for a device."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
