"""What the steps of a session took, by kernel and by lane, beside what was predicted for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ooc.model.cost import Model
from ooc.runtime.machine import Measured
from ooc.runtime.timeline import Bars, Times, last_end, rows
from ooc.runtime.trace import MEASURED, lane_events
from ooc.schedule.lowering import Schedule
from ooc.schedule.steps import lane_totals


class KernelTime(NamedTuple):
    """What a kernel took.

    Fields:
        tiles: how many it computed.
        seconds: of the compute lane, as measured; where lanes overlap, what slowed it down is in it.
        predicted_seconds: by the device's calibration.
    """

    tiles: int
    seconds: float
    predicted_seconds: float


class Profile:
    """What a session's runs took while it was asked for, as `Session.profile` gives it.

    Fields:
        kernels: `KernelTime`s by operation and kernel, such as "conv.fprop cudnn_tf32", those that took longest first.
        lane_seconds: what each lane was busy with, as measured.
        algorithms: tiles by algorithm of a library, where kernels choose among some, as in a call's `Report`.
        bars: when each lane worked, for pictures; runs lie behind each other.
        events: of every step, where they are wanted for a trace.
    """

    def __init__(self, model: Model, traced: bool = False) -> None:
        self.model, self.traced = model, traced
        self.events: list[dict[str, Any]] = []
        self.lane_seconds: dict[str, float] = {}
        self.algorithms: dict[str, int] = {}
        self.bars: list[Bars] = []
        self._kernels: dict[str, KernelTime] = {}

    @property
    def kernels(self) -> dict[str, KernelTime]:
        return dict(sorted(self._kernels.items(), key=lambda item: -item[1].seconds))

    def add(self, window: Schedule, measured: Callable[[], Measured]) -> None:
        """Count the steps of a window that has run."""
        times = measured()
        begin = last_end(self.bars)
        steps = Times(window.steps, times.starts, times.ends)
        more = rows([steps])
        if self.traced:
            self.events += lane_events(MEASURED, "measured", steps, begin)
        self.bars += [bar._replace(starts=bar.starts + begin, ends=bar.ends + begin) for bar in more]
        for step, start, end in zip(window.steps, times.starts, times.ends, strict=True):
            self.lane_seconds[step.lane] = self.lane_seconds.get(step.lane, 0.0) + end - start
            plan = window.jobs[step.job].plan if step.kind == "run" else None
            if plan is not None:
                name = f"{plan.op.kind} {plan.kernel}"
                tiles, seconds, predicted = self._kernels.get(name, KernelTime(0, 0.0, 0.0))
                self._kernels[name] = KernelTime(tiles + 1, seconds + end - start, predicted + self.model.seconds(step))
        self.algorithms = lane_totals((self.algorithms, times.algorithms))

    def __repr__(self) -> str:
        """One line: tiles and seconds."""
        tiles, seconds = (sum(k[i] for k in self._kernels.values()) for i in (0, 1))
        return f"<Profile of {tiles} tiles: {seconds:.3g} s of computing>"
