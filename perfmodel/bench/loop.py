"""A long loop of small calls over many shapes, each with a device of its own: does memory stay, and what does a call take?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ooc

ROWS = 40  # of a run
BUDGET = "1 MiB"


def loop(calls: int, shapes: int) -> Iterator[dict[str, Any]]:
    """Rows of results: calls made, resident MiB of the process, median microseconds of the calls since the row before."""
    w = np.ones((4, 3, 3, 3), np.float32)
    extents = [(5 + i % 50, 5 + i // 50) for i in range(shapes)]
    every = max(1, calls // ROWS)
    times: list[float] = []
    for i in range(calls):
        x = np.ones((1, 3, *extents[i % shapes]), np.float32)
        begin = time.perf_counter()
        with ooc.device("cpu", budget=BUDGET):
            ooc.conv(x, w, padding=1)
        times.append(time.perf_counter() - begin)
        if (i + 1) % every == 0:
            yield {"calls": i + 1, "shapes": shapes, "resident_MiB": resident(), "microseconds": float(np.median(times)) * 1e6}
            times.clear()


def resident() -> float:
    """MiB that the process holds in memory now (Linux)."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def line(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    return f"{row['calls']:8} calls  {row['resident_MiB']:7.1f} MiB resident  {row['microseconds']:7.0f} us a call"


def plot(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Memory and time over the calls, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    memory, seconds = figure.subplots(2, 1, sharex=True)
    calls = [row["calls"] for row in rows]
    memory.plot(calls, [row["resident_MiB"] for row in rows])
    memory.set(ylabel="resident MiB", ylim=(0, None), title=f"{calls[-1]:,} calls over {rows[0]['shapes']:,} shapes")
    seconds.plot(calls, [row["microseconds"] for row in rows])
    seconds.set(ylabel="us a call, median", xlabel="calls", ylim=(0, None))
    figure.savefig(path)
