"""What calibrations of all machines share: which operations are measured, and how times become entries of a calibration."""

from __future__ import annotations

import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.backends.base import Backend, Kernel
from ooc.ir.op import Block, Op
from ooc.ir.region import Sizes, Span, whole
from ooc.schedule.work import Moved, Work
from perfmodel.calibrate.fit import fit_costs

MIB = 1 << 20
MOST_ROWS = 1 << 15  # of a copy
SAME = {"pool.average_valid": "pool.average", "pool_backward.average_valid": "pool_backward.average"}
Say = Callable[[str], None]
Clock = Callable[[Callable[[], Any]], float]  # the seconds of one call of some work


def others(planes: tuple[str, ...], slow: tuple[str, ...], windows: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Shapes of all operations but convolutions, by kind; slow: the planes of those that take long."""
    return {
        **dict.fromkeys(("pool.max", "pool.average", "pool_backward.max", "pool_backward.average"), windows),
        **{f"{kind}": tuple(f"{p} act=relu" for p in planes) for kind in ("pointwise", "activation_backward", "bn.apply")},
        **dict.fromkeys(("reduce.bias", "reduce.positions", "bn.moments", "bn.sums", "bn.pull"), planes),
        **dict.fromkeys(("softmax.sum", "softmax.plain", "softmax.log", "cross_entropy", "cross_entropy_backward"), slow),
        **{f"softmax_backward.{how}": slow for how in ("dot", "sum", "plain", "log")},
        "lrn": tuple(f"{p} size=5 before=2" for p in slow),
        "lrn_backward": tuple(f"{p} size=5 before=2" for p in slow),
        "dropout": tuple(f"{p} seed=1" for p in slow),
        **{
            f"upsample{way}.{how}": tuple(f"{p} size={16 if p.endswith('h=8 w=8') else 96}" for p in slow)
            for way in ("", "_backward")
            for how in ("nearest", "linear", "aligned")
        },
    }


def median(work: Callable[[], Any], least_seconds: float = 0.05) -> float:
    """Median seconds of repeated calls after one to warm up, on the host's clock; of 200 at most."""
    work()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - begin < least_seconds and len(times) < 200):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class Point(NamedTuple):
    """A copy to measure: equal blocks of a large array, one after the other, and a dense one. features: its calls, its
    contiguous pieces, its bytes."""

    features: list[float]
    blocks: Iterator[Any]
    dense: Any


def copy_points(large: Any, small: Any, sizes: Iterable[int], lengths: tuple[int, ...], depth: int = 1) -> Iterator[Point]:
    """Copies of blocks of a larger array: contiguous, and in rows of some lengths, of `depth` slices where that is possible.

    Each copy takes another part of an array too large for the caches: tensors that do not fit come from memory.
    """
    for nbytes in sizes:
        for row in dict.fromkeys((*lengths, nbytes)):
            rows = nbytes // row
            slices = depth if rows >= 2 * depth else 1
            height = rows // slices
            pitch = row if row == nbytes else row + row // 2
            strides = (pitch * (height + (slices > 1)), pitch, 1)
            span = strides[0] * slices
            if not 1 <= rows <= MOST_ROWS or span > large.nbytes or nbytes > small.nbytes:
                continue
            shape = (slices, height, row)
            blocks = [
                np.lib.stride_tricks.as_strided(large[at:], shape, strides)
                for at in range(0, large.nbytes - span + 1, max(span, 4 * MIB))
            ]
            dense = small[: slices * height * row].reshape(shape)
            yield Point([1.0, float(slices * height), float(dense.nbytes)], itertools.cycle(blocks), dense)


def copy_curve(points: Iterable[Point], move: Callable[[Any, Any], Any], clock: Clock) -> tuple[dict[str, float], float]:
    """The entry of a copy lane and the error of its fit. move(block, dense): copies one into the other."""
    features, seconds = [], []
    for point in points:
        features.append(point.features)
        seconds.append(clock(lambda p=point: move(next(p.blocks), p.dense)))  # type: ignore[misc]
    return copy_entry(features, seconds)


def copy_entry(features: list[list[float]], seconds: list[float]) -> tuple[dict[str, float], float]:
    """A copy lane's entry in a calibration, from calls, contiguous pieces and bytes, and the error of its fit."""
    (latency, run, per_byte), error = fit_costs(features, seconds)
    return {"latency_seconds": latency, "run_seconds": run, "bytes_per_second": 1 / max(per_byte, 1e-13)}, error


def compute_entry(ops: list[Op], seconds: list[float], width: int = 1, kernel: str = "") -> tuple[dict[str, float], float]:
    """A kernel's entry in a calibration, from the seconds of these ops, each in one tile; and its error. width: output channels
    that it computes at a time; kernel: its name."""
    efforts = [float(op.effort(op.dims, kernel)) * max(1.0, width / float(op.width(op.dims))) for op in ops]
    features = [[1.0, effort, float(op.touched_bytes(op.dims))] for op, effort in zip(ops, efforts, strict=True)]
    entry, error = _tiles_entry(features, seconds)
    return entry | ({"width": width} if width > 1 else {}), error


def tiles_entry(timed: Mapping[Work, float]) -> tuple[dict[str, float], float]:
    """A kernel's entry in a calibration, from the seconds of measured tiles; and its error."""
    return _tiles_entry([[1.0, work.effort, work.nbytes] for work in timed], list(timed.values()))


def _tiles_entry(features: list[list[float]], seconds: list[float]) -> tuple[dict[str, float], float]:
    (latency, per_flop, per_byte), error = fit_costs(features, seconds)
    rates = {"flops_per_second": 1 / max(per_flop, 1e-16), "bytes_per_second": 1 / max(per_byte, 1e-14)}
    return {"latency_seconds": latency, **rates}, error


def copies_entry(timed: Mapping[Moved, float]) -> tuple[dict[str, float], float]:
    """A lane's entry in a calibration, from the seconds of measured copies; and its error."""
    return copy_entry([[1.0, moved.pieces, moved.nbytes] for moved in timed], list(timed.values()))


def workspace_bytes(backend: Backend, op: Op, family: str, sizes: Sizes | None = None) -> int:
    """What a family needs for tiles of an op, or for all of it in one; nothing if it is not offered."""
    return int(next((o.workspace(sizes or op.dims) for o in backend.offers(op) if o.name == family), 0))


def whole_kernel(kernel: Kernel, op: Op, arrays: Mapping[str, Any]) -> Callable[[], None]:
    """A prepared kernel with its operands, ready to compute all of an op in one tile."""
    blocks = {o.name: Block(arrays[o.name], whole(o.shape), 1) for o in op.operands}
    tile = {d: Span(0, e) for d, e in op.dims.items()}
    return lambda: kernel(tile, blocks, True, True)


def write_calibration(calibration: dict[str, Any], path: str | Path) -> None:
    """Write a calibration as JSON, via a temporary file so that a reader never sees half of it."""
    part = Path(f"{path}.part")
    part.write_text(show_calibration(calibration))
    part.replace(path)


def show_calibration(calibration: Mapping[str, Any]) -> str:
    """JSON with a line for each entry."""
    lines = []
    for name, value in calibration.items():
        text = json.dumps(value)
        if isinstance(value, dict) and any(isinstance(v, dict) for v in value.values()):
            text = "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n }"
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def processor() -> str:
    """Model name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
