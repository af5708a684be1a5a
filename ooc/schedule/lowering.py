"""What is run: the linked steps of a plan, and where their buffers lie."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.errors import brief
from ooc.ir.op import Operand
from ooc.schedule.arena import Buffer, Layout, pack_in_sequence
from ooc.schedule.collector import rest
from ooc.schedule.emit import emit
from ooc.schedule.link import link, linked
from ooc.schedule.plan import Plan
from ooc.schedule.steps import PAUSE, Step

STEP_BYTES = 1 << 10  # of a step with all that belongs to it, at most
WINDOW = (16 << 20) // STEP_BYTES // 4  # steps of a window: the first is kept, the last one is let go while the next is made
FIRST_WINDOW = 256  # steps that are made within 5 ms
SLICE = 8  # steps that are made at once, as many as some two tiles have


class Outside(NamedTuple):
    """Where steps reach beyond the device: the operand of a tensor, as it is seen there, and its home; None: an array of the
    caller's that is only read."""

    tensor: str
    operand: Operand
    home: Buffer | None


HERE: Mapping[str, Outside] = {}  # nothing lies beyond


class Job(NamedTuple):
    """What steps of one kind have in common: the operands that they touch, and how those that compute do it.

    Fields:
        operands: everything that has buffers, by name.
        paged: those whose buffers have room to lie as their file's pages do.
        bounce_bytes: of the buffer that their regions of files pass; 0: none.
        plan: what is computed, and by which kernel; None: nothing.
        workspace: the buffer that kernels work in, if any.
        outside: where a network's steps reach beyond the device, by the name that they use; a call's reach its arrays.
    """

    operands: Mapping[str, Operand]
    paged: Set[str] = frozenset()
    bounce_bytes: int = 0
    plan: Plan | None = None
    workspace: Buffer | None = None
    outside: Mapping[str, Outside] = HERE


class Tail(NamedTuple):
    """What of a call in many tiles a schedule does not hold: all steps after the first ones.

    Fields:
        at: how many steps the schedule holds up to there.
        job: of the call.
        tiles: that those steps compute.
        lane_bytes: that they move on every lane.
    """

    at: int
    job: int
    tiles: int
    lane_bytes: Mapping[str, int]


@dataclass(frozen=True)
class Schedule:
    """Linked steps, and the memory that they run in; of many steps those of a window, or how to make them.

    Fields:
        steps: in the order in which they are issued.
        layout: the byte offset of every buffer, and the peak of every space.
        jobs: what the steps belong to, by their number.
        alone: whether the steps run one after the other on the calling thread.
        every: makes all steps, without waits; None: `steps` are all there are.
        tails: of what calls it holds the first steps alone.
    """

    steps: tuple[Step, ...]
    layout: Layout
    jobs: tuple[Job, ...]
    alone: bool
    every: Callable[[], Iterator[Step]] | None = field(default=None, repr=False, compare=False)
    tails: tuple[Tail, ...] = ()

    @property
    def plan(self) -> Plan:
        """What was decided of the call that the steps compute, of a network's the first one."""
        return next(job.plan for job in self.jobs if job.plan is not None)

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that the steps use."""
        return tuple(dict.fromkeys(step.lane for step in self.steps))

    @cached_property
    def others(self) -> dict[int, float]:
        """By the job of a call in many tiles: how many that are not held each of the held ones stands for."""
        runs = Counter(step.job for step in self.steps if step.kind == "run")
        return {tail.job: tail.tiles / runs[tail.job] for tail in self.tails}

    @cached_property
    def count(self) -> int:
        """How many steps there are; of calls in many tiles about as many as their first tiles say."""
        steps = Counter(step.job for step in self.steps)
        return len(self.steps) + round(sum(steps[job] * others for job, others in self.others.items()))

    @property
    def nbytes(self) -> int:
        """Bytes that the steps take, at most."""
        return len(self.steps) * STEP_BYTES

    def __repr__(self) -> str:
        """One line: the op, or how many jobs there are, and how many steps and buffers they take."""
        what = str(self.plan.op) if len(self.jobs) == 1 and self.jobs[0].plan else f"of {len(self.jobs)} jobs"
        return f"<Schedule {brief(what, 400)}: {len(self.steps)} steps, {len(self.layout.offsets)} buffers>"

    def windows(self, most_steps: int = WINDOW) -> Iterator[Schedule]:
        """All steps as schedules of at most so many, to be run one after the other: each is made when it is asked for, so that
        steps take little memory however many there are. A step waits for steps of its own window alone."""
        if self.every is None:
            yield self
            return
        making = (window for window in self._windows(self.every(), most_steps, most_steps) if window is not None)
        while True:
            with rest.taken():
                window = next(making, None)
            if window is None:
                return
            yield window

    def windows_beside(self) -> Iterator[Schedule | None]:
        """The same for a host that has time to make them while a device runs the one before: None after every few steps, to see
        to the device. The first is small, as nothing runs before it, and they double, as lanes are empty where one ends."""
        return iter((self,)) if self.every is None else self._windows(self.every(), FIRST_WINDOW, WINDOW)

    def _windows(self, steps: Iterator[Step], count: int, most_steps: int) -> Iterator[Schedule | None]:
        while True:
            window: list[Step] = []
            for step in linked(_up_to_pause(itertools.islice(steps, count)), self.layout):
                window.append(step)
                if len(window) % SLICE == 0:
                    yield None
            if not window:
                return
            yield replace(self, steps=tuple(window), every=None, tails=())
            count = min(2 * count, most_steps)


def _up_to_pause(steps: Iterable[Step]) -> Iterator[Step]:
    """Steps up to the first one that is a pause."""
    for step in steps:
        yield step
        if step.kind == PAUSE:
            return


def job_of(plan: Plan) -> Job:
    """What the steps of a plan have in common; an output that is its own partial sum counts as the output."""
    op = plan.op
    operands = {o.name: o for f in op.folds for o in f.state} | {o.name: o for o in op.operands}
    paged = {o.name for o in op.operands if plan.slot_bytes(o) > int(o.block_bytes(plan.sizes))}
    workspace = Buffer("device", "workspace", 0, plan.workspace_bytes) if plan.workspace_bytes else None
    return Job(operands, paged, plan.bounce_bytes, plan, workspace)


def schedule_of(plan: Plan, chapters: Sequence[Sequence[int]] = ((),)) -> Schedule:
    """A plan as a schedule whose steps are still to be made; those of a single tile overlap with nothing.

    chapters: indices of the outermost loops that are wanted, where these sum nothing; default: all.
    """
    layout = pack_in_sequence((*plan.buffers, *plan.spill_buffers))

    def every() -> Iterator[Step]:
        stamps = itertools.count(1)
        return (step for chapter in chapters for step in emit(plan, chapter=chapter, stamps=stamps))

    return Schedule((), layout, (job_of(plan),), plan.tiles == 1 or plan.in_turn, every)


def lower(plan: Plan, chapters: Sequence[Sequence[int]] = ((),)) -> Schedule:
    """A plan as a schedule: its steps emitted, its buffers laid out, every wait derived."""
    schedule = schedule_of(plan, chapters)
    assert schedule.every is not None
    return replace(schedule, steps=tuple(link(schedule.every(), schedule.layout)), every=None)
