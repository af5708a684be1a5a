"""Laying a tensor into zeros: padding, cropping, and what both are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ooc.cache import cached_property
from ooc.errors import ShapeError
from ooc.ir.op import Block, Operand, crop
from ooc.ir.region import Along, Sizes, Tile, Window
from ooc.ops.registry import register
from ooc.ops.spatial import OUT, SpatialOp, check_positive


@register("place")
@dataclass(frozen=True)
class Embed(SpatialOp):
    """y[i] = x[i - lead] where that lies in x, else `value`: x (n x c x extent) laid into y (n x k x size).

    lead: of the channels and each spatial axis, negative where so much of x is cut off. Padding and cropping, each the other's
    gradient: the adjoint has lead negated, and c, extent and k, size exchanged. Source: not in cuDNN.
    Descriptor: `place n= c= [[d=] h=] w= k= size=8x8 lead=0x1x-1 [value=]`.
    """

    n: int
    c: int
    extent: tuple[int, ...]
    k: int
    size: tuple[int, ...]
    lead: tuple[int, ...]
    value: float = 0.0
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "place"
    free: ClassVar[frozenset[str]] = frozenset({"lead"})

    def __post_init__(self) -> None:
        check_positive(self.kind, n=self.n, c=self.c, extent=self.extent, k=self.k, size=self.size)
        self.check_words()
        if (len(self.size), len(self.lead)) != (self.rank, self.rank + 1):
            raise ShapeError(
                f"place: expected size= of {self.rank} and lead= of {self.rank + 1} axes, got {self.size}, {self.lead}"
            )

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.n, "k": self.k, **dict(zip(OUT[self.rank], self.size, strict=True))}

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        axes = (Window(d, 1, pad=lead) for d, lead in zip(("k", *OUT[self.rank]), self.lead, strict=True))
        return (Operand("x", (self.n, self.c, *self.extent), self.dtype, (Along("n"), *axes), self.memory_order),)

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (Operand("y", (self.n, self.k, *self.size), self.dtype, tuple(map(Along, self.dims)), self.memory_order),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes)

    def copies(self, blocks: Mapping[str, Block]) -> Iterator[tuple[Any, Any]]:
        """What of y is what of x, as arrays; the rest of y becomes `value` first."""
        target, source = laid(blocks["y"], blocks["x"], (0, *self.lead))
        if target.size < blocks["y"].array.size:
            blocks["y"].array[...] = self.value
        yield target, source

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        for target, source in self.copies(blocks):
            target[...] = source


def laid(y: Block, x: Block, lead: tuple[int, ...]) -> tuple[Any, Any]:
    """Where x, moved by `lead`, meets y: the arrays of both."""
    target = crop(y, tuple(s.shift(by) for s, by in zip(x.region, lead, strict=True)))
    source = crop(x, tuple(s.shift(-by) for s, by in zip(target.region, lead, strict=True)))
    return target.array, source.array
