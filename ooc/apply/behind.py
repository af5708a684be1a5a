"""What is done behind blended windows: padding cut off, steps in words."""

from __future__ import annotations

from typing import Any

from ooc.apply.recipe import done
from ooc.apply.windows import Shape, Windows, scaled
from ooc.networks import Graph
from ooc.networks.build import Built


def behind(windows: Windows, graph: Built, extent: Shape, space: Shape, after: Any) -> Graph:
    """A graph of that. graph: of a window. extent: of the input along the axes of space; space: of what windows are moved over,
    which is larger where a window is. after: steps, see `ooc.apply.recipe`. Raises ArgumentError."""
    (name,), finish = graph.outputs, Graph("behind")
    size, (k, *out) = windows.along(extent), graph.shapes[name]
    cut = []
    for e, wide, s, m in zip(extent, space, size, out, strict=True):
        lead = scaled((wide - e) // 2, s, m).lo if wide > e else 0
        cut.append((lead, scaled(wide - e, s, m).lo - lead if wide > e else 0))
    whole = tuple(scaled(w - s, s, m).hi for w, s, m in zip(space, size, out, strict=True))
    x = finish.input("blended", (k, *whole))
    x = finish.crop(x, cut) if any(map(any, cut)) else x
    x = done(finish, x, after)
    finish.output(finish.activation(x, "identity") if x == "blended" else x)
    return finish
