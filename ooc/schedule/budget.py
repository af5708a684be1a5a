"""Memory that a plan may use, and bytes as people write and read them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from ooc.errors import BudgetError, ShapeError
from ooc.schedule.place import Place

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(text: int | float | str | None, total: int, what: str = "budget") -> int | None:
    """Bytes of `268435456`, `"256 MiB"`, `"5 GB"`, or a share of the total: `"80%"`, `"0.8"`. None: no limit.

    Raises ShapeError for anything else, BudgetError for less than one byte.
    """
    if text is None:
        return None
    number = text if isinstance(text, (int, float)) and not isinstance(text, bool) else _parse_text(text, total)
    if number is None or not math.isfinite(number):
        raise ShapeError(f'{what}={text!r}: expected bytes, or text such as "256 MiB", "5 GB", "80%" or "0.8" (of the device)')
    if number < 1:
        raise BudgetError(f"{what}={text!r}: expected at least 1 byte")
    return int(number)


def _parse_text(text: Any, total: int) -> float | None:
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[kmgt]?i?b)?\s*", str(text), re.IGNORECASE)
    if not match:
        return None
    value, unit = float(match[1]), (match[2] or "").lower()
    if unit == "%":
        return value / 100 * total if value <= 100 else None
    if not unit and "." in match[1]:
        return value * total if value <= 1 else None
    return value * UNITS[unit] if unit in UNITS else value if not unit else None


def show_bytes(nbytes: float) -> str:
    """Bytes in the unit a person would use.

    >>> show_bytes(2048), show_bytes(3 << 29)
    ('2 KiB', '1.5 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.3g} {unit}" if nbytes < 1000 else f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    raise AssertionError


@dataclass(frozen=True)
class Budget:
    """Memory that a plan may use, in bytes (None: no limit), and where each operand lives.

    `deterministic`: sums are taken in an order that does not depend on the budget. `staged`: the device is reached through
    a ring of pinned host memory (always so on a GPU). `shared`: device, staging and spill are the same memory (the CPU),
    so that all of them count against `device_bytes`.
    """

    device_bytes: int | None = None
    pinned_bytes: int | None = None
    workspace_bytes: int | None = None
    places: tuple[tuple[str, Place], ...] = ()
    staged: bool = False
    shared: bool = False
    deterministic: bool = False

    def place(self, name: str) -> Place:
        """Where an operand lives; host memory unless said."""
        return dict(self.places).get(name, Place.HOST)
