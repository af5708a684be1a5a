"""What is run: the linked steps of a plan, and where their buffers lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ooc.cache import cached_property
from ooc.errors import brief
from ooc.ir.op import Operand
from ooc.schedule.arena import Buffer, Layout, pack_in_sequence
from ooc.schedule.emit import emit
from ooc.schedule.link import link
from ooc.schedule.plan import Plan
from ooc.schedule.steps import Step

STEP_BYTES = 1 << 10  # of a step with all that belongs to it, at most
WINDOW = (16 << 20) // STEP_BYTES // 4  # steps of a window: the first is kept, the last one is let go while the next is made


@dataclass(frozen=True)
class Schedule:
    """The linked steps of a plan and where their buffers lie.

    Fields:
        plan: what was decided.
        steps: in the order in which they are issued.
        layout: the byte offset of every buffer, and the peak of every space.
    """

    plan: Plan
    steps: tuple[Step, ...]
    layout: Layout

    def __repr__(self) -> str:
        """One line: the op and how many steps and buffers it takes."""
        return f"<Schedule {brief(str(self.plan.op), 400)}: {len(self.steps)} steps, {len(self.layout.offsets)} buffers>"

    @cached_property
    def operands(self) -> dict[str, Operand]:
        """Everything that has buffers, by name; an output that is its own partial sum counts as the output."""
        op = self.plan.op
        return {o.name: o for f in op.folds for o in f.state} | {o.name: o for o in op.operands}

    @property
    def nbytes(self) -> int:
        """Bytes that the steps take, at most."""
        return len(self.steps) * STEP_BYTES

    @cached_property
    def alone(self) -> bool:
        """Whether the steps run one after the other on the calling thread: as planned, or as one tile overlaps with nothing."""
        return self.plan.tiles == 1 or self.plan.in_turn

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that the steps use."""
        return tuple(dict.fromkeys(step.lane for step in self.steps))

    @cached_property
    def workspace(self) -> Buffer | None:
        """The buffer that kernels work in, if any."""
        return next((b for b in self.layout.offsets if b.name == "workspace"), None)

    @cached_property
    def paged(self) -> set[str]:
        """Operands whose buffers have room to lie as their file's pages do."""
        plan = self.plan
        return {o.name for o in plan.op.operands if plan.slot_bytes(o) > int(o.block_bytes(plan.sizes))}


def lower(plan: Plan) -> Schedule:
    """A plan as a schedule: its steps emitted, its buffers laid out, every wait derived."""
    layout = pack_in_sequence((*plan.buffers, *plan.spill_buffers))
    return Schedule(plan, link(emit(plan), layout), layout)


def windows(plan: Plan, most_steps: int = WINDOW) -> Iterator[Schedule]:
    """A plan as schedules of at most so many steps, to be run one after the other: each is made when the one before is done,
    so that steps take little memory however many there are. They share one layout; a step waits for steps of its own alone."""
    layout = pack_in_sequence((*plan.buffers, *plan.spill_buffers))
    steps = emit(plan)
    while some := tuple(itertools.islice(steps, most_steps)):
        yield Schedule(plan, link(some, layout), layout)
