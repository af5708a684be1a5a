"""What training came to, and the rows of its log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc.files.records import plain

METRICS = {"loss": -1, "accuracy": 1, "dice": 1}  # which sign of it is good


@dataclass(frozen=True)
class StepRow:
    """A step in the log.

    Fields:
        step: counted from 1.
        loss: of its batch.
        lr: the learning rate.
        seconds: that it took.
    """

    step: int
    loss: float
    lr: float
    seconds: float

    def row(self) -> dict[str, Any]:
        """As the log has it."""
        return plain(self)


@dataclass(frozen=True)
class ValidationRow:
    """A validation in the log. What could not be measured is None.

    Fields:
        step: after which it was made.
        loss: the mean cross-entropy of all positions with a label.
        accuracy: the share of these positions whose class is the right one.
        dice: of each class, over all positions; None where neither labels nor results have it.
        mean_dice: of the classes from 1 on: 0 is the background.
    """

    step: int
    loss: float | None
    accuracy: float | None
    dice: tuple[float | None, ...]
    mean_dice: float | None

    def row(self) -> dict[str, Any]:
        """As the log has it."""
        values = plain(self)
        return {"step": values.pop("step"), "validation": values}

    def score(self, metric: str) -> float | None:
        """A number that is higher where the metric is better."""
        value = self.mean_dice if metric == "dice" else getattr(self, metric)
        return None if value is None else METRICS[metric] * value


@dataclass(frozen=True)
class Trained:
    """What `ooc.train` returns.

    Fields:
        folder: of the run, with last.ooc, best.ooc, graph.json and log.jsonl.
        losses: of every step, the first one first.
        validations: rows with step, loss, accuracy, dice (per class) and mean_dice.
        best: the row that best.ooc is of; None: there was no validation.
        notes: what a user should know, a sentence each.
    """

    folder: Path
    losses: tuple[float, ...]
    validations: tuple[ValidationRow, ...]
    best: ValidationRow | None
    notes: tuple[str, ...] = ()


def better(row: ValidationRow, best: ValidationRow | None, metric: str) -> bool:
    """Whether a validation is better than the best one before it."""
    score = row.score(metric)
    if score is None or best is None:
        return score is not None
    before = best.score(metric)
    return before is None or score > before


def best_of(rows: list[ValidationRow], metric: str) -> ValidationRow | None:
    """The best validation, of equal ones the first."""
    best = None
    for row in rows:
        best = row if better(row, best, metric) else best
    return best
