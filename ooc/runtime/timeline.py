"""A picture of a run: predicted over measured, one row per lane, coloured by what a step does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc.errors import UnsupportedError
from ooc.model.cost import Model
from ooc.model.simulate import simulate
from ooc.runtime.bars import SHADES, Bars, Times, join
from ooc.runtime.report import Part
from ooc.schedule.steps import LANES

MEANINGS = {"load": "load: bring a tile's input", "run": "run: compute a tile", "store": "store: take a tile's output away"}
CROWDED = 60  # steps in one lane from which a close-up is added
CLOSE_UP = 8  # computed tiles in the close-up


class Panel(NamedTuple):
    """One drawn timeline: its bars, the seconds that it shows, and its title."""

    title: str
    bars: list[Bars]
    begin: float
    end: float


def draw(parts: Sequence[Part], path: str | Path, title: str = "", model: Model | None = None) -> None:
    """Write a PNG picture of one call's parts, which ran one after the other.

    model: predicts the parts that hold no prediction; default: the current device's. Raises UnsupportedError without
    matplotlib and OSError when the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("the timeline needs matplotlib; pip install matplotlib") from None
    panels = _panels(parts, model)
    lanes = [lane for lane in LANES if any(b.lane == lane for p in panels for b in p.bars)] or ["compute"]
    figure = Figure(figsize=(13, 1.5 + len(panels) * (0.75 + 0.42 * len(lanes))), dpi=110, layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        _draw_panel(axis, panel, lanes)
    axes[-1].set_xlabel("seconds")
    figure.suptitle(title or "Steps of every lane", fontsize=12, fontweight="bold", x=0.01, ha="left")
    _legend(figure)
    figure.savefig(path, format="png")


def _panels(parts: Sequence[Part], model: Model | None) -> list[Panel]:
    predicted = join([Times(p.schedule.steps, *_predicted(p, model)) for p in parts])
    measured = join([p.times for p in parts])
    ends = [max((float(b.ends.max()) for b in bars), default=0.0) for bars in (predicted, measured)]
    shown = max(*ends, 1e-9)
    panels = [
        Panel(f"predicted: {ends[0]:.3g} s   (%: share of the time in which a lane works)", predicted, 0.0, shown),
        Panel(f"measured: {ends[1]:.3g} s", measured, 0.0, shown),
    ]
    close = _close_up(measured, ends[1])
    return [*panels, close] if close else panels


def _predicted(part: Part, model: Model | None) -> tuple[list[float], list[float]]:
    if part.predicted is not None:
        return part.predicted.starts, part.predicted.ends
    if model is None:
        from ooc.runtime.context import current_device

        model = current_device().model
    timeline = simulate(part.schedule.steps, model, part.schedule.alone)
    return timeline.starts, timeline.ends


def _close_up(bars: Sequence[Bars], end: float) -> Panel | None:
    """A few tiles from the middle, when there are too many steps to see any."""
    if max((len(b.starts) for b in bars), default=0) < CROWDED:
        return None
    runs = next((b for b in bars if b.kind == "run"), bars[0])
    middle = len(runs.starts) // 2
    lo, hi = float(runs.starts[middle]), float(runs.ends[min(middle + CLOSE_UP, len(runs.ends)) - 1])
    margin = 0.02 * (hi - lo)
    return Panel(
        f"measured, close-up of {CLOSE_UP} tiles in the middle", list(bars), max(0.0, lo - margin), min(end, hi + margin)
    )


# ---- drawing


def _draw_panel(axis: Any, panel: Panel, lanes: Sequence[str]) -> None:
    for bars in panel.bars:
        _draw_bars(axis, bars, panel, lanes.index(bars.lane))
    axis.set(xlim=(panel.begin, panel.end), ylim=(len(lanes) - 0.5, -0.5))
    axis.set_yticks(range(len(lanes)), [f"{lane}  {_busy(panel, lane):>4.0%}" for lane in lanes], family="monospace")
    axis.set_title(panel.title, loc="left", fontsize=10)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _draw_bars(axis: Any, bars: Bars, panel: Panel, row: int) -> None:
    """Two collections, one per shade: quick for tens of thousands of steps."""
    from matplotlib.collections import PolyCollection

    lo, hi = np.maximum(bars.starts, panel.begin), np.minimum(bars.ends, panel.end)
    thin = (panel.end - panel.begin) / 1300  # a step thinner than a pixel would vanish
    for turn, colour in enumerate(SHADES[bars.kind]):
        shown = np.flatnonzero(hi >= lo)
        shown = shown[shown % 2 == turn]
        left, right = lo[shown], np.maximum(hi[shown], lo[shown] + thin)
        top, bottom = np.full_like(left, row - 0.36), np.full_like(left, row + 0.36)
        corners = np.stack([np.stack([left, left, right, right], 1), np.stack([bottom, top, top, bottom], 1)], 2)
        axis.add_collection(PolyCollection(list(corners), facecolors=colour, linewidths=0, snap=False), autolim=False)


def _busy(panel: Panel, lane: str) -> float:
    """Share of the shown time in which a lane works, up to the last step."""
    last = min(panel.end, max((float(b.ends.max()) for b in panel.bars), default=0.0))
    inside = [np.minimum(b.ends, last) - np.maximum(b.starts, panel.begin) for b in panel.bars if b.lane == lane]
    busy = sum(float(np.maximum(seconds, 0.0).sum()) for seconds in inside)
    return busy / (last - panel.begin) if last > panel.begin else 0.0


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=SHADES[kind][0], label=meaning) for kind, meaning in MEANINGS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize=9)
