"""What pictures of matplotlib share: their frame, rows of bars, and their look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ooc.errors import UnsupportedError
from ooc.runtime.timeline import Bars

COLUMNS = 1300  # about so many pixels wide is a row: a bar thinner than one would vanish


class Look(NamedTuple):
    """How bars of a kind are drawn: colours that take turns, the share of the row that they fill, opacity."""

    colours: tuple[str, ...]
    height: float = 0.72
    alpha: float = 1.0


def new_figure(needs: str, height: float, title: str) -> Any:
    """A figure under its title. `needs` begins the error where matplotlib is not there, an UnsupportedError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError(f"{needs} matplotlib; pip install matplotlib") from None
    figure = Figure(figsize=(13, height), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    return figure


def draw_rows(axis: Any, bars: Sequence[Bars], lanes: Sequence[str], looks: Mapping[str, Look], begin: float, end: float) -> None:
    """Bars between two times, a row for each lane, the first at the top."""
    for lane, kind, starts, ends in bars:
        look, lo, hi = looks[kind], np.maximum(starts, begin), np.minimum(ends, end)
        widths = np.maximum(hi - lo, (end - begin) / COLUMNS)
        place = (lanes.index(lane) - look.height / 2, look.height)
        shown = np.stack([lo, widths], axis=1)[hi >= lo]
        axis.broken_barh(shown, place, facecolors=[*look.colours], alpha=look.alpha, linewidth=0, snap=False)
    axis.set(xlim=(begin, end), ylim=(len(lanes) - 0.5, -0.5))
    clean(axis, "x")


def legend(figure: Any, labels: Mapping[str, str]) -> None:
    """Below the picture, what each colour means."""
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=label) for colour, label in labels.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False, fontsize=9)


def clean(axis: Any, lines: str = "both") -> None:
    """Thin lines behind what is drawn, along x, y or both, and no frame above and to the right."""
    axis.grid(axis=lines, color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
