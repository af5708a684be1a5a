"""How many bytes are in use at every item of a program, and what other fates and earlier loads would add: a count, quick enough
to be asked for every tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ooc.cache import cached_property
from ooc.ir.op import aligned
from ooc.networks.judge import Trial


@dataclass(frozen=True)
class Curve:
    """The load of a trial's program, as if memory had no gaps. What is in use at least in any layout."""

    trial: Trial

    @cached_property
    def bytes(self) -> Any:
        """At every item: of what lives then, of workspace, and of what lasts."""
        return self.trial.lowering.load()

    @cached_property
    def away(self) -> dict[str, tuple[int, int]]:
        """From its last use in the forward pass to its load: the items between which a tensor is away, by the tensor."""
        found: dict[str, tuple[int, int]] = {}
        last: dict[str, int] = {}
        for i, item in enumerate(self.trial.program.items):
            for instance in item.makes if item.what == "load" else ():
                if instance.tensor in last:
                    found.setdefault(instance.tensor, (last[instance.tensor], i))
            for instance in (*item.reads, *item.makes):
                last[instance.tensor] = i
        return found

    @cached_property
    def at(self) -> dict[int, int]:
        """The item of every call; of those that are issued again, the last."""
        return {item.call: i for i, item in enumerate(self.trial.program.items) if item.what == "run"}

    def nbytes(self, tensor: str) -> int:
        """Bytes of a tensor, as laid out."""
        return int(aligned(self.trial.net.tensors[tensor].nbytes))
