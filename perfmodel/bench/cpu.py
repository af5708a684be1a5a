"""Benchmarks: out of core from file to file, beside the same kernels in memory and a peer, all in one run.

For every problem the batch is chosen so that its tensors are a given multiple of the budget. Rounds alternate between
the contestants, so that a disturbance of the machine hits all of them; medians are reported. Input files are dropped
from the page cache before every out-of-core round. Between turns all rest, so that threads that one leaves spinning are
not the next one's loss.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng

import ooc
from ooc import native
from ooc.backends.cpu.backend import default_threads
from ooc.errors import BackendError
from ooc.files import npy
from ooc.ir.fused import Fused
from ooc.ir.op import Op, Operand
from ooc.ops import ConvFprop, Reduce
from ooc.ops.descriptor import parse
from ooc.planner.question import Bound
from ooc.runtime.executor import run
from ooc.runtime.store import NullStore, Store
from ooc.runtime.tensors import places_of, tensors_of
from ooc.schedule.budget import show_bytes
from ooc.schedule.lowering import lower
from ooc.workers.child import python
from perfmodel.bench.peers import PEERS, Contestant, PeerWork, execute_on
from perfmodel.calibrate.trial import tensors

Say = Callable[[str], None]
REST = 0.02  # seconds before each turn


def bench(
    ops: list[Op], tensor_bytes: int, ratio: float, rounds: int, peers: Sequence[str], directory: str | None, say: Say,
    busy: bool = False,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Rows of results, one per problem. tensor_bytes: size of its tensors together; budget: that over `ratio`; peers: names
    of `peers.PEERS`; busy: with another program that never sleeps on one of the processors."""
    for op in ops:
        sized = batched(op, tensor_bytes)
        with tempfile.TemporaryDirectory(dir=directory) as folder, beside(busy):
            row = _row(sized, ratio, rounds, peers, Path(folder))
        say(_line(row))
        yield {"busy": busy, **row}


@contextmanager
def beside(busy: bool) -> Iterator[None]:
    """With another program on the first processor of this process, or without."""
    if not busy:
        yield
        return
    cpu = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, [{cpu}])\nprint(flush=True)\nwhile True: pass"
    command, environment = python("-c", code)
    other = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        assert other.stdout is not None and other.stdout.readline()
        yield
    finally:
        other.kill()
        other.communicate()


def gradients_of(op: Op) -> Op:
    """All gradients of a forward convolution in one pass over dy, as training asks for them."""
    assert isinstance(op, ConvFprop)
    conv = str(replace(op, bias=False, act="identity")).split(" ", 1)[1]
    sums = Reduce("bias", op.n, op.k, op.out, dtype=op.dtype, layout=op.layout)
    return parse(f"dy>db! {sums} | x,dy>dw! conv.wgrad {conv} | dy,w>dx! conv.dgrad {conv}")


def measured_peak() -> dict[str, float]:
    """What the processors do at most: multiply-adds of f32 on registers alone, the best of many runs, as others may want the
    machine; and copies of what no cache holds."""
    assert native.kernels is not None
    threads, gflops = default_threads(), 0.0
    for _ in range(40):
        begin = time.perf_counter()
        done = native.kernels.peak(1_000_000, threads)
        gflops = max(gflops, 2e-9 * done / (time.perf_counter() - begin))
    source, target = np.ones(1 << 27, np.float32), np.zeros(1 << 27, np.float32)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        native.copy(target, source, threads)
        seconds.append(time.perf_counter() - begin)
    return {"peak_gflops": gflops, "copied_bytes_per_second": source.nbytes / statistics.median(seconds)}


def batched(op: Op, tensor_bytes: int) -> Op:
    """The same work with the batch that makes its tensors, which live on disk, this large."""
    n = max(1, round(tensor_bytes / sum(o.nbytes / o.shape[0] for o in tensors(op))))
    if isinstance(op, Fused):
        return Fused([node._replace(op=replace(node.op, n=n)) for node in op.nodes], op.results)  # type: ignore[type-var]
    return replace(op, n=n)  # type: ignore[type-var]


