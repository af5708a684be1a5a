"""`ooc demo`: a trained network takes the noise off a picture in a file that is larger than the budget.

The picture and the network come with ooc (`data/NOTICE.md`). Windows of the result are computed again by NumPy in float64.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng

import ooc
from ooc.apply.page import grid_of
from ooc.files.png import png as png_of
from ooc.networks import NetworkPlan
from ooc.schedule.budget import show_bytes

DATA = Path(__file__).parent / "data"
SIDE = 2048  # pixels of the picture: 48 MiB of float32
NOISE = 0.15  # standard deviation, of values from 0 to 1
DILATIONS = (1, 2, 3, 4, 3, 2, 1)  # of the network's layers
REACH = sum(DILATIONS)  # positions that a result sees along each axis, on either side
WINDOW, TOLERANCE = 16, 3e-5  # pixels that are checked together; of the largest value: seven layers of f32 sums of 288 products
BAND = 256  # rows that are made at a time
SHOWN, FRAME = 512, 8  # pixels of each quarter of what is shown; between them
CLOSE = (0.36, 0.02)  # where the part lies that is shown as it is
LINE = (255, 127, 14)  # the colour of seams between tiles

Array = Any


@dataclass(frozen=True)
class DenoiseResult:
    """What the demo saw.

    Fields:
        ok: every checked window is right.
        error: the worst, relative to the largest value.
        before, after: the picture's distance from the one without noise, in decibels (PSNR).
        seconds: of the run.
        plan: of it.
    """

    ok: bool
    error: float
    before: float
    after: float
    seconds: float
    plan: NetworkPlan


def picture() -> Array:
    """The picture without noise, 3 x height x width, bytes."""
    with np.load(DATA / "picture.npz") as file:
        return np.cumsum(file["steps"], axis=2, dtype=np.uint8)


def weights() -> dict[str, Array]:
    """Of the network, by name."""
    with np.load(DATA / "network.npz") as file:
        return {name: file[name].astype(np.float32) for name in file.files}


def denoiser(values: dict[str, Array], side: int) -> ooc.Graph:
    """The network: dilated convolutions that tell the noise, which is added to what they read."""
    graph = ooc.Graph("denoiser")
    x = h = graph.input("noisy", (3, side, side))
    for i, dilation in enumerate(DILATIONS):
        last, k = i + 1 == len(DILATIONS), len(values[f"layer{i}.b"])
        act = "identity" if last else "relu"
        h = graph.conv(h, k, 3, padding=dilation, dilation=dilation, bias=True, activation=act, name=f"layer{i}")
    graph.output(graph.add(x, h))
    graph.begin_with(values)
    return graph


def run_denoise(
    budget: int | float | str | None = "16 MiB", *, directory: str | Path | None = None, threads: int | None = None,
    png: str | Path = "ooc-demo.png", side: int = SIDE,
) -> DenoiseResult:  # fmt: skip
    """Run the demo, telling on stdout what happens; what stays is the picture.

    Parameters:
        budget: memory for the computation, as `ooc.device` takes it.
        directory: where the files go; default: the system's temporary directory.
        threads: that compute; default: all.
        png: where the picture goes.
        side: pixels of the noisy picture.

    Raises:
        OocError: a budget that is none, or too small; a folder that is missing, a disk without room.
    """
    check_target(Path(png))
    with tempfile.TemporaryDirectory(prefix="ooc-demo-", dir=directory) as folder, ooc.device("cpu", budget, threads=threads):
        plan = denoiser(weights(), side).plan(batch=1, train=False, budget=budget)
        truth, noisy, clean = (Path(folder, f"{name}.npy") for name in ("truth", "noisy", "clean"))
        make_pictures(truth, noisy, side)
        size = show_bytes(12 * side * side)
        print(f"picture   {side} x {side} with noise, {size} in a file; {show_bytes(plan.budget or 0)} of memory to compute in")
        print(plan, flush=True)
        seconds = run(plan, noisy, clean)
        real, x, y = (np.load(file, mmap_mode="r") for file in (truth, noisy, clean))
        error, before, after = check(x, y), distance(x, real), distance(y, real)
        result = DenoiseResult(error <= TOLERANCE, error, before, after, seconds, plan)
        Path(png).write_bytes(png_of(shown(x, y, grid_of(plan))))
    print(f"done      {seconds:.3g} s")
    print(f"noise     {before:.1f} dB before, {after:.1f} dB after")
    print(f"picture   {png}: before, after, and the tiles that it was made in")
    print(f"demo: {'ok' if result.ok else 'FAILED'}, largest error {error:.1e} (allowed {TOLERANCE:.0e})")
    return result


def check_target(file: Path) -> None:
    """Refuse a file that could not be written at the end. Raises StoreError."""
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ooc.StoreError(f"{file}: cannot be written; give another file (--png, --trace)")


def make_pictures(truth: Path, noisy: Path, side: int) -> None:
    """The picture, enlarged, without noise and with it, a band of rows at a time."""
    rng = default_rng(1411)
    x, y = (np.lib.format.open_memmap(path, "w+", np.float32, (1, 3, side, side)) for path in (truth, noisy))
    ooc.upsample(picture()[None], side, "linear", scale=1 / 255, out=x)
    for top in range(0, side, BAND):
        band = x[:, :, top : top + BAND]
        y[:, :, top : top + BAND] = band + rng.standard_normal(band.shape, np.float32) * np.float32(NOISE)
    y.flush()


def run(plan: NetworkPlan, noisy: Path, clean: Path) -> float:
    """From file to file, in seconds."""
    x = np.load(noisy, mmap_mode="r")
    y = np.lib.format.open_memmap(clean, "w+", np.float32, x.shape)
    with plan.session() as session:
        begin = time.perf_counter()
        session.forward(x, out=y)
        return time.perf_counter() - begin


# ---- what came out


def distance(x: Array, truth: Array) -> float:
    """From the picture without noise, in decibels."""
    bands = (slice(top, top + BAND) for top in range(0, x.shape[2], BAND))
    total = sum(float(np.square(x[:, :, band] - truth[:, :, band], dtype=np.float64).sum()) for band in bands)
    return 10 * math.log10(x.size / total)


def check(x: Array, y: Array) -> float:
    """The largest error of windows at corners, in the middle and at random, over the largest value."""
    side, rng, values = x.shape[2], default_rng(19), weights()
    most, worst = max(0, side - WINDOW), 0.0
    places = [(0, 0), (0, most), (most, 0), (most, most), (most // 2, most // 2), *rng.integers(0, most + 1, (4, 2))]
    for top, left in places:
        wide = np.zeros((3, WINDOW + 2 * REACH, WINDOW + 2 * REACH))
        inside = np.zeros(wide.shape[1:], bool)
        bounds = [(max(0, at - REACH), min(side, at + WINDOW + REACH)) for at in (top, left)]
        rows, columns = (slice(lo - at + REACH, hi - at + REACH) for at, (lo, hi) in zip((top, left), bounds, strict=True))
        wide[:, rows, columns] = x[0, :, slice(*bounds[0]), slice(*bounds[1])]
        inside[rows, columns] = True
        expected = by_numpy(wide, inside, values)[:, REACH:-REACH, REACH:-REACH]
        window = y[0, :, top : top + WINDOW, left : left + WINDOW]
        difference = np.abs(window - expected[:, : window.shape[1], : window.shape[2]]).max()
        worst = max(worst, float(difference / np.abs(expected).max()))
    return worst


def by_numpy(x: Array, inside: Array, values: dict[str, Array]) -> Array:
    """The network in float64, of a part of the picture. inside: which positions the picture has; the others are zeros."""
    h = x
    for i, dilation in enumerate(DILATIONS):
        w, padded = values[f"layer{i}.w"].astype(np.float64), np.pad(h, ((0, 0), (dilation, dilation), (dilation, dilation)))
        total = np.zeros((len(w), *h.shape[1:])) + values[f"layer{i}.b"][:, None, None]
        for r in range(3):
            for s in range(3):
                part = padded[:, r * dilation :, s * dilation :][:, : h.shape[1], : h.shape[2]]
                total += np.tensordot(w[:, :, r, s], part, 1)
        h = (total if i + 1 == len(DILATIONS) else np.maximum(total, 0)) * inside
    return x + h


def shown(x: Array, y: Array, grid: tuple[int, ...]) -> Array:
    """Above, a part of the picture before and after; below, all of it, with the seams of the tiles that it was made in; bytes."""
    side, cut = x.shape[2], min(SHOWN, x.shape[2])
    top, left = (min(int(at * side), side - cut) for at in CLOSE)
    before, after = (as_bytes(z[0, :, top : top + cut, left : left + cut]) for z in (x, y))
    step = max(1, side // cut)
    small = [as_bytes(z[0, :, ::step, ::step][:, :cut, :cut]) for z in (x, y)]
    rows, columns = grid if len(grid) == 2 else (1, 1)
    for i in range(1, rows):
        small[1][i * len(small[1]) // rows] = LINE
    for i in range(1, columns):
        small[1][:, i * small[1].shape[1] // columns] = LINE
    height, width = small[0].shape[:2]
    canvas = np.full((cut + FRAME + height, max(2 * cut, 2 * width) + FRAME, 3), 255, np.uint8)
    canvas[:cut, :cut], canvas[:cut, cut + FRAME : 2 * cut + FRAME] = before, after
    canvas[cut + FRAME :, :width], canvas[cut + FRAME :, width + FRAME : 2 * width + FRAME] = small
    return canvas


def as_bytes(x: Array) -> Array:
    """Colours from 0 to 1 as height x width x 3 bytes."""
    return np.clip(np.moveaxis(np.asarray(x), 0, 2) * 255 + 0.5, 0, 255).astype(np.uint8)
