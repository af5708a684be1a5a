"""Moving values to other places: axes exchanged, channels spread over space."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ooc.cache import cached_property
from ooc.errors import ShapeError
from ooc.ir.op import Block, Operand, crop
from ooc.ir.region import Along, AxisMap, Sizes, Span, Tile, Whole, Window
from ooc.ops.registry import register
from ooc.ops.resample import Sampled
from ooc.ops.spatial import OUT, SpatialOp, check_positive


class Moving(SpatialOp):
    """Base of ops that copy every result from one place."""

    def copies(self, blocks: Mapping[str, Block]) -> Iterator[tuple[Any, Any]]:
        """What of y is what of x, as arrays."""
        raise NotImplementedError

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes)

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        for target, source in self.copies(blocks):
            target[...] = source


@register("permute")
@dataclass(frozen=True)
class Permute(Moving):
    """y: x (n x k x extent) with channels and spatial axes in another order: axis i of y is axis order[i] of x, where
    0 are the channels. Source: cudnnTransformTensor. Descriptor: `permute n= k= [[d=] h=] w= order=1x2x0`."""

    n: int
    k: int
    extent: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "permute"
    free = frozenset({"order"})

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, k=self.k, extent=self.extent)
        self.check_words()
        if sorted(self.order) != list(range(self.rank + 1)):
            raise ShapeError(f"permute: order={self.order}: expected the axes 0 to {self.rank} in some order")

    @cached_property
    def _letters(self) -> tuple[str, ...]:
        return ("k", *OUT[self.rank])

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        shape = (self.k, *self.extent)
        return {"n": self.n, **{letter: shape[axis] for letter, axis in zip(self._letters, self.order, strict=True)}}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        axes = (Along(self._letters[self.order.index(axis)]) for axis in range(self.rank + 1))
        return (Operand("x", (self.n, self.k, *self.extent), self.dtype, (Along("n"), *axes), self.memory_order),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (Operand("y", tuple(self.dims.values()), self.dtype, tuple(map(Along, self.dims)), self.memory_order),)

    def copies(self, blocks: Mapping[str, Block]) -> Iterator[tuple[Any, Any]]:
        y = blocks["y"]
        back = (0, *(1 + self.order.index(axis) for axis in range(self.rank + 1)))
        region = tuple(y.region[axis] for axis in back)
        yield y.array, crop(blocks["x"], region).array.transpose(0, *(1 + axis for axis in self.order))


@register("spread.crd", "spread.dcr")
@dataclass(frozen=True)
class Spread(Moving):
    """y (n x k / block^rank x extent * block): channels spread over blocks of positions, as ONNX's DepthToSpace and PyTorch's
    pixel_shuffle have it.

    how: of the channels that one result takes its block from, "crd": they are neighbours, "dcr": they are k / block^rank apart.
    Descriptor: `spread.crd n= k= [[d=] h=] w= block=2`.
    """

    how: str
    n: int
    k: int
    extent: tuple[int, ...]
    block: int
    dtype: str = "f32"
    layout: str = "channels_first"

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, k=self.k, extent=self.extent, block=self.block)
        self.check_words()
        if self.k % self.places:
            raise ShapeError(f"{self.kind}: {self.k} channels are no multiple of {self.places}")

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"spread.{self.how}"

    @property
    def places(self) -> int:
        """Positions of a block."""
        return int(self.block**self.rank)

    @cached_property
    def made(self) -> int:
        """Channels of y."""
        return self.k // self.places

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, "k": self.made, **{d: e * self.block for d, e in zip(OUT[self.rank], self.extent, strict=True)}}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        channels: AxisMap = Window("k", self.places, self.places) if self.how == "crd" else Whole(self.k)
        axes = (Sampled(d, "nearest", e, e * self.block) for d, e in zip(OUT[self.rank], self.extent, strict=True))
        return (Operand("x", (self.n, self.k, *self.extent), self.dtype, (Along("n"), channels, *axes), self.memory_order),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (Operand("y", tuple(self.dims.values()), self.dtype, tuple(map(Along, self.dims)), self.memory_order),)

    def copies(self, blocks: Mapping[str, Block]) -> Iterator[tuple[Any, Any]]:
        y, b = blocks["y"], self.block
        n, k, *spatial = y.region
        for place, at in enumerate(itertools.product(range(b), repeat=self.rank)):
            first = [s.lo + (i - s.lo) % b for s, i in zip(spatial, at, strict=True)]
            if any(f >= s.hi for f, s in zip(first, spatial, strict=True)):
                continue
            target = y.array[(..., *(slice(f - s.lo, None, b) for f, s in zip(first, spatial, strict=True)))]
            from_x = tuple(Span(f // b, f // b + e) for f, e in zip(first, target.shape[2:], strict=True))
            if self.how == "crd":
                channels = Span(k.lo * self.places + place, (k.hi - 1) * self.places + place + 1)
                source = crop(blocks["x"], (n, channels, *from_x)).array[:, :: self.places]
            else:
                begin = place * self.made
                source = crop(blocks["x"], (n, Span(k.lo + begin, k.hi + begin), *from_x)).array
            yield target, source
