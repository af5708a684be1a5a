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
from ooc.engine import execute
from ooc.fused import Fused
from ooc.op import Op, Operand
from ooc.ops import Convolution
from ooc.plan import show_bytes
from ooc.run import run, schedule
from ooc.store import Store

PROBLEMS = Path(__file__).parent / "problems"
Say = Callable[[str], None]


def problems(name: str) -> list[Op]:
    """The ops of a problem set or file, one descriptor a line. Raises FileNotFoundError, ShapeError."""
    path = Path(name) if name.endswith(".txt") else PROBLEMS / f"{name}.txt"
    return [parse(line) for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def bench(
    ops: list[Op], tensor_bytes: int, ratio: float, rounds: int, peer: str | None, directory: str | None, say: Say
) -> Iterator[dict[str, Any]]:
    """Rows of results, one per problem. tensor_bytes: size of its tensors together; budget: that over `ratio`."""
    for op in ops:
        sized = _batched(op, tensor_bytes)
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            row = _row(sized, ratio, rounds, peer, Path(folder))
        say(_line(row))
        yield row


def _tensors(op: Op) -> list[Operand]:
    """The operands that grow with the batch: they live on disk, filters and biases in memory."""
    return [o for o in op.operands if len(o.shape) > 2 and o.name[:1] != "w" and o.name != "dw"]


def _batched(op: Op, tensor_bytes: int) -> Op:
    """The same work with the batch that makes its tensors this large."""
    n = max(1, round(tensor_bytes / sum(o.nbytes / o.shape[0] for o in _tensors(op))))
    if isinstance(op, Fused):
        return Fused([node._replace(op=replace(node.op, n=n)) for node in op.nodes], op.results)  # type: ignore[type-var]
    return replace(op, n=n)  # type: ignore[type-var]


def _row(op: Op, ratio: float, rounds: int, peer: str | None, folder: Path) -> dict[str, Any]:
    large = _tensors(op)
    budget = int(sum(o.nbytes for o in large) / ratio)
    inputs, in_memory, outs, results = _data(op, large, folder)
    free, tight = ooc.device("cpu"), ooc.device("cpu", budget)
    contestants: dict[str, Callable[[], Any]] = {
        "memory": lambda: _execute(free, op, in_memory, results),
        "ooc": lambda: _execute(tight, op, inputs, outs),
    }
    if peer == "torch":
        contestants["torch"] = _torch(op, in_memory)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    reports = []
    for turn in range(rounds + 1):  # the first round warms up
        for name, work in contestants.items():
            for operand in op.inputs:
                _drop_cache(folder / f"{operand.name}.npy")
            begin = time.perf_counter()
            work()
            if turn:
                times[name].append(time.perf_counter() - begin)
            if name == "ooc" and turn:
                reports.append(ooc.last_report())
    for name, out in outs.items():
        if np.abs(out - results[name]).max() > 1e-4 * np.abs(results[name]).max():
            raise RuntimeError(f"{op}: out-of-core {name} differs from the in-memory one")
    return _summary(op, budget, times, reports)


def _data(op: Op, large: list[Operand], folder: Path) -> tuple[dict[str, Any], ...]:
    """Inputs where they live (random; on disk clean in the page cache, so that it can be dropped) and in memory, outputs
    where they live and in memory."""
    numbers, names = np.random.default_rng(0), {o.name for o in large}
    inputs, in_memory = {}, {}
    for operand in op.inputs:
        array = in_memory[operand.name] = numbers.standard_normal(operand.shape, dtype=np.float32)
        if operand.name in names:
            np.save(folder / f"{operand.name}.npy", array)
            os.sync()
            array = np.load(folder / f"{operand.name}.npy", mmap_mode="r")
        inputs[operand.name] = array
    outs = {
        o.name: np.lib.format.open_memmap(folder / f"{o.name}.npy", "w+", np.float32, o.shape)
        if o.name in names else np.empty(o.shape, np.float32) for o in op.outputs
    }  # fmt: skip
    return inputs, in_memory, outs, {o.name: np.empty(o.shape, np.float32) for o in op.outputs}


def _drop_cache(path: Path) -> None:
    if not path.exists():
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _execute(device: ooc.Device, op: Op, inputs: dict[str, Any], outs: dict[str, Any]) -> None:
    with device:
        execute(op, inputs, outs)


def _torch(op: Op, given: dict[str, Any]) -> Callable[[], Any]:
    """The same work in PyTorch on tensors in memory: a forward convolution, or all gradients of one."""
    import torch

    torch.set_num_threads(default_threads())
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    conv = next(s for s in op.stages if isinstance(s, Convolution))
    geometry = (list(conv.stride), [before for before, _ in conv.pad], list(conv.dilation), False, [0] * conv.rank, conv.groups)

    def forward() -> None:
        with torch.no_grad():
            torch.ops.aten.convolution(tensors["x"], tensors["w"], None, *geometry)
        gc.collect(0)

    def backward() -> None:
        wanted = [name in {o.name for o in op.outputs} for name in ("dx", "dw", "db")]
        with torch.no_grad():
            torch.ops.aten.convolution_backward(tensors["dy"], tensors["x"], tensors["w"], [conv.k], *geometry, wanted)
        gc.collect(0)

    return forward if op.kind == "conv.fprop" else backward


def _summary(op: Op, budget: int, times: dict[str, list[float]], reports: list[Any]) -> dict[str, Any]:
    median = {name: statistics.median(v) for name, v in times.items()}
    report = reports[-1]
    busiest = max(report.lane_seconds, key=lambda lane: report.lane_seconds[lane])
    return {
        "problem": str(op), "budget_bytes": budget, "seconds": median, "all_seconds": times,
        "gflops": {n: op.flops(op.dims) / s / 1e9 for n, s in median.items()},
        "ooc_over_memory": median["ooc"] / median["memory"],
        **({"ooc_over_torch": median["ooc"] / median["torch"]} if "torch" in median else {}),
        "predicted_seconds": report.predicted_seconds, "peak_bytes": report.peak_bytes, "tiles": report.tiles,
        "lane_seconds": report.lane_seconds, "lane_bytes": report.lane_bytes, "busiest_lane": busiest,
        "compulsory_bytes": sum(o.nbytes for o in op.operands), "overlap_efficiency": report.overlap_efficiency,
        "plans": [json.loads(plan.to_json()) for plan in report.plans],
    }  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{n} {s:.3f} s ({row['gflops'][n]:.0f} GF/s)" for n, s in row["seconds"].items())
    ratios = f"ooc/memory {row['ooc_over_memory']:.2f}"
    if "ooc_over_torch" in row:
        ratios += f"  ooc/torch {row['ooc_over_torch']:.2f}"
    moved = sum(row["lane_bytes"].values()) / row["compulsory_bytes"]
    plans = len(row["plans"])
    return (
        f"{row['problem']} under {show_bytes(row['budget_bytes'])}\n   {times}  {ratios}"
        f"  predicted {row['predicted_seconds']:.3f} s  moved {moved:.2f} x compulsory  {plans} plan{'s' * (plans > 1)}"
    )


def system_header() -> dict[str, Any]:
    """What the figures were measured on: commit, machine, threads, versions."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, cwd=Path(__file__).parent)
    from perfmodel.measuring import processor

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
