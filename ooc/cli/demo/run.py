"""`ooc demo --large`: VGG16's first block on an image of several GB, from file to file, under a small memory budget.

The image is made of a photograph that matplotlib ships; the result is checked against NumPy in float64 on windows at
the corners, on the edges, across the seams of tiles, and at random.
"""

from __future__ import annotations

import importlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import ooc
from ooc.cli.demo.check import CHANNELS, BlockWeights, check, make_weights, windows
from ooc.cli.demo.denoise import check_target
from ooc.cli.demo.image import make_image, photograph
from ooc.cli.demo.picture import draw
from ooc.cli.doctor import file_system
from ooc.ir.fused import fuse
from ooc.ir.op import Op
from ooc.ops.descriptor import parse
from ooc.runtime.resident import ResidentMemory
from ooc.schedule.budget import show_bytes

SIDE = 6336  # input and output together: 3 GB
SMALLEST = 16  # pixels per side
MOST_TILES = 50_000  # whose steps are kept for the picture: some kilobytes each
TOLERANCE = 1e-5  # of the largest value: f32 sums of 576 products, against float64

Array = Any


@dataclass(frozen=True)
class DemoResult:
    """What the demo saw. ok: every checked window is right; error: the worst, relative to the largest value.

    grown_bytes: growth of resident memory during the run. kept: where the files are, when they were kept.
    """

    ok: bool
    windows: int
    error: float
    seconds: float
    grown_bytes: int
    report: ooc.Report
    png: Path = Path()
    kept: Path | None = None


def run_demo(
    size: str | int | None = None,
    budget: int | float | str | None = "256 MiB",
    *,
    keep: bool = False,
    directory: str | Path | None = None,
    threads: int | None = None,
    png: str | Path = "ooc-demo-timeline.png",
    trace: str | Path | None = None,
) -> DemoResult:
    """Run the demo, telling on stdout what happens; the files are removed afterwards, on errors too, unless `keep`.

    size: side in pixels or "WIDTHxHEIGHT". directory: where the files go. trace: file for a Chrome/Perfetto trace.
    Raises ShapeError, BudgetError, StoreError (no room) or UnsupportedError (no matplotlib).
    """
    width, height = parse_size(size)
    for file in (png, trace):
        if file is not None:
            check_target(Path(file))
    photo, device, stages = photograph(), ooc.device("cpu", budget, threads=threads), _stages(width, height)
    plans = _show_plans(stages, device)
    _check_tiles(plans, budget)
    parent = Path(directory) if directory is not None else _default_directory()
    _check_room(parent, 12 * width * height, stages, plans)
    with _working_directory(parent, keep) as folder:
        make_image(folder / "input.npy", photo, width, height)
        result = _run_and_check(folder, stages, device, trace)
    return _finish(replace(result, png=Path(png), kept=folder if keep else None))


def _run_and_check(folder: Path, stages: tuple[Op, ...], device: ooc.Device, trace: str | Path | None) -> DemoResult:
    weights = make_weights()
    grown, seconds, report = _run(folder, weights, device, trace)
    _show_report(report, grown, seconds, stages, device)
    checked, error = _check(folder, weights, report.plans[-1].sizes)
    return DemoResult(error <= TOLERANCE, checked, error, seconds, grown, report)


def _finish(result: DemoResult) -> DemoResult:
    """Draw the timeline and say how it went."""
    gained = f"{result.seconds:.1f} s, predicted {result.report.predicted_seconds:.1f} s"
    draw(result.report.parts, result.png, f"VGG16's first block, file to file: {gained}")
    print(f"timeline  {result.png}")
    if result.kept:
        print(f"files     kept in {result.kept}")
    verdict = "ok" if result.ok else "FAILED"
    print(f"demo: {verdict}, {result.windows} windows checked, largest error {result.error:.1e} (allowed {TOLERANCE:.0e})")
    return result


def parse_size(size: str | int | None) -> tuple[int, int]:
    """Width and height of "6336" or "8000x5000". Raises ShapeError."""
    parts = str(SIDE if size is None else size).lower().split("x")
    if len(parts) > 2 or not all(p.isdecimal() for p in parts):
        raise ooc.ShapeError(f"--size {size}: expected a side in pixels or WIDTHxHEIGHT")
    width, height = int(parts[0]), int(parts[-1])
    if min(width, height) < SMALLEST:
        raise ooc.ShapeError(f"--size {size}: expected at least {SMALLEST} pixels per side")
    return width, height


def _stages(width: int, height: int) -> tuple[Op, ...]:
    """The block as the ops that `ooc.chain` makes of its layers."""
    common = f"h={height} w={width}"
    conv = f"{common} k={CHANNELS} r=3 s=3 pad=1 bias=1 act=relu dtype=f32"
    pool = f"pool.max n=1 k={CHANNELS} {common} window=2 stride=2 dtype=f32"
    return parse(f"conv.fprop n=1 c=3 {conv} | conv.fprop n=1 c={CHANNELS} {conv} | {pool}").stages


