"""Parts of a step with sums over the batch, level by level: what goes from one to the next lies in files, read and written by
region."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ooc.errors import OocError, StoreError
from ooc.files.records import understood
from ooc.files.whole import whole
from ooc.ir.op import numpy_dtype
from ooc.networks.calls import STEP, Network
from ooc.networks.costs import CallCosts
from ooc.networks.inputs import inputs_of, targets_of
from ooc.networks.judge import Judge
from ooc.networks.lasting import drawn
from ooc.networks.layers.loss import losses_of
from ooc.networks.planning import automatic, too_small
from ooc.networks.policies import POLICIES
from ooc.networks.proposal import Proposal
from ooc.networks.running import Running
from ooc.networks.scene import NetworkSchedule, Scene
from ooc.networks.step_levels import StepLevel, over_the_batch, step_levels
from ooc.networks.tensors import Role, Slot
from ooc.runtime.device import Device
from ooc.schedule.place import FILE
from ooc.workers.session_worker import taken
from ooc.workers.step_part import StepPart
from ooc.workers.training_state import TrainingState
from ooc.workers.where import piece_of

AT_ONCE = Proposal("at once")


class LevelPlans:
    """How the levels of a step are run under a budget.

    Parameters:
        net: the step of a part of the batch.
        device: that computes.
        budget: bytes; None: no limit.
        deterministic: whether sums are taken in one order.
    """

    def __init__(self, net: Network, device: Device, budget: int | None, deterministic: bool) -> None:
        self.net, self.device, self.budget = net, device, budget
        self.levels = step_levels(net)
        self.scene = Scene(CallCosts(device, deterministic), FILE)
        self._schedules: dict[int, NetworkSchedule] = {}

    def _judge(self, level: int) -> Judge:
        return Judge(self.levels[level].net, self.scene, self.budget)

    def check(self) -> None:
        """Raise BudgetError where a level fits in no way."""
        judges = [self._judge(level) for level in range(len(self.levels))] if self.budget is not None else []
        needs = [
            0 if judge.fits(AT_ONCE) else min(judge.needs(p) for p in (AT_ONCE, POLICIES["stream"].least(judge)))
            for judge in judges
        ]
        if max(needs, default=0) > (self.budget or 0):
            smallest = max(needs)
            raise too_small(judges[needs.index(smallest)], "stream", smallest)

    def schedule(self, level: int) -> NetworkSchedule:
        """All at once where that fits, else as auto has it. Raises BudgetError."""
        if level not in self._schedules:
            judge = self._judge(level)
            fits = judge.fits(AT_ONCE)
            self._schedules[level] = judge.schedule(AT_ONCE) if fits else automatic(judge).schedule
        return self._schedules[level]


class LevelWorker:
    """What a process keeps from part to part: plans, and of the last level memory and parameters."""

    def __init__(self, plans: LevelPlans, state: TrainingState) -> None:
        self.plans, self.state = plans, state
        self._running: Running | None = None
        self._ready = (-1, -1)  # the step whose parameters it has, and the level

    def sums(self, part: StepPart) -> dict[str, Any]:
        """Gradients of a part, its shares of losses and its sums over the batch, as far as its level makes them, by tensor. What
        later levels read of the part is in files then."""
        level, running = self.plans.levels[part.level], self._turned_to(part.step, part.level)
        with ExitStack() as stack:
            arrays = self._inputs(stack, level, part)
            arrays |= {t: stack.enter_context(written(part, level.net.tensors[t])) for t in level.net.outputs}
            running.run(arrays)
        sums = {t: running.get(level.net.tensors[t]) for t in level.sums}
        return sums | self._losses(level, part, sums)

    def _turned_to(self, step: int, level: int) -> Running:
        """A level with the parameters of a step."""
        if self._running is None or self._ready[1] != level:
            self.close()
            net, schedule = self.plans.levels[level].net, self.plans.schedule(level)
            self._running, self._ready = Running(net, schedule, self.plans.device, None, self.plans.budget), (-1, level)
        if self._ready != (step, level):
            net = self._running.net
            sizes = {t.name: (t.shape, t.dtype) for t in net.lasting if t.role in (Role.PARAMETER, Role.STATISTIC)}
            for name, values in self.state.tensors(step, sizes):
                self._running.put(net.tensors[name], values)
            self._ready = step, level
        return self._running

    def _inputs(self, stack: ExitStack, level: StepLevel, part: StepPart) -> dict[str, Any]:
        """What a level reads: of the batch, of its labels, of levels before."""
        net, backend = self.plans.net, self.plans.device.backend
        tensors = level.net.tensors
        arrays: dict[str, Any] = {t: np.asarray(part.totals[t]).reshape(tensors[t].shape) for t in level.totals}
        losses = {name: loss for name, loss in losses_of(net.graph).items() if {*loss.inputs} & {*tensors}}
        if losses:
            targets = targets_of(net, {name: taken(where, part.span) for name, where in part.labels}, backend)
            for name, loss in losses.items():
                arrays |= loss.layer.given(level.net, loss.inputs, targets[name], dict(part.counted)[name])
        if STEP in tensors:
            arrays[STEP] = np.array([drawn(part.drawn_by(self.state.seed), part.step)], np.int64)
        for t in level.net.graph.inputs:
            if t in net.graph.inputs:
                arrays |= inputs_of(net, piece_of(stack.enter_context(part.x.open()), part.span), backend)
            elif t not in arrays:
                arrays[t] = read(part, tensors[t])
        return arrays

    def _losses(self, level: StepLevel, part: StepPart, sums: dict[str, Any]) -> dict[str, Any]:
        """The shares of a part in the losses. What follows from sums over the batch is known to all parts, and the first one's
        share."""
        shares, counted, net = {}, dict(part.counted), level.net
        for name, loss in losses_of(self.plans.net.graph).items():
            if name in sums:
                maker = next(call for call in net.calls if name in call.makes)
                share = loss.layer.weight * float(sums[name].reshape(())) / counted[name]
                shares[name] = np.array([share if over_the_batch(net, maker) or not part.number else 0.0], np.float64)
        return shares

    def close(self) -> None:
        """Give memory back."""
        if self._running is not None:
            self._running.close()
        self._running = None

    def __del__(self) -> None:
        if getattr(self, "_running", None) is not None:
            self.close()


def read(part: StepPart, tensor: Slot) -> Any:
    """What an earlier level made of a part, as a memory map. Raises StoreError."""
    path = part.between(tensor.name)
    with understood(f"{path}: {tensor.name}", "not as an earlier level wrote it", StoreError):
        return np.memmap(path, numpy_dtype(tensor.dtype), "r", 0, tensor.shape)


@contextmanager
def written(part: StepPart, tensor: Slot) -> Iterator[Any]:
    """Where a level writes what later ones read of a part: a file that takes its place when it is whole. Raises StoreError."""
    path = part.between(tensor.name)
    try:
        with whole(path, settled=False) as file:
            file.truncate(tensor.nbytes)
            yield np.memmap(file.name, numpy_dtype(tensor.dtype), "r+", 0, tensor.shape)
    except OSError as error:
        if isinstance(error, OocError):
            raise
        raise StoreError(error.errno, f"{path}: {error.strerror or error}") from error
