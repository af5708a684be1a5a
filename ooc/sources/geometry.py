"""Where the positions of a tensor lie in the world, along each axis; and the units of each format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ooc.sources.around import Around
from ooc.sources.protocol import Source
from ooc.sources.view import View

# Names of units: those of OME-Zarr, by what other formats call them.
UNITS = {
    "mm": "millimeter", "micron": "micrometer", "meter": "meter", "sec": "second", "msec": "millisecond", "usec": "microsecond",
    "µm": "micrometer", "um": "micrometer", "nm": "nanometer", "cm": "centimeter", "m": "meter", "Å": "angstrom", "s": "second",
    "ms": "millisecond", "pm": "picometer",
}  # fmt: skip
METERS = {
    "meter": 1.0, "centimeter": 1e-2, "millimeter": 1e-3, "micrometer": 1e-6, "nanometer": 1e-9, "angstrom": 1e-10,
    "picometer": 1e-12, "inch": 0.0254,
}  # fmt: skip


class Spacing(NamedTuple):
    """Along an axis: position i lies at origin + i * step, in a unit ("": none is told)."""

    step: float = 1.0
    origin: float = 0.0
    unit: str = ""

    def part(self, offset: float, step: float) -> Spacing:
        """Of a tensor whose position i lies at position offset + i * step of this one."""
        return Spacing(self.step * step, self.origin + self.step * offset, self.unit)


Geometry = Mapping[str, Spacing]
ORDER = "tczyx"  # of axes of pictures, in OME's formats


def in_order(axes: str) -> bool:
    """Whether axes are some of OME's, as they come there, y and x among them."""
    return 2 <= len(axes) <= len(ORDER) and [*axes] == [a for a in ORDER if a in axes] and axes[-2:] == "yx"


def laid(axes: str, lies: Geometry, position: Mapping[str, tuple[float, float]]) -> tuple[Spacing, ...]:
    """Along each axis, of a tensor that lies in another one so: its first position and its step."""
    return tuple(lies.get(a, Spacing()).part(*position.get(a, (0.0, 1.0))) for a in axes)


def spacing(step: Any, origin: Any = 0.0, unit: Any = "") -> Spacing | None:
    """What a file tells of an axis; None where that makes no sense."""
    try:
        told = Spacing(float(step), float(origin), UNITS.get(unit, unit) if isinstance(unit, str) else "")
    except (TypeError, ValueError, OverflowError):
        return None
    return told if 0 < told.step < math.inf and math.isfinite(told.origin) else None


def geometry_of(source: Source | None) -> dict[str, Spacing]:
    """What is known of a source's axes, by letter."""
    if isinstance(source, View):
        told = geometry_of(source.source)
        lies = dict(zip(source.source.axes, source.picked, strict=False))
        return {letter: told[letter].part(lies[letter].lo, 1.0) for letter in source.axes if letter in told}
    if isinstance(source, Around):
        return geometry_of(source.source)
    return dict(getattr(source, "geometry", {}))
