"""The tensor that a run is to make: where it goes, and the file in which it is made until it is whole."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ooc.files.records import record
from ooc.sources import Source, create
from ooc.sources.beside import beside
from ooc.sources.remote import is_remote
from ooc.workers.where import ALONE, Where


@dataclass(frozen=True)
class Result:
    """The tensor that is wanted.

    Fields:
        where: its file.
        shape, dtype: with the batch.
        made: shape, dtype, axes and model of the file, where it is created; {}: it was there.
        direct: whether workers write to it by any region; else it is brought there when it is complete.
    """

    where: Where
    shape: tuple[int, ...]
    dtype: str
    made: Mapping[str, Any]
    direct: bool

    @property
    def opens_late(self) -> bool:
        """Whether one worker creates, writes and closes it."""
        return bool(self.made) and self.where.shared == ALONE

    @property
    def overwrite(self) -> bool:
        """Whether it may take the place of another."""
        return bool(self.made and self.made["overwrite"])

    def within(self, folder: Path) -> Where:
        """Where it is while it is made; that is its place where it was there."""
        return replace(self.where, path=beside(self.where.path, folder)) if self.made else self.where

    def created(self, folder: Path) -> Source:
        """The file, new, in a folder. Raises OocError."""
        with ExitStack() as stack:
            like = stack.enter_context(record(Where, self.made["like"]).open()) if self.made["like"] else None
            source = create(
                self.within(folder).path, self.made["shape"], self.made["dtype"], self.made["axes"], like=like,
                position=self.made.get("position"), overwrite=self.overwrite or not is_remote(self.where.file),
                ome=self.made.get("ome", ""),
            )  # fmt: skip
            return self.where.turned(source)
