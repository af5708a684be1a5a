"""A run as one page of HTML: nothing in it is fetched from elsewhere, and nothing in it runs."""

from __future__ import annotations

import base64
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ooc.errors import ArgumentError, brief
from ooc.files.png import png
from ooc.files.whole import whole
from ooc.networks import NetworkPlan
from ooc.networks.profile import Profile
from ooc.runtime.drawing import draw_curves
from ooc.sources import Source
from ooc.sources.around import Indexed

SIDE = 480  # pixels of a picture, at most
MOST_TILES, MOST_TEXT, MOST_ROWS = 4096, 2000, 40
SPACE = "zyx"
STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 64em; padding: 0 1em; color: #222; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em } table { border-collapse: collapse }
svg, img { max-width: 100%; height: auto }
th, td { text-align: left; vertical-align: top; padding: 2px 12px 2px 0 } td.n { text-align: right } figure { margin: 0 }
figcaption { color: #666 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } figcaption { color: #999 } }
"""


class RunFacts(NamedTuple):
    """What is known of a run.

    Fields:
        title: of the page.
        facts: pairs of words.
        notes: sentences.
        profile: what was measured; None: nothing was run.
        result: what was made; None: nothing was.
        checked: windows that were computed again.
        curves: points by name, of a training.
        rows: a table, of a training: its validations, names in the first row.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str] = ()
    profile: Profile | None = None
    result: Source | None = None
    checked: Sequence[Any] = ()
    curves: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({})
    rows: Sequence[Sequence[str]] = ()


def check(path: str | Path) -> None:
    """Raise ArgumentError where a page cannot lie, before there is anything to show."""
    if os.path.isdir(path) or not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise ArgumentError(f"--report: {path}: expected the name of a file in a folder that is there")


def write(path: str | Path, plan: NetworkPlan, facts: RunFacts) -> None:
    """The page of a run: what was planned and measured, kernels, memory against the budget, the result with its tiles, and what
    was verified. Raises OSError."""
    profile = facts.profile
    parts = [f"<h1>{_text(facts.title)}</h1>", _table(facts.facts), *(f"<p>{_text(note)}</p>" for note in facts.notes)]
    if curve := draw_curves("by step", facts.curves):
        parts += ["<h2>Loss</h2>", f"<figure>{curve}</figure>"]
    if facts.rows:
        parts += ["<h2>Validations</h2>", _rows(facts.rows)]
    parts += ["<h2>Time and memory</h2>", f"<figure>{plan.picture(profile.bars if profile else ())}</figure>"]
    if profile is not None:
        parts += ["<h2>Kernels</h2>", _kernels(profile)]
    if facts.result is not None and (picture := _picture(facts.result, grid_of(plan))):
        parts += ["<h2>The result</h2>", picture]
    if facts.checked:
        parts += ["<h2>Verified</h2>", _verified(facts.checked)]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{_text(facts.title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
    with whole(Path(path)) as file:
        file.write(page.encode())


def _text(value: object) -> str:
    return escape(brief(str(value), MOST_TEXT))


def _table(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in facts)
    return f"<table>{rows}</table>"


def _rows(rows: Sequence[Sequence[str]]) -> str:
    """A table of numbers, those of the first and the last of them where they are many."""
    names, *values = rows
    shown = values if len(values) <= MOST_ROWS else [*values[: MOST_ROWS // 2], *values[-MOST_ROWS // 2 :]]
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td class=n>{_text(v)}</td>' for v in row)}</tr>" for row in shown)
    return f"<table><tr>{head}</tr>{body}</table>"


def _kernels(profile: Profile) -> str:
    """Those that took longest first."""
    rows = "".join(
        f'<tr><td>{_text(name)}</td><td class="n">{k.tiles}</td><td class="n">{k.seconds:.4g}</td>'
        f'<td class="n">{k.predicted_seconds:.4g}</td></tr>'
        for name, k in itertools.islice(profile.kernels.items(), MOST_ROWS)
    )
    return f"<table><tr><th>kernel</th><th>tiles</th><th>seconds</th><th>predicted</th></tr>{rows}</table>"


def _verified(checked: Sequence[Any]) -> str:
    worst = max(found.difference for found in checked)
    return f"<p>{len(checked)} windows were computed again by another library; largest difference {worst:.2g}.</p>"


def grid_of(plan: NetworkPlan) -> tuple[int, ...]:
    """Parts of the result along every axis of space; (): it was made at once, or streamed layer by layer."""
    grids = [grid for _, grid in plan.proposal.grids if grid]
    return tuple(grids[-1][1:]) if grids else ()


# ---------------------------------------------------------------- a picture


def _picture(result: Source, grid: tuple[int, ...]) -> str:
    """The middle of a result, small, with the tiles that it was made in; "": it has no plane."""
    if not isinstance(result, Indexed) or not {"y", "x"} <= {*result.axes}:
        return ""
    extent = dict(zip(result.axes, result.shape, strict=True))
    step = max(1, -(-max(extent["y"], extent["x"]) // SIDE))
    at = tuple(slice(None, None, step) if a in "yx" else extent[a] // 2 if a == "z" else 0 for a in result.axes)
    plane = np.asarray(result[at])
    plane = plane if result.axes.index("y") < result.axes.index("x") else plane.T
    height, width = plane.shape
    image = base64.b64encode(png(grey(plane))).decode()
    space = [a for a in SPACE if a in extent]
    parts = dict(zip(space[-len(grid) :], grid, strict=False)) if grid else {}
    rows, columns = parts.get("y", 1), parts.get("x", 1)
    lines = ""
    if 1 < rows * columns <= MOST_TILES:
        across = "".join(f"M0 {i * height / rows:.1f}H{width}" for i in range(1, rows))
        down = "".join(f"M{i * width / columns:.1f} 0V{height}" for i in range(1, columns))
        lines = f'<path d="{across}{down}" stroke="#ff7f0e" stroke-width="1" fill="none"/>'
    cut = f"{' x '.join(map(str, grid))} tiles" if grid else "in one piece, or layer by layer"
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
        f'<image width="{width}" height="{height}" href="data:image/png;base64,{image}"/>{lines}</svg>'
        f"<figcaption>Every {step}. position of the middle plane of the first channel; {cut}.</figcaption></figure>"
    )


def grey(plane: Any) -> Any:
    """Between the first and the last percent of its values, as bytes."""
    values = np.nan_to_num(plane.real.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = np.percentile(values, (1, 99)) if values.size else (0.0, 1.0)
    low, high = (
        (low, high) if high > low else (values.min(initial=0.0), max(values.max(initial=0.0), values.min(initial=0.0) + 1))
    )
    return np.clip((values - low) / max(high - low, 1e-30) * 255, 0, 255).astype(np.uint8)
