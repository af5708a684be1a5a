"""A network whose every call runs on its own, cut into tiles, with all that it touches outside the device: what each call is
without the others, and feasible whenever anything is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ooc.cache import cached_property
from ooc.ir.op import Op
from ooc.networks.calls import Call, Network
from ooc.networks.lower import SPILL, NetworkSchedule, Outside, Scene, place_of
from ooc.networks.tensors import Role
from ooc.planner.explain import smallest_bytes
from ooc.planner.question import Question
from ooc.schedule.arena import Buffer, Layout, colour, pack_in_sequence
from ooc.schedule.budget import Budget
from ooc.schedule.emit import emit
from ooc.schedule.link import link
from ooc.schedule.lowering import job_of
from ooc.schedule.place import FILE, Place
from ooc.schedule.plan import Plan
from ooc.schedule.steps import Ref, Step


class Streaming:
    """The steps of a network call by call.

    resident: where what lasts lives, the same for programs that share homes; default: of the network's own.
    """

    def __init__(self, net: Network, scene: Scene, resident: Mapping[str, Buffer] | None = None) -> None:
        self.net, self.scene = net, scene
        self.resident = dict(resident) if resident is not None else {t.name: self._home_of(t.name) for t in net.lasting}

    def _home_of(self, name: str) -> Buffer:
        return Buffer(self.scene.home, f"home of {name}", 0, self.net.tensors[name].nbytes)

    def home(self, name: str) -> Buffer | None:
        """Where a tensor lives; None: with the caller."""
        if self.net.tensors[name].role is Role.INPUT or name in self.net.outputs:
            return None
        return self.resident.get(name) or self._home_of(name)

    @cached_property
    def homes(self) -> Layout:
        """Where tensors lie at home: what lasts at the bottom, the rest by when it is in use."""
        lives: dict[Buffer, tuple[int, int]] = {}
        for i, call in enumerate(self.net.calls):
            for name in call.tensors:
                home = self.home(name)
                if home is not None and name not in self.resident:
                    lives[home] = (lives.get(home, (i, i))[0], i)
        return colour(lives, pack_in_sequence(self.resident.values()))

    def _places_of(self, call: Call) -> dict[str, Place]:
        found = {}
        for operand, name in zip(call.op.operands, (*call.reads, *call.makes), strict=True):
            home = self.home(name)
            place = place_of(home.space if home is not None else FILE)
            backend = self.scene.costs.device.backend
            direct = backend.shared and not backend.staged  # else pageable memory would pass the ring
            found[operand.name] = Place.HOST if direct and place is Place.PINNED else place
        return found

    def least_bytes(self) -> int:
        """The smallest budget of the device that every call fits in."""
        found = 0
        known: set[tuple[Op, tuple[tuple[str, Place], ...]]] = set()
        backend, costs = self.scene.costs.device.backend, self.scene.costs
        for call in self.net.calls:
            places = tuple(sorted(self._places_of(call).items()))
            if (call.op, places) not in known:
                known.add((call.op, places))
                budget = Budget(1, places=places, staged=backend.staged, shared=backend.shared, deterministic=costs.deterministic)
                found = max(found, smallest_bytes(Question(call.op, budget, costs.offers(call.op), costs.device.model)))
        return found + self.shared_bytes

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of homes that count against the budget."""
        return self.homes.peaks.get(SPILL, 0) if self.scene.costs.device.backend.shared else 0

    def plans(self, budget: int | None) -> list[Plan]:
        """How each call is cut. Raises BudgetError."""
        costs = self.scene.costs
        limit = None if budget is None else budget - self.shared_bytes
        planner = replace(costs.device, device_bytes=limit).planner
        return [planner.plan(call.op, self._places_of(call), costs.deterministic) for call in self.net.calls]

    def schedule(self, budget: int | None) -> NetworkSchedule:
        """The linked steps under a budget. Raises BudgetError."""
        plans, layout = self.plans(budget), self.homes
        offsets, peaks = dict(layout.offsets), dict(layout.peaks)
        shared = self.scene.costs.device.backend.shared
        templates = {id(plan): _Template(plan, n, shared) for n, plan in enumerate({id(p): p for p in plans}.values())}
        for template in templates.values():
            for buffer, at in template.layout.offsets.items():
                offsets[buffer] = at + (layout.peaks.get(SPILL, 0) if buffer.space == SPILL else 0)
            for space, peak in template.layout.peaks.items():
                peaks[space] = max(peaks.get(space, 0), peak + (layout.peaks.get(SPILL, 0) if space == SPILL else 0))
        whole = Layout(offsets, peaks)
        jobs = tuple(templates[id(plan)].job for plan in plans)
        steps = (
            s for i, (call, plan) in enumerate(zip(self.net.calls, plans, strict=True))
            for s in templates[id(plan)].steps_of(i, self._homes_of(call))
        )  # fmt: skip
        outside = tuple(self._outside(call) for call in self.net.calls)
        return NetworkSchedule(link(steps, whole), whole, jobs, outside, dict(self.resident), shared)

    def _homes_of(self, call: Call) -> dict[str, Buffer | None]:
        return {o.name: self.home(t) for o, t in zip(call.op.operands, (*call.reads, *call.makes), strict=True)}

    def _outside(self, call: Call) -> dict[str, Outside]:
        named = zip(call.op.operands, (*call.reads, *call.makes), strict=True)
        found = {operand.name: Outside(name, operand, self.home(name)) for operand, name in named}
        return {n: o for n, o in found.items() if o.home is None or o.home.space != SPILL}


class _Template:
    """The steps of a plan, made once for all calls that are planned alike: they use the same rings, one after the other.
    shared: all of them lie in one space, as memory is one; else what a call leaves of a space would be of no use to others."""

    def __init__(self, plan: Plan, number: int, shared: bool) -> None:
        self.plan, self.number, self.shared = plan, number, shared
        self.layout = pack_in_sequence(map(self._own, (*plan.buffers, *plan.spill_buffers)))
        job = job_of(plan)
        self.job = job._replace(workspace=job.workspace and self._own(job.workspace))
        self.wholes = {o.name: o.whole for o in plan.op.operands}

    def _own(self, buffer: Buffer) -> Buffer:
        """A buffer of the plan, among those of other plans."""
        space = "device" if self.shared else buffer.space
        return Buffer(space, f"{self.number}:{buffer.space}:{buffer.name}", buffer.slot, buffer.nbytes)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """With the buffers' names among those of other plans."""
        known: dict[Buffer, Buffer] = {}

        def own(ref: Ref) -> Ref:
            if ref.buffer is None:
                return ref
            if ref.buffer not in known:
                known[ref.buffer] = self._own(ref.buffer)
            return ref._replace(buffer=known[ref.buffer])

        return tuple(s._replace(reads=tuple(map(own, s.reads)), writes=tuple(map(own, s.writes))) for s in emit(self.plan))

    def steps_of(self, job: int, homes: Mapping[str, Buffer | None]) -> Iterator[Step]:
        """The steps of a call, which loads from the homes of its tensors and stores there."""
        for step in self.steps:
            home = homes.get(step.what) if step.lane != "compute" else None
            if home is None:
                yield step._replace(job=job)
                continue
            reads, writes = step.reads, step.writes
            far = (Ref(step.what, home, step.region, 0, self.wholes[step.what]),)
            if step.kind == "load" and not reads:
                reads = far
            elif step.kind == "store" and all(r.operand == "bounce" for r in writes):
                writes = (*far, *writes)
            yield step._replace(reads=reads, writes=writes, job=job)
