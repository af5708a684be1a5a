"""A tensor mirrored at the far end of its spatial axes, as `--pad-to` has networks see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc.ir.region import Region, Span, extents
from ooc.sources.protocol import Source


class Mirrored:
    """A source, longer in space.

    Parameters:
        source: n x c x spatial.
        extent: of space.
    """

    def __init__(self, source: Source, extent: Sequence[int]) -> None:
        self.source, self.dtype = source, source.dtype
        self.shape = (*source.shape[:2], *extent)

    def read(self, region: Region, out: Any) -> None:
        """Copy a region into `out`."""
        places = [_reflected(span, e) for span, e in zip(region, self.source.shape, strict=True)]
        hull = tuple(Span(int(at.min()), int(at.max()) + 1) for at in places)
        held = np.empty(extents(hull), self.dtype)
        self.source.read(hull, held)
        out[...] = held[np.ix_(*[at - span.lo for at, span in zip(places, hull, strict=True)])]


def _reflected(span: Span, extent: int) -> Any:
    """Positions of a span on an axis that is mirrored at the centres of its ends."""
    at = np.arange(span.lo, span.hi) % max(1, 2 * (extent - 1))
    return np.where(at < extent, at, 2 * (extent - 1) - at)
