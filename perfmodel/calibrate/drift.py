"""How fast a machine is now against when it was calibrated: some of the calibration's tiles, measured once more."""

from __future__ import annotations

import random
import statistics
from typing import Any

from ooc.runtime.device import Device
from ooc.schedule.place import Place
from ooc.schedule.work import Work
from perfmodel.calibrate.cpu import kernels
from perfmodel.calibrate.timed_runs import along_batch, plan_of, rehearse

TILES, TRIED = 16, 120  # measured at a time; of so many that might be in the calibration


class Pace:
    """Measures now and then; a calibration of another machine, or without measured tiles, has none of these tiles."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.then = {
            (key, s.effort, s.nbytes, s.shape): s.seconds for key, c in device.model.computes.items() for s in c.samples
        }  # fmt: skip
        self.ratios: list[float] = []
        self.plans: list[Any] = []
        if self.then and device.backend.name == "cpu":
            some = list(kernels(device.backend))
            for op, family in random.Random(0).sample(some, min(TRIED, len(some))):
                plan = plan_of(device, along_batch(op), {"n": op.dims["n"]}, family, Place.HOST)
                last = device.planner.schedule(plan).steps[-2]  # the first tile packs filters besides
                self.plans += [plan] if last.work and self._known(last.work[0]) else []

    def _known(self, work: Work) -> float | None:
        return self.then.get((work.key, work.effort, float(work.nbytes), tuple(map(float, work.shape))))

    def measure(self) -> None:
        """Measure some tiles."""
        for plan in self.plans[:TILES]:
            for did, seconds in rehearse(self.device, plan).items():
                then = self._known(did) if isinstance(did, Work) else None
                self.ratios += [seconds / then] if then else []

    @property
    def slower(self) -> float | None:
        """How many times as long tiles take now: the median of all that was measured."""
        return statistics.median(self.ratios) if self.ratios else None
