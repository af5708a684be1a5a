"""The CPU backend: memory of this machine, copies, and the kernels of `cpu_kernels` in their order."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import FusedKernel, Kernel, Offer, fused_workspace, padded, place_bytes
from ooc.backends.blocks import Pieces, dense
from ooc.backends.cpu_kernels import FAMILIES, ORDERED
from ooc.backends.cpu_simple import Family
from ooc.errors import BackendError
from ooc.fused import Fused
from ooc.op import Op, numpy_dtype
from ooc.region import Sizes

HUGE = 32 << 20  # arenas from here on ask for huge pages
KEEP = 256 << 20  # arenas up to here are kept between runs: fresh pages cost half the bandwidth


def default_threads() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CpuBackend:
    """Kernels and memory of this machine's processors. `threads`: for computing and for large copies."""

    name = "cpu"
    shared = True

    def __init__(self, threads: int | None = None, staged: bool = False) -> None:
        self.threads = threads or default_threads()
        self.staged = staged
        self.total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._kept: dict[str, Any] = {}
        self._lock = threading.Lock()

    # ---- what it can compute

    def offers(self, op: Op) -> tuple[Offer, ...]:
        refused = self.why_not(op)
        found = []
        for family in FAMILIES:
            if family not in refused:
                own = [self._stage(s, family) for s in op.stages]
                found.append(Offer(family, _workspace(op, own, self.threads), family in ORDERED))
        return tuple(found)

    def why_not(self, op: Op) -> dict[str, str]:
        """A family serves an op when it serves at least one of its stages; the others fall through to the next."""
        reasons = {}
        for family in FAMILIES:
            refusals = [FAMILIES[family].why_not(s) for s in op.stages]
            if all(refusals):
                reasons[family] = "; ".join(dict.fromkeys(r for r in refusals if r))
        return reasons

    def _stage(self, stage: Op, family: str) -> Family:
        """The first family from this one on that serves a stage; the last serves every one."""
        names = list(FAMILIES)
        following = names[names.index(family) :]
        return FAMILIES[next((n for n in following if not FAMILIES[n].why_not(stage)), names[-1])]

    def kernel(self, op: Op, name: str, sizes: Mapping[str, int], workspace: Any) -> Kernel:
        families = [self._stage(s, name) for s in op.stages]
        pool = Pieces(workspace)
        stages = list(zip(op.stages, families, op.stage_sizes(sizes), strict=True))
        need = [int(padded(family.workspace(stage, z, self.threads))) for stage, family, z in stages]
        # Prepared filters stay in their place from tile to tile; other stages take turns in one.
        shared = pool.take(max((n for n, stage in zip(need, op.stages, strict=True) if not stage.fixed), default=0))
        kernels = []
        for nbytes, (stage, family, z) in zip(need, stages, strict=True):
            own = pool.take(nbytes) if stage.fixed else shared[:nbytes]
            kernels.append(family.prepare(stage, z, own, self.threads))
        if not isinstance(op, Fused):
            return kernels[0]
        offsets = [pool.skip(int(nbytes)) for nbytes in place_bytes(op, sizes)]
        return FusedKernel(op, self, kernels, workspace, offsets)

    # ---- memory and copies

    def allocate(self, space: str, nbytes: int) -> Any:
        with self._lock:
            kept = self._kept.pop(space, None)  # taken: runs of other threads must not share it
        if kept is not None and kept.nbytes >= nbytes:
            return kept
        del kept  # before the new memory is touched: the two together may be more than the budget
        return _pages(nbytes)

    def release(self, space: str, memory: Any) -> None:
        """Take memory back; what is not too large is kept for the next run."""
        if memory.nbytes <= KEEP:
            with self._lock:
                self._kept[space] = memory

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Any:
        if dtype == "bytes":
            return memory[offset : offset + shape[0]]
        return dense(memory, offset, shape, numpy_dtype(dtype), order)

    def copy(self, lane: str, target: Any, source: Any) -> None:
        native.copy(target, source, self.threads)

    def record(self, lane: str) -> None:
        return None

    def wait(self, lane: str, token: Any) -> None:
        """Steps of this backend are complete when they return."""


def _pages(nbytes: int) -> Any:
    """Page-aligned zeroed memory, touched once so that no run pays for fresh pages."""
    if not nbytes:
        return np.empty(0, np.uint8)
    try:
        pages = mmap.mmap(-1, nbytes)
    except OSError as error:
        raise BackendError(f"cpu: cannot allocate {nbytes} bytes: {error}") from error
    if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    memory[:: mmap.PAGESIZE] = 0
    return memory


def _workspace(op: Op, own: list[Family], threads: int) -> Callable[[Sizes], Any]:
    parts = [_bound(f, s, threads) for f, s in zip(own, op.stages, strict=True)]
    return lambda sizes: fused_workspace(op, sizes, parts)


def _bound(family: Family, stage: Op, threads: int) -> Callable[[Sizes], Any]:
    return lambda sizes: family.workspace(stage, sizes, threads)
