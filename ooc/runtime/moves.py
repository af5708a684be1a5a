"""Reads and writes of plain files, gathered and then done at once by several threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from ooc import native
from ooc.ir.region import Region
from ooc.runtime.store import FileStore, Store


class Moves:
    """What is to be moved between files and memory, no two of which touch the same bytes, and what will be read after it."""

    def __init__(self) -> None:
        self.stores: list[FileStore] = []
        self.moves: list[tuple[bool, tuple[Any, ...]]] = []  # whether it writes, and what the extension wants to know
        self.fetches: list[tuple[Any, ...]] = []

    @staticmethod
    def take(store: Store) -> TypeGuard[FileStore]:
        """Whether moves of a store are gathered: those of plain files, where the extension is there."""
        return native.kernels is not None and isinstance(store, FileStore)

    def add(self, store: FileStore, writes: bool, region: Region, array: Any, bounce: Any | None) -> None:
        """Gather a read into an array, or a write of it."""
        self.stores.append(store)
        self.moves.append((writes, store.move(region, array, bounce)))

    def fetch(self, store: FileStore, regions: Sequence[Region], bounce_bytes: int) -> None:
        """Gather what the system is to be told of."""
        self.fetches.append(store.fetching(regions, bounce_bytes))

    def run(self, threads: int) -> list[float]:
        """Do all that was gathered; the seconds that threads spent on each move. Raises StoreError."""
        assert native.kernels is not None
        try:
            seconds: list[float] = native.kernels.move_regions(self.moves, self.fetches, threads)
        except (OSError, EOFError) as error:
            at = error.move  # type: ignore[union-attr]
            raise self.stores[at].fault("writing" if self.moves[at][0] else "reading", error) from error
        return seconds
