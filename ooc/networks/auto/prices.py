"""What it costs to move a tensor, and to make it again: seconds beside bytes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from ooc.cache import cached_property
from ooc.ir.region import Span
from ooc.networks.calls import Network
from ooc.networks.items import Item
from ooc.networks.judge import Judge, Trial
from ooc.networks.tensors import Role


class Price(NamedTuple):
    """What making a tensor again may cost.

    Fields:
        worth: seconds of computing for a second that copies take.
        deep: calls that it may take, at most: what they make takes memory, all at once.
    """

    worth: float
    deep: int


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
    def launches(self) -> dict[int, float]:
        """What a call takes however small it is, by its index."""
        model, costs = self.judge.device.model, self.judge.costs
        found = {}
        for call in self.net.calls:
            plan = costs.plan(call)
            found[call.index] = float(model.compute(f"{call.op.kind}/{call.op.dtype}/{plan.kernel}").latency_seconds)
        return found

    def moving(self, name: str) -> float:
        """Of leaving and coming back."""
        leave, back = self.judge.moving_seconds(self.net.tensors[name].nbytes)
        return back if self.net.tensors[name].role is Role.INPUT else leave + back

    def making(self, name: str, gone: Collection[str] = (), deep: int = 1 << 30) -> float:
        """Of making an activation again, with those that the backward pass does not read, and with `gone` ones; infinite where
        that takes more calls than `deep`."""
        todo, seen = [name], set()  # type: list[str], set[int]
        while todo:
            maker = self.net.makers.get(todo.pop())
            if maker is None or maker.index in seen:
                continue
            seen.add(maker.index)
            if len(seen) > deep:
                return math.inf
            todo += [t for t in maker.reads if t in gone or t not in self.net.backward_readers]
        return sum(self.calls[i] for i in seen)

    def estimate(self, trial: Trial) -> float:
        """Seconds of a brief program if nothing waited: what each lane does, added up where there is one thread, else the
        longest."""
        compute = leave = back = 0.0
        for item in trial.program.items:
            if item.what == "run":
                compute += self._computing(item) * self._times(item.samples)
                for name, outside in trial.lowering.outside_of.get(item.call, {}).items():
                    one, other = self.judge.moving_seconds(self.net.tensors[outside.tensor].nbytes)
                    made = any(o.name == name for o in self.net.calls[item.call].op.outputs)
                    leave, back = (leave + one, back) if made else (leave, back + other)
            elif item.what in ("load", "store"):
                (instance,) = (*item.reads, *item.makes)
                nbytes = self.net.tensors[instance.tensor].nbytes * self._share(instance.samples)
                one, other = (s * self._times(instance.samples) for s in self.judge.moving_seconds(int(nbytes)))
                leave, back = (leave + one, back) if item.what == "store" else (leave, back + other)
        return compute + leave + back if self.judge.device.backend.shared else max(compute, leave, back)

    def _computing(self, item: Item) -> float:
        whole, launch = self.calls[item.call], self.launches[item.call]
        return launch + (whole - launch) * self._share(item.samples)

    def _share(self, samples: Span | None) -> float:
        return samples.extent / self.net.batch if samples else 1.0

    def _times(self, samples: Span | None) -> int:
        """How many parts one stands for."""
        if samples is None or samples.lo != samples.extent:
            return 1
        return max(1, -(-self.net.batch // samples.extent) - 2)
