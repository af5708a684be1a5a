"""Pictures of a calibration: how fast its lanes copy what, and what its kernels reach beside what the lanes can feed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.model.cost import Compute, Model
from ooc.runtime.pictures import clean, new_figure
from ooc.runtime.timeline import SHADES
from ooc.schedule.steps import LANES
from perfmodel.problems.sets import problems
from perfmodel.report.show import Calibration, gigabytes
from perfmodel.report.table import three

# Loads are blue, stores orange, computing green, as in timelines. What may coincide differs in width.
STYLES = {
    "read": (SHADES["load"][1], 3.6, "read: from file or pageable memory"),
    "h2d": (SHADES["load"][0], 3.6, "h2d: host to device"),
    "d2h": (SHADES["store"][0], 1.6, "d2h: device to host"),
    "write": (SHADES["store"][1], 1.6, "write: to file or pageable memory"),
}
ROWS = ((0, "contiguous"), (64 << 10, "rows of 64 KiB"), (4 << 10, "rows of 4 KiB"), (256, "rows of 256 B"))
SIZES = np.geomspace(4 << 10, 256 << 20, 65)
TICKS = {4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB"}
BATCH = 64
ALIKE = 1.1  # intensities closer than this share a label
# Where several coincide, the smaller ones lie inside the larger.
MARKS = (
    ("from_files", SHADES["store"][1], "s", 14, "out of core, from files"),
    ("from_host", SHADES["load"][0], "D", 9, "out of core, from host memory"),
    ("in_core", SHADES["run"][1], "o", 6, "in core"),
)
KERNEL = "conv.fprop/f32/null"


class RooflinePoint(NamedTuple):
    """A layer as the roofline sees it. intensity: FLOP per byte over the busier direction of the link; the rest: GFLOP/s in
    core, and out of core from host memory and from files."""

    text: str
    intensity: float
    in_core: float
    from_host: float
    from_files: float


def draw(calibration: Calibration, path: str | Path) -> None:
    """Write a PNG: bandwidth of every lane by size and length of rows, and a roofline with VGG16's layers.

    Raises UnsupportedError without matplotlib, OSError when the file cannot be written.
    """
    source = calibration.model.source.partition(":")[0] or "source unknown"
    title = f"{calibration.model.name}: {source}, {calibration.facts['date']}"
    figure = new_figure("plots need", 10.5, _plain(title))
    parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.6))
    _draw_lanes(parts[0], calibration.model)
    _draw_roofline(parts[1], calibration.model)
    figure.savefig(path, format="png")


def _plain(text: str) -> str:
    """Text in which no sign has a meaning of its own."""
    return text.replace("$", r"\$")[:120]


# ---- bandwidth of the lanes


def _draw_lanes(figure: Any, model: Model) -> None:
    axes = figure.subplots(1, len(ROWS), sharey=True)
    for axis, (row, title) in zip(axes, ROWS, strict=True):
        for lane in (x for x in LANES if x in model.copies):
            colour, width, text = STYLES[lane]
            sizes = SIZES[row <= SIZES]
            speeds = [gigabytes(model.copies[lane], n, row or n) for n in sizes]
            axis.plot(sizes, speeds, color=colour, linewidth=width, label=text)
        axis.set(xscale="log", yscale="log", xlim=(SIZES[0], SIZES[-1]))
        axis.set_xticks(list(TICKS), list(TICKS.values()), fontsize=8)
        axis.minorticks_off()
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel("size of the block")
        clean(axis)
    _number_ticks(axes[0].yaxis)
    axes[0].set_ylabel("GB/s")
    figure.suptitle("How fast each lane copies a block of a larger tensor", fontsize=11, x=0.01, ha="left")
    handles, texts = axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=len(texts), frameon=False, fontsize=9)


# ---- roofline


def _draw_roofline(figure: Any, model: Model) -> None:
    from matplotlib.lines import Line2D

    axis = figure.subplots()
    kernel, layers = best_kernel(model), list(layers_of(model))
    peak = kernel.flops_per_second / 1e9
    low, high = min(x.intensity for x in layers) / 3, max(x.intensity for x in layers) * 3
    reach = np.geomspace(low, high, 200)
    handles = []
    for text, rate, colour, style in _slopes(model, kernel):
        axis.plot(reach, np.minimum(peak, reach * rate), color=colour, linestyle=style, linewidth=2)
        handles.append(Line2D([], [], color=colour, linestyle=style, linewidth=2, label=f"slope, {text}: {three(rate)} GB/s"))
    axis.axhline(peak, color=SHADES["run"][0], linewidth=2)
    roof = f"roof, fastest f32 kernel: {peak:,.0f} GFLOP/s"
    handles.insert(0, Line2D([], [], color=SHADES["run"][0], linewidth=2, label=roof))
    handles += _draw_layers(axis, layers, peak)
    floor = min(x.from_files for x in layers) / 2
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor, peak * 1.7))
    for ticks in (axis.xaxis, axis.yaxis):
        _number_ticks(ticks)
    axis.set_xlabel("arithmetic per byte: FLOP / byte over the busier direction of the link, every tensor moved once")
    axis.set_ylabel("GFLOP/s")
    title = (
        f"What VGG16's layers can reach (3x3, f32, batch {BATCH})\nleft of the bend the link decides, right of it the arithmetic"
    )
    axis.set_title(title, loc="left", fontsize=11)
    clean(axis)
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9, title_fontsize=9, alignment="left")


def _draw_layers(axis: Any, layers: Sequence[RooflinePoint], peak: float) -> list[Any]:
    """Every layer, numbered above the roof; the legend says which layer a number is."""
    from matplotlib.lines import Line2D

    for layer in layers:
        axis.plot([layer.intensity] * 2, [layer.from_files, peak * 1.05], color="#999999", linewidth=0.8, zorder=3)
        for field, colour, mark, size, _ in MARKS:
            axis.plot(layer.intensity, getattr(layer, field), marker=mark, color=colour, markersize=size, mec="white", zorder=4)
    for intensity, numbers in _groups(layers):
        axis.text(intensity, peak * 1.1, numbers, ha="center", va="bottom", fontsize=9, fontweight="bold")
    handles = [
        Line2D([], [], marker=m, color=c, linestyle="", markersize=8, label=f"a layer {t}") for _, c, m, _, t in MARKS[::-1]
    ]
    return handles + [Line2D([], [], linestyle="", label=f"{i}: {layer.text}") for i, layer in enumerate(layers, 1)]


def _groups(layers: Sequence[RooflinePoint]) -> list[tuple[float, str]]:
    """Where to write which numbers: layers at nearly the same place share a label."""
    labels: list[tuple[float, str]] = []
    for intensity, number in sorted((layer.intensity, i) for i, layer in enumerate(layers, 1)):
        if labels and intensity < ALIKE * labels[-1][0]:
            labels[-1] = (labels[-1][0], f"{labels[-1][1]}, {number}")
        else:
            labels.append((intensity, str(number)))
    return labels


def _slopes(model: Model, kernel: Compute) -> Iterator[tuple[str, float, str, Any]]:
    """What feeds the kernels, in gigabytes per second: the files, the link, the device's memory."""
    yield "from files (read)", model.copies["read"].bytes_per_second / 1e9, SHADES["store"][0], (0, (2, 1.5))
    yield "from host memory (h2d)", model.copies["h2d"].bytes_per_second / 1e9, SHADES["load"][0], "-"
    if math.isfinite(kernel.bytes_per_second):
        yield "in core (the device's memory)", kernel.bytes_per_second / 1e9, SHADES["run"][0], (0, (6, 2))


