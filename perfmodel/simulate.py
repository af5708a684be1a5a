"""The time of a schedule: every lane runs its steps in order, each as soon as what it waits for is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.model import Model, StepLike


@dataclass(frozen=True)
class Timeline:
    """Start and end of every step, in seconds from the start of the schedule."""

    starts: list[float]
    ends: list[float]
    lane_seconds: dict[str, float]  # busy time of each lane
    bound: float = 0.0  # what contention between lanes does not allow to undercut

    @property
    def seconds(self) -> float:
        """When the last step ends, lanes contending."""
        return max(self.bound, max(self.ends, default=0.0))


def simulate(steps: Sequence[StepLike], model: Model) -> Timeline:
    """Walk linked steps with a model. Never below the busiest lane nor below the critical path."""
    free: dict[str, float] = {}
    busy: dict[str, float] = {}
    starts: list[float] = []
    ends: list[float] = []
    for step in steps:
        start = free.get(step.lane, 0.0)
        for j in step.after:
            start = max(start, ends[j])
        seconds = model.seconds(step)
        starts.append(start)
        ends.append(start + seconds)
        free[step.lane] = start + seconds
        busy[step.lane] = busy.get(step.lane, 0.0) + seconds
    return Timeline(starts, ends, busy, float(model.bound(busy)))
