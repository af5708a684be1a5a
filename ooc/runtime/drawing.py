"""What every lane did over time, and other curves, drawn in SVG: of a size that does not depend on the number of steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from ooc.runtime.timeline import SHADES, Bars, busy, last_end
from ooc.schedule.steps import LANES

COLUMNS, HEIGHT, ROW = 500, 14, 20  # pixels: of time, of a lane, from lane to lane
LEVEL, CURVE = 80, 160  # pixels of a level, of curves
FAR = 20  # times that the largest value is the least one where logarithms are drawn
NAMES = 150  # pixels for a curve's name
CURVES = ("#4878a8", "#d95f02", "#2c8c5a")  # colours
LEFT, RIGHT = 70, 40  # pixels for what is written beside them


def draw(panels: Mapping[str, Sequence[Bars]]) -> str:
    """Panels, bars by their title, below each other on one scale of time; nothing where no time has passed.

    A lane is as high as the share of each pixel's time in which it works; beside it stands the share of the whole time.
    """
    shown = max(map(last_end, panels.values()), default=0.0)
    if shown <= 0.0:
        return ""
    drawn, y = [], 0
    for title, bars in panels.items():
        lanes = [lane for lane in LANES if any(b.lane == lane for b in bars)]
        drawn.append(_text(0, y + HEIGHT, f"{title}: {last_end(bars):.3g} s"))
        for lane in lanes:
            y += ROW
            drawn.append(_lane(lane, [b for b in bars if b.lane == lane], last_end(bars), shown, y))
        y += ROW
    width = LEFT + COLUMNS + RIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" role="img" '
        f'style="max-width:100%" font-family="sans-serif" font-size="12">{"".join(drawn)}</svg>'
    )


def draw_level(title: str, times: Sequence[float], levels: Sequence[float], limit: float | None, told: str) -> str:
    """A level over time as steps, up to a limit, in words."""
    top, end = max(max(levels, default=0.0), limit or 0.0), max(times, default=0.0)
    if top <= 0.0 or end <= 0.0:
        return ""
    xs = np.minimum(np.asarray(times) / end * COLUMNS, COLUMNS)
    ys = LEVEL * (1 - np.asarray(levels) / top)
    columns = np.unique(xs.astype(int), return_index=True)[1]
    tops = [min(ys[i : j or None]) for i, j in zip(columns, [*columns[1:], 0], strict=True)]  # the highest of each pixel
    path = f"M0 {LEVEL}" + "".join(f"H{int(xs[i])}V{y:.1f}" for i, y in zip(columns, tops, strict=True)) + f"H{COLUMNS}V{LEVEL}z"
    at = LEVEL * (1 - limit / top) if limit else 0.0
    line = f'<path d="M0 {at:.1f}H{COLUMNS}" stroke="#b03030" stroke-dasharray="4 3"/>' if limit else ""
    height, width = LEVEL + 2 * ROW, LEFT + COLUMNS + RIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'style="max-width:100%" font-family="sans-serif" font-size="12">{_text(0, HEIGHT, f"{title}: {told}")}'
        f'<g transform="translate({LEFT},{ROW})"><path d="{path}" fill="#4878a8" fill-opacity="0.6"/>{line}</g></svg>'
    )


def draw_curves(title: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Curves by name, which stands where one ends; of values that go far apart by their logarithms. Points that are no numbers
    are left out; nothing where there is none."""
    finite = {name: [p for p in points if math.isfinite(p[1])] for name, points in curves.items()}
    shown = {name: np.array(points, float) for name, points in finite.items() if points}
    if not shown:
        return ""
    every = np.concatenate([*shown.values()])
    (left, low), (right, high) = every.min(0), every.max(0)
    scale = np.log if low > 0 and high / low > FAR else np.asarray
    wide, high_by = right - left or 1.0, scale(high) - scale(low) or 1.0
    drawn, labels = [], []
    for colour, (name, points) in zip(itertools.cycle(CURVES), shown.items(), strict=False):
        some = np.concatenate([points[:: max(1, len(points) // COLUMNS)], points[-1:]])
        xs, ys = (some[:, 0] - left) / wide * COLUMNS, CURVE * (1 - (scale(some[:, 1]) - scale(low)) / high_by)
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
        drawn.append(f'<path d="M{line}" stroke="{colour}" stroke-width="1.5" fill="none"/>')
        labels.append((float(ys[-1]), f'fill="{colour}">{escape(name)} {points[-1][1]:.4g}'))
    below = -float(ROW)
    for y, label in sorted(labels):  # none over another
        below = max(y + 4, below + HEIGHT)
        drawn.append(f'<text x="{COLUMNS + 4}" y="{below:.1f}" {label}</text>')
    height, width, named = CURVE + 3 * ROW, LEFT + COLUMNS + NAMES, escape(title)
    ends = _text(0, ROW + HEIGHT, f"{high:.4g}") + _text(0, ROW + CURVE + 4, f"{low:.4g}")
    steps = _text(LEFT, CURVE + 2 * ROW + 4, f"{left:g}") + _text(LEFT + COLUMNS - 24, CURVE + 2 * ROW + 4, f"{right:g}")
    ground = f'<path d="M0 0H{COLUMNS}V{CURVE}H0z" fill="#888888" fill-opacity="0.08"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'style="max-width:100%" font-family="sans-serif" font-size="12">{_text(0, HEIGHT, named)}{ends}{steps}'
        f'<g transform="translate({LEFT},{ROW})">{ground}{"".join(drawn)}</g></svg>'
    )


def _lane(lane: str, bars: Sequence[Bars], end: float, shown: float, y: int) -> str:
    heights, seconds = sum(shares(b, shown) for b in bars), busy(bars, 0.0, end)
    told = f"<title>{lane}: {seconds:.3g} s of {end:.3g} s, {sum(len(b.starts) for b in bars)} steps</title>"
    return (
        f'{_text(0, y + HEIGHT - 2, lane)}<g transform="translate({LEFT},{y})">{told}'
        f'<path d="M0 0H{COLUMNS}V{HEIGHT}H0z" fill="#888888" fill-opacity="0.12"/>'
        f'<path d="{_outline(heights)}" fill="{SHADES[bars[0].kind][0]}"/></g>'
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
    working = np.bincount(first, np.minimum(hi, first + 1) - lo, COLUMNS)
    more = last > first
    working += np.bincount(last[more], (hi - last)[more], COLUMNS)
    begun, ended = (np.bincount(at[more], minlength=COLUMNS + 1)[:COLUMNS] for at in (first + 1, last))
    return working + np.cumsum(begun - ended)


def _outline(heights: Any) -> str:
    """The columns as one shape on the lane's ground; what works at all in a column is seen."""
    tops = HEIGHT - np.ceil(np.clip(heights, 0, 1) * HEIGHT).astype(int)
    turns = [(x, int(top)) for x, top in enumerate(tops) if top != (tops[x - 1] if x else HEIGHT)]
    return f"M0 {HEIGHT}" + "".join(f"H{x}V{top}" for x, top in turns) + f"H{COLUMNS}V{HEIGHT}z"