def best_kernel(model: Model) -> Compute:
    """The entry of the fastest kernel of a forward convolution in f32, without TF32."""
    return model.compute(KERNEL)


def layers_of(model: Model, batch: int = BATCH) -> Iterator[RooflinePoint]:
    """VGG16's layers by a calibration: in core in one piece, and out of core as the slower of that and the link."""
    kernel = best_kernel(model)
    for op in problems("vgg16"):
        yield _layer(replace(op, n=batch), model, kernel)  # type: ignore[type-var]


def _layer(op: Any, model: Model, kernel: Compute) -> RooflinePoint:
    in_bytes, out_bytes = (sum(o.nbytes for o in side) for side in (op.inputs, op.outputs))
    flops = float(op.flops(op.dims))
    compute = float(kernel.seconds(op.effort(op.dims), op.touched_bytes(op.dims)))
    link, files = (_least_seconds(model, in_bytes, out_bytes, lanes) for lanes in (("h2d", "d2h"), ("read", "write")))
    rates = (flops / seconds / 1e9 for seconds in (compute, max(compute, link), max(compute, link, files)))
    text = f"{op.c} to {op.k} channels, {' x '.join(map(str, op.extent))}"
    return RooflinePoint(text, flops / max(in_bytes, out_bytes), *rates)


def _least_seconds(model: Model, in_bytes: int, out_bytes: int, lanes: tuple[str, str]) -> float:
    """Seconds to move so much in and so much out, at the same time."""
    return max(n / model.copies[lane].bytes_per_second for n, lane in zip((in_bytes, out_bytes), lanes, strict=True))


def _number_ticks(ticks: Any) -> None:
    """Numbers that read as such on a logarithmic axis: 0.1, 20, 5,000."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=30))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.10g}"))
