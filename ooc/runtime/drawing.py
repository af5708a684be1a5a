"""What every lane did over time, drawn in SVG: of a size that does not depend on the number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc.runtime.bars import SHADES, Bars
from ooc.schedule.steps import LANES

COLUMNS, HEIGHT, ROW = 500, 14, 20  # pixels: of time, of a lane, from lane to lane
LEFT, RIGHT = 70, 40  # pixels for what is written beside them


def draw(panels: Sequence[tuple[str, Sequence[Bars]]]) -> str:
    """Panels (title, bars) below each other on one scale of time; nothing where no time has passed.

    A lane is as high as the share of each pixel's time in which it works; beside it stands the share of the whole time.
    """
    shown = max((_end(bars) for _, bars in panels), default=0.0)
    if shown <= 0.0:
        return ""
    drawn, y = [], 0
    for title, bars in panels:
        lanes = [lane for lane in LANES if any(b.lane == lane for b in bars)]
        drawn.append(_text(0, y + HEIGHT, f"{title}: {_end(bars):.3g} s"))
        for lane in lanes:
            y += ROW
            drawn.append(_lane(lane, [b for b in bars if b.lane == lane], _end(bars), shown, y))
        y += ROW
    width = LEFT + COLUMNS + RIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" role="img" '
        f'style="max-width:100%" font-family="sans-serif" font-size="12">{"".join(drawn)}</svg>'
    )


def _end(bars: Sequence[Bars]) -> float:
    return max((float(b.ends.max()) for b in bars), default=0.0)


def _lane(lane: str, bars: Sequence[Bars], end: float, shown: float, y: int) -> str:
    busy = sum(shares(b, shown) for b in bars)
    seconds = sum(float((b.ends - b.starts).sum()) for b in bars)
    told = f"<title>{lane}: {seconds:.3g} s of {end:.3g} s, {sum(len(b.starts) for b in bars)} steps</title>"
    return (
        f'{_text(0, y + HEIGHT - 2, lane)}<g transform="translate({LEFT},{y})">{told}'
        f'<path d="M0 0H{COLUMNS}V{HEIGHT}H0z" fill="#888888" fill-opacity="0.12"/>'
        f'<path d="{_outline(busy)}" fill="{SHADES[bars[0].kind][0]}"/></g>'
        f"{_text(LEFT + COLUMNS + 6, y + HEIGHT - 2, f'{min(1.0, seconds / max(end, 1e-12)):.0%}')}"
    )


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}" fill="currentColor">{text}</text>'


def shares(bars: Bars, end: float) -> Any:
    """The share of each column's time in which steps run."""
    column = end / COLUMNS
    lo, hi = np.clip(bars.starts / column, 0, COLUMNS), np.clip(bars.ends / column, 0, COLUMNS)
    first, last = (np.minimum(edge.astype(int), COLUMNS - 1) for edge in (lo, hi))
    # Of a step in several columns: its part of the first, its part of the last, and those between as a whole.
    busy = np.bincount(first, np.minimum(hi, first + 1) - lo, COLUMNS)
    more = last > first
    busy += np.bincount(last[more], (hi - last)[more], COLUMNS)
    begun, ended = (np.bincount(at[more], minlength=COLUMNS + 1)[:COLUMNS] for at in (first + 1, last))
    return busy + np.cumsum(begun - ended)


def _outline(busy: Any) -> str:
    """The columns as one shape on the lane's ground; what works at all in a column is seen."""
    tops = HEIGHT - np.ceil(np.clip(busy, 0, 1) * HEIGHT).astype(int)
    turns = [(x, int(top)) for x, top in enumerate(tops) if top != (tops[x - 1] if x else HEIGHT)]
    return f"M0 {HEIGHT}" + "".join(f"H{x}V{top}" for x, top in turns) + f"H{COLUMNS}V{HEIGHT}z"
