"""Filters of few and of many taps, beside SciPy's convolutions by transforms and PyTorch's, in one run."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

import ooc
from ooc.backends.cpu.backend import default_threads

Row = dict[str, Any]
Contestant = Callable[[], Any]  # convolves once
MOST_SECONDS = 5.0  # of a call of a peer: one that takes longer is left out, and with more taps, too
SIDES, LONGER = (3, 5, 7, 9, 11, 15, 21, 31, 45, 63, 91, 127, 181, 255), (65, 129, 513, 2001, 4097, 8193)
CUBES = (5, 7, 9, 15, 21, 31)
MOST_FLOPS = 3e12  # of a direct sum of several channels: larger problems are left to one channel


class FilterProblem(NamedTuple):
    """Channels in, out, groups; extents of x; taps. As large a result as x is."""

    c: int
    k: int
    groups: int
    extent: tuple[int, ...]
    taps: tuple[int, ...]

    @property
    def label(self) -> str:
        channels = "depthwise" if self.groups > 1 else f"{self.c} -> {self.k}"
        return f"{channels}{f' {self.c}' * (self.groups > 1)}, {'x'.join(map(str, self.extent))}, {'x'.join(map(str, self.taps))}"

    @property
    def series(self) -> tuple[int, ...]:
        """What differs in taps alone."""
        return self.c, self.k, self.groups, len(self.taps)

    @property
    def flops(self) -> float:
        return 2.0 * self.k * self.c / self.groups * math.prod(self.extent) * math.prod(self.taps)


def problems(side: int) -> list[FilterProblem]:
    """Pictures of a side, lines and volumes of about as many numbers, of one channel and of several."""
    length, cube = side * side, round(side ** (2 / 3))
    every = []
    for c, k, groups, less in ((1, 1, 1, 1), (8, 8, 1, 2), (64, 64, 1, 4), (64, 64, 64, 4)):
        every += [FilterProblem(c, k, groups, (side // less,) * 2, (n, n)) for n in SIDES]
        every += [FilterProblem(c, k, groups, (length // less**2,), (n,)) for n in LONGER]
        every += [FilterProblem(c, k, groups, (round(cube / less ** (2 / 3)),) * 3, (n,) * 3) for n in CUBES]
    return [p for p in every if p.c == 1 or p.flops < MOST_FLOPS]


def filters(side: int, rounds: int, share: int = 0, only: str = "", directory: str | None = None) -> Iterator[Row]:
    """A row for each problem: medians of so many rounds, one call of each in turn, and errors against sums in f64.

    share: x and y are files, and the budget so small a share of them; 0: in memory, without a budget. only: problems whose label
    holds this text.
    """
    slow: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for problem in (p for p in problems(side) if only in p.label):
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            yield _measured(problem, rounds, share, Path(folder), slow[problem.series])


def _measured(problem: FilterProblem, rounds: int, share: int, folder: Path, slow: set[str]) -> Row:
    """slow: peers that are left out; those that prove to be slow are added."""
    rng = default_rng(0)
    x = rng.standard_normal((1, problem.c, *problem.extent), np.float32)
    w = rng.standard_normal((problem.k, problem.c // problem.groups, *problem.taps), np.float32)
    padding = [((n - 1) // 2, n // 2) for n in problem.taps]
    peers = {name: call for name, call in _peers(problem, x, w, padding).items() if name not in slow}
    calls: dict[str, Contestant] = {"ooc": _ours(problem, x, w, padding, share, folder), **peers}
    results, seconds = {}, {name: list[float]() for name in calls}
    for turn in range(rounds + 1):  # the first one warms up
        for name in list(calls):
            begin = time.perf_counter()
            result = calls[name]()
            took = time.perf_counter() - begin
            if not turn:
                results[name] = np.asarray(result)
            else:
                seconds[name].append(took)
            if name != "ooc" and took > MOST_SECONDS:
                slow.add(name)
                del calls[name], results[name]
    report = ooc.last_report()
    assert report is not None
    medians = {name: statistics.median(took) for name, took in seconds.items() if name in calls}
    best = min((s for name, s in medians.items() if name != "ooc"), default=None)
    return {
        "problem": problem.label, "share": share, "kernel": " ".join(p.kernel for p in report.plans), "seconds": medians,
        "ratio": best and medians["ooc"] / best, "errors": _errors(problem, x, w, results), "peak_bytes": report.peak_bytes,
    }  # fmt: skip


def _ours(problem: FilterProblem, x: Any, w: Any, padding: Any, share: int, folder: Path) -> Contestant:
    shape, where = (1, problem.k, *problem.extent), ooc.device("cpu")
    if not share:
        out = np.empty(shape, np.float32)
    else:
        np.lib.format.open_memmap(folder / "x.npy", "w+", x.dtype, x.shape)[...] = x
        x, out = np.load(folder / "x.npy", mmap_mode="r"), np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, shape)
        where = ooc.device("cpu", budget=(x.nbytes + out.nbytes) // share)

    def run() -> Any:
        with where:
            return ooc.conv(x, w, padding=padding, groups=problem.groups, out=out)

    return run


def _peers(problem: FilterProblem, x: Any, w: Any, padding: Any) -> dict[str, Contestant]:
    peers: dict[str, Contestant] = {name: _scipy(name, problem, x, w) for name in ("fftconvolve", "oaconvolve")}
    try:
        import torch
    except ImportError:
        return peers
    torch.set_num_threads(default_threads())
    conv = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}[len(problem.taps)]
    tensor, kernel = torch.from_numpy(x), torch.from_numpy(w)
    around = [before for before, _ in padding]  # taps are odd: as many behind

    def run() -> Any:
        with torch.no_grad():
            return conv(tensor, kernel, padding=around, groups=problem.groups).numpy()

    return {**peers, "torch": run}


def _scipy(name: str, problem: FilterProblem, x: Any, w: Any) -> Contestant:
    """All channels of x with the filters of an output channel at a time, by as many threads as we have."""
    from scipy import fft, signal

    axes, flipped = tuple(range(1, 1 + len(problem.taps))), np.ascontiguousarray(np.flip(w, tuple(range(2, w.ndim))))
    each, y = problem.c // problem.groups, np.empty((1, problem.k, *problem.extent), np.float32)

    def run() -> Any:
        begin = time.perf_counter()
        with fft.set_workers(default_threads()):
            for k in range(problem.k):
                first = k * problem.groups // problem.k * each
                y[0, k] = getattr(signal, name)(x[0, first : first + each], flipped[k], "same", axes=axes).sum(0)
                if time.perf_counter() - begin > 2 * MOST_SECONDS:
                    break
        return y

    return run


def _errors(problem: FilterProblem, x: Any, w: Any, results: Mapping[str, Any]) -> dict[str, float]:
    """How far results are from sums in f64, over the largest of them, at some positions of the first and the last channel."""
    rng, far = default_rng(1), dict.fromkeys(results, 0.0)
    each, wide = problem.c // problem.groups, [n // 2 for n in problem.taps]
    padded = np.pad(x[0], [(0, 0), *((n, n) for n in wide)])
    largest = 0.0
    for i in range(64):
        k, at = (0, problem.k - 1)[i % 2], tuple(int(rng.integers(e)) for e in problem.extent)
        first = k * problem.groups // problem.k * each
        window = padded[(slice(first, first + each), *(slice(p, p + n) for p, n in zip(at, problem.taps, strict=True)))]
        exact = float(np.sum(window.astype(np.float64) * w[k]))
        largest = max(largest, abs(exact))
        for name, y in results.items():
            far[name] = max(far[name], abs(float(y[(0, k, *at)]) - exact))
    return {name: error / largest for name, error in far.items()}


def line(row: Row) -> str:
    """A row as a line of text."""
    times = ", ".join(f"{name} {1e3 * s:.2f} ms" for name, s in row["seconds"].items())
    errors = ", ".join(f"{e:.1e}" for e in row["errors"].values())
    ratio = f"{row['ratio']:.2f}" if row["ratio"] else "alone"
    return f"{row['problem']:36} {ratio} ({row['kernel']}): {times}; errors {errors}"


def summary(rows: list[Row]) -> str:
    """The geometric mean and the worst of all ratios."""
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    if not ratios:
        return "nothing to compare with"
    mean = statistics.geometric_mean(ratios)
    return f"{len(ratios)} problems: {mean:.2f} of the best peer's time in the geometric mean, worst {max(ratios):.2f}"
