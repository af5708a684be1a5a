"""Memory that a plan may use, and bytes as people write and read them."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ooc.errors import ArgumentError, BudgetError
from ooc.schedule.place import Place

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(limit: int | float | str | None, total: int, what: str = "budget") -> int | None:
    """The bytes of a limit: what every limit means, wherever one is given. None: no limit.

    A whole number is bytes (1000, 1e9), one between 0 and 1 a share of `total` (0.8); NumPy's are numbers too. Text is such a
    number, a percentage of `total`, or has a unit, where a fraction of a byte does not count: "1e9", "0.8", "80%", "1.5 GiB".

    Raises BudgetError for less than one byte, ArgumentError for anything else. Both name `what`.
    """
    if limit is None:
        return None
    nbytes = _of_text(limit, total) if isinstance(limit, str) else _of_number(limit, total)
    if nbytes is None:
        raise ArgumentError(
            f"{what}={limit!r}: expected bytes, a share of the device such as 0.8, "
            'or text such as "256 MiB", "5 GB", "80%" or "0.8"'
        )
    if nbytes < 1:
        raise BudgetError(f"{what}={limit!r}: expected at least 1 byte")
    return nbytes


def _of_text(text: str, total: int) -> int | None:
    match = re.fullmatch(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(%|[kmgt]?i?b)?\s*", text, re.IGNORECASE)
    if not match:
        return None
    value, unit = float(match[1]), (match[2] or "").lower()
    if not math.isfinite(value) or unit not in ("", "%", *UNITS):
        return None
    if not unit:
        return _of_number(int(match[1]) if match[1].isdecimal() else value, total)
    if unit == "%":
        return int(value / 100 * total) if value <= 100 else None
    nbytes = value * UNITS[unit]
    return int(nbytes) if math.isfinite(nbytes) else None


def _of_number(limit: Any, total: int) -> int | None:
    if isinstance(limit, bool) or not isinstance(limit, Real):
        return None
    try:
        value = float(limit)
    except OverflowError:
        return None
    if not math.isfinite(value) or (value > 1 and not value.is_integer()):
        return None
    if 0 < value < 1:
        return int(value * total)
    return int(limit) if isinstance(limit, Integral) else int(value)  # not every integer is a float


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

    @property
    def device_limit(self) -> float:
        """Bytes of the device that a plan may take; without a limit any number, but not infinitely many, which stand for a plan
        that is none."""
        return sys.float_info.max if self.device_bytes is None else self.device_bytes

    @property
    def in_place(self) -> frozenset[str]:
        """The operands that are used in place."""
        return frozenset([name for name, place in self.places if place is Place.DEVICE])

    def place(self, name: str) -> Place:
        """Where an operand lives; host memory unless said."""
        return dict(self.places).get(name, Place.HOST)
