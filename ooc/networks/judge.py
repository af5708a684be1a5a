"""What proposals come to: bytes, steps, seconds. One judge for all policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ooc.cache import cached_property
from ooc.model.cost import AGAIN
from ooc.model.simulate import Timeline, simulate
from ooc.networks.calls import Network
from ooc.networks.costs import CallCosts
from ooc.networks.fusing import FusedRun, fused
from ooc.networks.items import Instance
from ooc.networks.lower import Lowering
from ooc.networks.moves import nbytes_of
from ooc.networks.predict import predict
from ooc.networks.program import Program, program
from ooc.networks.proposal import CLOSE, Proposal
from ooc.networks.scene import SPILL, NetworkSchedule, Scene, counted, place_of
from ooc.runtime.device import Device
from ooc.schedule.arena import Layout
from ooc.schedule.link import link
from ooc.schedule.place import KEPT, load_route, store_route

PATIENCE = (1, 0.97, 0.94, 0.91, 0.88, 0.85, 0.8, 0.7)  # of the budget that bytes may fill which are left alone, tried in turn
EVERY = tuple(f.name for f in fields(Proposal))
LAID_OUT = ("label", "kernels", "chosen", "space", "patient", "codec")  # fields of a proposal that its program is the same for
WRITTEN = tuple(name for name in EVERY if name not in LAID_OUT)
TIMED = tuple(name for name in EVERY if name != "label")


@dataclass
class KnownProgram:
    """The program of proposals that differ in other things alone, once it was asked for."""

    program: Program | None = None


@dataclass
class Trial:
    """One proposal: its program, its memory, its time, each worked out when it is asked for."""

    net: Network
    proposal: Proposal
    scene: Scene
    known: KnownProgram = field(default_factory=KnownProgram)
    brief: bool = False

    @cached_property
    def program(self) -> Program:
        """Its items."""
        if self.known.program is None:
            self.known.program = program(self.net, self.proposal, self.brief)
        return self.known.program

    @cached_property
    def least(self) -> int:
        """Bytes below which no layout of it is: of what is in use at the same time."""
        return int(self.lowering.load().max(initial=0))

    @cached_property
    def at_once(self) -> int:
        """Bytes of tensors, without workspace, below which no layout of it is, whatever its kernels."""
        return int(self.lowering.load(workspace=False).max(initial=0))

    @cached_property
    def lowering(self) -> Lowering:
        """Its steps and buffers."""
        return Lowering(self.net, self.proposal, self.program, self.scene)

    @cached_property
    def layout(self) -> Layout:
        """Where buffers lie when bytes are used again as soon as may be; but for tiles."""
        return self.lowering.layout()

    @cached_property
    def close(self) -> Layout:
        """The same with as few gaps as several tries leave."""
        return self.lowering.layout(close=True)

    @cached_property
    def bytes(self) -> int:
        """Of the device, at least."""
        several = self.proposal.space == CLOSE and self._loose_bytes > self.least
        return min(self._loose_bytes, self._close_bytes) if several else self._loose_bytes

    @cached_property
    def _loose_bytes(self) -> int:
        return self.lowering.needs(self.layout)

    @cached_property
    def _close_bytes(self) -> int:
        return self.lowering.needs(self.close)

    def within(self, budget: int | None) -> Layout | None:
        """The first layout that keeps within a budget."""
        if budget is None or self._loose_bytes <= budget:
            return self.layout
        several = self.proposal.space == CLOSE and self.least <= budget
        return self.close if several and self._close_bytes <= budget else None

    def schedule(self, budget: int | None) -> NetworkSchedule:
        """Its steps under a budget that it fits."""
        tight = self.lowering.schedule(self.lowering.settle(self.within(budget) or self.layout, budget))
        waiting = self.proposal.patient and not tight.alone and not self.lowering.tiled
        if not waiting or all(item.what != "store" for item in self.program.items):
            return tight
        layout = self._patient(budget)
        if layout is None:
            return tight
        patient = self.lowering.schedule(layout)
        return min(tight, patient, key=self.seconds_of)

    def _patient(self, budget: int | None) -> Layout | None:
        """A layout in which bytes that are being stored are left alone, as far as it keeps within a budget. None: none of those
        that are tried does."""
        waits = self._waits()
        for share in PATIENCE:
            alone = waits if budget is None else self._left_alone(waits, budget * share)
            layout = self.lowering.layout(self.proposal.space == CLOSE, alone, budget or 1 << 62)
            if budget is None or counted(layout, self.scene) <= budget:
                return layout
        return None

    def _left_alone(self, waits: Mapping[Instance, int], limit: float) -> dict[Instance, int]:
        """Until which item bytes that are being stored are left alone, as far as a limit has room for them."""
        room, alone = limit - self.lowering.load(), dict[Instance, int]()
        for instance, until in waits.items():
            nbytes, last = nbytes_of(self.net, instance), self.program.lives[instance][1]
            at = last
            while at < until and room[at + 1] >= nbytes:
                at += 1
            room[last + 1 : at + 1] -= nbytes
            alone[instance] = at
        return alone

    def _waits(self) -> dict[Instance, int]:
        """The item before which what is stored would have left if memory had no end."""
        steps = self.lowering.unlinked
        timeline = simulate(link((s for _, s in steps), self.lowering.apart()), self.scene.costs.device.model)
        begins: list[tuple[float, int]] = []
        gone: dict[int, float] = {}
        for (item, step), start, end in zip(steps, timeline.starts, timeline.ends, strict=True):
            if step.lane == "compute":
                begins.append((start, item))
            elif step.kind == "store":
                gone[item] = end
        waits: dict[Instance, int] = {}
        at = 0
        for item, end in sorted(gone.items(), key=lambda one: one[1]):
            while at < len(begins) and begins[at][0] < end:
                at += 1
            until = begins[at - 1][1] if at else item
            for instance in self.program.items[item].reads:
                waits[self.program.holder(instance)] = until
        return waits

    def seconds_of(self, schedule: NetworkSchedule) -> float:
        """Predicted seconds of a schedule."""
        return self.timeline_of(schedule).seconds

    def timeline_of(self, schedule: NetworkSchedule) -> Timeline:
        """When its steps run, as predicted."""
        return predict(schedule, self.scene.costs.device.model)


@dataclass
class Judge:
    """What policies may ask: what a proposal needs and takes, on this device under this budget.

    Fields:
        net: the network.
        scene: where it runs.
        budget: bytes; None: no limit.
        pinned: bytes of pinned memory; None: no limit.
    """

    net: Network
    scene: Scene
    budget: int | None
    pinned: int | None = None
    trials: dict[Any, Trial] = field(default_factory=dict)
    programs: dict[Any, KnownProgram] = field(default_factory=dict)
    networks: dict[tuple[FusedRun, ...], Network] = field(default_factory=dict)  # by the runs that are fused
    timed: dict[Any, float] = field(default_factory=dict)  # seconds, of proposals that differ in more than their label
    fastest: tuple[float, Trial, NetworkSchedule] | None = None  # of those that were asked for: it is asked for again

    @property
    def device(self) -> Device:
        """The device."""
        return self.scene.costs.device

    @property
    def costs(self) -> CallCosts:
        """How calls are computed."""
        return self.scene.costs

    def within(self, budget: int | None) -> Judge:
        """The same under another budget; what was tried is tried again, as tiles differ."""
        return replace(self, budget=budget, trials={}, timed={}, fastest=None)

    def trial(self, proposal: Proposal, brief: bool = False) -> Trial:
        """A proposal's trial, remembered. brief: of a few parts of the batch, where it passes in parts, to see what it needs."""
        brief = brief and bool(proposal.bands)
        label = proposal.label if proposal.barrier else ""  # a fence names it
        key = (brief, label, _values(proposal, TIMED))
        if key not in self.trials:
            known = self.programs.setdefault((brief, _values(proposal, WRITTEN)), KnownProgram())
            self.trials[key] = Trial(self.network(proposal), proposal, self.scene, known, brief)
        return self.trials[key]

    def network(self, proposal: Proposal) -> Network:
        """The network as a proposal fuses its calls, remembered."""
        if proposal.fused not in self.networks:
            self.networks[proposal.fused] = fused(self.net, proposal.fused)
        return self.networks[proposal.fused]

    def needs(self, proposal: Proposal, brief: bool = False) -> int:
        """Bytes of the device that a proposal needs at least. brief: as a few parts of the batch tell."""
        return self.trial(proposal, brief).bytes

    def fits(self, proposal: Proposal, brief: bool = False) -> bool:
        """Whether a proposal keeps within the limits. brief: as far as a few parts of the batch tell."""
        trial = self.trial(proposal, brief)
        if self.budget is not None and trial.least > self.budget:
            return False
        layout = trial.within(self.budget)
        if layout is None:
            return False
        return self.pinned is None or self.device.backend.shared or pinned_bytes(layout) <= self.pinned

    def seconds(self, proposal: Proposal) -> float:
        """Predicted seconds of a proposal that fits."""
        key = _values(proposal, TIMED)
        if key in self.timed:
            return self.timed[key]
        trial, schedule = self.trial(proposal), self.schedule(proposal)
        seconds = self.timed[key] = trial.seconds_of(schedule)
        if self.fastest is None or seconds < self.fastest[0]:
            self.fastest = seconds, trial, schedule
        return seconds

    def schedule(self, proposal: Proposal) -> NetworkSchedule:
        """The steps of a proposal that fits."""
        trial = self.trial(proposal)
        if self.fastest is not None and self.fastest[1] is trial:
            return self.fastest[2]
        return trial.schedule(self.budget)

    def moving_seconds(self, nbytes: int, runs: int = 1) -> tuple[float, float]:
        """Predicted seconds in which so many bytes leave for their home, and come back, in so many pieces that are contiguous
        there."""
        known = self._moving.get((nbytes, runs))
        if known is None:
            known = self._moving[nbytes, runs] = self._moved(nbytes, runs)
        return known

    @cached_property
    def _moving(self) -> dict[tuple[int, int], tuple[float, float]]:
        return {}

    def _moved(self, nbytes: int, runs: int) -> tuple[float, float]:
        model, place, staged = self.device.model, place_of(self.scene.home), self.scene.staged
        away = sum(self.net.tensors[t].nbytes for t in self.net.kept)
        in_cache = AGAIN in model.copies and away <= KEPT  # the page cache holds what was written

        def slowest(lanes: Iterable[str]) -> float:
            ways = (AGAIN if lane == "read" and in_cache else lane for lane in lanes)
            return max(float(model.copy(way).seconds(nbytes, runs)) for way in ways)

        return slowest(store_route(place, staged)), slowest(load_route(place, staged))

    def call_seconds(self) -> dict[int, float]:
        """Predicted seconds of every call with all that it touches on the device, by its index."""
        seconds = {}
        for call in self.net.calls:
            seconds[call.index] = self.costs.seconds(call.op, self.costs.plan(call.op).kernel)
        return seconds


def _values(proposal: Proposal, names: Iterable[str]) -> tuple[Any, ...]:
    """Fields of a proposal as a key of a table."""
    values = (getattr(proposal, name) for name in names)
    return tuple(frozenset(v.items()) if isinstance(v, Mapping) else v for v in values)


def pinned_bytes(layout: Layout) -> int:
    """Bytes of pinned memory: homes, and the rings between."""
    return sum(layout.peaks.get(space, 0) for space in ("staging", SPILL))


def fastest(judge: Judge, proposals: Iterable[Proposal]) -> Proposal | None:
    """Of those that fit the one that is predicted fastest; the first of equals."""
    fitting = [p for p in proposals if judge.fits(p)]
    return min(fitting, key=judge.seconds, default=None) if len(fitting) != 1 else fitting[0]
