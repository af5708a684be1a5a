"""A backend of sizes only: it holds no data and computes nothing, so any problem can be planned and walked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ooc.backends.base import Kernel, Offer, fused_workspace
from ooc.backends.device_array import check_reached
from ooc.backends.host import HostBackend
from ooc.ir.op import Block, Op
from ooc.ir.region import Sizes, Tile


class NullBackend(HostBackend):
    """Every operation, no memory, no time. Plans as a GPU would: pinned staging, memory of its own."""

    name = "null"
    staged = True
    shared = False
    own_bytes = 0
    processor = "cpu"
    copy_threads = 1
    streaming_bytes = 512 << 20

    def __init__(self, total_bytes: int = 16 << 30) -> None:
        self.total_bytes = total_bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NullBackend) and self.total_bytes == other.total_bytes

    def __hash__(self) -> int:
        return hash((self.name, self.total_bytes))

    def bare(self) -> NullBackend:
        return self

    def offers(self, op: Op) -> tuple[Offer, ...]:
        return (Offer("null", lambda sizes: fused_workspace(op, sizes, [_nothing] * len(op.stages)), True),)

    def why_not(self, op: Op) -> dict[str, str]:
        return {}

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

    def kernel(self, op: Op, name: str, sizes: Mapping[str, int], workspace: Any) -> Kernel:
        return _compute


def _nothing(sizes: Sizes) -> int:
    return 0


def _compute(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
    """Nothing to compute."""
