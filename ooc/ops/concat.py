"""Joining tensors along their channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand
from ooc.ir.region import Sizes, Tile, Window
from ooc.ops.place import laid
from ooc.ops.registry import register
from ooc.ops.spatial import Elementwise, check_positive


@register("concat")
@dataclass(frozen=True)
class Concat(Elementwise):
    """y (n x sum(channels) x extent) = x0, x1, ... one behind the other along the channels, of which each has its number.

    Its gradient with respect to one of them is a `place`. Source: not in cuDNN; each part is cudnnTransformTensor.
    Descriptor: `concat n= channels=3x5 [[d=] h=] w=`.
    """

    n: int
    channels: tuple[int, ...]
    extent: tuple[int, ...]
    dtype: str = "f32"
    layout: str = "channels_first"

    kind = "concat"
    groups = 1
    free: ClassVar[frozenset[str]] = frozenset({"channels"})

    def __post_init__(self) -> None:
        check_positive(self.kind, inputs=len(self.channels), channels=self.channels)
        super().__post_init__()

    @cached_property
    def k(self) -> int:  # type: ignore[override]
        return sum(self.channels)

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """The channel of y with which each input begins."""
        return tuple(accumulate(self.channels[:-1], initial=0))

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return tuple(map(self._part, range(len(self.channels))))

    def _part(self, i: int) -> Operand:
        y, window = self.tensor(f"x{i}"), Window("k", 1, pad=self.begins[i])
        return replace(y, shape=(self.n, self.channels[i], *self.extent), axes=(y.axes[0], window, *y.axes[2:]))

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:  # type: ignore[override]
        return (self.tensor("y"),)

    def flops(self, sizes: Sizes) -> Any:
        return self.outputs[0].count(sizes)

    def touched_bytes(self, sizes: Sizes) -> Any:
        return 2 * self.outputs[0].block_bytes(sizes)

    def copies(self, blocks: Mapping[str, Block]) -> Iterator[tuple[Any, Any]]:
        """What of y is what of each input, as arrays."""
        for operand, begin in zip(self.inputs, self.begins, strict=True):
            yield laid(blocks["y"], blocks[operand.name], (0, begin, *(0,) * self.rank))

    def reference(self, tile: Tile, blocks: Mapping[str, Block], first: bool, last: bool) -> None:
        for target, source in self.copies(blocks):
            target[...] = source
