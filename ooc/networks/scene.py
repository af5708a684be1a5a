"""Where a network runs and where its tensors live; its steps, when they are laid out and linked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ooc.networks.costs import CallCosts
from ooc.networks.program import Program
from ooc.schedule.arena import Buffer, Layout
from ooc.schedule.lowering import Schedule
from ooc.schedule.place import PAGEABLE, Place

SPILL = "spill"  # the space of homes in pinned memory, of a processor in any


def place_of(space: str) -> Place:
    """Where a tensor lives whose home is in a space; the caller's arrays are reached as files are, which serves memory too."""
    return {SPILL: Place.PINNED, PAGEABLE: Place.HOST}.get(space, Place.DISK)


@dataclass(frozen=True, repr=False, kw_only=True)
class NetworkSchedule(Schedule):
    """The linked steps of a network's step, and where everything lies.

    Fields:
        steps, layout, jobs, alone, every, tails: see `Schedule`.
        resident: where tensors that last lie when a step is done, on the device or at home.
        program: the items that the steps are of.
        items: the item of each step.
        packing: buffers that what moves is packed in, for "store" and "load"; empty: it moves as it is.
    """

    resident: Mapping[str, Buffer]
    program: Program
    items: tuple[int, ...]
    packing: Mapping[str, Buffer] = field(default_factory=dict)


class Scene(NamedTuple):
    """Where a network runs: how its calls are computed, and the space that homes are in."""

    costs: CallCosts
    home: str  # a space: FILE, SPILL or PAGEABLE

    @property
    def staged(self) -> bool:
        """Whether the device reaches pinned memory alone."""
        return self.costs.device.backend.staged


def counted(layout: Layout, scene: Scene) -> int:
    """Bytes of a layout that count against the budget: of the device, and where memory is shared of all that is in it."""
    spaces = ("device", "staging", SPILL) if scene.costs.device.backend.shared else ("device",)
    return sum(layout.peaks.get(space, 0) for space in spaces)