def _show_plans(stages: tuple[Op, ...], device: ooc.Device) -> list[ooc.Plan]:
    """The plans that the run below will use: the device remembers them."""
    places = {o.name: ooc.Place.DISK if o.name in ("x", "y") else ooc.Place.HOST for o in fuse(*stages).operands}
    plans = device.planner.plans(fuse(*stages), places)
    for plan in plans:
        print(plan, flush=True)
    return plans


# ---- files


def _default_directory() -> Path:
    """The system's temporary directory, unless that is memory: a demo of disks needs a disk."""
    usual, large = tempfile.gettempdir(), "/var/tmp"
    in_memory = file_system(usual) in ("tmpfs", "ramfs") and "TMPDIR" not in os.environ
    return Path(large if in_memory and os.access(large, os.W_OK) else usual)


def _check_tiles(plans: list[ooc.Plan], budget: object) -> None:
    """Refuse what its timeline could not show: the steps of every tile are kept until it is drawn."""
    tiles = sum(plan.tiles for plan in plans)
    if tiles > MOST_TILES:
        raise ooc.BudgetError(
            f"--budget {budget}: {tiles} tiles, whose steps would not fit a picture, nor memory; at most {MOST_TILES}; raise it, "
            "or give a smaller --size"
        )


def _check_room(parent: Path, image_bytes: int, stages: tuple[Op, ...], plans: list[ooc.Plan]) -> None:
    """Refuse before anything is written. A chain that was cut passes its intermediates through files too."""
    need = image_bytes + sum(o.nbytes for plan in plans for o in plan.op.outputs) + (1 << 20)
    try:
        free = shutil.disk_usage(parent).free
    except OSError as error:
        raise ooc.StoreError(error.errno, f"{parent}: {error.strerror}") from error
    if free < need:
        raise ooc.StoreError(
            f"{parent}: the demo needs {show_bytes(need)} of disk but {show_bytes(free)} are free; "
            "give another directory (--dir) or a smaller --size"
        )


@contextmanager
def _working_directory(parent: Path, keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ooc-demo-", dir=parent))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


# ---- the run


def _block(x: Array, weights: BlockWeights, out: Array | None = None, **options: Any) -> Array:
    """VGG16's first block: this is all that a user of ooc writes."""
    return ooc.chain(
        x,
        ooc.Conv(weights.w1, weights.b1, padding=1, activation="relu"),
        ooc.Conv(weights.w2, weights.b2, padding=1, activation="relu"),
        ooc.Pool("max", 2),
        out=out,
        **options,
    )


def _warm_up(weights: BlockWeights) -> None:
    """Load the libraries and start the threads that the run uses: they are not the run's memory."""
    with ooc.device("cpu", None):
        _block(np.zeros((1, 3, 32, 32), np.float32), weights)
    with suppress(ImportError):
        importlib.import_module("tqdm")


def _run(folder: Path, weights: BlockWeights, device: ooc.Device, trace: str | Path | None) -> tuple[int, float, ooc.Report]:
    """From file to file: bytes that resident memory grew by, seconds, and the report."""
    x = np.load(folder / "input.npy", mmap_mode="r")
    out_shape = (1, CHANNELS, x.shape[2] // 2, x.shape[3] // 2)
    out = np.lib.format.open_memmap(folder / "output.npy", "w+", np.float32, out_shape)
    _warm_up(weights)
    memory = ResidentMemory()
    with memory, device:
        begin = time.perf_counter()
        # With a trace the report holds the predicted timeline, which the picture shows.
        _block(x, weights, out, progress=True, trace=str(trace or folder / "trace.json"))
        seconds = time.perf_counter() - begin
    report = ooc.last_report()
    assert report is not None
    return memory.grown_bytes, seconds, report


# ---- what came out


def _show_report(report: ooc.Report, grown: int, seconds: float, stages: tuple[Op, ...], device: ooc.Device) -> None:
    flops = sum(stage.flops(stage.dims) for stage in stages)
    pixels = math.prod(stages[0].inputs[0].shape[2:])
    moved = {lane: report.lane_bytes.get(lane, 0) / seconds / 1e6 for lane in ("read", "write")}
    limit = "none" if device.device_bytes is None else show_bytes(device.device_bytes)
    print(report)
    print(f"budget    {limit}; resident memory grew by {show_bytes(grown)} during the run")
    print(
        f"speed     {pixels / seconds / 1e6:.2f} Mpixel/s, {flops / seconds / 1e9:.0f} GFLOP/s, "
        f"reads {moved['read']:.0f} MB/s, writes {moved['write']:.0f} MB/s",
        flush=True,
    )


def _check(folder: Path, weights: BlockWeights, sizes: dict[str, int]) -> tuple[int, float]:
    """Open both files anew, as any other program would, and compare windows: how many, and the largest error."""
    x, y = (np.load(folder / name, mmap_mode="r") for name in ("input.npy", "output.npy"))
    places = windows(y.shape[2], y.shape[3], sizes["p"], sizes["q"])
    return len(places), check(x, y, weights, places)
