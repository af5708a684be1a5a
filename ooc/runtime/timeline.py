"""What runs when: the steps of a run, measured or predicted, as rows of bars. Every picture and trace is drawn from it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ooc.schedule.arena import Buffer
from ooc.schedule.steps import Step

Key = TypeVar("Key", bound=Hashable)
# Two shades of each colour take turns, so that neighbouring steps stay apart without lines around them.
SHADES = {"load": ("#2f6fb0", "#6fa8dc"), "run": ("#2e7d4f", "#74bf8f"), "store": ("#c8641b", "#f2a65a")}


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

    def touched(self) -> Iterator[tuple[Step, Buffer, float, float]]:
        """Every buffer that a step reads or writes, with the step's start and end."""
        for step, start, end in zip(*self, strict=True):
            for ref in (*step.reads, *step.writes):
                if ref.buffer is not None:
                    yield step, ref.buffer, start, end


class Bars(NamedTuple):
    """What one row shows of one kind: starts and ends in seconds, in order."""

    lane: str
    kind: str
    starts: Any
    ends: Any


def rows(parts: Iterable[Times]) -> list[Bars]:
    """Bars by lane and kind of step; each part begins where the one before ended."""
    bars: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    begin = 0.0
    for part in parts:
        for step, start, end in zip(*part, strict=True):
            starts, ends = bars.setdefault((step.lane, step.kind), ([], []))
            starts.append(begin + start)
            ends.append(begin + end)
        begin += max(part.ends, default=0.0)
    return [Bars(lane, kind, np.array(starts), np.array(ends)) for (lane, kind), (starts, ends) in bars.items()]


def last_end(bars: Iterable[Bars]) -> float:
    """Where the last bar ends."""
    return max((float(b.ends.max()) for b in bars), default=0.0)


def busy(bars: Iterable[Bars], begin: float, end: float) -> float:
    """Seconds of bars between two times."""
    inside = (np.minimum(b.ends, end) - np.maximum(b.starts, begin) for b in bars)
    return sum(float(np.maximum(seconds, 0.0).sum()) for seconds in inside)


# ---- memory meanwhile


class Load(NamedTuple):
    """Bytes in use: from each time on, so many."""

    times: Any
    nbytes: Any


def spans(uses: Iterable[tuple[Key, float, float]]) -> dict[Key, tuple[float, float]]:
    """From the first start of what is used several times to its last end."""
    times: dict[Key, tuple[float, float]] = {}
    for key, start, end in uses:
        first, last = times.get(key, (start, end))
        times[key] = min(first, start), max(last, end)
    return times


def load_of(sizes: Sequence[int], times: Iterable[tuple[float, float]]) -> Load:
    """Bytes in use where each of the sizes is in use from a start to an end."""
    nbytes, edges = np.array(sizes, np.int64), np.array([*times], np.float64).reshape(-1, 2)
    moments = np.concatenate((edges[:, 0], edges[:, 1]))
    order = np.lexsort((np.repeat((1, 0), len(nbytes)), moments))  # what ends at a time leaves before what begins then
    return Load(moments[order], np.cumsum(np.concatenate((nbytes, -nbytes))[order]))
