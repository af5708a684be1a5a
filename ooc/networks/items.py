"""What programs are made of: instances of tensors, and items, the instructions on them."""

from __future__ import annotations

from typing import NamedTuple

from ooc.ir.region import Region, Span


class Instance(NamedTuple):
    """What the device holds of a tensor at a time: made again, it is another. part: the region of it; None: all of it."""

    tensor: str
    generation: int = 0
    part: Region | None = None

    def __str__(self) -> str:
        generation = f"'{self.generation}" if self.generation else ""
        return f"{self.tensor}{generation}" + (f"[{', '.join(map(str, self.part))}]" if self.part is not None else "")


class Item(NamedTuple):
    """One instruction of a program.

    Fields:
        what: "run" (a call, or one part of it), "load" (from where the tensor lives), "store" (to there), "fence" (compute waits
            for all that moves what it touches), "pause" (the caller has to do; from then on there is at home what it makes).
        call: index of the call of a run; -1.
        reads, makes: instances, of a run in the order of the op's operands.
        samples: the part of the batch that a run computes; None: all of it.
        chunk: samples of each part, where a run computes one; 0.
        tile: the loop spans that a run of a chain is cut to, see `ooc.networks.chains`; empty: all.
        over: pairs of an instance and one that is made and may take its bytes, where nobody reads the first one later.
        sums: partial sums, in the order of the op's folds, of a call that is computed in parts.
    """

    what: str
    call: int = -1
    reads: tuple[Instance, ...] = ()
    makes: tuple[Instance, ...] = ()
    samples: Span | None = None
    chunk: int = 0
    tile: tuple[tuple[str, Span], ...] = ()
    over: tuple[tuple[Instance, Instance], ...] = ()
    sums: tuple[Instance, ...] = ()

    @property
    def touches(self) -> tuple[Instance, ...]:
        """What it has to do with on the device: nothing of what is at home after a pause."""
        return () if self.what == "pause" else (*self.reads, *self.makes, *self.sums)

    def __str__(self) -> str:
        reads, makes = (" ".join(map(str, part)) for part in (self.reads, self.makes))
        return f"{self.what} {self.call if self.call >= 0 else ''} {reads} > {makes}"
