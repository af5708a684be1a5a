"""Bytes of the device in use over the predicted time of a plan."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooc.ir.op import aligned
from ooc.networks.plan import NetworkPlan
from ooc.networks.scene import SPILL
from ooc.networks.tiles import PREFIX
from ooc.schedule.arena import Buffer


class Load(NamedTuple):
    """Bytes in use: from each time on, so many."""

    times: Any
    nbytes: Any


def load(plan: NetworkPlan) -> Load:
    """Bytes of the device in use over the predicted time: each buffer counts from the first step that touches it to the end of
    the last one, what lasts counts all the time."""
    spaces = ("device", "staging", SPILL) if plan.device.backend.shared else ("device",)
    spans: dict[tuple[Buffer, int], tuple[float, float]] = {}
    timeline, homes = plan.timeline, set(plan.schedule.resident.values())
    for step, start, end in zip(plan.steps(), timeline.starts, timeline.ends, strict=True):
        for ref in (*step.reads, *step.writes):
            if ref.buffer is not None and ref.buffer.space in spaces and ref.buffer not in homes:
                # Calls that are cut alike have the same buffers, one after the other.
                key = ref.buffer, step.job if ref.buffer.name.startswith(PREFIX) else 0
                first, last = spans.get(key, (start, end))
                spans[key] = min(first, start), max(last, end)
    spans |= {(buffer, 0): (0.0, timeline.seconds) for buffer in homes if buffer.space in spaces}
    sizes = np.array([int(aligned(buffer.nbytes)) for buffer, _ in spans], np.int64)
    edges = np.array([*spans.values()], np.float64).reshape(-1, 2)
    times = np.concatenate((edges[:, 0], edges[:, 1]))
    order = np.lexsort((np.repeat((1, 0), len(sizes)), times))  # what ends at a time leaves before what begins then
    changes = np.concatenate((sizes, -sizes))[order]
    return Load(times[order], np.cumsum(changes))
