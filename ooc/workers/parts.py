"""A share of a run's tasks, where there is no scheduler: every process does its own, and what others leave undone."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ooc.errors import ArgumentError
from ooc.workers.run import Told, sweep
from ooc.workers.tasks import Task

PATIENCE = 60.0  # seconds without a finished task, and as long as several take, until others are given up
SEVERAL = 4
LOOK = 0.2  # seconds between two looks into the journal


class Share(NamedTuple):
    """Which tasks a process does first: those whose place has this remainder."""

    first: int
    step: int

    @classmethod
    def of(cls, text: str) -> Share:
        """From "2/8": the second of eight; they count from 1, or from 0. Raises ArgumentError."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None or not 0 <= int(match[1]) <= int(match[2]) or int(match[2]) < 1:
            raise ArgumentError(f"--parts: expected i/N, such as 2/8, got {text!r}")
        return cls(int(match[1]) % int(match[2]), int(match[2]))


def run_part(
    tasks: Sequence[Task], share: Share, *, patience: float | None = None, progress: Told | None = None
) -> list[dict[str, Any]]:
    """Do a share of the tasks of every level, wait for the other shares, and do what their processes have left for too long.

    Returns what was told of the tasks that were computed here. Raises OocError.
    """
    told: list[dict[str, Any]] = []
    for level, group in itertools.groupby(tasks, key=lambda task: task.level):
        told += _level(list(group), share, patience, progress, len(tasks))
        sweep(tasks[0].work, level)
    return told


def _level(tasks: list[Task], share: Share, patience: float | None, progress: Told | None, total: int) -> list[dict[str, Any]]:
    journal = tasks[0].work.journal
    told: list[dict[str, Any]] = []
    todo = [task for i, task in enumerate(tasks) if i % share.step == share.first]
    limit = PATIENCE + SEVERAL * max(task.seconds for task in tasks) if patience is None else patience
    count, since = -1, time.monotonic()
    while True:
        finished = journal.finished()
        if len(finished) != count:
            count, since = len(finished), time.monotonic()
            if progress is not None:
                progress(min(count, total), total)
        left = [task for task in tasks if task.name not in finished]
        if not left:
            return told
        mine = [task for task in todo if task.name not in finished]
        if not mine and time.monotonic() - since > limit:
            mine = left[share.first * len(left) // share.step :]
        if not mine:
            time.sleep(LOOK)
            continue
        report = mine[0]()
        told += [report] if report["computed"] else []
