"""Facts as HTML for notebooks: a table and perhaps a picture, without scripts; what is not ours is escaped and shortened."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import islice

from ooc.errors import brief

MOST_ROWS, MOST_TEXT = 16, 500  # together with a picture less than 64 KiB, were every character escaped
CELL = "text-align:left;vertical-align:top;padding:1px 8px;white-space:normal"


def page(facts: Iterable[tuple[str, str]], picture: str = "") -> str:
    """Pairs (name, value) as a table, over a picture in SVG."""
    rows = "".join(
        f'<tr><th style="{CELL}">{escape(name)}</th><td style="{CELL}">{escape(brief(value, MOST_TEXT), quote=False)}</td></tr>'
        for name, value in islice(facts, MOST_ROWS)
    )
    return f"<div><table>{rows}</table>{picture}</div>"
