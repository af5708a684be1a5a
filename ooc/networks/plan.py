"""The plan of a network: what becomes of every tensor, the steps, and what they are predicted to take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc.cache import cached_property
from ooc.errors import BudgetError
from ooc.files.records import record, understood
from ooc.model.simulate import Timeline
from ooc.networks.bound import bound_seconds
from ooc.networks.build import Built
from ooc.networks.calls import Network, Wired
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge, pinned_bytes
from ooc.networks.lower import Lowering
from ooc.networks.optimizers import optimizer_of
from ooc.networks.predict import predict
from ooc.networks.profile import Profile
from ooc.networks.program import program
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.scene import SPILL, NetworkSchedule, Scene, counted
from ooc.networks.session import Session
from ooc.networks.tensors import Mode
from ooc.networks.usage import load
from ooc.networks.where import device_of
from ooc.networks.writer import network
from ooc.runtime.device import Device
from ooc.runtime.drawing import draw, draw_level
from ooc.runtime.timeline import Bars, Times, rows
from ooc.runtime.trace import PREDICTED, lane_events, write_events
from ooc.schedule.arena import Layout
from ooc.schedule.budget import show_bytes
from ooc.schedule.notebook import page
from ooc.schedule.place import CALLER
from ooc.schedule.steps import Step, lane_totals, moved_bytes

SPACES = ("device", "staging", "pinned", "host", "file")


@dataclass(frozen=True)
class NetworkPlan:
    """How a step of a network is run under a budget, as `ooc.Graph.plan` returns it. `print(plan)` shows it.

    Fields:
        network: the graph at its batch size, as calls.
        policy: name of the policy.
        options: what the policy was given.
        proposal: what it chose: fates, parts of the batch, when loads are issued, kernels, how memory is laid out.
        schedule: the steps, and where everything lies.
        scene: the device, and the space of homes.
        budget: bytes of the device that may be used; None: no limit.
        pinned: bytes of pinned memory that may be used; None: no limit.
        smallest_bytes: the least budget with which the policy has a plan.
        others: what else was looked at, in words, of policies that compare.
        source: whose plan it is: the policy's own, or of policies that compare that of another one.
    """

    network: Network
    policy: str
    options: Mapping[str, Any]
    proposal: Proposal
    schedule: NetworkSchedule
    scene: Scene
    budget: int | None
    pinned: int | None
    smallest_bytes: int
    others: str = ""
    source: str = ""

    @property
    def graph(self) -> Wired:
        """What was planned."""
        return self.network.graph

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.network.batch

    @property
    def device(self) -> Device:
        """Where it runs."""
        return self.scene.costs.device

    @property
    def fates(self) -> dict[str, str]:
        """What becomes of each activation that the backward pass needs: "keep", "offload" or "recompute"."""
        told = {Fate.STREAM: Fate.OFFLOAD}
        fates = {t: self.proposal.fate(t) for t in self.network.kept}
        return {t: told.get(how, how).value for t, how in fates.items()}

    @cached_property
    def peaks(self) -> dict[str, int]:
        """Bytes of each space at the peak: device, staging (pinned ring), pinned (homes), host (pageable homes), file."""
        peaks = self.schedule.layout.peaks
        names = {"pinned": SPILL}
        return {space: peaks.get(names.get(space, space), 0) for space in SPACES}

    @property
    def counted_bytes(self) -> int:
        """Bytes that count against the budget: of the device, on a processor of all memory."""
        return counted(self.schedule.layout, self.scene)

    @cached_property
    def timeline(self) -> Timeline:
        """When every step runs, as predicted."""
        return self.simulate()

    def simulate(self) -> Timeline:
        """The steps walked with the device's model: when each begins and ends. The last held one of a call in many tiles (see
        `steps`) ends when the call does."""
        return predict(self.schedule, self.device.model)

    @property
    def times(self) -> Times:
        """The steps that `steps` returns with their times, as predicted."""
        return Times(self.steps(), self.timeline.starts, self.timeline.ends)

    @property
    def predicted_seconds(self) -> float:
        """Seconds of a step, as predicted."""
        return float(self.timeline.seconds)

    @cached_property
    def lane_bytes(self) -> dict[str, int]:
        """Bytes that each lane moves in a step."""
        return lane_totals((moved_bytes(self.schedule.steps), *(tail.lane_bytes for tail in self.schedule.tails)))

    @property
    def lane_seconds(self) -> dict[str, float]:
        """What each lane is busy with in a step, as predicted."""
        return self.timeline.lane_seconds

    @cached_property
    def kernels(self) -> dict[str, tuple[int, float]]:
        """How many calls of a step each kernel computes, and the seconds predicted for them, by its name, the longest first."""
        calls: dict[str, set[int]] = {}
        seconds: dict[str, float] = {}
        others = self.schedule.others
        for step, item in zip(self.schedule.steps, self.schedule.items, strict=True):
            plan = self.schedule.jobs[step.job].plan if step.kind == "run" else None
            if plan is not None:
                calls.setdefault(plan.kernel, set()).add(self.schedule.program.items[item].call)
                tiles = 1.0 + others.get(step.job, 0.0)
                seconds[plan.kernel] = seconds.get(plan.kernel, 0.0) + tiles * self.device.model.seconds(step)
        longest = sorted(seconds, key=lambda name: -seconds[name])
        return {name: (len(calls[name]), seconds[name]) for name in longest}

    @cached_property
    def bound_seconds(self) -> float:
        """Seconds below which no plan within the budget is predicted: every call computed once by its fastest kernel, every input
        moved once, and what a training step with statistics of the batch has to keep kept, moved or computed once more."""
        return bound_seconds(self.network, self.scene, self.budget)

    @cached_property
    def binds(self) -> str:
        """The lane that is busy longest, and for how much of the time."""
        busy = self.lane_seconds
        lane = max(busy, key=busy.__getitem__, default="compute")
        return f"{lane} is busy {busy.get(lane, 0.0) / max(self.predicted_seconds, 1e-12):.0%} of the time"

    @cached_property
    def why(self) -> str:
        """What was chosen, in a sentence."""
        counts = {how: sum(f == how for f in self.fates.values()) for how in ("keep", "offload", "recompute")}
        told = ", ".join(f"{how} {count}" for how, count in counts.items() if count)
        parts = [self.proposal.label, f"of {len(self.fates)} activations that the backward pass needs: {told}" if told else ""]
        if self.proposal.chunk:
            parts.append(f"{self.proposal.chunk} samples at a time")
        parts.append(self.others)
        return "; ".join(filter(None, parts))

    def steps(self) -> tuple[Step, ...]:
        """The linked steps of a training step, or of an inference; of a call in many tiles the first thousand: the others are
        made when they are run."""
        return self.schedule.steps

    def trace(self, file: str | Path, profile: Profile | None = None) -> None:
        """Write the predicted timeline of the steps that `steps` returns to a file, for chrome://tracing or ui.perfetto.dev, and
        beside it what a profile measured (`session.profile(trace=True)`). Raises OSError."""
        measured = [] if profile is None else profile.events
        write_events(file, [*lane_events(PREDICTED, "predicted", self.times), *measured])

    def session(self, parameters: Mapping[str, Any] | None = None, seed: int = 0) -> Session:
        """What runs the plan: memory and kernels are taken now and held until it is closed.

        Parameters:
            parameters: arrays by name, of parameters and statistics; those that are missing begin with the
                graph's (`Graph.begin_with`), or as `seed` says; default None.
            seed: of initial parameters and of dropout, from 0 to 2^63 - 1; default 0.

        Returns:
            session: an `ooc.networks.Session`.

        Raises:
            ShapeError, DtypeError: arrays that do not fit, a name that is no parameter.
            StoreError: no room for the file of what leaves the device.
            BackendError: no memory.
        """
        return Session(self, parameters or {}, seed)

    def to_json(self) -> str:
        """The plan as JSON text: the graph, what was asked, what was chosen, and what that comes to."""
        fields = {
            "graph": json.loads(self.graph.to_json()), "batch": self.batch, "train": self.network.mode.given,
            "wanted": list(self.network.wanted), "lent": self.network.lent, "policy": self.policy,
            "options": dict(self.options), "budget": self.budget, "pinned": self.pinned, "home": self.scene.home,
            "optimizer": None if self.network.optimizer is None else self.network.optimizer.fields(),
            "deterministic": self.scene.costs.deterministic, "proposal": self.proposal.fields(), "fates": self.fates,
            "smallest_bytes": self.smallest_bytes, "peaks": self.peaks, "predicted_seconds": self.predicted_seconds,
            "bound_seconds": self.bound_seconds, "kernels": self.kernels, "lane_bytes": self.lane_bytes, "lane_seconds":
            self.lane_seconds, "binds": self.binds, "why": self.why, "others": self.others, "source": self.source,
            "steps": self.schedule.count, "calibration": self.device.model.name,
        }  # fmt: skip
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str, device: Device | str | None = None) -> NetworkPlan:
        """The plan of a text that `to_json` wrote, on a device (default: the current one). Raises ShapeError for any other."""
        with understood("plan", "not a plan written by to_json"):
            raw = json.loads(text)
            graph = Built.from_json(json.dumps(raw["graph"]))
            saved = record(_Asked, {name: raw[name] for name in _Asked.__dataclass_fields__})
            optimizer, exact = optimizer_of(raw["optimizer"]), saved.deterministic
            net = network(graph, saved.batch, Mode(saved.train), optimizer, exact, saved.wanted, saved.lent)
            judge = Judge(net, Scene(CallCosts(device_of(device), exact), saved.home), saved.budget, saved.pinned)
            return cls.of(judge, saved.policy, saved.options, saved.proposal, saved.smallest_bytes, saved.others, saved.source)

    @classmethod
    def of(
        cls, judge: Judge, policy: str, options: Mapping[str, Any], proposal: Proposal, smallest: int, others: str = "",
        source: str = "",
    ) -> NetworkPlan:  # fmt: skip
        """The plan of a proposal that fits, by the judge of a policy with options, whose smallest budget is known; others: what
        else was looked at, in words; source: whose proposal it is, default: the policy's. Raises BudgetError where it takes more
        pinned memory than is allowed, or of the device than the budget."""
        schedule = judge.schedule(proposal)
        held = pinned_bytes(schedule.layout)
        if judge.pinned is not None and not judge.device.backend.shared and held > judge.pinned:
            raise BudgetError(
                f"{judge.net.graph.name}: policy {policy} needs {show_bytes(held)} of pinned memory, pinned= allows "
                f'{show_bytes(judge.pinned)}; raise it, or pass home="host" or home="disk"'
            )
        if judge.budget is not None and counted(schedule.layout, judge.scene) > judge.budget:
            raise BudgetError(
                f"{judge.net.graph.name}: policy {policy} takes {show_bytes(counted(schedule.layout, judge.scene))} as it was "
                f"planned, more than the budget of {show_bytes(judge.budget)}"
            )
        return cls(
            judge.net,
            policy,
            dict(options),
            proposal,
            schedule,
            judge.scene,
            judge.budget,
            judge.pinned,
            smallest,
            others,
            source or policy,
        )

    def inference(self) -> tuple[Network, NetworkSchedule]:
        """The inference of a plan for training, in the memory that it has: whole, or the first part of the batch at a time that
        fits. Raises BudgetError."""
        scene, schedule = self.scene, self.schedule
        net = network(self.graph, self.batch, Mode.INFER, None, scene.costs.deterministic, None, self.network.lent)
        lasting = {t.name: self.proposal.fate(t.name) for t in net.lasting}
        room = schedule.layout.peaks.get("device", 0) if self.budget is not None else None
        for proposal in forward_proposals(lasting, self.batch, streamed=self.proposal.others is Fate.STREAM):
            lowering = Lowering(net, proposal, program(net, proposal), scene, schedule.resident)
            layout = lowering.layout_within(room)
            beside = counted(layout, scene) - layout.peaks.get("device", 0)
            if room is None or lowering.needs(layout) <= room + beside:
                settled = lowering.settle(layout, None if room is None else room + beside)
                if self._within(settled):
                    return net, lowering.schedule(settled)
        raise BudgetError(f"{self.graph.name}: inference takes more memory than the session has: {schedule.layout.peaks}")

    def _within(self, layout: Layout) -> bool:
        """Whether a layout finds room in the session's memory; staging rings may be its own, and arrays
        are the caller's."""
        limits = self.schedule.layout.peaks
        return all(peak <= limits.get(space, 0) for space, peak in layout.peaks.items() if space not in ("staging", CALLER))

    def _facts(self) -> list[tuple[str, str]]:
        limit = "no limit" if self.budget is None else f"budget {show_bytes(self.budget)}"
        peaks = " ".join(f"{space} {show_bytes(n)}" for space, n in self.peaks.items() if n)
        moved = " ".join(f"{lane} {show_bytes(n)}" for lane, n in self.lane_bytes.items()) or "nothing"
        lanes = " ".join(f"{lane} {s:.4g}" for lane, s in self.lane_seconds.items())
        share = self.bound_seconds / self.predicted_seconds if self.predicted_seconds else 1.0
        what = self.network.mode.words
        return [
            ("network", f"{self.graph.name}: {what}, batch {self.batch}"),
            ("policy", f"{self.policy}, {limit}; {self.why}"),
            ("memory", f"{peaks}; smallest budget {show_bytes(self.smallest_bytes)}"),
            ("moves", f"{moved} in {self.schedule.count} steps"),
            ("predicted", f"{self.predicted_seconds:.4g} s ({lanes}); {self.binds} [{self.device.model.name}]"),
            ("kernels", ", ".join(f"{name} {calls} calls {s:.3g} s" for name, (calls, s) in self.kernels.items())),
            ("bound", f"{self.bound_seconds:.4g} s: {share:.0%} reached as predicted"),
        ]

    def _repr_html_(self) -> str:
        """What a notebook shows: the same as `print`, what every lane is predicted to do, and memory against the budget."""
        return page(self._facts(), self.picture())

    def picture(self, measured: Sequence[Bars] = ()) -> str:
        """What every lane does over time, measured where that is given, and as predicted; memory against the budget; as SVG."""
        panels = {"measured": measured} if measured else {}
        used = load(self)
        limit = "no limit" if self.budget is None else f"the budget is {show_bytes(self.budget)}"
        told = f"{show_bytes(int(used.nbytes.max(initial=0)))} in use at most, {limit}"
        level = draw_level("memory", used.times, used.nbytes, self.budget, told)
        return draw({**panels, "predicted": rows([self.times])}) + "<br>" + level

    def __str__(self) -> str:
        """What `print` shows: fates, memory, traffic, seconds and the bound, a line each."""
        return "\n".join(f"{name:<9} {value}" for name, value in self._facts())

    def __repr__(self) -> str:
        """One line: the network, the policy, peak memory and seconds."""
        return (
            f"<NetworkPlan {self.graph.name}, batch {self.batch}, {self.policy}: peak {show_bytes(self.peaks['device'])}, "
            f"{self.predicted_seconds:.3g} s predicted>"
        )


@dataclass(frozen=True)
class _Asked:
    """What `NetworkPlan.from_json` needs of a text beside the graph and the optimizer."""

    batch: int
    train: bool | str
    wanted: tuple[str, ...]
    lent: bool
    policy: str
    options: Mapping[str, Any]
    budget: int | None
    pinned: int | None
    home: str
    deterministic: bool
    proposal: Proposal
    smallest_bytes: int
    others: str
    source: str


def forward_proposals(lasting: Mapping[str, Fate], batch: int, streamed: bool) -> Iterator[Proposal]:
    """Ways to infer, the fastest first: all samples at once, ever fewer, cut into tiles. lasting: the fates of what lasts."""
    chunk = 0
    while not streamed and chunk != 1:
        yield Proposal("forward", lasting, bands=((0, chunk),) if chunk else (), kernels="lean" if chunk else "fastest")
        chunk = max(1, (chunk or batch) // 2)
    if not streamed:
        yield Proposal("forward", lasting, bands=((0, 1),), kernels="lean")
    yield Proposal("forward", lasting, others=Fate.STREAM)
