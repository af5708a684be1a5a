"""Convolution (cross-correlation, as in cuDNN) in one, two or three spatial dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ooc.descriptor import Fields, register, show_ints, show_pads, take_int, take_ints, take_pads
from ooc.errors import ShapeError
from ooc.op import Block, Op, Operand, compute_dtype, fit, numpy_dtype
from ooc.ops.pointwise import (
    ACTIVATIONS,
    activate,
    channel_axis,
    channel_dims,
    show_common,
    show_epilogue,
    take_common,
    take_epilogue,
)  # fmt: skip
from ooc.ops.spatial import IN, OUT, TAPS, check_positive, memory_order, out_extent, rank_of, take_extents
from ooc.region import Along, AxisMap, Grouped, Sizes, Tile, Whole, Window


@dataclass(frozen=True)
class ConvFprop(Op):
    """y = act(conv(x, w) + b). x: n x c x spatial, w: k x c/groups x taps, b: k, y: n x k x out.

    Source: cudnnConvolutionBiasActivationForward. Descriptor: `conv.fprop n= c= [[d=] h=] w= k= [[t=] r=] s= [stride=]
    [dilation=] [pad=] [bias=1] [act=] [coef=] [groups=] [dtype=] [layout=]`.
    """

    n: int
    c: int
    k: int
    extent: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]
    bias: bool = False
    act: str = "identity"
    coef: float = 0.0
    groups: int = 1
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "conv.fprop"
    reduce = ("c",)

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, c=self.c, k=self.k, extent=self.extent, filter=self.taps)
        check_positive(self.kind, stride=self.stride, dilation=self.dilation, groups=self.groups)
        if any(before < 0 or after < 0 for before, after in self.pad):
            raise ShapeError(f"{self.kind}: padding must not be negative, got {self.pad}")
        if self.c % self.groups or self.k % self.groups:
            raise ShapeError(f"{self.kind}: groups={self.groups} must divide c={self.c} and k={self.k}")
        if self.act not in ACTIVATIONS:
            raise ShapeError(f"{self.kind}: activation: expected one of {', '.join(ACTIVATIONS)}; got {self.act!r}")
        if any(o < 1 for o in self.out):
            reach = tuple((r - 1) * d + 1 for r, d in zip(self.taps, self.dilation, strict=True))
            raise ShapeError(f"{self.kind}: a filter reaching {reach} does not fit extents {self.extent} with padding {self.pad}")

    @property
    def rank(self) -> int:
        return len(self.extent)

    @cached_property
    def out(self) -> tuple[int, ...]:
        """Output extents."""
        axes = zip(self.extent, self.taps, self.stride, self.dilation, self.pad, strict=True)
        return tuple(out_extent(*axis) for axis in axes)

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        spatial = dict(zip(OUT[self.rank], self.out, strict=True))
        return {"n": self.n, **channel_dims(self.k, self.groups), **spatial, "c": self.c // self.groups}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        order = memory_order(self.rank, self.layout)
        c: AxisMap = Along("c") if self.groups == 1 else Grouped("g", "c", self.c // self.groups)
        k = channel_axis(self.k, self.groups)
        spatial = zip(OUT[self.rank], self.taps, self.stride, self.dilation, self.pad, strict=True)
        windows = (Window(d, r, s, u, p[0]) for d, r, s, u, p in spatial)
        x = Operand("x", (self.n, self.c, *self.extent), self.dtype, (Along("n"), c, *windows), order)
        w_shape = (self.k, self.c // self.groups, *self.taps)
        w = Operand("w", w_shape, self.dtype, (k, Along("c"), *map(Whole, self.taps)), order)
        b = Operand("b", (self.k,), compute_dtype(self.dtype), (k,))
        return (x, w, b) if self.bias else (x, w)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self._result("y", self.dtype),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        compute = compute_dtype(self.dtype)
        return self.outputs if compute == self.dtype else (self._result("acc", compute),)

    def _result(self, name: str, dtype: str) -> Operand:
        axes = (Along("n"), channel_axis(self.k, self.groups), *map(Along, OUT[self.rank]))
        return Operand(name, (self.n, self.k, *self.out), dtype, axes, memory_order(self.rank, self.layout))

    def flops(self, sizes: Sizes) -> Any:
        return 2 * math.prod(self.taps) * self.outputs[0].count(sizes) * sizes["c"]

    def effort(self, sizes: Sizes) -> Any:
        # Kernels compute output channels in vectors.
        k = sizes["k"]
        return self.flops(sizes) * (-(-k // 8) * 8 / k if self.groups == 1 else 1)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        compute = numpy_dtype(compute_dtype(self.dtype))
        total = self._correlate(tile, blocks, compute)
        acc = blocks.get(self.state[0].name)
        if not first and acc is not None:
            total += acc.array
        if not last and acc is not None:
            acc.array[...] = total
            return
        if self.bias:
            total += blocks["b"].array.reshape(-1, *(1,) * self.rank)
        blocks["y"].array[...] = activate(self.act, self.coef, total)

    def _correlate(self, tile: Tile, blocks: Mapping[str, Block], compute: Any) -> Any:
        """The valid correlation of the padded block of x with the block of w, one matrix product per tap and group."""
        reach = self.inputs[0].reach(tile)
        x, pad = fit(blocks["x"], reach)
        x = np.pad(x.astype(compute), [(lo, r.extent - lo - e) for lo, r, e in zip(pad, reach, x.shape, strict=True)])
        w = blocks["w"].array.astype(compute)
        groups = tile["g"].extent if "g" in tile else 1
        out = tuple(tile[d].extent for d in OUT[self.rank])
        x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
        w = w.reshape(groups, -1, *w.shape[1:])
        total = np.zeros((x.shape[0], groups, w.shape[1], *out), compute)
        for tap in itertools.product(*map(range, self.taps)):
            spatial = zip(tap, out, self.stride, self.dilation, strict=True)
            index: Any = tuple(slice(t * u, t * u + (o - 1) * s + 1, s) for t, o, s, u in spatial)
            total += np.einsum("ngc...,gkc->ngk...", x[(..., *index)], w[(..., *tap)])
        return total.reshape(x.shape[0], -1, *out)

    def describe(self) -> str:
        spatial = " ".join(f"{d}={e}" for d, e in zip(IN[self.rank], self.extent, strict=True))
        taps = " ".join(f"{d}={e}" for d, e in zip(TAPS[self.rank], self.taps, strict=True))
        stride = f" stride={show_ints(self.stride)}" if set(self.stride) != {1} else ""
        dilation = f" dilation={show_ints(self.dilation)}" if set(self.dilation) != {1} else ""
        pad = f" pad={show_pads(self.pad)}" if any(map(any, self.pad)) else ""
        sizes = f"{self.kind} n={self.n} c={self.c} {spatial} k={self.k} {taps}"
        return f"{sizes}{stride}{dilation}{pad}{show_epilogue(self)}{show_common(self)}"


@register("conv.fprop")
def _parse(kind: str, fields: Fields) -> Op:
    rank = rank_of(kind, fields)
    n, c, k = (take_int(kind, fields, key) for key in "nck")
    extent = take_extents(kind, fields, IN[rank])
    taps = take_extents(kind, fields, TAPS[rank])
    stride = take_ints(kind, fields, "stride", rank, 1)
    dilation = take_ints(kind, fields, "dilation", rank, 1)
    pad = take_pads(kind, fields, rank)
    return ConvFprop(n, c, k, extent, taps, stride, dilation, pad, **take_epilogue(kind, fields), **take_common(kind, fields))
