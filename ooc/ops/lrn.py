"""Local response normalisation across channels.

Source: Krizhevsky, Sutskever, Hinton, "ImageNet classification with deep convolutional neural networks", 2012;
cudnnLRNCrossChannelForward and -Backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.errors import ArgumentError
from ooc.ir.axis_maps import compose
from ooc.ir.op import Block, Operand, crop
from ooc.ir.region import AxisMap, Sizes, Span, Tile, Unwindow, Window
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise


@dataclass(frozen=True)
class Lrn(Elementwise):
    """The sizes of both passes: channel i is divided by (base + alpha/size * sum of x**2 over channels i - before to
    i - before + size - 1, those that exist)**beta."""

    n: int
    k: int
    extent: tuple[int, ...]
    size: int
    before: int
    alpha: float = 1e-4
    beta: float = 0.75
    base: float = 2.0
    dtype: str = "f32"
    layout: str = "channels_first"

    groups = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1 or not 0 <= self.before < self.size:
            raise ArgumentError(f"{self.kind}: expected size >= 1 and 0 <= before < size, got {self.size} and {self.before}")

    @property
    def window(self) -> AxisMap:
        return Window("k", self.size, pad=self.before)

    def along(self, name: str, axis: AxisMap) -> Operand:
        """A tensor whose channel axis follows a map."""
        full = self.tensor(name)
        return replace(full, axes=(full.axes[0], axis, *full.axes[2:]))

    def scales(self, x: Any, held: Span, span: Span) -> Any:
        """base + alpha/size * sums of squares for the channels of `span`, from the channels of `held`."""
        shift = held.lo + self.before
        return self.base + self.alpha / self.size * _windows(np.square(x), span, shift, self.size)

    def flops(self, sizes: Sizes) -> Any:
        return (self.size + 10) * self.outputs[0].count(sizes)


def _windows(terms: Any, span: Span, shift: int, size: int) -> Any:
    """For each channel i of `span`, the sum of terms[i - shift] to terms[i - shift + size - 1], those that exist, in turn."""
    total = np.zeros((terms.shape[0], span.extent, *terms.shape[2:]), terms.dtype)
    for t in range(size):
        start = span.lo - shift + t
        lo, hi = max(0, -start), min(span.extent, terms.shape[1] - start)
        if hi > lo:
            total[:, lo:hi] += terms[:, start + lo : start + hi]
    return total


@register("lrn")
@dataclass(frozen=True)
class LrnForward(Lrn):
    """y = x / scale**beta. Descriptor: `lrn n= k= [[d=] h=] w= size= before= [alpha=] [beta=] [base=]`."""

    kind = "lrn"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.along("x", self.window),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        part = crop(blocks["x"], self.inputs[0].region(tile))
        x, held = part.array.astype(np.float64), part.region[1]
        scale = self.scales(x, held, tile["k"])
        blocks["y"].array[...] = x[:, tile["k"].lo - held.lo : tile["k"].hi - held.lo] * scale**-self.beta


@register("lrn_backward")
@dataclass(frozen=True)
class LrnBackward(Lrn):
    """dx from x and dy; y is computed again. Descriptor as of `lrn`."""

    kind = "lrn_backward"

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        touching = Unwindow("k", self.size, pad=self.before)
        return (self.along("x", compose(self.window, {"k": (touching, self.k)})), self.along("dy", touching))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("dx"),)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        parts = [crop(blocks[o.name], o.region(tile)) for o in self.inputs]
        x, dy = (b.array.astype(np.float64) for b in parts)
        held, wide, channels = parts[0].region[1], parts[1].region[1], tile["k"]
        scale = self.scales(x, held, wide)
        middle = x[:, wide.lo - held.lo : wide.hi - held.lo]
        # Channel j counts channel i when i lies in j's window.
        shift = wide.lo + self.size - 1 - self.before
        sums = _windows(dy * middle * scale ** (-self.beta - 1), channels, shift, self.size)
        mine = slice(channels.lo - wide.lo, channels.hi - wide.lo)
        spread = 2 * self.alpha * self.beta / self.size * middle[:, mine] * sums
        blocks["dx"].array[...] = dy[:, mine] * scale[:, mine] ** -self.beta - spread
