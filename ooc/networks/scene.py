"""Where a network runs and where its tensors live; its steps, when they are laid out and linked."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.collector import rest
from ooc.ir.op import Operand
from ooc.networks.costs import Costs
from ooc.networks.program import Program
from ooc.schedule.arena import Buffer, Layout
from ooc.schedule.link import linked
from ooc.schedule.lowering import WINDOW, StepWindow
from ooc.schedule.place import PAGEABLE, Place
from ooc.schedule.steps import Step

SPILL = "spill"  # the space of homes in pinned memory, of a processor in any


def place_of(space: str) -> Place:
    """Where a tensor lives whose home is in a space; the caller's arrays are reached as files are, which serves memory too."""
    return {SPILL: Place.PINNED, PAGEABLE: Place.HOST}.get(space, Place.DISK)


class Outside(NamedTuple):
    """Where a job reaches beyond the device: the operand of a tensor, as it is seen there, and its home; None: an array of the
    caller's that is only read."""

    tensor: str
    operand: Operand
    home: Buffer | None


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
class NetworkSchedule(StepWindow):
    """The linked steps of a network's step, and where everything lies.

    Fields:
        steps: in the order in which they are issued; of a call in many tiles the first ones.
        layout, jobs, alone: see `StepWindow`.
        outside: for each job, where it reaches beyond the device, by the name that its steps use.
        resident: where tensors that last lie when a step is done, on the device or at home.
        program: the items that the steps are of.
        items: the item of each step.
        every: makes all steps, without waits.
        tails: of what calls it does not hold all steps.
        packing: buffers that what moves is packed in, for "store" and "load"; empty: it moves as it is.
    """

    outside: tuple[Mapping[str, Outside], ...]
    resident: Mapping[str, Buffer]
    program: Program
    items: tuple[int, ...]
    every: Callable[[], Iterator[Step]] = field(repr=False, compare=False)
    tails: tuple[Tail, ...] = ()
    packing: Mapping[str, Buffer] = field(default_factory=dict)

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

    def windows(self, most_steps: int = WINDOW) -> Iterator[StepWindow]:
        """All steps, to be run one after the other: those that it holds, if these are all, else windows of at most so many, each
        made when it is asked for. A step waits for steps of its own window alone."""
        if not self.tails:
            yield self
            return
        steps = self.every()
        while True:
            with rest.taken():
                some = tuple(linked(itertools.islice(steps, most_steps), self.layout))
            if not some:
                return
            yield StepWindow(some, self.layout, self.jobs, self.alone)


class Scene(NamedTuple):
    """Where a network runs: how its calls are computed, and the space that homes are in."""

    costs: Costs
    home: str  # a space: FILE, SPILL or PAGEABLE

    @property
    def staged(self) -> bool:
        """Whether the device reaches pinned memory alone."""
        return self.costs.device.backend.staged


def counted(layout: Layout, scene: Scene) -> int:
    """Bytes of a layout that count against the budget: of the device, and where memory is shared of all that is in it."""
    spaces = ("device", "staging", SPILL) if scene.costs.device.backend.shared else ("device",)
    return sum(layout.peaks.get(space, 0) for space in spaces)
