"""Benchmarks: out of core from file to file, beside the same kernels in memory and a peer, all in one run.

For every problem the batch is chosen so that its tensors are a given multiple of the budget. Rounds alternate between
the contestants, so that a disturbance of the machine hits all of them; medians are reported. Input files are dropped
from the page cache before every out-of-core round.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import ooc
from ooc.backends.cpu import default_threads
from ooc.backends.null import NullStore
from ooc.descriptor import parse
from ooc.ops import ConvFprop
from ooc.plan import show_bytes
from ooc.run import run, schedule
from ooc.store import Store

PROBLEMS = Path(__file__).parent / "problems"
Say = Callable[[str], None]


def problems(name: str) -> list[ConvFprop]:
    """The convolutions of a problem set or file, one descriptor a line. Raises FileNotFoundError, ShapeError."""
    path = Path(name) if name.endswith(".txt") else PROBLEMS / f"{name}.txt"
    ops = [parse(line) for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return [op for op in ops if isinstance(op, ConvFprop)]


def bench(
    ops: list[ConvFprop], tensor_bytes: int, ratio: float, rounds: int, peer: str | None, directory: str | None, say: Say
) -> Iterator[dict[str, Any]]:
    """Rows of results, one per problem. tensor_bytes: size of x and y together; budget: that over `ratio`."""
    for op in ops:
        sized = _batched(op, tensor_bytes)
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            row = _row(sized, ratio, rounds, peer, Path(folder))
        say(_line(row))
        yield row


def _batched(op: ConvFprop, tensor_bytes: int) -> ConvFprop:
    one = (op.inputs[0].nbytes + op.outputs[0].nbytes) / op.n
    return replace(op, n=max(1, round(tensor_bytes / one)))


def _row(op: ConvFprop, ratio: float, rounds: int, peer: str | None, folder: Path) -> dict[str, Any]:
    budget = int((op.inputs[0].nbytes + op.outputs[0].nbytes) / ratio)
    x, w = _data(op, folder)
    # Read, not copied from the mapping: pages that a mapping has touched cannot be dropped from the cache.
    in_memory, result = np.load(folder / "x.npy"), np.empty(op.outputs[0].shape, np.float32)
    out = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, op.outputs[0].shape)
    free, tight = ooc.device("cpu"), ooc.device("cpu", budget)
    contestants: dict[str, Callable[[], Any]] = {
        "memory": lambda: _conv(free, op, in_memory, w, result),
        "ooc": lambda: _conv(tight, op, x, w, out),
    }
    if peer == "torch":
        contestants["torch"] = _torch(op, in_memory, w)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    reports = []
    for turn in range(rounds + 1):  # the first round warms up
        for name, work in contestants.items():
            _drop_cache(folder / "x.npy")
            begin = time.perf_counter()
            work()
            if turn:
                times[name].append(time.perf_counter() - begin)
            if name == "ooc" and turn:
                reports.append(ooc.last_report())
    if not np.allclose(out, result, rtol=1e-4, atol=1e-3):
        raise RuntimeError(f"{op}: out-of-core result differs from the in-memory one")
    return _summary(op, budget, times, reports)


def _data(op: ConvFprop, folder: Path) -> tuple[Any, Any]:
    """Random input on disk (clean in the page cache, so that it can be dropped) and filters in memory."""
    numbers = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, op.inputs[0].shape)
    for image in x:
        image[...] = numbers.standard_normal(image.shape, dtype=np.float32)
    x.flush()
    del x
    w = numbers.standard_normal(op.inputs[1].shape, dtype=np.float32)
    return np.load(folder / "x.npy", mmap_mode="r"), w


def _drop_cache(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _conv(device: ooc.Device, op: ConvFprop, x: Any, w: Any, out: Any) -> None:
    with device:
        ooc.conv(x, w, stride=op.stride, padding=op.pad, dilation=op.dilation, groups=op.groups, out=out)


def _torch(op: ConvFprop, x: Any, w: Any) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(default_threads())
    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    pad = tuple(before for before, _ in op.pad)

    def work() -> None:
        with torch.no_grad():
            torch.nn.functional.conv2d(tx, tw, stride=op.stride, padding=pad, dilation=op.dilation, groups=op.groups)
        gc.collect(0)

    return work


def _summary(op: ConvFprop, budget: int, times: dict[str, list[float]], reports: list[Any]) -> dict[str, Any]:
    median = {name: statistics.median(v) for name, v in times.items()}
    report = reports[-1]
    busiest = max(report.lane_seconds, key=lambda lane: report.lane_seconds[lane])
    return {
        "problem": str(op), "budget_bytes": budget, "seconds": median, "all_seconds": times,
        "gflops": {n: op.flops(op.dims) / s / 1e9 for n, s in median.items()},
        "ooc_over_memory": median["ooc"] / median["memory"],
        **({"ooc_over_torch": median["ooc"] / median["torch"]} if "torch" in median else {}),
        "predicted_seconds": report.predicted_seconds, "peak_bytes": report.peak_bytes, "tiles": report.tiles,
        "lane_seconds": report.lane_seconds, "busiest_lane": busiest, "overlap_efficiency": report.overlap_efficiency,
        "plan": json.loads(report.plans[0].to_json()),
    }  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{n} {s:.3f} s ({row['gflops'][n]:.0f} GF/s)" for n, s in row["seconds"].items())
    ratios = f"ooc/memory {row['ooc_over_memory']:.2f}"
    if "ooc_over_torch" in row:
        ratios += f"  ooc/torch {row['ooc_over_torch']:.2f}"
    return f"{row['problem']} under {show_bytes(row['budget_bytes'])}\n   {times}  {ratios}"


def system_header() -> dict[str, Any]:
    """What the figures were measured on: commit, machine, threads, versions."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, cwd=Path(__file__).parent)
    from perfmodel.calibrate import processor

    return {
        "system": {
            "commit": found.stdout.strip() + ("+" if changed.stdout.strip() else ""), "date": datetime.date.today().isoformat(),
            "processor": processor(), "threads": default_threads(), "python": platform.python_version(),
            "numpy": np.__version__, "kernel": platform.release(),
        }
    }  # fmt: skip


def write_rows(path: str | Path, rows: list[dict[str, Any]]) -> None:
    """Write a system header and the rows as JSON lines."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(json.dumps(r) + "\n" for r in [system_header(), *rows]))


def overhead(rounds: int = 5) -> dict[str, Any]:
    """Microseconds per step that Python adds, on a backend that does nothing: lowering and linking, and running.

    Running uses all five lanes as threads, as a GPU would be driven.
    """
    device = ooc.device("null", "1 MiB")
    op = parse("conv.fprop n=64 c=64 h=56 w=56 k=64 r=3 s=3 pad=1")
    plan = device.plan(op, {o.name: ooc.Place.HOST for o in op.operands})
    stores: dict[str, Store] = {o.name: NullStore(o.shape) for o in op.operands}
    lowering, running = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        todo = schedule(plan)
        lowering.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        run(todo, stores, device.backend)
        running.append(time.perf_counter() - begin)
    steps = len(todo.steps)
    return {
        "problem": f"overhead of {op}", "steps": steps,
        "lower_microseconds_per_step": statistics.median(lowering) / steps * 1e6,
        "run_microseconds_per_step": statistics.median(running) / steps * 1e6,
    }  # fmt: skip
