"""The gradient of a convolution's input, which is also the transposed convolution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, compute_dtype, crop
from ooc.ir.region import Along, Sizes, Tile, Unwindow
from ooc.ops.conv_base import Convolution
from ooc.ops.registry import register
from ooc.ops.spatial import IN, channel_dims, meeting


@register("conv.dgrad")
@dataclass(frozen=True)
class ConvDgrad(Convolution):
    """dx = act(sum over k and taps of dy * w, + b): the gradient of x, or a transposed convolution of dy; b per channel c.

    A tile is a piece of dx; it reads the positions of dy whose windows touch it. Sources: cudnnConvolutionBackwardData;
    ooc_cuDNN's DeconvolutionBiasActivationForward.
    """

    kind = "conv.dgrad"
    vectored = "c"
    fixed = ("w",)
    reduce = ("k",)
    ordered = ("k",)

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        spatial = dict(zip(IN[self.rank], self.extent, strict=True))
        return {"n": self.n, **channel_dims(self.k, self.groups), **spatial, "c": self.c // self.groups}

    @property
    def walked(self) -> str:
        return IN[self.rank]

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        spatial = zip(IN[self.rank], self.taps, self.stride, self.dilation, self.pad, strict=True)
        dy = self.like_y("dy", (Unwindow(d, r, s, u, p[0]) for d, r, s, u, p in spatial))
        b = Operand("b", (self.c,), compute_dtype(self.dtype), (self.c_axis,))
        return (dy, self.filters("w"), b) if self.bias else (dy, self.filters("w"))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.like_x("dx", map(Along, IN[self.rank])),)

    @cached_property
    def state(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return self.summed(self.outputs[0])

    def flops(self, sizes: Sizes) -> Any:
        pairs = self.outputs[0].count(sizes) * sizes["k"] * math.prod(self.taps)
        return -(-2 * pairs // math.prod(self.stride))  # a small tile has some, too

    def width(self, sizes: Sizes) -> Any:
        return sizes["c"] if self.groups == 1 else math.inf

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        dy = self.grouped(crop(blocks["dy"], self.inputs[0].region(tile)).array, tile)
        w = self.grouped_filters(blocks["w"], tile)
        spatial = tuple(tile[d].extent for d in IN[self.rank])
        total: Any = np.zeros((dy.shape[0], dy.shape[1], w.shape[2], *spatial), dy.dtype)
        for tap, x_at, y_at in self._touches(tile):
            total[(..., *x_at)] += np.einsum("ngk...,gkc->ngc...", dy[(..., *y_at)], w[(..., *tap)])
        self.finish(total.reshape(dy.shape[0], -1, *spatial), tile, blocks, first, last)

    def _touches(self, tile: Tile) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """For every tap, the positions of the tile's dx block and of its dy block that meet under it."""
        inside, outside = self.outputs[0].region(tile)[2:], self.inputs[0].region(tile)[2:]
        for tap in itertools.product(*map(range, self.taps)):
            axes = zip(tap, inside, outside, self.stride, self.dilation, self.pad, strict=True)
            meets = [meeting(h, p, stride, t * dilation - pad) for t, h, p, stride, dilation, (pad, _) in axes]
            yield tap, tuple(m[0] for m in meets), tuple(m[1] for m in meets)
