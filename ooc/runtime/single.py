"""Plans of one step, everything in its place: what small calls in memory are, ready to run again."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import Backend
from ooc.ir.op import ALIGN, Block
from ooc.ir.region import Span, slices
from ooc.runtime.executor import Guarded
from ooc.runtime.machine import Measured
from ooc.runtime.report import Part
from ooc.schedule.lowering import Schedule
from ooc.schedule.plan import Plan

KEPT = 16  # idle ones of a device
LARGEST = 256 << 10  # bytes of the workspace of one


class Single:
    """A kernel in memory of its own, for the one tile of a plan. Used by one call at a time."""

    def __init__(self, plan: Plan, todo: Schedule, backend: Backend) -> None:
        (step,) = todo.steps
        self.plan, self.todo = plan, todo  # the plan is known by its identity, as long as this lives
        self.bytes = {space: peak for space, peak in todo.layout.peaks.items() if peak}
        workspace, self.room = todo.jobs[0].workspace, None  # kept here: kernels may know no more than its address
        if workspace is not None:
            memory = np.empty(workspace.nbytes + ALIGN, np.uint8)
            begin = -native.address(memory) % ALIGN
            self.room = memory[begin : begin + workspace.nbytes]
        self.kernel = backend.kernel(plan.op, plan.kernel, plan.sizes, self.room, plan.in_place)
        self.tile = dict(step.tile)
        shapes = {o.name: tuple(Span(0, e) for e in o.shape) for o in plan.op.operands}
        met = [(ref.operand, ref.region) for ref in (*step.reads, *step.writes) if ref.region]
        self.parts = [(name, region, None if region == shapes[name] else slices(region)) for name, region in met]

    def run(self, arrays: Mapping[str, Any]) -> Part:
        """Compute it for these arrays, each a whole operand."""
        with Guarded(self.plan.op):
            blocks = {}
            for name, region, part in self.parts:
                blocks[name] = Block(arrays[name] if part is None else arrays[name][part], region)
            begin = time.perf_counter()
            self.kernel(self.tile, blocks, True, True)
            end = time.perf_counter() - begin
        return Part(self.todo, Measured([0.0], [end], self.bytes))


class Singles:
    """The idle ones of a device."""

    def __init__(self) -> None:
        # By thread, since what kernels have made belongs to one, and by the identity of the plan; in the order of their use.
        self.idle: dict[tuple[int, int], Single] = {}

    def take(self, plan: Plan) -> Single | None:
        """The one of a plan, which is then the caller's."""
        return self.idle.pop((threading.get_ident(), id(plan)), None)

    def give(self, single: Single) -> None:
        """Take it back, until others were used since."""
        self.idle[threading.get_ident(), id(single.plan)] = single
        while len(self.idle) > KEPT:
            try:
                del self.idle[next(iter(self.idle))]
            except (KeyError, RuntimeError, StopIteration):  # another thread was faster
                return


def single_of(plan: Plan, todo: Schedule, backend: Backend) -> Single | None:
    """A new one; None where the steps of a plan are more, move anything or want much memory."""
    if len(todo.steps) != 1 or sum(todo.layout.peaks.values()) > LARGEST:
        return None
    (step,) = todo.steps
    return None if any(r.buffer and r.region for r in (*step.reads, *step.writes)) else Single(plan, todo, backend)
