"""A backend of sizes only: it holds no data and computes nothing, so any problem can be planned and walked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ooc.backends.algorithms import EXACT, ROUNDED, Algorithms, algorithm_bytes
from ooc.backends.base import Kernel
from ooc.backends.device_array import check_reached
from ooc.backends.families import NOWHERE, Family, FamilyBackend, Names, always, ever, no_workspace
from ooc.backends.gpu_workspace import (
    beside_bytes,
    cudnn_bytes,
    fft_workspace,
    in_order,
    parts_of,
    products_bytes,
    shared_bytes,
    why_not_fft,
    why_not_products,
)
from ooc.backends.host import HostBackend
from ooc.errors import ArgumentError
from ooc.ir.op import Block, Op
from ooc.ir.region import Sizes, Tile


def _prepare(op: Op, sizes: Sizes, workspace: Any, means: Any) -> Kernel:
    return _compute


def _cudnn(algorithms: Algorithms) -> Family:
    def workspace(op: Op, sizes: Sizes, means: Any) -> Any:
        return cudnn_bytes(op, sizes, algorithm_bytes(op, sizes, algorithms), _cudnn(algorithms), means)

    def beside(op: Op, sizes: Sizes, in_place: Names) -> Any:
        return beside_bytes(op, sizes, in_place, algorithms.planes)

    return Family(algorithms.why_not, workspace, _prepare, beside=beside)


BLAS = ("cublas", "cublas_tf32")  # products and attention, without TF32 and with it
FAMILIES = {
    "null": Family(always, no_workspace, _prepare, ordered=ever),
    "cufft": Family(why_not_fft, fft_workspace, _prepare, rounds=True),
    **{name: _cudnn(algorithms) for name, (algorithms, _) in (EXACT | ROUNDED).items()},
    **dict.fromkeys(BLAS, Family(why_not_products, lambda op, sizes, means: products_bytes(op, sizes), _prepare)),
    "cuda": Family(always, lambda op, sizes, means: shared_bytes(op, sizes, parts_of(op, sizes)), _prepare, ordered=in_order),
    "plain": Family(always, no_workspace, _prepare, ordered=ever),
}
FASTEST = ("null",)  # whatever is the fastest of a calibration
GPU_KERNELS = ("cufft", *EXACT, BLAS[0], "cuda", "plain")
TF32_KERNELS = ("cufft", *ROUNDED, BLAS[1], "cuda", "plain")


class NullBackend(FamilyBackend, HostBackend):
    """Every operation, no memory, no time. Plans as a GPU would: pinned staging, memory of its own.

    kernels: what it offers, best first; the last serves every op. `null` needs no workspace and stands for the fastest kernel
    of a calibration. The others are those of the CUDA backend, each with the workspace that it has there while cuDNN's
    algorithms are not measured: `cufft`; `cudnn_winograd`, `cudnn_fft`, `cudnn` (as much as the tile), `cudnn_lean` (none but for
    padding), with TF32 `cudnn_tf32` and `cudnn_tf32_lean`; `cublas` and `cublas_tf32`; `cuda` and `plain`.
    tf32: whether the GPU that it comes to stand for rounds the factors of f32.
    """

    name = "null"
    staged = True
    shared = False
    own_bytes = 0
    processor = "cpu"
    copy_threads = turn_threads = 1
    streaming_bytes = 512 << 20
    means = None

    @property
    def workspace_bytes(self) -> int:
        """Half of the memory of the device that it stands for."""
        return self.total_bytes // 2

    def __init__(self, total_bytes: int = 16 << 30, kernels: tuple[str, ...] = FASTEST, tf32: bool = False) -> None:
        kernels = tuple(kernels)
        if not {*kernels} <= {*FAMILIES} or not kernels or FAMILIES[kernels[-1]].why_not is not always:
            raise ArgumentError(f"kernels={kernels!r}: expected some of {', '.join(FAMILIES)}, the last not one of cuDNN")
        self.total_bytes, self.kernels, self.tf32 = total_bytes, kernels, tf32
        self.families = {name: FAMILIES[name] for name in kernels}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NullBackend) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.total_bytes, self.kernels, self.tf32)

    def standing_for(self, total_bytes: int, gpu: bool) -> NullBackend:
        """The same for a device of so much memory: with the kernels of a GPU, or one that is as fast as any; kernels that were
        named otherwise stay."""
        kernels = self.kernels
        if kernels in (FASTEST, GPU_KERNELS, TF32_KERNELS):
            kernels = (TF32_KERNELS if self.tf32 else GPU_KERNELS) if gpu else FASTEST
        return NullBackend(total_bytes, kernels, self.tf32)

    def bare(self) -> NullBackend:
        return self

    def place(self, array: Any) -> str:
        check_reached(array, self.name)
        return "host"

    def allocate(self, space: str, nbytes: int) -> Any:
        return None

    def release(self, space: str, memory: Any) -> None:
        """Nothing was taken."""

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Any:
        return None

    def copy(self, lane: str, target: Any, source: Any) -> None:
        """Nothing moves."""

    def kernel(self, op: Op, name: str, sizes: Mapping[str, int], workspace: Any, in_place: Names = NOWHERE) -> Kernel:
        return _compute


def _compute(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
    """Nothing to compute."""
