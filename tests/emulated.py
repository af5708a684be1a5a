"""The CUDA kernels on the host: kernels/device.cu compiled by the C++ compiler, and a backend that computes with it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from running import PoisonedBackend

from ooc.backends.base import FusedKernel, Kernel, Offer, fused_workspace, padded, place_bytes
from ooc.backends.blocks import Pieces
from ooc.backends.cuda_kernels import own_kernel, workspace
from ooc.fused import Fused
from ooc.op import DTYPES, Op

SOURCE = Path(__file__).with_name("emulation.cpp")
KERNELS = SOURCE.parent.parent / "kernels" / "device.cu"
FLAGS = ("-O1", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off")


@functools.cache
def library() -> Path:
    """The compiled kernels, kept under a hash of what they are made of. Skips the test where there is no C++ compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler or not shutil.which(compiler.split()[0]):
        pytest.skip(f"no C++ compiler for the emulated kernels ({compiler or 'c++, g++'} not found); set CXX")
    what = hashlib.sha256(SOURCE.read_bytes() + KERNELS.read_bytes() + repr((compiler, FLAGS)).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"ooc-emulated-{os.getuid() if hasattr(os, 'getuid') else 0}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{what}.so"
    if not path.exists():
        half_made = folder / f"{what}.{os.getpid()}"
        subprocess.run([*compiler.split(), *FLAGS, "-o", str(half_made), str(SOURCE)], check=True)
        half_made.replace(path)
    return path


class HostLauncher:
    """Runs kernels as loops. grid: the threads that a launch has, whatever it asks for; None: as many as it asks for."""

    def __init__(self, grid: int | None = None) -> None:
        self.grid = grid
        self.call = ctypes.CDLL(str(library())).launch
        self.call.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p)

    def launch(self, name: str, dtype: str, threads: int, args: Any) -> None:
        failed = self.call(name.encode(), DTYPES.index(dtype), self.grid or threads, args.ctypes.data)
        assert not failed, {1: f"no kernel {name}", 2: f"{name} went outside a block:\n{args}"}[failed]


class EmulatedBackend(PoisonedBackend):
    """The CUDA kernels, each launch with the next of a few numbers of threads: `parts` in parallel sums, `plain` in order."""

    def __init__(self, staged: bool = False, grids: Sequence[int | None] = (None, 1, 7, 64), parts: int = 3) -> None:
        super().__init__(threads=1, staged=staged)
        self.launchers = [HostLauncher(grid) for grid in grids]
        self.parts = {"cuda": parts, "plain": 1}

    def offers(self, op: Op) -> tuple[Offer, ...]:
        return tuple(self._offer(op, name, parts) for name, parts in self.parts.items())

    def _offer(self, op: Op, name: str, parts: int) -> Offer:
        own = [functools.partial(workspace, stage, parts=parts) for stage in op.stages]
        return Offer(name, lambda sizes: fused_workspace(op, sizes, own), name == "plain")

    def kernel(self, op: Op, name: str, sizes: Mapping[str, int], memory: Any) -> Kernel:
        if name not in self.parts:
            return super().kernel(op, name, sizes, memory)
        parts, pool = self.parts[name], Pieces(memory)
        stages = list(zip(op.stages, op.stage_sizes(sizes), strict=True))
        need = [int(padded(workspace(stage, z, parts))) for stage, z in stages]
        shared = pool.take(max((n for n, stage in zip(need, op.stages, strict=True) if not stage.fixed), default=0))
        kernels = []
        for nbytes, stage in zip(need, op.stages, strict=True):
            own = pool.take(nbytes) if stage.fixed else shared[:nbytes]
            self.launchers.append(self.launchers.pop(0))
            kernels.append(own_kernel(stage, self.launchers[0], parts, own))
        if not isinstance(op, Fused):
            return kernels[0]
        offsets = [pool.skip(int(nbytes)) for nbytes in place_bytes(op, sizes)]
        return FusedKernel(op, self, kernels, memory, offsets)
