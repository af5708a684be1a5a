"""The gradient of resizing, mirroring and picking by tables: each position gathers from the results that are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.axis_maps import enclosing
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Along, Line, Sizes, Span, Tile, least
from ooc.ops.registry import register
from ooc.ops.resample import check_positions
from ooc.ops.resize import BORDERS, HOWS, Line4, Resize, Taken, table
from ooc.ops.spatial import IN


@lru_cache(maxsize=256)
def gathered(how: str, extent: int, size: int, line: Line4) -> tuple[Any, Any, Any]:
    """What each of `extent` positions along an axis gathers: where its results begin among all (one more than positions), the
    results, in ascending order, and their weights. See `ooc.ops.resize.table`."""
    check_positions(extent)
    first, second, share = table(how, extent, size, line)
    mixed = np.flatnonzero(share)
    sources = np.concatenate((first, second[mixed]))
    results = np.concatenate((np.arange(size), mixed))
    weights = np.concatenate((1 - share, share[mixed]))
    order = np.lexsort((results, sources))
    begins = np.searchsorted(sources[order], np.arange(extent + 1))
    return begins, results[order], weights[order]


@dataclass(frozen=True)
class Gathered(Taken):
    """Positions -> the results that are made of them."""

    @property
    def _table(self) -> tuple[Any, Any, Any]:
        return gathered(self.how, self.extent_in, self.extent_out, self.by)

    def span(self, tile: Tile) -> Span:
        begins, results, _ = self._table
        mine = results[begins[tile[self.dim].lo] : begins[tile[self.dim].hi]]
        return Span(int(mine.min()), int(mine.max()) + 1) if len(mine) else Span(0, 0)

    def extent(self, sizes: Sizes) -> Any:
        return least(self._bounds.extent(sizes[self.dim]), self.extent_out)

    @cached_property
    def _bounds(self) -> Line:
        """Straight bounds of what each position gathers; where that is nothing, of where it would be."""
        begins, results, _ = self._table
        pace = Fraction(1) if self.how in BORDERS else Fraction(self.extent_out, self.extent_in)
        lo = hi = np.arange(self.extent_in) * pace.numerator // pace.denominator
        some = np.flatnonzero(np.diff(begins))
        lo, hi = lo.copy(), hi.copy()
        lo[some] = np.minimum.reduceat(results, begins[some])
        hi[some] = np.maximum.reduceat(results, begins[some]) + 1
        return enclosing(pace, lo, hi)


@register(*(f"resize_backward.{how}" for how in HOWS))
@dataclass(frozen=True)
class ResizeBackward(Resize):
    """dx: the gradient of x from dy (n x k x size). Descriptor as of `resize`."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"resize_backward.{self.how}"

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, "k": self.k, **dict(zip(IN[self.rank], self.extent, strict=True))}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        spatial = zip(IN[self.rank], self.extent, self.size, strict=True)
        axes = (Gathered(d, self.how, e, s, self.line(i)) for i, (d, e, s) in enumerate(spatial))
        return (Operand("dy", (self.n, self.k, *self.size), self.dtype, (Along("n"), Along("k"), *axes), self.memory_order),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (Operand("dx", (self.n, self.k, *self.extent), self.dtype, tuple(map(Along, self.dims)), self.memory_order),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        """One spatial axis after the other; sums in ascending order."""
        part, region = crop(blocks["dy"], self.inputs[0].region(tile)), self.outputs[0].region(tile)
        z = part.array.astype(numpy_dtype(compute_dtype(self.dtype)))
        for i in range(self.rank):
            gathering = gathered(self.how, self.extent[i], self.size[i], self.line(i))
            z = np.moveaxis(_sums(np.moveaxis(z, i + 2, -1), gathering, part.region[i + 2], region[i + 2]), -1, i + 2)
        blocks["dx"].array[...] = z


def _sums(z: Any, gathering: tuple[Any, Any, Any], held: Span, span: Span) -> Any:
    """Positions along the last axis, each from its results."""
    begins, results, weights = gathering
    lo, hi = begins[span.lo : span.hi], begins[span.lo + 1 : span.hi + 1]
    total = np.zeros((*z.shape[:-1], span.extent), z.dtype)
    for t in range(int((hi - lo).max(initial=0))):
        has = np.flatnonzero(lo + t < hi)
        at = lo[has] + t
        total[..., has] += z[..., results[at] - held.lo] * weights[at].astype(z.dtype)
    return total
