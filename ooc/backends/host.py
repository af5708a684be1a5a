"""What backends of the host share: steps that are complete when they return, and no memory but the host's own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ooc.backends.device_array import check_reached

NOTHING = nullcontext()  # to enter


class HostBackend:
    """Base of backends that compute on the calling thread, in memory that the caller reaches."""

    name: str
    index, capability = 0, ""
    behind: frozenset[str] = frozenset()

    def fetch(self, array: Any) -> Any:
        check_reached(array, self.name)
        return array

    def put(self, array: Any, values: Any) -> None:
        check_reached(array, self.name)
        array[...] = values

    def idle(self) -> None:
        """What is kept is little, and pages are dear to touch again."""

    def walks(self, array: Any) -> bool:
        return False

    def pin(self, array: Any) -> AbstractContextManager[None]:
        raise NotImplementedError("memory of the host is not pinned for itself")

    def begin(self) -> None:
        """Nothing runs before or beside the caller."""

    def lane(self, name: str) -> AbstractContextManager[None]:
        return NOTHING

    def record(self, lane: str) -> None:
        return None

    def wait(self, lane: str, token: Any) -> None:
        """Steps of this backend are complete when they return."""

    def ended(self, token: Any) -> float:
        raise NotImplementedError("steps of this backend are complete when they return")
