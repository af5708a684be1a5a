"""How many bytes are in use at every item of a program, and what other fates and earlier loads would add: a count, quick enough
to be asked for every tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.ir.op import aligned
from ooc.networks.judge import Judge, Trial
from ooc.networks.proposal import Proposal


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
        away: dict[str, tuple[int, int]] = {}
        last: dict[str, int] = {}
        for i, item in enumerate(self.trial.program.items):
            for instance in item.makes if item.what == "load" else ():
                if instance.tensor in last:
                    away.setdefault(instance.tensor, (last[instance.tensor], i))
            for instance in (*item.reads, *item.makes):
                last[instance.tensor] = i
        return away

    @cached_property
    def at(self) -> dict[int, int]:
        """The item of every call; of those that are issued again, the last."""
        return {item.call: i for i, item in enumerate(self.trial.program.items) if item.what == "run"}

    def nbytes(self, tensor: str) -> int:
        """Bytes of a tensor, as laid out."""
        return int(aligned(self.trial.net.tensors[tensor].nbytes))


def earliest(judge: Judge, demand: Proposal, limit: float) -> tuple[tuple[str, int], ...]:
    """Before which call each load of a proposal is issued: as early as a limit of the bytes in use
    allows, one after the other (PoocH's fourth step)."""
    curve = Curve(judge.trial(demand))
    load: Any = curve.bytes.copy()
    calls = sorted((i, call) for call, i in curve.at.items() if judge.net.calls[call].phase == "backward")
    begin = calls[0][0] if calls else 0
    issued = []
    for t, (lo, hi) in sorted(curve.away.items(), key=lambda one: one[1][1]):
        start = max(lo + 1, begin)
        full = np.flatnonzero(load[start:hi] + curve.nbytes(t) > limit)
        at = start + int(full[-1]) + 1 if len(full) else start
        later = next((call for i, call in calls if i >= at), None)
        if later is not None and at < hi:
            load[at:hi] += curve.nbytes(t)
            issued.append((t, later))
    return tuple(issued)
