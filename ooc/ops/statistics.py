"""What the halves of batch normalisation share: which statistics there are, and over what they are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from ooc.cache import cached_property
from ooc.ir.op import Block, Operand, crop
from ooc.ir.region import Tile, Whole
from ooc.ops.registry import IN
from ooc.ops.spatial import OUT, Elementwise

PER = ("channel", "activation")


class Normal(Elementwise):
    """Base: statistics are f64, one per channel, or one per channel and position (`per` activation)."""

    per: str
    groups = 1
    words: ClassVar[dict[str, tuple[str, ...]]] = {**Elementwise.words, "per": PER}

    @property
    def kept(self) -> str:
        """The axes along which statistics differ."""
        return "k" if self.per == "channel" else "k" + IN[self.rank]

    @property
    def averaged(self) -> tuple[str, ...]:
        """The loop dims over which statistics are taken."""
        return ("n", *OUT[self.rank]) if self.per == "channel" else ("n",)

    @cached_property
    def count(self) -> int:
        """Values behind each statistic."""
        return math.prod(self.dims[d] for d in self.averaged)

    def statistic(self, name: str) -> Operand:
        return self.partial(name, self.kept, "f64")

    def rows(self, count: int) -> Operand:
        """Partial statistics, in `count` rows."""
        one = self.partial("acc", self.kept, "f64")
        return Operand("acc", (count, *one.shape[1:]), "f64", (Whole(count), *one.axes[1:]))

    def parts(self, tile: Tile, blocks: Mapping[str, Block], dtype: Any) -> dict[str, Any]:
        """What a tile needs of every input, in one type."""
        return {o.name: crop(blocks[o.name], o.region(tile)).array.astype(dtype) for o in self.inputs}


class Statistics(Normal):
    """Base of the folds over a batch."""

    @property
    def reduce(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.averaged

    @property
    def ordered(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.averaged if self.per == "activation" else self.averaged[:-1]

    @property
    def summed_axes(self) -> tuple[int, ...]:
        """Axes of x over which statistics are taken."""
        return (0, *range(2, 2 + self.rank)) if self.per == "channel" else (0,)
