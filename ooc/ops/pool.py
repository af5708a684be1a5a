"""Max and average pooling."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ooc.descriptor import Fields, register, show_ints, show_pads, take_int, take_ints, take_pads
from ooc.errors import ShapeError
from ooc.op import Block, Op, Operand, compute_dtype, fit, numpy_dtype
from ooc.ops.pointwise import channel_axis, channel_dims, show_common, take_common
from ooc.ops.spatial import IN, OUT, check_positive, memory_order, out_extent, rank_of, take_extents
from ooc.region import Along, Sizes, Tile, Window

KINDS = ("max", "average", "average_valid")  # order = codes in kernels/pointwise.cpp


@dataclass(frozen=True)
class Pool(Op):
    """y = max or mean of x over windows; x is n x k x spatial.

    how: `max` (padding never wins; NaN does), `average` (padding counted as zeros), `average_valid` (padding not
    counted). Source: cudnnPoolingForward's CUDNN_POOLING_MAX, _AVERAGE_COUNT_INCLUDE_PADDING and _EXCLUDE_PADDING.
    Descriptor: `pool.max n= k= [[d=] h=] w= window=2 [stride=] [pad=]`.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, k=self.k, extent=self.extent, window=self.window, stride=self.stride)
        if any(before < 0 or after < 0 for before, after in self.pad):
            raise ShapeError(f"{self.kind}: padding must not be negative, got {self.pad}")
        if any(before >= w or after >= w for (before, after), w in zip(self.pad, self.window, strict=True)):
            raise ShapeError(f"{self.kind}: padding {self.pad} must be smaller than the window {self.window}")
        if any(o < 1 for o in self.out):
            raise ShapeError(f"{self.kind}: window {self.window} with padding {self.pad} does not fit extents {self.extent}")

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"pool.{self.how}"

    @property
    def rank(self) -> int:
        return len(self.extent)

    @cached_property
    def out(self) -> tuple[int, ...]:
        """Output extents."""
        axes = zip(self.extent, self.window, self.stride, self.pad, strict=True)
        return tuple(out_extent(e, w, s, 1, p) for e, w, s, p in axes)

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, **channel_dims(self.k, self.groups), **dict(zip(OUT[self.rank], self.out, strict=True))}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        spatial = zip(OUT[self.rank], self.window, self.stride, self.pad, strict=True)
        windows = (Window(d, w, s, 1, p[0]) for d, w, s, p in spatial)
        axes = (Along("n"), channel_axis(self.k, self.groups), *windows)
        fill = -np.inf if self.how == "max" else 0.0
        order = memory_order(self.rank, self.layout)
        return (Operand("x", (self.n, self.k, *self.extent), self.dtype, axes, order, fill),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        axes = (Along("n"), channel_axis(self.k, self.groups), *map(Along, OUT[self.rank]))
        order = memory_order(self.rank, self.layout)
        return (Operand("y", (self.n, self.k, *self.out), self.dtype, axes, order),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes) * int(np.prod(self.window))

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        y = blocks["y"].array
        reach = self.inputs[0].reach(tile)
        x, pad = fit(blocks["x"], reach)
        x = x.astype(numpy_dtype(compute_dtype(self.dtype)))
        padding = [(lo, r.extent - lo - e) for lo, r, e in zip(pad, reach, x.shape, strict=True)]
        padded = np.pad(x, padding, constant_values=self.inputs[0].fill)
        windows = list(self._windows(padded, y.shape))
        if self.how == "max":
            total = np.maximum.reduce(windows)
        else:
            inside = np.pad(np.ones_like(x), padding)
            count = sum(self._windows(inside, y.shape)) if self.how == "average_valid" else np.prod(self.window)
            total = sum(windows) / np.maximum(count, 1)
        y[...] = total

    def _windows(self, padded: Any, shape: tuple[int, ...]) -> Any:
        """The strided views of x, one per window position, that are combined into y."""
        for taps in itertools.product(*map(range, self.window)):
            spatial = zip(taps, shape[2:], self.stride, strict=True)
            yield padded[(..., *(slice(t, t + (o - 1) * s + 1, s) for t, o, s in spatial))]

    def describe(self) -> str:
        spatial = " ".join(f"{d}={e}" for d, e in zip(IN[self.rank], self.extent, strict=True))
        pad = f" pad={show_pads(self.pad)}" if any(map(any, self.pad)) else ""
        window = f"window={show_ints(self.window)} stride={show_ints(self.stride)}"
        return f"{self.kind} n={self.n} k={self.k} {spatial} {window}{pad}{show_common(self)}"


@register(*(f"pool.{how}" for how in KINDS))
def _parse(kind: str, fields: Fields) -> Op:
    rank = rank_of(kind, fields)
    n, k = take_int(kind, fields, "n"), take_int(kind, fields, "k")
    extent = take_extents(kind, fields, IN[rank])
    window = take_ints(kind, fields, "window", rank, 2)
    stride = take_ints(kind, fields, "stride", rank, 0)
    stride = window if not any(stride) else stride
    pad = take_pads(kind, fields, rank)
    return Pool(kind.removeprefix("pool."), n, k, extent, window, stride, pad, **take_common(kind, fields))
