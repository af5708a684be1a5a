"""The losses of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc.errors import StoreError
from ooc.files.whole import whole
from ooc.runtime.pictures import clean, new_figure
from ooc.training.outcome import StepRow, ValidationRow

SMOOTHED = 50  # parts of a run over which losses are averaged
MOST_POINTS = 4000


def draw(path: Path, title: str, steps: Sequence[StepRow], validations: Sequence[ValidationRow]) -> None:
    """Write the losses of steps, their mean over a fiftieth of the run, and what validations tell. Raises StoreError, and
    UnsupportedError without matplotlib."""
    figure = new_figure("the curve needs", 4.5, title)
    axis = figure.add_subplot()
    at, losses = np.array([row.step for row in steps]), np.array([row.loss for row in steps])
    each = max(1, len(at) // MOST_POINTS)
    axis.plot(at[::each], losses[::each], color="#9ecae1", linewidth=0.8, label="loss of a step")
    axis.plot(at[::each], smoothed(losses)[::each], color="#2171b5", linewidth=1.6, label="mean of steps")
    _plot(axis, validations, "loss", "#d94801", "loss of a validation")
    axis.set(xlabel="step", ylabel="loss")
    clean(axis)
    if any(row.mean_dice is not None for row in validations):
        other = axis.twinx()
        _plot(other, validations, "mean_dice", "#238b45", "mean Dice of a validation")
        other.set(ylabel="mean Dice", ylim=(0, 1))
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    try:
        with whole(path, settled=False) as file:
            figure.savefig(file, format="png")
    except OSError as error:
        raise StoreError(error.errno, f"{path}: {error.strerror or error}") from error


def _plot(axis: Any, rows: Sequence[ValidationRow], name: str, colour: str, label: str) -> None:
    points = [(row.step, value) for row in rows if (value := getattr(row, name)) is not None]
    if points:
        axis.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, linewidth=1, label=label)


def smoothed(losses: Any) -> Any:
    """Means of the losses up to each, over a part of the run."""
    over = max(1, len(losses) // SMOOTHED)
    sums = np.cumsum(np.concatenate([np.zeros(over), losses]))
    counts = np.minimum(np.arange(1, len(losses) + 1), over)
    return (sums[over:] - sums[:-over]) / counts
