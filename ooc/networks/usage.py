"""Bytes of the device in use over the predicted time of a plan."""

from __future__ import annotations

from typing import Protocol

from ooc.ir.op import aligned
from ooc.networks.scene import SPILL, NetworkSchedule
from ooc.networks.tiles import PREFIX
from ooc.runtime.device import Device
from ooc.runtime.timeline import Load, Times, load_of, spans


class Timed(Protocol):
    """What is needed of a plan."""

    @property
    def device(self) -> Device: ...

    @property
    def schedule(self) -> NetworkSchedule: ...

    @property
    def times(self) -> Times: ...

    @property
    def predicted_seconds(self) -> float: ...


def load(plan: Timed) -> Load:
    """Bytes of the device in use over the predicted time: each buffer counts from the first step that touches it to the end of
    the last one, what lasts counts all the time."""
    spaces = ("device", "staging", SPILL) if plan.device.backend.shared else ("device",)
    homes = set(plan.schedule.resident.values())
    # Calls that are cut alike have the same buffers, one after the other.
    passing = spans(
        ((buffer, step.job if buffer.name.startswith(PREFIX) else 0), start, end)
        for step, buffer, start, end in plan.times.touched()
        if buffer.space in spaces and buffer not in homes
    )
    lasting = [buffer for buffer in homes if buffer.space in spaces]
    sizes = [int(aligned(buffer.nbytes)) for buffer in (*(buffer for buffer, _ in passing), *lasting)]
    return load_of(sizes, (*passing.values(), *[(0.0, plan.predicted_seconds)] * len(lasting)))
