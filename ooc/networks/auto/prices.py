"""What it costs to move a tensor, and to make it again: seconds beside bytes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.ir.op import Op
from ooc.ir.region import Span
from ooc.networks.auto.walks import Walks, runs_of
from ooc.networks.calls import Call, Network
from ooc.networks.items import Item
from ooc.networks.judge import Judge, Trial
from ooc.networks.moves import nbytes_of
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.tensors import Role
from ooc.schedule.place import FILE
from ooc.schedule.plan import Plan


class Price(NamedTuple):
    """What making a tensor again may cost.

    Fields:
        worth: seconds of computing for a second that copies take.
        deep: calls that it may take, at most: what they make takes memory, all at once.
    """

    worth: float
    deep: int


class Lanes(NamedTuple):
    """Seconds of computing, of what leaves, and of what comes back."""

    compute: float
    leave: float
    back: float


@dataclass(frozen=True)
class Prices:
    """Seconds of calls and copies on the judge's device, each alone."""

    judge: Judge

    @property
    def net(self) -> Network:
        """The network."""
        return self.judge.net

    @cached_property
    def calls(self) -> dict[int, float]:
        """Of every call, whole, by its index."""
        return self.judge.call_seconds()

    @cached_property
    def known(self) -> dict[tuple[Op, str], tuple[float, float]]:
        """Seconds of ops by kernels, whole, and those that a launch takes however small it is, as far as they were asked for."""
        return {}

    @cached_property
    def walks(self) -> Walks:
        """Parts of chains."""
        return Walks(self.judge)

    def kernel(self, op: Op, name: str) -> tuple[float, float]:
        """Seconds of an op by a kernel: whole, and of a launch however small."""
        if (op, name) not in self.known:
            launch = self.judge.device.model.compute(f"{op.kind}/{op.dtype}/{name}").latency_seconds
            self.known[op, name] = self.judge.costs.seconds(op, name), float(launch)
        return self.known[op, name]

    def launch(self, call: Call) -> float:
        """Of a call however small, by its fastest kernel."""
        return self.kernel(call.op, self.judge.costs.plan(call.op).kernel)[1]

    def moving(self, name: str) -> float:
        """Of leaving and coming back."""
        leave, back = self.judge.moving_seconds(self.net.tensors[name].nbytes)
        return back if self.net.tensors[name].role is Role.INPUT else leave + back

    def making(self, name: str, gone: Collection[str] = (), deep: int = 1 << 30) -> float:
        """Of making an activation again, with those that the backward pass does not read, and with `gone` ones; infinite where
        that takes more calls than `deep`."""
        todo, indices = [name], set()  # type: list[str], set[int]
        while todo:
            maker = self.net.makers.get(todo.pop())
            if maker is None or maker.index in indices:
                continue
            indices.add(maker.index)
            if len(indices) > deep:
                return math.inf
            todo += [t for t in maker.reads if t in gone or t not in self.net.backward_readers]
        return sum(self.calls[i] for i in indices)

    def apart(self, trial: Trial) -> Lanes:
        """Seconds of a program, a brief one too."""
        every = [self.of_item(trial, i) for i in range(len(trial.program.items))]
        return Lanes(*(sum(lane) for lane in zip(*every, strict=True)))

    def if_nothing_waits(self, trial: Trial) -> float:
        """Seconds of a program, a brief one too."""
        return self.together(*self.apart(trial))

    def floor(self, trial: Trial) -> float:
        """Seconds below which no plan of a program is predicted: what comes from files may be fetched beside computing."""
        lanes = self.apart(trial)
        return max(lanes) if self.judge.scene.home == FILE else self.together(*lanes)

    def least(self, lasting: Mapping[str, Fate]) -> float:
        """Seconds of an inference that moves nothing of the batch but inputs and outputs if nothing waits. lasting: what of
        parameters lives at home, and comes once."""
        moving, tensors = self.judge.moving_seconds, self.net.tensors
        read = {t for call in self.net.calls for t in call.reads}
        inputs = {t for t in read if tensors[t].role is Role.INPUT and tensors[t].per_sample}
        back = sum(moving(tensors[t].nbytes)[1] for t in sorted(inputs | (read & lasting.keys())))
        leave = sum(moving(tensors[t].nbytes)[0] for t in self.net.outputs)
        return self.together(sum(self.calls.values()), leave, back)

    def by_stage(self, trial: Trial) -> list[float]:
        """Seconds of computing in every stage of a program."""
        seconds = [0.0] * len(trial.program.runs)
        for i, stage in enumerate(trial.program.stage_of):
            seconds[stage] += self.of_item(trial, i).compute
        return seconds

    def of_item(self, trial: Trial, i: int) -> Lanes:
        """Seconds of an item of a program."""
        item, brief = trial.program.items[i], trial.brief and not trial.proposal.grids
        if item.what == "run":
            leave = back = 0.0
            for name, outside in trial.lowering.outside(item).items():
                one, other = self.judge.moving_seconds(self.net.tensors[outside.tensor].nbytes)
                is_output = any(o.name == name for o in self.net.calls[item.call].op.outputs)
                leave, back = (leave + one, back) if is_output else (leave, back + other)
            return Lanes(self._computing(item, trial.lowering.plans.get(i)) * self._times(item.samples, brief), leave, back)
        if item.what in ("fence", "pause"):
            return Lanes(0.0, 0.0, 0.0)
        (instance,) = (*item.reads, *item.makes)
        samples = instance.part[0] if instance.part is not None else None
        runs = 1 if instance.part is None else runs_of(instance.part, self.net.tensors[instance.tensor].shape)
        moving = self.judge.moving_seconds(nbytes_of(self.net, instance), runs)
        leave, back = (s * self._times(samples, brief) for s in moving)
        return Lanes(0.0, leave, 0.0) if item.what == "store" else Lanes(0.0, 0.0, back)

    def tiled(self, proposal: Proposal) -> float:
        """Seconds of an inference whose calls are computed once, and read and make what is streamed of the batch once, and what
        lives at home of parameters, if nothing waited."""
        moving, tensors = self.judge.moving_seconds, self.net.tensors
        homes = sorted(t for t in proposal.fates if tensors[t].role is Role.PARAMETER)
        leave, back = 0.0, sum(moving(tensors[t].nbytes)[1] for t in homes)
        for call in self.judge.network(proposal).calls:
            for t in (t for t in call.tensors if self.net.tensors[t].per_sample and proposal.fate(t) is Fate.STREAM):
                one, other = self.judge.moving_seconds(self.net.tensors[t].nbytes)
                leave, back = (leave + one, back) if t in call.makes else (leave, back + other)
        return self.together(sum(self.calls.values()), leave, back)

    def together(self, compute: float, leave: float, back: float) -> float:
        """Seconds of what lanes do: added up where one thread does it, else the longest."""
        return compute + leave + back if self.judge.device.backend.shared else max(compute, leave, back)

    def computing(self, op: Op, kernel: str, tile: Mapping[str, Span]) -> float:
        """Seconds of so much of an op's loops by a kernel."""
        whole, launch = self.kernel(op, kernel)
        return launch + (whole - launch) * math.prod(span.extent / op.dims[dim] for dim, span in tile.items())

    def _computing(self, item: Item, plan: Plan | None) -> float:
        if plan is None:
            return self.calls[item.call]
        tile = dict(item.tile)
        if item.samples is not None:
            dim, each = self.net.calls[item.call].along or ("", 0)
            tile = {dim: Span(item.samples.lo * each, item.samples.hi * each)}
        return self.computing(plan.op, plan.kernel, tile)

    def _times(self, samples: Span | None, brief: bool) -> int:
        """How many parts one stands for."""
        if not brief or samples is None or samples.lo != samples.extent:
            return 1
        return max(1, -(-self.net.batch // samples.extent) - 2)
