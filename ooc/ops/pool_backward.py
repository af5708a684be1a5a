"""The gradient of max and average pooling."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.axis_maps import compose
from ooc.ir.op import Block, Operand, compute_dtype, crop, numpy_dtype
from ooc.ir.region import Along, AxisMap, Region, Sizes, Tile, Unwindow, Window
from ooc.ops.pool import KINDS, Pooling
from ooc.ops.registry import register
from ooc.ops.spatial import IN, channel_dims, meeting


@register(*(f"pool_backward.{how}" for how in KINDS))
@dataclass(frozen=True)
class PoolBackward(Pooling):
    """dx from dy (and, for max, the pooled tensor x): each window's gradient goes to its first maximum in row-major order,
    or in equal parts to the positions that were counted.

    A tile is a piece of x; the windows that touch it are looked at whole, so that every tile finds the same maximum.
    Source: cudnnPoolingBackward (which takes y too, and needs it for none of these). Descriptor:
    `pool_backward.max n= k= [[d=] h=] w= window=2 [stride=] [pad=]`.
    """

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"pool_backward.{self.how}"

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, **channel_dims(self.k, self.groups), **dict(zip(IN[self.rank], self.extent, strict=True))}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        spatial = list(zip(IN[self.rank], self.window, self.stride, self.pad, self.out, strict=True))
        touching: dict[str, AxisMap] = {d: Unwindow(d, w, s, 1, p[0]) for d, w, s, p, _ in spatial}
        whole_windows = (compose(Window(d, w, s, 1, p[0]), {d: (touching[d], o)}) for d, w, s, p, o in spatial)
        dy = self.tensor("dy", self.out, iter(touching.values()))
        return (dy,) if self.how != "max" else (self.tensor("x", self.extent, whole_windows), dy)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx", self.extent, map(Along, IN[self.rank])),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes) * max(1, int(np.prod(self.window)) // int(np.prod(self.stride)))

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        operands = {o.name: o for o in self.operands}
        parts = {n: crop(blocks[n], operands[n].region(tile)) for n in operands if n != "dx"}
        dx, dy = np.zeros(blocks["dx"].array.shape, compute), parts["dy"].array.astype(compute)
        region, positions = operands["dx"].region(tile)[2:], parts["dy"].region[2:]
        winner = self._winners(parts["x"], positions) if self.how == "max" else None
        counts = self._counts(positions)
        for i, tap in enumerate(itertools.product(*map(range, self.window))):
            share = np.where(winner == i, dy, 0) if winner is not None else dy / counts
            x_at, y_at = self._meet(tap, region, positions)
            dx[(..., *x_at)] += share[(..., *y_at)]
        blocks["dx"].array[...] = dx

    def _meet(self, tap: tuple[int, ...], region: Region, positions: Region) -> tuple[Any, Any]:
        """Positions of a piece of x and of a piece of y that meet under one place of the window, as slices."""
        axes = zip(tap, region, positions, self.stride, self.pad, strict=True)
        meets = [meeting(h, p, stride, t - pad) for t, h, p, stride, (pad, _) in axes]
        return tuple(m[0] for m in meets), tuple(m[1] for m in meets)

    def _winners(self, x: Block, positions: Region) -> Any:
        """For each window, the number of the place (row-major) that holds its first maximum; NaN counts as largest."""
        shape = (*x.array.shape[:2], *(p.extent for p in positions))
        best, winner = np.full(shape, -np.inf, x.array.dtype), np.full(shape, -1)
        for i, tap in enumerate(itertools.product(*map(range, self.window))):
            x_at, y_at = self._meet(tap, x.region[2:], positions)
            value, have = x.array[(..., *x_at)], best[(..., *y_at)]
            with np.errstate(invalid="ignore"):
                wins = ((value > have) | (np.isnan(value) & ~np.isnan(have))) | (winner[(..., *y_at)] < 0)
            best[(..., *y_at)] = np.where(wins, value, have)
            winner[(..., *y_at)] = np.where(wins, i, winner[(..., *y_at)])
        return winner

    def _counts(self, positions: Region) -> Any:
        """By what each window's gradient is divided."""
        if self.how != "average_valid":
            return np.prod(self.window)
        counts: Any = np.ones(())
        for p, w, s, (pad, _), extent in zip(positions, self.window, self.stride, self.pad, self.extent, strict=True):
            start = np.arange(p.lo, p.hi) * s - pad
            inside = np.minimum(start + w, extent) - np.maximum(start, 0)
            counts = counts[..., None] * np.maximum(inside, 1)
        return counts
