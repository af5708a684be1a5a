"""A backend of sizes only: it holds no data and computes nothing, so any problem can be planned and walked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ooc.backends.base import Kernel, Offer, fused_workspace
from ooc.backends.device_array import check_reached
from ooc.ir.op import Block, Op
from ooc.ir.region import Sizes, Tile


class NullBackend:
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

    def begin(self) -> None:
        """Nothing runs."""

    def lane(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def record(self, lane: str) -> None:
        return None

    def wait(self, lane: str, token: Any) -> None:
        """Nothing to wait for."""

    def ended(self, token: Any) -> float:
        raise NotImplementedError("nothing is recorded")


def _nothing(sizes: Sizes) -> int:
    return 0


def _compute(tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
    """Nothing to compute."""


class NullStore:
    """A tensor of which only the shape exists."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def view(self, region: Any) -> None:
        return None

    def read(self, region: Any, target: Any, bounce: Any | None) -> None:
        """Nothing to read."""

    def fetch(self, regions: Any, bounce_bytes: int) -> None:
        """Nothing to fetch."""

    def write(self, region: Any, source: Any, bounce: Any | None) -> None:
        """Nothing to write."""

    def file_offset(self, region: Any) -> int:
        return 0

    def close(self) -> None:
        """Nothing to release."""
