"""The folder of a run: what run it is, its log, its checkpoints. One process writes there at a time.

run.json     what must be the same when it is resumed
graph.json   the network
log.jsonl    a row per step and per validation
last.ooc     the newest checkpoint; best.ooc that of the best validation; step00000100.ooc older ones
curve.png    the losses
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ooc.errors import ArgumentError
from ooc.files.reached import regular
from ooc.files.records import record, understood
from ooc.files.whole import claimed, holds_only, sweep
from ooc.networks.session import Session
from ooc.runtime.journal import load, store
from ooc.training.outcome import StepRow, ValidationRow

ABOUT, GRAPH, LOG, LAST, BEST, CURVE = "run.json", "graph.json", "log.jsonl", "last.ooc", "best.ooc", "curve.png"
NUMBERED = re.compile(r"step(\d{8,12})\.ooc")
FORMAT = 1
MOST_LINE = 1 << 20  # bytes of a row: more is no log
SHOWN = 3  # keys that differ, of which an error tells the values


class RunFolder:
    """A folder of a run that is to begin, or goes on.

    Parameters:
        path: of the folder.
        identity: what run it is, by key.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.identity = json.loads(json.dumps({"format": FORMAT, **identity}))
        self.steps: list[StepRow] = []
        self.validations: list[ValidationRow] = []
        self._log: BinaryIO | None = None

    def check(self, resume: bool) -> None:
        """Raise ArgumentError where a run is in the folder and is not to be resumed, where it is another one, or something else
        is there; StoreError."""
        if not (self.path / ABOUT).exists():
            self._check_room()
            return
        if not resume:
            raise ArgumentError(f"{self.path}: has a run in it; pass resume=True to go on with it, or another folder")
        have = load(self.path / ABOUT)
        odd = [key for key in {**self.identity, **have} if have.get(key) != self.identity.get(key)]
        if odd:
            told = "; ".join(f"{key} was {_brief(have.get(key))}, is {_brief(self.identity.get(key))}" for key in odd[:SHOWN])
            raise ArgumentError(f"{self.path}: of another run: {told}{'; ...' if odd[SHOWN:] else ''}")

    def _check_room(self) -> None:
        """Raise ArgumentError where something is there that no run left."""
        with understood(self.path):
            if self.path.exists() and not holds_only(self.path, {ABOUT, GRAPH}):
                raise ArgumentError(f"{self.path}: is no folder of a run, and has other files; name another one")

    @contextmanager
    def held(self, resume: bool, graph: str) -> Iterator[None]:
        """The folder, made or gone on with, until the end. Raises ArgumentError, StoreError."""
        with understood(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            with claimed(self.path):
                self.check(resume)
                sweep(self.path)
                store(self.path / GRAPH, graph.encode())
                store(self.path / ABOUT, json.dumps(self.identity).encode())
                yield
        except BlockingIOError:
            raise ArgumentError(f"{self.path}: another process trains there") from None
        finally:
            if self._log is not None:
                self._log.close()

    # ---- the log

    def cut_back(self, steps: int) -> None:
        """Keep the rows of so many steps, and take more. Raises ArgumentError where some are missing or damaged, StoreError."""
        path = self.path / LOG
        self.steps, self.validations = [], []
        with understood(path, "not the log of these steps"):
            regular(path)
            if steps:
                self._read(path, steps)
            rows: list[StepRow | ValidationRow] = [*self.steps, *self.validations]
            rows.sort(key=lambda row: (row.step, isinstance(row, ValidationRow)))
            store(path, "".join(f"{json.dumps(row.row())}\n" for row in rows).encode())
            self._log = path.open("ab", buffering=0)

    def _read(self, path: Path, steps: int) -> None:
        """The rows of so many steps. Raises ValueError for what is none."""
        with path.open("rb") as file:
            while line := file.readline(MOST_LINE):
                number = len(self.steps)
                if number == steps and not line.endswith(b"\n"):
                    break  # cut off, behind the checkpoint
                raw = json.loads(line)
                if isinstance(raw, dict) and "validation" in raw:
                    validation = record(ValidationRow, {"step": raw["step"], **raw["validation"]})
                    if validation.step == number:
                        self.validations.append(validation)
                        continue
                row = record(StepRow, raw)
                if number == steps:
                    break
                if row.step != number + 1:
                    raise ValueError(f"step {row.step} follows step {number}")
                self.steps.append(row)
        if len(self.steps) < steps:
            raise ValueError(f"it has {len(self.steps)} steps of {steps}")

    def write(self, row: StepRow | ValidationRow) -> None:
        """Add a row. Raises StoreError."""
        assert self._log is not None
        with understood(self.path / LOG):
            self._log.write(f"{json.dumps(row.row())}\n".encode())
        (self.steps if isinstance(row, StepRow) else self.validations).append(row)  # type: ignore[arg-type]

    # ---- checkpoints

    @property
    def last(self) -> Path | None:
        """The newest checkpoint; None: there is none."""
        path = self.path / LAST
        return path if path.exists() else None

    def save(self, session: Session, keep: int) -> None:
        """Write the newest checkpoint, with the log up to it on the disk, and `keep` of the older ones. Raises StoreError."""
        assert self._log is not None
        with understood(self.path / LOG):
            os.fsync(self._log.fileno())
        session.save(self.path / LAST)
        if keep:
            session.save(self.path / f"step{session.steps:08}.ooc")
        self.prune(keep, session.steps)

    def prune(self, keep: int, steps: int) -> None:
        """Remove numbered checkpoints but the newest, and those of steps that are not done. Raises StoreError."""
        with understood(self.path):
            numbered = {int(m[1]): path for path in self.path.iterdir() if (m := NUMBERED.fullmatch(path.name))}
            newest = sorted(n for n in numbered if n <= steps)[-keep:] if keep else []
            for path in (path for n, path in numbered.items() if n not in newest):
                path.unlink()

    def save_best(self, session: Session) -> None:
        """Write the checkpoint of the best validation. Raises StoreError."""
        session.save(self.path / BEST)


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
