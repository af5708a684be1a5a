"""How often operands move under a loop order, and what memory that takes: numbers of one plan, or arrays of many tilings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np

from ooc.ir.op import Fold, Op, Operand, aligned
from ooc.ir.region import least
from ooc.schedule.place import Place, load_route, staged_bytes

Counts = Mapping[str, Any]  # number of tiles along every loop dim


def loads(dims: Set[str], order: Sequence[str], counts: Counts) -> Any:
    """How often a region changes that these dims move: every loop down to the innermost one that moves it."""
    total: Any = 1
    so_far: Any = 1
    for d in order:
        so_far = so_far * counts[d]
        if d in dims:
            total = _choose(counts[d] > 1, so_far, total)
    return total


def visits(fold: Fold, order: Sequence[str], counts: Counts) -> Any:
    """How often each tile of a fold's results is begun or taken up again: more than once where a reduction loop lies outside
    another one that moves the results. Then the partial results leave the device in between."""
    times: Any = 1
    pending: Any = 1
    for d in order:
        if d in fold.reduce:
            pending = pending * counts[d]
        elif d not in fold.idle:
            times, pending = _choose(counts[d] > 1, times * pending, times), _choose(counts[d] > 1, 1, pending)
    return times


def made(op: Op, fold: Fold, counts: Counts) -> Any:
    """Number of tiles of a fold's results."""
    return math.prod(counts[d] for d in op.dims if d not in fold.reduce and d not in fold.idle)


def _choose(condition: Any, yes: Any, no: Any) -> Any:
    return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes if condition else no


class Buffered(Protocol):
    """One tiling or many, with a loop order and a depth."""

    @property
    def op(self) -> Op: ...

    @property
    def depth(self) -> int: ...

    @property
    def staged(self) -> bool: ...

    @property
    def bounce_bytes(self) -> int: ...

    def place(self, name: str) -> Place: ...

    def loads(self, operand: Operand) -> Any:
        """How often its region changes."""

    def slot_bytes(self, operand: Operand) -> Any:
        """Bytes of each of its buffers."""

    def splits(self, fold: Fold) -> Any:
        """Whether partial results exist between tiles."""

    def spills(self, fold: Fold) -> Any:
        """Number of tiles whose partial results leave the device and come back."""


def memory(of: Buffered) -> dict[str, Any]:
    """Bytes of all buffers in each space (device, staging, spill), the workspace left out."""
    op, outputs = of.op, {o.name for o in of.op.outputs}
    by_space: dict[str, Any] = {"device": 0, "staging": 0, "spill": 0}
    for operand in op.operands:
        place, slot, turns = of.place(operand.name), aligned(of.slot_bytes(operand)), of.loads(operand)
        if place is not Place.DEVICE:
            by_space["device"] = by_space["device"] + slot * least(turns, of.depth)
            if len(load_route(place, of.staged)) == 2:
                piece = staged_bytes(slot)
                by_space["staging"] = by_space["staging"] + piece * least(turns * (1 + (piece < slot)), 2)
    for fold in op.folds:
        for operand in fold.state:
            slot = aligned(of.slot_bytes(operand))
            if operand.name not in outputs and of.place(operand.name) is not Place.DEVICE:
                by_space["device"] = by_space["device"] + slot * least(of.loads(operand), of.depth) * of.splits(fold)
            by_space["spill"] = by_space["spill"] + slot * of.spills(fold)
    ends = (any(of.place(o.name) is Place.DISK for o in operands) for operands in (op.inputs, op.outputs))
    by_space["staging" if of.staged else "device"] += sum(ends) * of.bounce_bytes
    return by_space