def _row(op: Op, ratio: float, rounds: int, peers: Sequence[str], folder: Path) -> dict[str, Any]:
    large = tensors(op)
    budget = int(sum(o.nbytes for o in large) / ratio)
    inputs, in_memory, outs, results = _data(op, large, folder)
    work = PeerWork(op, budget, inputs, in_memory, outs)
    free, tight = ooc.device("cpu"), ooc.device("cpu", budget)
    contestants: dict[str, Contestant] = {
        "memory": lambda: execute_on(free, op, in_memory, results),
        "ooc": lambda: execute_on(tight, op, inputs, outs),
        **{name: PEERS[name](work) for name in peers},
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    reports = []
    for turn in range(rounds + 1):  # the first round warms up and is checked
        for name, contestant in contestants.items():
            if not turn:
                _spoil(outs)
            for operand in op.inputs:
                _drop_cache(folder / f"{operand.name}.npy")
            time.sleep(REST)
            begin = time.perf_counter()
            outputs = contestant()
            if turn:
                times[name].append(time.perf_counter() - begin)
            else:
                _check(op, name, outputs, results)
            if name == "ooc" and turn:
                reports.append(ooc.last_report())
    places = places_of(tensors_of(op, {**inputs, **outs}, tight))
    row = _summary(op, budget, times, reports, tight.planner.bound(op, places))
    return {**row, "error": _errors(op, contestants, in_memory)}


def _errors(op: Op, contestants: Mapping[str, Contestant], in_memory: Mapping[str, Any]) -> dict[str, float]:
    """Of each contestant the largest difference from f64, over the largest value."""
    wide = parse(str(op).replace("dtype=f32", "dtype=f64"))
    exact = {o.name: np.empty(o.shape) for o in wide.outputs}
    execute_on(ooc.device("cpu"), wide, {name: a.astype(np.float64) for name, a in in_memory.items()}, exact)
    errors = {}
    for name, contestant in contestants.items():
        outputs = contestant()
        errors[name] = max(float(np.abs(outputs[o] - y).max() / np.abs(y).max()) for o, y in exact.items())
    return errors


def _spoil(outs: Mapping[str, Any]) -> None:
    """Nothing that an earlier contestant wrote may pass for the result of the next."""
    for out in outs.values():
        out.fill(np.nan)


def _check(op: Op, name: str, outputs: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    for output, expected in results.items():
        if not np.abs(outputs[output] - expected).max() <= 1e-4 * np.abs(expected).max():
            raise BackendError(f"{op}: {output} of {name} differs from the in-memory one")


def _data(op: Op, large: list[Operand], folder: Path) -> tuple[dict[str, Any], ...]:
    """Inputs where they live (random; on disk clean in the page cache, so that it can be dropped) and in memory, outputs
    where they live and in memory."""
    numbers, names = default_rng(0), {o.name for o in large}
    inputs, in_memory = {}, {}
    for operand in op.inputs:
        array = in_memory[operand.name] = numbers.standard_normal(operand.shape, dtype=np.float32)
        if operand.name in names:
            npy.save(folder / f"{operand.name}.npy", array)
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


def _summary(op: Op, budget: int, times: dict[str, list[float]], reports: list[Any], bound: Bound) -> dict[str, Any]:
    median = {name: statistics.median(v) for name, v in times.items()}
    report = reports[-1]
    busiest = max(report.lane_seconds, key=lambda lane: report.lane_seconds[lane])
    return {
        "problem": str(op), "budget_bytes": budget, "seconds": median, "all_seconds": times,
        "gflops": {n: op.flops(op.dims) / s / 1e9 for n, s in median.items()},
        **{f"ooc_over_{name}": median["ooc"] / s for name, s in median.items() if name != "ooc"},
        "bound_seconds": bound.seconds, "bound_by": bound.by, "ooc_over_bound": median["ooc"] / bound.seconds,
        "predicted_seconds": report.predicted_seconds, "peak_bytes": report.peak_bytes, "tiles": report.tiles,
        "lane_seconds": report.lane_seconds, "lane_bytes": report.lane_bytes, "busiest_lane": busiest,
        "compulsory_bytes": sum(o.nbytes for o in op.operands), "overlap_efficiency": report.overlap_efficiency,
        "plans": [json.loads(plan.to_json()) for plan in report.plans],
    }  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{n} {s:.3f} s ({row['gflops'][n]:.0f} GF/s)" for n, s in row["seconds"].items())
    others = [*(n for n in row["seconds"] if n != "ooc"), "bound"]
    ratios = "  ".join(f"ooc/{n} {row[f'ooc_over_{n}']:.2f}" for n in others)
    moved = sum(row["lane_bytes"].values()) / row["compulsory_bytes"]
    plans = len(row["plans"])
    return (
        f"{row['problem']} under {show_bytes(row['budget_bytes'])}\n   {times}  {ratios}"
        f"  predicted {row['predicted_seconds']:.3f} s  moved {moved:.2f} x compulsory  {plans} plan{'s' * (plans > 1)}"
    )


def overhead(rounds: int = 5) -> dict[str, Any]:
    """Microseconds per step that Python adds, on a backend that does nothing: lowering and linking, and running.

    Running uses all five lanes as threads, as a GPU would be driven.
    """
    device = ooc.device("null", "1 MiB")
    op = parse("conv.fprop n=64 c=64 h=56 w=56 k=64 r=3 s=3 pad=1")
    plan = device.planner.plan(op, {o.name: ooc.Place.HOST for o in op.operands})
    stores: dict[str, Store] = {o.name: NullStore(o.shape) for o in op.operands}
    lowering, running = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        todo = lower(plan)
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
