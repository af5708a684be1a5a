"""The forward pass of a convolution, and the gradient of its filters: both walk over positions of y."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ArgumentError
from ooc.ir.op import Block, Operand, compute_dtype, crop, fit
from ooc.ir.region import Along, AxisMap, PartWindow, Sizes, Tile, Window
from ooc.ops.conv_base import LEAST_PARTED, MANY_TAPS, PART, Convolution
from ooc.ops.registry import register
from ooc.ops.spatial import OUT, channel_dims


class OverOutput(Convolution):
    """Base: the iteration space n, k, positions of y, c; a tile reads x through its receptive field."""

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        spatial = dict(zip(OUT[self.rank], self.out, strict=True))
        part = {PART: self.taps[0]} if self.parted else {}
        return {"n": self.n, **channel_dims(self.k, self.groups), **spatial, "c": self.c // self.groups, **part}

    @property
    def walked(self) -> str:
        return OUT[self.rank]

    @cached_property
    def x(self) -> Operand:
        spatial = zip(OUT[self.rank], self.taps, self.stride, self.dilation, self.pad, strict=True)
        maps: list[AxisMap] = [Window(d, r, s, u, p[0]) for d, r, s, u, p in spatial]
        if self.parted:
            maps[0] = PartWindow(OUT[self.rank][0], PART, self.stride[0], self.dilation[0], self.pad[0][0])
        return self.like_x("x", maps)

    def y(self, name: str) -> Operand:
        """A tensor of the shape of y, walked over."""
        return self.like_y(name, map(Along, OUT[self.rank]))

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.summed(self.outputs[0])

    def flops(self, sizes: Sizes) -> Any:
        return 2 * math.prod(self.taps_of(sizes)) * self.y("y").count(sizes) * sizes["c"]

    def touched_bytes(self, sizes: Sizes) -> Any:
        """Without the rows of x that strides and dilations leap over; of a row all counts, as memory comes in lines."""
        nbytes = super().touched_bytes(sizes)
        if max(*self.stride, *self.dilation) == 1:
            return nbytes
        *rows, (q, _, columns) = zip(OUT[self.rank], self.taps, self.x.axes[2:], strict=True)
        share: Any = np.maximum(1.0, sizes[q] * self.stride[-1] / columns.extent(sizes))
        for d, taps, axis in rows:
            share = share * np.minimum(1.0, sizes[d] * taps / np.maximum(1, axis.extent(sizes)))
        return nbytes + (share - 1) * self.x.block_bytes(sizes)

    def fields_of(self, tile: Tile, block: Block) -> Iterator[tuple[tuple[int, ...], Any, Any]]:
        """For every tap, the x (n x g x c x positions) under it, zeros for padding, and which positions are none."""
        reach = self.x.reach(tile)
        x, pad = fit(block, reach)
        around = [(lo, r.extent - lo - e) for lo, r, e in zip(pad, reach, x.shape, strict=True)]
        inside = np.pad(np.ones(x.shape[2:], bool), around[2:])
        x = self.grouped(np.pad(x, around), tile)
        out = [tile[d].extent for d in OUT[self.rank]]
        taps = self.taps_of({d: span.extent for d, span in tile.items()})
        for tap in itertools.product(*map(range, taps)):
            spatial = zip(tap, out, self.stride, self.dilation, strict=True)
            index = tuple(slice(t * u, t * u + (o - 1) * s + 1, s) for t, o, s, u in spatial)
            yield tap, x[(..., *index)], inside[index]


@register("conv.fprop")
@dataclass(frozen=True)
class ConvFprop(OverOutput):
    """y = act(conv(x, w) + b). Source: cudnnConvolutionBiasActivationForward."""

    kind = "conv.fprop"
    vectored = "k"
    fixed = ("w",)
    ordered = ("c",)

    @property
    def reduce(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("c", PART) if self.parted else ("c",)

    @property
    def in_parts(self) -> ConvFprop | None:  # type: ignore[override]
        many = self.taps[0] >= LEAST_PARTED and math.prod(self.taps) >= MANY_TAPS
        return replace(self, parted=True) if many and not self.parted else None

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        b = Operand("b", (self.k,), compute_dtype(self.dtype), (self.k_axis,))
        return (self.x, self.filters("w"), b) if self.bias else (self.x, self.filters("w"))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.y("y"),)

    def width(self, sizes: Sizes) -> Any:
        return sizes["k"] if self.groups == 1 else math.inf

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        w = self.grouped_filters(blocks["w"], tile)
        total: Any = 0
        for tap, x, inside in self.fields_of(tile, blocks["x"]):
            # Padding takes no part, not even where the tap is infinite or NaN.
            total = total + np.where(inside, np.einsum("ngc...,gkc->ngk...", x, w[(..., *tap)]), 0)
        self.finish(total.reshape(total.shape[0], -1, *total.shape[3:]), tile, blocks, first, last)


@register("conv.wgrad")
@dataclass(frozen=True)
class ConvWgrad(OverOutput):
    """dw = sum over n and positions of x * dy. Source: cudnnConvolutionBackwardFilter."""

    kind = "conv.wgrad"
    vectored = "c"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias or self.act != "identity":
            raise ArgumentError(f"{self.kind}: takes no bias and no activation")

    @property
    def reduce(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("n", *OUT[self.rank])

    @property
    def ordered(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.reduce[:-1]

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.x, self.y("dy"))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.filters("dw"),)

    def width(self, sizes: Sizes) -> Any:
        return sizes["k"] if self.groups == 1 else math.inf

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        dy = self.grouped(crop(blocks["dy"], self.inputs[1].region(tile)).array, tile)
        total: Any = np.zeros((dy.shape[1], dy.shape[2], tile["c"].extent, *self.taps), dy.dtype)
        letters = "uvw"[: self.rank]
        for tap, x, inside in () if self.empty(tile) else self.fields_of(tile, blocks["x"]):
            total[(..., *tap)] = np.einsum(f"ngc{letters},ngk{letters}->gkc", x, np.where(inside, dy, 0))
        self.finish(total.reshape(-1, *total.shape[2:]), tile, blocks, first, last)
