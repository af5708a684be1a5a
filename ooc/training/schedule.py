"""How the learning rate changes from step to step."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ooc.errors import ArgumentError, shown
from ooc.files.records import record
from ooc.networks.optimizers import OPTIMIZERS, Optimizer

KINDS = ("constant", "cosine", "step")


@dataclass(frozen=True)
class RateSchedule:
    """[optimizer.schedule]: a factor on the learning rate.

    Fields:
        kind: "constant", "cosine" (half a wave from 1 down to `least` at the last step) or "step" (times `factor` after every
            `every` steps).
        warmup: so many steps in which it grows from nothing in a straight line.
        every, factor: of "step".
        least: of "cosine".

    Source: Loshchilov, Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017; Goyal et al., "Accurate, large
    minibatch SGD", 2017, for the warm-up.
    """

    kind: str = "constant"
    warmup: int = 0
    every: int = 0
    factor: float = 0.1
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ArgumentError(f"kind: expected one of {', '.join(KINDS)}, got {shown(self.kind)}")
        if self.warmup < 0:
            raise ArgumentError(f"warmup: expected a number of steps, got {self.warmup}")
        if (self.kind == "step") != (self.every > 0):
            raise ArgumentError(f'every: expected a number of steps for "step", and none for the others; got {self.every}')
        for name in ("factor", "least"):
            if not 0 <= getattr(self, name) <= 1:
                raise ArgumentError(f"{name}: expected a number from 0 to 1, got {getattr(self, name)}")

    def at(self, step: int, steps: int) -> float:
        """The factor of a step, counted from 0, of so many."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "step":
            return float(self.factor ** (step // self.every))
        if self.kind == "cosine":
            gone = (step - self.warmup) / max(1, steps - self.warmup)
            return self.least + (1 - self.least) * (1 + math.cos(math.pi * gone)) / 2
        return 1.0


def scheduled(kind: str, keywords: Any, schedule: RateSchedule, steps: int) -> Optimizer:
    """An optimizer whose rate follows a schedule over so many steps: in a move it is that of the first step of the move."""
    optimizer: Any = record(OPTIMIZERS[kind], keywords)
    rate, each = float(optimizer.lr), optimizer.accumulate
    scaled: Optimizer = dataclasses.replace(optimizer, lr=lambda move: rate * schedule.at(move * each, steps))
    return scaled
