"""Benchmarks on a GPU: out of core from host memory, beside the same work in core and loops that people write by hand.

Every contestant's result is compared with the CPU's at sampled places.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ooc.backends.cuda.tuning import MEASURED_AT
from ooc.schedule.steps import lane_totals
from perfmodel.bench.gpu.contestants import Contestant, contestants
from perfmodel.bench.gpu.problem import GIB, MICRO, WORKLOADS, Arrays, Problem, Workload

Say = Callable[[str], None]
Row = dict[str, Any]
BUDGETS = (4 * GIB, 16 * GIB)
TINY_BUDGETS = (64 << 10, 192 << 10)
WARM = MEASURED_AT  # calls before a measurement
ENOUGH = 1.0  # seconds of rounds after which there is none more
DECISIVE = ("W1", "W3", "W2", "W7 transposed")  # in core, and from pinned memory


def bench_gpu(
    make: Callable[[bool], Arrays], say: Say, done: Callable[[str], bool] = lambda key: False, seconds: float = 300.0,
    rounds: int = 3, tiny: bool = False, directory: str | None = None, who: str = "ours",
) -> Iterator[Row]:  # fmt: skip
    """Rows of results, as soon as each is measured. make: the arrays of a device that may use TF32 or not. done: whether the
    row of a key is there already. who: "ours", in core and out of core, "decisive", ten of those, or "peers". Small problems come
    first, full ones while there is time; the one that takes longest last."""
    end, link = time.perf_counter() + seconds, make(False).link(1 << 22 if tiny else GIB)
    yield {"key": "link", "bytes_per_second": link}
    by_tf32: dict[bool, Arrays] = {}
    for scale, work in _problems(who, tiny):
        if time.perf_counter() > end:
            break
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            problem = Problem(work, work.op(scale), Path(folder), False)
            for tf32 in work.tf32:
                arrays = by_tf32[tf32] = by_tf32.get(tf32) or make(tf32)
                problem.computed_by(tf32)
                for budget, name, enter in _turns(problem, arrays, who, tiny):
                    key = f"{work.name} {work.sizes[scale]} {budget} {'tf32' if tf32 else 'fma'} {name}"
                    if (done(key) and name != "in_core") or time.perf_counter() > end:
                        continue
                    row = _row(key, problem, enter, name, budget, link, rounds, end)
                    say(_line(row))
                    yield row
        del problem
        forget()


def _problems(who: str, tiny: bool) -> Iterator[tuple[int, Workload]]:
    """Workloads with their scale, in the order in which they tell most."""
    works = list(MICRO) if who == "micro" else sorted(WORKLOADS, key=lambda work: work.name == "W1")
    if who == "decisive":
        works = sorted((work for work in works if work.name in DECISIVE), key=lambda work: DECISIVE.index(work.name))
    for scale in (0,) if tiny else (1,) if who in ("decisive", "micro") else (1, 2):
        yield from ((scale, work) for work in works)


def _turns(problem: Problem, arrays: Arrays, who: str, tiny: bool) -> Iterator[tuple[int, str, Callable[[], Contestant]]]:
    """Budgets with their contestants."""
    budgets: tuple[int, ...] = TINY_BUDGETS if tiny else BUDGETS
    if who == "micro":
        budgets = budgets[1:]  # as in the paper
    elif who == "decisive" or problem.work.name.startswith("W7"):
        budgets = budgets[:1]
    for turn, budget in enumerate(budgets):
        for name, enter in contestants(problem, arrays, budget, turn and budgets[0], who).items():
            yield budget, name, enter


def _row(
    key: str, problem: Problem, enter: Callable[[], Contestant], name: str, budget: int, link: dict[str, float], rounds: int,
    end: float,
) -> Row:  # fmt: skip
    op = problem.op
    in_bytes, out_bytes = sum(o.nbytes for o in op.inputs), sum(o.nbytes for o in op.outputs)
    row: Row = {
        "key": key, "workload": problem.work.name, "problem": str(op), "dtype": op.dtype, "tf32": problem.tf32,
        "contestant": name, "budget_bytes": budget, "compulsory_bytes": in_bytes + out_bytes, "x_in_a_file": problem.work.file,
    }  # fmt: skip
    try:
        row |= _measured(enter, problem, name, rounds, end)
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    finally:
        forget()
    median = row["seconds"]["median"]
    if name == "in_core":
        problem.in_core_seconds = median
    in_core = problem.in_core_seconds
    copies = [in_bytes / link["h2d"], out_bytes / link["d2h"]]
    bound = max([*copies, *([in_core] if math.isfinite(in_core) else [])])
    if name not in ("in_core", "torch_in_core"):
        row |= {"bound_seconds": bound, "share_of_bound": bound / median, "bound_by": "compute" if bound == in_core else "link"}
    return row | {"slowdown_vs_in_core": median / in_core if math.isfinite(in_core) else None}


def timed(run: Callable[[], object]) -> float:
    """Seconds of a call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measured(run: Callable[[], object], rounds: int, end: float, enough: float = ENOUGH) -> Row:
    """Seconds of some rounds: once at least, no more than so many, as long as there is time and not enough was measured."""
    times: list[float] = []
    while not times or (len(times) < rounds and sum(times) < enough and time.perf_counter() + times[-1] < end):
        times.append(timed(run))
    return {"median": statistics.median(times), "min": min(times), "max": max(times), "rounds": times}


def _measured(enter: Callable[[], Contestant], problem: Problem, name: str, rounds: int, end: float) -> Row:
    """Warm up, check, measure."""
    one = enter()
    with closing(one):
        return _timed(one, problem, name, rounds, end)


def _timed(one: Contestant, problem: Problem, name: str, rounds: int, end: float) -> Row:
    reports = list[Any]()

    def run() -> None:
        reports[:] = one.run() or ()

    first = timed(run)
    problem.check(one.read)
    for _ in range(WARM if name == "in_core" else 1):  # kernels are chosen when a shape comes again: out of core in one call
        run()
    row: Row = {
        "seconds": {**measured(run, rounds, end), "first": first},
        "cap": one.cap, "peak_bytes": one.peak(), "predicted_seconds": None, "moved_bytes": None, "plans": None,
    }  # fmt: skip
    if one.ours and reports:
        moved: dict[str, int] = {}
        for report in reports:
            for lane, nbytes in report.lane_bytes.items():
                moved[lane] = moved.get(lane, 0) + nbytes
        crossing = moved.get("h2d", 0) + moved.get("d2h", 0)
        lanes = [r.lane_seconds for r in reports]
        row |= {
            "predicted_seconds": sum(r.predicted_seconds for r in reports), "peak_bytes": max(r.peak_bytes for r in reports),
            "moved_bytes": moved, "moved_over_compulsory": crossing / sum(o.nbytes for o in problem.op.operands),
            "lane_seconds": {lane: sum(s.get(lane, 0.0) for s in lanes) for lane in {k for s in lanes for k in s}},
            "plans": [str(p) for r in reports for p in r.plans],
            "algorithms": lane_totals(r.algorithms for r in reports), "fallbacks": sum(r.fallbacks for r in reports),
        }  # fmt: skip
    return row


def forget() -> None:
    """Memory of the last contestant goes back to the device before the next one comes."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _line(row: Row) -> str:
    if "error" in row:
        return f"{row['key']}: {row['error']}"
    share = f"  {row['share_of_bound']:.0%} of the bound" if "share_of_bound" in row else ""
    return f"{row['key']}: {row['seconds']['median']:.4f} s{share}"
