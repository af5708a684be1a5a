"""The CPU backend: memory of this machine, copies, and the kernels of `families` in their order."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.cpu.families import FAMILIES
from ooc.backends.cpu.limits import memory_limit
from ooc.backends.cpu.onednn import open_onednn
from ooc.backends.device_array import check_reached
from ooc.backends.families import NOWHERE, FamilyBackend, Names, Recipe, Spare
from ooc.backends.host import HostBackend
from ooc.backends.views import dense
from ooc.cache import Cache
from ooc.errors import BackendError
from ooc.ir.op import Op, numpy_dtype

CGROUP = Path("/sys/fs/cgroup")
HUGE = 32 << 20  # arenas from here on ask for huge pages
RECIPES = 1024  # remembered ways to put a kernel together
KEEP = 256 << 20  # arenas up to here are kept between runs: fresh pages cost half the bandwidth


def default_threads() -> int:
    """The processors this process may use: those it is bound to, or as many as its control group has time for."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, _granted())))


def _granted() -> float:
    """Processors that the control group of this process (Linux, version 2 or 1) has time for: threads beyond these would be
    stopped in turn."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return math.inf
    try:
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (ValueError, ZeroDivisionError):  # "max"
        return math.inf


class CpuBackend(FamilyBackend, HostBackend):
    """Kernels and memory of this machine's processors. `threads`: for computing and for large copies."""

    name = "cpu"
    shared = True
    own_bytes = 0
    processor = "cpu"
    copy_threads = 1  # the others compute
    streaming_bytes = 512 << 20  # enough to stream at full speed
    workspace_bytes = 128 << 20
    families = FAMILIES
    parts_filters = True

    def __init__(self, threads: int | None = None, staged: bool = False) -> None:
        open_onednn()  # now, not in the first run: its pages would count as that run's memory
        self.threads = threads or default_threads()
        self.staged = staged
        self.total_bytes = memory_limit()
        self._spare = Spare(KEEP)
        self._recipes: Cache[Recipe] = Cache(RECIPES)

    @property
    def means(self) -> int:  # type: ignore[override]
        """What kernels are made with."""
        return self.threads

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuBackend) and (self.threads, self.staged) == (other.threads, other.staged)

    def __hash__(self) -> int:
        return hash((self.name, self.threads, self.staged))  # the same in a forked child

    @property
    def turn_threads(self) -> int:
        """All of them: kernels wait for the files."""
        return self.threads

    def bare(self) -> CpuBackend:
        return CpuBackend(self.threads, self.staged)

    def __reduce__(self) -> tuple[Any, ...]:
        """What makes it again, elsewhere too: memory and what is remembered stay here."""
        return type(self), (self.threads, self.staged)

    def recipe(self, op: Op, name: str, sizes: Mapping[str, int], in_place: Names = NOWHERE) -> Recipe:
        """Remembered: our families' answers do not change, and operands are as good in place as anywhere."""
        key = (op, name, tuple(sizes.items()), self.threads)
        return self._recipes.get(key) or self._recipes.keep(key, super().recipe(op, name, sizes))

    def place(self, array: Any) -> str:
        """Kernels walk in whole items."""
        check_reached(array, self.name)
        flags = array.flags
        whole_items = flags.c_contiguous or all(s % array.itemsize == 0 for s in array.strides)
        return "device" if whole_items and flags.aligned else "host"

    def allocate(self, space: str, nbytes: int) -> Any:
        kept = self._spare.take(space, nbytes)
        return kept if kept is not None else _pages(nbytes)

    def release(self, space: str, memory: Any) -> None:
        """Take memory back; what is not too large is kept for the next run."""
        self._spare.give(space, memory)

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Any:
        if dtype == "bytes":
            return memory[offset : offset + shape[0]]
        return dense(memory, offset, shape, numpy_dtype(dtype), order)

    def copy(self, lane: str, target: Any, source: Any) -> None:
        native.copy(target, source, self.threads)


def _pages(nbytes: int) -> Any:
    """Page-aligned zeroed memory, touched once so that no run pays for fresh pages."""
    if not nbytes:
        return np.empty(0, np.uint8)
    try:
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        pages = mmap.mmap(-1, nbytes, **private)  # a forked child works in memory of its own
    except OSError as error:
        raise BackendError(f"cpu: cannot allocate {nbytes} bytes: {error}") from error
    if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    memory[:: mmap.PAGESIZE] = 0
    return memory
