"""One network on one tensor in a process of its own, by ooc or by ONNX Runtime: its result, its seconds, its memory."""

from __future__ import annotations

import multiprocessing
import platform
import resource
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ooc

Array = np.ndarray[Any, Any]


class Ran(NamedTuple):
    """What a process did.

    Fields:
        y: the result.
        seconds: of computing; loading and planning are not in it.
        resident: bytes of the process at its peak, Python and the libraries included.
        before: bytes of the process before it loaded the network.
        planned: seconds of loading and planning.
        peak: bytes of the plan at its peak; 0 by ONNX Runtime.
    """

    y: Array
    seconds: float
    resident: int
    before: int
    planned: float
    peak: int = 0


def machine() -> str:
    """The processor, as far as the system tells, and how many cores there are."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {len(names) or 1} cores"


def commit() -> str:
    """The commit of ooc that runs, with a + where files differ from it."""
    folder = str(Path(ooc.__file__).parent)
    asked = ["git", "-C", folder, "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def by_ooc(model: Path, x: Array, budget: int | None) -> Ran:
    """A network through ooc on the processor, in a process of its own."""
    return _apart(_ooc, str(model), x, budget)


def by_runtime(model: Path, x: Array, threads: int, optimized: bool = False) -> Ran:
    """The same by ONNX Runtime, on the whole tensor."""
    return _apart(_runtime, str(model), x, threads, optimized)


def _apart(function: Any, *given: Any) -> Ran:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found: Ran = pool.submit(function, *given).result()
    return found


def _ooc(model: str, x: Array, budget: int | None) -> Ran:
    before, begin = resident(), time.perf_counter()
    plan = ooc.onnx.load(model, input_shape=x.shape).plan(batch=x.shape[0], train=False, budget=budget, device="cpu")
    with plan.session() as session:
        planned = time.perf_counter() - begin
        y = session.forward(x)
    seconds = time.perf_counter() - begin - planned
    return Ran(y, seconds, resident(), before, planned, plan.peaks["device"])


def _runtime(model: str, x: Array, threads: int, optimized: bool) -> Ran:
    import onnxruntime  # type: ignore[import-untyped]

    before, begin = resident(), time.perf_counter()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    planned = time.perf_counter() - begin
    y = session.run(None, {session.get_inputs()[0].name: x})[0]
    return Ran(y, time.perf_counter() - begin - planned, resident(), before, planned)


def resident() -> int:
    """The most bytes that this process held so far; what its parent held does not count, where the system tells them apart."""
    held = [line.split()[1] for line in _lines("/proc/self/status") if line.startswith("VmHWM")]
    return (int(held[0]) if held else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
