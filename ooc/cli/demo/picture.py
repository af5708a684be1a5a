"""The demo's picture: what was predicted over what was measured, a row per lane, coloured by what a step does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ooc.runtime.pictures import Look, draw_rows, legend, new_figure
from ooc.runtime.report import Part, lanes_of
from ooc.runtime.timeline import SHADES, Bars, busy, last_end
from ooc.schedule.steps import LANES

MEANINGS = {"load": "load: bring a tile's input", "run": "run: compute a tile", "store": "store: take a tile's output away"}
LOOKS = {kind: Look(shades) for kind, shades in SHADES.items()}
CROWDED = 60  # steps in one lane from which a close-up is added
CLOSE_UP = 8  # computed tiles in the close-up


class Panel(NamedTuple):
    """One drawn timeline: its title, its bars, and the seconds that it shows."""

    title: str
    bars: Sequence[Bars]
    begin: float
    end: float

    def busy_share(self, lane: str) -> float:
        """Share of the shown time in which a lane works, up to the last step."""
        last = min(self.end, last_end(self.bars))
        seconds = busy((b for b in self.bars if b.lane == lane), self.begin, last)
        return seconds / (last - self.begin) if last > self.begin else 0.0


def draw(parts: Sequence[Part], path: str | Path, title: str) -> None:
    """Write a PNG picture of one call's parts, which were traced, and ran one after the other.

    Raises UnsupportedError without matplotlib and OSError when the file cannot be written.
    """
    panels = _panels(lanes_of(parts))
    lanes = [lane for lane in LANES if any(b.lane == lane for p in panels for b in p.bars)] or ["compute"]
    figure = new_figure("the timeline needs", 1.5 + len(panels) * (0.75 + 0.42 * len(lanes)), title)
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        draw_rows(axis, panel.bars, lanes, LOOKS, panel.begin, panel.end)
        axis.set_yticks(range(len(lanes)), [f"{lane}  {panel.busy_share(lane):>4.0%}" for lane in lanes], family="monospace")
        axis.set_title(panel.title, loc="left", fontsize=10)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
    axes[-1].set_xlabel("seconds")
    legend(figure, {SHADES[kind][0]: meaning for kind, meaning in MEANINGS.items()})
    figure.savefig(path, format="png")


def _panels(timelines: dict[str, list[Bars]]) -> list[Panel]:
    predicted, measured = timelines["predicted"], timelines["measured"]
    shown = max(last_end(predicted), last_end(measured), 1e-9)
    panels = [
        Panel(f"predicted: {last_end(predicted):.3g} s   (%: share of the time in which a lane works)", predicted, 0.0, shown),
        Panel(f"measured: {last_end(measured):.3g} s", measured, 0.0, shown),
    ]
    close = _close_up(measured)
    return [*panels, close] if close else panels


def _close_up(bars: Sequence[Bars]) -> Panel | None:
    """A few tiles from the middle, when there are too many steps to see any."""
    if max((len(b.starts) for b in bars), default=0) < CROWDED:
        return None
    runs = next((b for b in bars if b.kind == "run"), bars[0])
    middle = len(runs.starts) // 2
    lo, hi = float(runs.starts[middle]), float(runs.ends[min(middle + CLOSE_UP, len(runs.ends)) - 1])
    margin = 0.02 * (hi - lo)
    title = f"measured, close-up of {CLOSE_UP} tiles in the middle"
    return Panel(title, bars, max(0.0, lo - margin), min(last_end(bars), hi + margin))
