"""What the tiles of a plan have read of a tensor: the page cache holds it when another tile reads it again."""

from __future__ import annotations

import math

from ooc.ir.op import ITEM_BYTES, Operand
from ooc.ir.region import Region, Span, elements

MOST = 1 << 14  # regions that are remembered: of more, some count as new again


class Visited:
    """What has been read of a tensor, region after region of a grid. Predictions ask for it; runs go on without."""

    def __init__(self, operand: Operand) -> None:
        self.item = ITEM_BYTES[operand.dtype]
        self.regions: set[Region] = set()
        self.ends = [0] * len(operand.shape)  # per axis, where the spans seen so far end
        self.new: list[dict[Span, int]] = [{} for _ in operand.shape]  # per axis, what a span has beyond those before it

    def bytes(self, region: Region) -> int:
        """Bytes of a region that were read before; now all are."""
        total = elements(region)
        if region in self.regions:
            return total * self.item
        if len(self.regions) >= MOST:
            self.regions.clear()
        self.regions.add(region)
        for axis, span in enumerate(region):
            if span not in self.new[axis]:
                self.new[axis][span] = max(0, span.hi - max(span.lo, self.ends[axis]))
                self.ends[axis] = max(self.ends[axis], span.hi)
        return (total - math.prod(new[span] for new, span in zip(self.new, region, strict=True))) * self.item
