"""The steps of a run as bars: by lane and kind, one part after the other. What every picture of a run is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc.schedule.steps import Step

# Two shades of each colour take turns, so that neighbouring steps stay apart without lines around them.
SHADES = {"load": ("#2f6fb0", "#6fa8dc"), "run": ("#2e7d4f", "#74bf8f"), "store": ("#c8641b", "#f2a65a")}


class Bars(NamedTuple):
    """The steps of one lane and kind: starts and ends in seconds, in order."""

    lane: str
    kind: str
    starts: Any
    ends: Any


class Times(NamedTuple):
    """The steps of one part, with the start and the end of each.

    Fields:
        steps: in the order in which they were issued.
        starts: of every step, in seconds.
        ends: of every step, in seconds.
    """

    steps: Sequence[Step]
    starts: Sequence[float]
    ends: Sequence[float]


def join(parts: Sequence[Times]) -> list[Bars]:
    """Bars by lane and kind; each part begins where the one before ended."""
    times: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    begin = 0.0
    for part in parts:
        for step, lo, hi in zip(part.steps, part.starts, part.ends, strict=True):
            row = times.setdefault((step.lane, step.kind), ([], []))
            row[0].append(begin + lo)
            row[1].append(begin + hi)
        begin += max(part.ends, default=0.0)
    return [Bars(lane, kind, np.array(lo), np.array(hi)) for (lane, kind), (lo, hi) in times.items()]
