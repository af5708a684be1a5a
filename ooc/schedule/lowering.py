"""What is run: the linked steps of a plan, and where their buffers lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.errors import brief
from ooc.ir.op import Operand
from ooc.schedule.arena import Buffer, Layout, pack_in_sequence
from ooc.schedule.emit import emit
from ooc.schedule.link import link, linked
from ooc.schedule.plan import Plan
from ooc.schedule.steps import Step

STEP_BYTES = 1 << 10  # of a step with all that belongs to it, at most
WINDOW = (16 << 20) // STEP_BYTES // 4  # steps of a window: the first is kept, the last one is let go while the next is made
FIRST_WINDOW = 256  # steps that are made within 5 ms
SLICE = 8  # steps that are made at once, as many as some two tiles have


class Job(NamedTuple):
    """What steps of one kind have in common: the operands that they touch, and how those that compute do it.

    Fields:
        operands: everything that has buffers, by name.
        paged: those whose buffers have room to lie as their file's pages do.
        bounce_bytes: of the buffer that their regions of files pass; 0: none.
        plan: what is computed, and by which kernel; None: nothing.
        workspace: the buffer that kernels work in, if any.
    """

    operands: Mapping[str, Operand]
    paged: Set[str] = frozenset()
    bounce_bytes: int = 0
    plan: Plan | None = None
    workspace: Buffer | None = None


@dataclass(frozen=True)
class StepWindow:
    """Linked steps, to be run one after the other in the memory of one layout.

    Fields:
        steps: in the order in which they are issued.
        layout: the byte offset of every buffer, and the peak of every space.
        jobs: what the steps belong to, by their number.
        alone: whether the steps run one after the other on the calling thread.
    """

    steps: tuple[Step, ...]
    layout: Layout
    jobs: tuple[Job, ...]
    alone: bool

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that the steps use."""
        return tuple(dict.fromkeys(step.lane for step in self.steps))


@dataclass(frozen=True)
class Schedule(StepWindow):
    """The linked steps of a plan and where their buffers lie.

    Fields:
        plan: what was decided.
        steps, layout, jobs, alone: see `StepWindow`; there is one job.
    """

    plan: Plan

    @classmethod
    def of(cls, plan: Plan, steps: Sequence[Step], layout: Layout, jobs: tuple[Job, ...] = ()) -> Schedule:
        """Steps of a plan; those of a single tile overlap with nothing. jobs: its one job, where it is known."""
        return cls(tuple(steps), layout, jobs or (job_of(plan),), plan.tiles == 1 or plan.in_turn, plan)

    def __repr__(self) -> str:
        """One line: the op and how many steps and buffers it takes."""
        return f"<Schedule {brief(str(self.plan.op), 400)}: {len(self.steps)} steps, {len(self.layout.offsets)} buffers>"

    @property
    def nbytes(self) -> int:
        """Bytes that the steps take, at most."""
        return len(self.steps) * STEP_BYTES


def job_of(plan: Plan) -> Job:
    """What the steps of a plan have in common; an output that is its own partial sum counts as the output."""
    op = plan.op
    operands = {o.name: o for f in op.folds for o in f.state} | {o.name: o for o in op.operands}
    paged = {o.name for o in op.operands if plan.slot_bytes(o) > int(o.block_bytes(plan.sizes))}
    workspace = Buffer("device", "workspace", 0, plan.workspace_bytes) if plan.workspace_bytes else None
    return Job(operands, paged, plan.bounce_bytes, plan, workspace)


def lower(plan: Plan) -> Schedule:
    """A plan as a schedule: its steps emitted, its buffers laid out, every wait derived."""
    layout = pack_in_sequence((*plan.buffers, *plan.spill_buffers))
    return Schedule.of(plan, link(emit(plan), layout), layout)


def windows(plan: Plan, most_steps: int = WINDOW, *, chapters: Iterable[Sequence[int]] = ((),)) -> Iterator[Schedule]:
    """A plan as schedules of at most so many steps, to be run one after the other: each is made when it is asked for, so that
    steps take little memory however many there are. They share one layout; a step waits for steps of its own alone.
    chapters: indices of the outermost loops that are wanted, where these sum nothing; default: all."""
    return (window for window in _windows(plan, most_steps, most_steps, chapters) if window is not None)


def windows_beside(plan: Plan, *, chapters: Iterable[Sequence[int]] = ((),)) -> Iterator[Schedule | None]:
    """The same for a host that has time to make them while a device runs the one before: None after every few steps, to see to
    the device. The first is small, as nothing runs before it, and they double, as lanes are empty where one ends."""
    return _windows(plan, FIRST_WINDOW, WINDOW, chapters)


def _windows(plan: Plan, count: int, most_steps: int, chapters: Iterable[Sequence[int]]) -> Iterator[Schedule | None]:
    layout = pack_in_sequence((*plan.buffers, *plan.spill_buffers))
    stamps, jobs = itertools.count(1), (job_of(plan),)
    steps = (step for chapter in chapters for step in emit(plan, chapter=chapter, stamps=stamps))
    while True:
        made: list[Step] = []
        for step in linked(itertools.islice(steps, count), layout):
            made.append(step)
            if len(made) % SLICE == 0:
                yield None
        if not made:
            return
        yield Schedule.of(plan, made, layout, jobs)
        count = min(2 * count, most_steps)
