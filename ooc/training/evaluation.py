"""How good a network is on samples that it did not learn from: all of each, in windows, every position once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ooc.networks.session import Session
from ooc.training.outcome import ValidationRow
from ooc.training.patches import Patches
from ooc.training.samples import NO_LABEL

MOST_AT_ONCE = 1 << 20  # positions that are measured


class Evaluation:
    """Samples, as a network of so many classes sees them. classes: channels of its output, or two of one channel."""

    def __init__(self, patches: Patches, classes: int, output: str) -> None:
        self.patches, self.classes, self.output = patches, classes, output

    def row(self, session: Session, step: int) -> ValidationRow:
        """What the network of a session comes to, after a step. Raises OocError."""
        confusion, loss = np.zeros((self.classes, self.classes), np.int64), 0.0
        for x, labels in self._batches():
            outputs = session.forward(x)
            logits = outputs[self.output] if isinstance(outputs, dict) else outputs
            for rows, classes in _labelled(logits, labels):
                confusion += self._confusion(rows.argmax(1), classes)
                loss += float(cross_entropies(rows, classes).sum())
        return measured(step, confusion, loss)

    def _confusion(self, classes: Any, labels: Any) -> Any:
        """How many positions of each label were taken for which class."""
        counts = np.bincount(labels * self.classes + classes, minlength=self.classes**2)
        return counts.reshape(self.classes, self.classes)

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        """Windows, so many as a step has samples; the last ones filled up with zeros that have no labels."""
        windows, count = self._windows(), self.patches.data.batch
        while some := list(itertools.islice(windows, count)):
            x, labels = (np.stack(arrays) for arrays in zip(*some, strict=True))
            missing = count - len(some)
            fill = [(0, missing), *[(0, 0)] * (x.ndim - 1)]
            yield np.pad(x, fill), np.pad(labels, fill[: labels.ndim], constant_values=NO_LABEL)

    def _windows(self) -> Iterator[tuple[Any, Any]]:
        """Images and labels of windows; what one before had is without labels."""
        for sample in self.patches.samples.list:
            axes = [windows(e, p) for e, p in zip(sample.extent, self.patches.patch, strict=True)]
            for places in itertools.product(*axes):
                x, labels = self.patches.read(sample, [start for start, _ in places])
                for axis, (_, before) in enumerate(places):
                    labels[(slice(None),) * axis + (slice(0, before),)] = NO_LABEL
                yield x, labels


def _labelled(logits: Any, labels: Any) -> Iterator[tuple[Any, Any]]:
    """Rows of logits of positions with a label, and their classes, of not too many positions at a time. One channel is the logit
    of class 1, beside 0."""
    for sample, classes in zip(logits, labels, strict=True):
        columns, flat = sample.reshape(len(sample), -1), classes.reshape(-1)
        for lo in range(0, len(flat), MOST_AT_ONCE):
            counted = lo + np.flatnonzero(flat[lo : lo + MOST_AT_ONCE] >= 0)
            rows = columns[:, counted].T.astype(np.float64)
            yield np.pad(rows, ((0, 0), (int(len(columns) == 1), 0))), flat[counted]


def windows(extent: int, size: int) -> list[tuple[int, int]]:
    """Where windows begin along an axis, the last one at its end, and how many of their positions those before have.

    >>> windows(10, 4), windows(3, 4)
    ([(0, 0), (4, 0), (6, 2)], [(0, 0)])
    """
    starts = [min(lo, max(0, extent - size)) for lo in range(0, extent, size)]
    return [(start, max(0, lo - start)) for lo, start in zip(range(0, extent, size), starts, strict=True)]


def cross_entropies(logits: Any, labels: Any) -> Any:
    """Of rows of logits, and the class of each."""
    most = logits.max(1, keepdims=True)
    sums = np.log(np.exp(logits - most).sum(1))
    return sums + most[:, 0] - logits[np.arange(len(logits)), labels]


def measured(step: int, confusion: Any, loss: float) -> ValidationRow:
    """The row of a validation: confusion has labels by classes, loss is a sum."""
    right, labels, classes, count = confusion.diagonal(), confusion.sum(1), confusion.sum(0), int(confusion.sum())
    both = labels + classes
    dice = tuple(float(2 * r / b) if b else None for r, b in zip(right, both, strict=True))
    named = [d for d in dice[1:] if d is not None]
    mean_loss = loss / count if count and np.isfinite(loss) else None
    accuracy = float(right.sum() / count) if count else None
    return ValidationRow(step, mean_loss, accuracy, dice, sum(named) / len(named) if named else None)
