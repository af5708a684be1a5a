"""Where a network runs and where its tensors live; its steps, when they are laid out and linked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.ir.op import Operand
from ooc.networks.costs import Costs
from ooc.networks.program import Program
from ooc.schedule.arena import Buffer, Layout
from ooc.schedule.lowering import Job
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


@dataclass(frozen=True)
class NetworkSchedule:
    """The linked steps of a network's step, and where everything lies. What executors need of a schedule, see
    `ooc.schedule.lowering.Todo`.

    Fields:
        steps: in the order in which they are issued.
        layout: the byte offset of every buffer, and the peak of every space.
        jobs: what the steps belong to.
        outside: for each job, where it reaches beyond the device, by the name that its steps use.
        resident: where tensors that last lie when a step is done, on the device or at home.
        alone: whether the steps run one after the other on the calling thread.
        program: the items that the steps are of.
        items: the item of each step.
        packing: buffers that what moves is packed in, for "store" and "load"; empty: it moves as it is.
    """

    steps: tuple[Step, ...]
    layout: Layout
    jobs: tuple[Job, ...]
    outside: tuple[Mapping[str, Outside], ...]
    resident: Mapping[str, Buffer]
    alone: bool
    program: Program
    items: tuple[int, ...]
    packing: Mapping[str, Buffer] = field(default_factory=dict)

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that the steps use."""
        return tuple(dict.fromkeys(step.lane for step in self.steps))


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
