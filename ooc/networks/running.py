"""A schedule that runs: with its memory, its kernels and its homes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from ooc.ir.op import ITEM_BYTES, Operand, numpy_dtype
from ooc.ir.region import Whole
from ooc.networks.callers import Callers, of_caller
from ooc.networks.calls import Network
from ooc.networks.homes import Homes, PackedStore
from ooc.networks.profile import Profile
from ooc.networks.scene import NetworkSchedule
from ooc.networks.tensors import Slot
from ooc.runtime.codec import ITEMS
from ooc.runtime.device import Device
from ooc.runtime.executor import Run
from ooc.runtime.machine import Machine, Measured
from ooc.runtime.store import Store
from ooc.runtime.stored import viewed
from ooc.runtime.tensors import fetched
from ooc.schedule.lowering import Outside, Schedule
from ooc.schedule.place import OUTSIDE
from ooc.sources.protocol import is_source

HELD = 1 << 17  # steps of windows that are kept for the next run, of less than a kilobyte each


class Running:
    """A schedule with the memory, the kernels and the homes that it runs in; `beside`: another one's, of the same tensors that
    last. budget: bytes that it was planned for; None: no limit."""

    def __init__(
        self, net: Network, schedule: NetworkSchedule, device: Device, beside: Running | None, budget: int | None
    ) -> None:
        self.net, self.schedule = net, schedule
        self._ran, self._count = 0, schedule.count  # steps of the last run, and of a whole one
        self._begun: set[int] = set()  # jobs
        self._profile: Profile | None = None  # of the run that is going on
        self.budget = budget if device.backend.shared else None
        self.backend, self.beside = device.backend, beside
        holds = self.backend.name != "null"
        self.homes: Homes = beside.homes if beside is not None else Homes(self.schedule.layout, self.backend.copy_threads, holds)
        self.packed: list[PackedStore] = []
        self.stores = [self._stores(job.outside) for job in self.schedule.jobs]
        memory = {} if beside is None else {space: m for space, m in beside.machine.memory.items() if self._enough(space, beside)}
        device.runs.make_room(sum(peak for space, peak in schedule.layout.peaks.items() if space not in OUTSIDE))
        self.prepared = Run(schedule, self.backend, HELD, memory)
        try:
            self.machine: Machine = self.prepared.ready()
        except BaseException:
            self.homes.close()
            raise
        self._over = self.machine.done
        for store in self.packed:
            store.rooms = {way: self.machine.arena.bytes_of(room) for way, room in self.schedule.packing.items()}

    def _enough(self, space: str, beside: Running) -> bool:
        """Whether the other one has as much of a space; staging rings may be smaller there."""
        return self.schedule.layout.peaks.get(space, 0) <= beside.schedule.layout.peaks.get(space, 0)

    def _stores(self, outside: Mapping[str, Outside]) -> dict[str, Store]:
        layout = self.schedule.layout
        stores = {
            name: self.homes.store(o.operand, o.home, layout)
            for name, o in outside.items()
            if o.home is not None and not of_caller(o)
        }
        if self.schedule.packing and self.homes.holds:
            items = {name: ITEM_BYTES[self.net.tensors[outside[name].tensor].dtype] for name in stores}
            packed = {n: PackedStore(s, items[n], self.backend.copy_threads) for n, s in stores.items() if items[n] in ITEMS}
            self.packed += packed.values()
            stores |= packed
        return stores

    def run(self, arrays: Mapping[str, Any], profile: Profile | None = None, on: bool = False) -> None:
        """One step with these arrays of the caller's, by tensor, up to the pause of a network that has one. What was written is
        in its file then. profile: what it took is added there. on: what is behind the pause that it has come to."""
        if not on:
            self._ran, self._begun = 0, set()
        self._over, self._profile = self.machine.done, profile
        with closing(Callers(self.schedule, arrays, self.net.outputs, self.backend, self.budget, self._absent(on))) as callers:
            stores = [home | caller for home, caller in zip(self.stores, callers.stores(), strict=True)]
            self.prepared.go(stores, self.net.graph.name, self._passed, on=on)
            callers.finish()
        if not self.paused:
            self._count = self._ran

    @property
    def paused(self) -> bool:
        """Whether it has come to the pause of its network."""
        return self.prepared.paused is not None

    def restart(self) -> None:
        """Forget a pause: what comes next is the first pass."""
        self.prepared.paused = None

    def _absent(self, on: bool) -> Collection[str]:
        """What of the caller's nothing is to be done with before the pause, or behind it."""
        later = self.net.later
        return set(self.net.outputs).difference(later) if on else later

    def _passed(self, window: Schedule, measured: Callable[[], Measured]) -> None:
        """A window has run."""
        if self._profile is not None:
            self._profile.add(window, measured)
        self._over = self.machine.done
        self._ran += len(window.steps)
        self._begun.update(step.job for step in window.steps if step.kind == "run")

    @property
    def progress(self) -> float:
        """The share of the steps of the last run that are done, as many as there are about."""
        done = self.machine.done  # of a window that is not over yet, or over and counted
        now = self._ran + (0 if done is self._over else sum(done))
        return min(1.0, now / max(1, self._count)) if self.machine.runs else 0.0

    def began(self, phase: str, net: Any) -> bool:
        """Whether a call of a phase was begun in the last run, be it that it failed."""
        machine = self.machine
        now = {step.job for step, start in zip(machine.steps, machine.starts, strict=True) if step.kind == "run" and start}
        kinds = {call.op for call in net.calls if call.phase == phase}
        return any(self.schedule.jobs[job].plan.op in kinds for job in self._begun | now)  # type: ignore[union-attr]

    # ---- what lasts

    def _flat(self, tensor: Slot) -> Operand:
        return Operand(tensor.name, tensor.shape or (1,), tensor.dtype, tuple(map(Whole, tensor.shape or (1,))))

    def get(self, tensor: Slot) -> Any:
        """A copy of a tensor that lasts."""
        buffer, operand = self.schedule.resident[tensor.name], self._flat(tensor)
        if buffer.space in OUTSIDE:
            array = np.empty(operand.shape, numpy_dtype(tensor.dtype))
            self.homes.store(operand, buffer).read(operand.whole, array, None)
            return array.reshape(tensor.shape)
        view = self.machine.arena.view(buffer, 0, operand.shape, operand)
        if view is None:  # the null backend holds nothing
            return np.zeros(tensor.shape, numpy_dtype(tensor.dtype))
        return np.array(self.backend.fetch(view)).reshape(tensor.shape)

    def lend(self, arrays: Mapping[str, Any]) -> None:
        """Put what the caller lends where it is kept on the device."""
        for name in self.net.borrowed:
            if name in self.schedule.resident:
                values = arrays[name]
                self.put(self.net.tensors[name], fetched(viewed(values), self.backend) if is_source(values) else values)

    def put(self, tensor: Slot, values: Any) -> None:
        """Set a tensor that lasts."""
        buffer, operand = self.schedule.resident[tensor.name], self._flat(tensor)
        wide = np.broadcast_to(values, tensor.shape).astype(numpy_dtype(tensor.dtype), copy=False)
        array = np.ascontiguousarray(wide).reshape(operand.shape)
        if buffer.space in OUTSIDE:
            self.homes.store(operand, buffer).write(operand.whole, array, None)
        elif (view := self.machine.arena.view(buffer, 0, operand.shape, operand)) is not None:
            self.backend.put(view, array)

    def close(self) -> None:
        """Give back what is its own."""
        self.prepared.release()
        if self.beside is None:
            self.homes.close()
