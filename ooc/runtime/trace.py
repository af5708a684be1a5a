"""Timelines as Chrome/Perfetto traces: a row per lane. Open them at ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ooc.runtime.report import Part
from ooc.runtime.timeline import Times, load_of, spans
from ooc.schedule.steps import LANES

PREDICTED, MEASURED = 1, 2  # processes of a trace of a plan
MICRO = 1e6  # of a second, in which traces count

Event = dict[str, Any]


def write_trace(path: str | Path, parts: Sequence[Part]) -> None:
    """Write parts that ran one after the other: measured, predicted, and a counter of resident bytes."""
    events: list[Event] = []
    begin = 0.0
    for part in parts:
        for process, (name, times) in enumerate(part.timelines.items(), 1):
            events += lane_events(process, name, times, begin)
        events += _resident(part.times, begin)
        begin += part.measured.seconds
    try:
        write_events(path, events)
    except (OSError, ValueError) as error:  # the results are there, and worth more
        warnings.warn(f"trace: {str(path)!r} was not written: {error}", RuntimeWarning, stacklevel=2)


def write_events(path: str | Path, events: Iterable[Event]) -> None:
    """Write the events of a trace. Raises OSError, ValueError."""
    Path(path).write_text(json.dumps({"traceEvents": [*events], "displayTimeUnit": "ms"}))


def lane_events(process: int, name: str, times: Times, begin: float = 0.0) -> list[Event]:
    """The steps of a timeline under its name, later by `begin` seconds."""
    events: list[Event] = [{"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}]
    for row, lane in enumerate(LANES):
        events.append({"ph": "M", "pid": process, "tid": row, "name": "thread_name", "args": {"name": lane}})
    for i, (step, start, end) in enumerate(zip(*times, strict=True)):
        events.append(
            {"ph": "X", "pid": process, "tid": LANES.index(step.lane), "name": f"{step.kind} {step.what}",
             "ts": (begin + start) * MICRO, "dur": max(0.0, end - start) * MICRO,
             "args": {"step": i, "bytes": step.nbytes, "what": str(step)}}
        )  # fmt: skip
    return events


def _resident(times: Times, begin: float) -> list[Event]:
    """Bytes of the buffers in use over time: from the step that first touches a buffer to the last that does."""
    used = spans((buffer, start, end) for _, buffer, start, end in times.touched())
    load = load_of([int(buffer.nbytes) for buffer in used], used.values())
    return [
        {"ph": "C", "pid": 1, "name": "resident bytes", "ts": (begin + at) * MICRO, "args": {"bytes": nbytes}}
        for at, nbytes in zip(load.times.tolist(), load.nbytes.tolist(), strict=True)
    ]
