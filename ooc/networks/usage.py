"""Bytes of the device in use over the predicted time of a plan."""

from __future__ import annotations

from ooc.ir.op import aligned
from ooc.networks.plan import NetworkPlan
from ooc.networks.scene import SPILL
from ooc.networks.tiles import PREFIX
from ooc.runtime.timeline import Load, load_of, spans


def load(plan: NetworkPlan) -> Load:
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
