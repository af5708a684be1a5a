"""Plain tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of aligned columns, the first `left` of them to the left, the others to the right. The first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(_cell(cell, widths[i], i < left) for i, cell in enumerate(row)).rstrip() for row in rows]


def _cell(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def show_seconds(seconds: float) -> str:
    """Seconds with three digits, in the unit a person would use.

    >>> show_seconds(1.5), show_seconds(2.5e-3), show_seconds(3e-8)
    ('1.5 s', '2.5 ms', '0.03 us')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{three(seconds / scale)} {unit}"
    return f"{three(seconds / 1e-6)} us"


def three(number: float) -> str:
    """A number with three digits; a large one with all of them instead of an exponent.

    >>> three(12345.6), three(999.7), three(12.345), three(0.01234)
    ('12346', '1000', '12.3', '0.0123')
    """
    return f"{number:.0f}" if abs(number) >= 999.5 else f"{number:.3g}"
