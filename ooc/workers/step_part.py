"""A part of the batch in one level of a training step, as any process is told of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ooc.errors import OocError
from ooc.ir.region import Span
from ooc.networks import checkpoint
from ooc.networks.lasting import drawn

ABOUT, STATE, GRADIENTS = "training.json", "state.ooc", "gradients"


@dataclass(frozen=True)
class StepPart:
    """A part of the batch in one level of a step.

    Fields:
        folder: of the training.
        step: of it, from 0.
        number: of the part.
        samples: of the batch.
        counted: what losses and gradients are divided by, by the name of the loss.
        x: where the batch is; labels: where the labels are, or what else each loss is compared with.
        mark: what tells this batch from others.
        run: what tells this training from others in the same folder.
        level: of the step, from 0, see `ooc.networks.step_levels`.
        totals: sums over the batch that it reads, by tensor.
    """

    folder: str
    step: int
    number: int
    samples: tuple[int, int]
    counted: tuple[tuple[str, float], ...]
    x: Any
    labels: tuple[tuple[str, Any], ...]
    mark: str
    run: str
    level: int = 0
    totals: Mapping[str, Any] = field(default_factory=dict)

    @property
    def span(self) -> Span:
        """Its samples."""
        return Span(*self.samples)

    @property
    def path(self) -> Path:
        """Of its gradients, losses and sums over the batch; it is there when all is that the level makes."""
        return Path(self.folder) / GRADIENTS / f"{self.level}-{self.number}"

    @property
    def done(self) -> bool:
        """Whether it is computed."""
        with suppress(OocError), checkpoint.saved(self.path) as file:
            return bool((file.about.steps, file.about.graph) == (self.step, self.mark))
        return False

    def drawn_by(self, seed: int) -> int:
        """The seed of its dropout, from that of the training."""
        return drawn(seed, self.number) & (1 << 62) - 1

    def between(self, tensor: str) -> Path:
        """Of a tensor of the part that goes from level to level; of another step or another batch it is another file."""
        name = hashlib.sha256(f"{self.mark} {self.step} {tensor}".encode()).hexdigest()[:24]
        return Path(self.folder) / GRADIENTS / f"{self.number}-{name}"
