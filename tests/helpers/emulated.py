"""The CUDA kernels on the host: those of kernels/device/ compiled by the C++ compiler, and a backend that computes with it."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from running import PoisonedBackend

from ooc.backends.base import Kernel
from ooc.backends.cpu.families import FAMILIES
from ooc.backends.cuda.kernels import own_kernel
from ooc.backends.cuda.source import device_source
from ooc.backends.families import Family, always, ever
from ooc.backends.gpu_workspace import shared_bytes
from ooc.ir.op import DTYPES, Op

SOURCE = Path(__file__).with_name("emulation.cpp")
FLAGS = ("-O1", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off")


@functools.cache
def library() -> Path:
    """The compiled kernels, kept under a hash of what they are made of. Skips the test where there is no C++ compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler or not shutil.which(compiler.split()[0]):
        pytest.skip(f"no C++ compiler for the emulated kernels ({compiler or 'c++, g++'} not found); set CXX")
    what = hashlib.sha256((SOURCE.read_text() + device_source() + repr((compiler, FLAGS))).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"ooc-emulated-{os.getuid() if hasattr(os, 'getuid') else 0}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{what}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of the processes of a run one compiles, the others wait for it
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as made:
                (Path(made) / "device.cu").write_text(device_source())
                subprocess.run([*compiler.split(), *FLAGS, f"-I{made}", "-o", f"{made}/{path.name}", str(SOURCE)], check=True)
                (Path(made) / path.name).replace(path)
    return path


class HostLauncher:
    """Runs kernels as loops. grid: the threads that a launch has, whatever it asks for, index: bits of its coordinates; None: as
    it asks for."""

    def __init__(self, grid: int | None = None, index: int | None = None) -> None:
        self.grid, self.index = grid, index
        self.call = ctypes.CDLL(str(library())).launch
        self.call.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_int)

    def launch(self, name: str, dtype: str, threads: int, args: Any, index: int) -> None:
        failed = self.call(name.encode(), DTYPES.index(dtype), self.grid or threads, args.ctypes.data, self.index or index)
        assert not failed, {1: f"no kernel {name}", 2: f"{name} went outside a block:\n{args}"}[failed]


def _family(parts: int) -> Family:
    """Our own kernels with so many threads to a result of a large sum, whatever the number of results."""

    def prepare(op: Op, sizes: Any, memory: Any, backend: EmulatedBackend) -> Kernel:
        backend.launchers.append(backend.launchers.pop(0))
        return own_kernel(op, backend.launchers[0], parts, memory)

    return Family(always, lambda op, sizes, backend: shared_bytes(op, sizes, parts), prepare, empty=True)


class EmulatedBackend(PoisonedBackend):
    """The CUDA kernels, each launch with the next of a few numbers of threads: `parts` in parallel sums, `plain` in order."""

    @property
    def means(self) -> Any:  # what kernels are made with
        return self

    def __init__(self, staged: bool = False, grids: Sequence[int | None] = (None, 1, 7, 64), parts: int = 3) -> None:
        super().__init__(threads=1, staged=staged)
        self.launchers = [HostLauncher(grid, None if i % 2 else 64) for i, grid in enumerate((*grids, None))]
        self.families = {"cuda": _family(parts), "plain": _family(1)._replace(ordered=ever), "reference": FAMILIES["reference"]}
