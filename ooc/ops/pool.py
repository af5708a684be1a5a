"""Max and average pooling: geometry and forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ShapeError
from ooc.ir.op import Block, Operand, compute_dtype, fit, numpy_dtype
from ooc.ir.region import Along, AxisMap, Sizes, Tile, Window
from ooc.ops.registry import register
from ooc.ops.spatial import OUT, SpatialOp, channel_axis, channel_dims, check_positive, out_extent

KINDS = ("max", "average", "average_valid")  # order = codes in kernels/pointwise.cpp


@dataclass(frozen=True)
class Pooling(SpatialOp):
    """The sizes that both passes of a pooling share.

    how: `max` (padding never wins; NaN does), `average` (padding counted as zeros), `average_valid` (padding not
    counted). Sources: cudnnPoolingForward's CUDNN_POOLING_MAX, _AVERAGE_COUNT_INCLUDE_PADDING and _EXCLUDE_PADDING.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    window: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    pad: tuple[tuple[int, int], ...] = ()
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    def __post_init__(self) -> None:
        self.normalise(window=(2,) * self.rank, pad=((0, 0),) * self.rank)
        self.normalise(stride=self.window)
        check_positive(self.kind, n=self.n, k=self.k, extent=self.extent, window=self.window, stride=self.stride)
        self.check_words()
        if any(before < 0 or after < 0 for before, after in self.pad):
            raise ShapeError(f"{self.kind}: padding must not be negative, got {self.pad}")
        if any(before >= w or after >= w for (before, after), w in zip(self.pad, self.window, strict=True)):
            raise ShapeError(f"{self.kind}: padding {self.pad} must be smaller than the window {self.window}")
        if any(o < 1 for o in self.out):
            raise ShapeError(f"{self.kind}: window {self.window} with padding {self.pad} does not fit extents {self.extent}")

    @cached_property
    def out(self) -> tuple[int, ...]:
        """Output extents."""
        axes = zip(self.extent, self.window, self.stride, self.pad, strict=True)
        return tuple(out_extent(e, w, s, 1, p) for e, w, s, p in axes)

    @property
    def fill(self) -> float:
        """What lies outside x."""
        return -np.inf if self.how == "max" else 0.0

    def tensor(self, name: str, extent: tuple[int, ...], spatial: Iterator[AxisMap]) -> Operand:
        """An n x k x extent tensor."""
        axes = (Along("n"), channel_axis(self.k, self.groups), *spatial)
        return Operand(name, (self.n, self.k, *extent), self.dtype, axes, self.memory_order)


@register(*(f"pool.{how}" for how in KINDS))
@dataclass(frozen=True)
class PoolForward(Pooling):
    """y = max or mean of x over windows; x is n x k x spatial.

    Descriptor: `pool.max n= k= [[d=] h=] w= window=2 [stride=] [pad=]`.
    """

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"pool.{self.how}"

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, **channel_dims(self.k, self.groups), **dict(zip(OUT[self.rank], self.out, strict=True))}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        spatial = zip(OUT[self.rank], self.window, self.stride, self.pad, strict=True)
        x = self.tensor("x", self.extent, (Window(d, w, s, 1, p[0]) for d, w, s, p in spatial))
        return (Operand(x.name, x.shape, x.dtype, x.axes, x.order, self.fill),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y", self.out, map(Along, OUT[self.rank])),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes) * int(np.prod(self.window))

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        y = blocks["y"].array
        reach = self.inputs[0].reach(tile)
        x, pad = fit(blocks["x"], reach)
        x = x.astype(numpy_dtype(compute_dtype(self.dtype)))
        padding = [(lo, r.extent - lo - e) for lo, r, e in zip(pad, reach, x.shape, strict=True)]
        windows = list(self._windows(np.pad(x, padding, constant_values=self.fill), y.shape))
        if self.how == "max":
            total = np.maximum.reduce(windows)
        else:
            inside = np.pad(np.ones_like(x), padding)
            count = sum(self._windows(inside, y.shape)) if self.how == "average_valid" else np.prod(self.window)
            total = sum(windows) / np.maximum(count, 1)
        y[...] = total

    def _windows(self, padded: Any, shape: tuple[int, ...]) -> Iterator[Any]:
        """The strided views of x, one per window position, that are combined into y."""
        for taps in itertools.product(*map(range, self.window)):
            spatial = zip(taps, shape[2:], self.stride, strict=True)
            yield padded[(..., *(slice(t, t + (o - 1) * s + 1, s) for t, o, s in spatial))]
