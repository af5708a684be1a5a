"""What the parts of a batch have made, as one: gradients, losses, sums over the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooc.ir.op import numpy_dtype
from ooc.networks import checkpoint
from ooc.networks.checkpoint import stored, unbits
from ooc.networks.step_levels import StepLevel, independent
from ooc.networks.tensors import Slot
from ooc.workers.step_part import StepPart
from ooc.workers.sums import halves, joined


class PartSums:
    """Sums over the parts of a batch, always in the same order, few of them in memory at a time.

    Parameters:
        levels: of the step of a part.
        parts: a row of them for each level, of one step.
    """

    def __init__(self, levels: Sequence[StepLevel], parts: Sequence[Sequence[StepPart]]) -> None:
        self.levels, self.parts = levels, parts

    def gradient(self, t: Slot) -> Any:
        """Of a parameter, in f32 at least."""
        level = next(i for i, level in enumerate(self.levels) if t.name in level.sums)
        return self._sum(level, t.name, t.shape, t.dtype)

    def loss(self) -> float:
        """Of the batch."""
        if independent(self.levels):  # a session has added them
            return float(self._sum(0, "loss", (1,), "f64")[0])
        losses = [(i, t) for i, level in enumerate(self.levels) for t in level.losses]
        return sum((float(self._sum(i, name, (1,), "f64")[0]) for i, name in losses), 0.0)

    def totals(self, level: int) -> Mapping[str, Any]:
        """What later levels read of a level that is done, by tensor. Raises StoreError, ShapeError."""
        net, totals = self.levels[level].net, dict[str, Any]()
        for call in self.levels[level].summing:
            slots = [net.tensors[t] for t in call.makes]

            def results(part: int, slots: Sequence[Slot] = slots) -> list[Any]:
                return [self._of_part(level, part, t.name, t.shape, t.dtype) for t in slots]

            totals |= zip(call.makes, joined(call.op, len(self.parts[level]), results), strict=True)
        return totals

    def _sum(self, level: int, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        wide = np.float32 if np.dtype(numpy_dtype(dtype)).itemsize == 2 else numpy_dtype(dtype)

        def part(i: int) -> Any:
            return self._of_part(level, i, name, shape, dtype).astype(wide, copy=False)

        return halves(0, len(self.parts[level]), part, lambda a, b: np.add(a, b, out=a))

    def _of_part(self, level: int, part: int, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """What a part has made."""
        with checkpoint.saved(self.parts[level][part].path) as file:
            values = unbits(file.tensor(name, (math.prod(shape),), stored(dtype)), dtype)
        return values.reshape(shape)
