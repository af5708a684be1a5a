"""What the folder of a training says of it, as workers read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc.errors import OocError
from ooc.networks import checkpoint
from ooc.networks.checkpoint import stored, unbits
from ooc.workers.step_part import STATE


@dataclass(frozen=True)
class TrainingState:
    """The state after the last step.

    Fields:
        folder: of the training.
        seed: of it.
    """

    folder: Path
    seed: int

    def tensors(self, step: int, sizes: Mapping[str, tuple[tuple[int, ...], str]]) -> Iterator[tuple[str, Any]]:
        """Those of some tensors that are saved, one in memory at a time. sizes: shapes and dtypes by name. Raises OocError where
        another step is next."""
        with checkpoint.saved(self.folder / STATE) as file:
            if file.about.steps != step:
                raise OocError(f"{self.folder}: step {step} is over, it has come to {file.about.steps}")
            for name, (shape, dtype) in sizes.items():
                if name in file.names:
                    yield name, unbits(file.tensor(name, shape, stored(dtype)), dtype)
