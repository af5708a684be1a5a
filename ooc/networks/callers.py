"""Arrays of the caller's, as one run reads and writes them: seen with the axes of each operand, sources by their units."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from ooc.backends.base import Backend
from ooc.errors import BudgetError
from ooc.ir.op import numpy_dtype
from ooc.ir.region import Region
from ooc.networks.layers.norm import ONES, ZEROS
from ooc.networks.scene import NetworkSchedule
from ooc.runtime.keeping import SourceUnits, keeping_of, keeping_of_moves, largest, merged
from ooc.runtime.store import Store
from ooc.runtime.stored import viewed
from ooc.runtime.tensors import Tensor, tensor_of
from ooc.runtime.units import Keeping
from ooc.schedule.budget import show_bytes
from ooc.schedule.lowering import Outside
from ooc.schedule.place import CALLER
from ooc.schedule.plan import Plan
from ooc.sources.protocol import Source, is_source


def of_caller(outside: Outside) -> bool:
    """Whether what lies beyond the device is an array of the caller's."""
    return outside.home is None or outside.home.space == CALLER


class Callers:
    """The caller's arrays in one run.

    Parameters:
        schedule: what runs.
        arrays: arrays and sources by tensor.
        outputs: tensors that are written.
        backend: what computes.
        absent: tensors of the caller's that this run has nothing to do with.
        budget: bytes of the plan, if its device's memory is the host's; None: no limit.
    """

    def __init__(
        self, schedule: NetworkSchedule, arrays: Mapping[str, Any], outputs: Collection[str], backend: Backend,
        budget: int | None, absent: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.schedule, self.outputs, self.backend, self.budget = schedule, outputs, backend, budget
        self.opened: list[Store] = []
        self.units = SourceUnits(self._keeping)
        self.views = [
            {
                name: (outside.tensor, tensor_of(_with_axes(outside, arrays.get(outside.tensor)), backend))
                for name, outside in job.outside.items()
                if of_caller(outside) and outside.tensor not in absent
            }
            for job in schedule.jobs
        ]

    def stores(self) -> Iterator[dict[str, Store]]:
        """For each job how its operands are read and written, by name. Raises BudgetError, StoreError, UnsupportedError."""
        for views in self.views:
            stores: dict[str, Store] = {}
            for name, (called, tensor) in views.items():
                stores[name] = self._store(called, tensor)
                self.opened.append(stores[name])
            yield stores

    def finish(self) -> None:
        """All that was written is in its file."""
        self.units.finish()

    def close(self) -> None:
        """Close what was opened; what waits to be written is lost."""
        for store in self.opened:
            store.close()
        self.units.close()
        self.views, self.opened = [], []  # the units know this: arrays of the caller's would go when the circle is seen

    def _store(self, called: str, tensor: Tensor) -> Store:
        if tensor.stored is None or self.backend.name == "null":
            return tensor.store(self.backend, called in self.outputs)
        source, written = tensor.stored.source, called in self.outputs
        unit = largest(source)
        if not written and unit is not None and self.budget is not None and unit[0] > self.budget:
            raise BudgetError(  # what is written is encoded whole by its library in any case
                f"{called}: a unit of its file (chunk, shard, tile or strip) takes {show_bytes(unit[0])} "
                f"({unit[0]} bytes) but the budget is {show_bytes(self.budget)}"
            )
        return self.units.store(tensor, written)

    def _keeping(self, source: Source) -> Keeping:
        """What is kept of a source's units: what the steps that the schedule holds need, and the plans of calls in many tiles."""
        keeping = keeping_of_moves(source, list(self._moves(source)))
        for plan, tensors in self._long(source):
            keeping = merged(keeping, keeping_of(source, [plan], tensors))
        return keeping

    def _moves(self, source: Source) -> Iterator[list[Region]]:
        """Regions of a source that are read or written, step by step, as far as the schedule holds them."""
        views = [self._of(source, job) for job in range(len(self.views))]
        for step in self.schedule.steps:
            if step.lane in ("read", "write") and step.what in views[step.job]:
                stored = views[step.job][step.what].stored
                assert stored is not None
                yield list(stored.regions(step.region))

    def _long(self, source: Source) -> Iterator[tuple[Plan, dict[str, Tensor]]]:
        """Plans of calls of which the schedule holds the first steps alone, with what of the source they touch, by name."""
        for tail in self.schedule.tails:
            plan, tensors = self.schedule.jobs[tail.job].plan, self._of(source, tail.job)
            if plan is not None and tensors:
                yield plan, tensors

    def _of(self, source: Source, job: int) -> dict[str, Tensor]:
        """What a job touches of a source, by name."""
        return {n: t for n, (_, t) in self.views[job].items() if t.stored is not None and t.stored.source is source}


def _with_axes(outside: Outside, array: Any) -> Any:
    """An array of the caller's with the axes of an operand; a source as an array that is read by region."""
    operand = outside.operand
    if array is None:
        what = outside.tensor.split()[0]
        return np.broadcast_to(numpy_dtype(operand.dtype).type({ZEROS: 0, ONES: 1}[what]), operand.shape)
    if is_source(array):
        array = viewed(array)
    elif array.size > 1 and not any(s for s, e in zip(array.strides, array.shape, strict=True) if e > 1):  # one value, repeated
        return np.broadcast_to(array.reshape(-1)[:1].reshape((1,) * len(operand.shape)), operand.shape)
    order = operand.memory_order
    return array.reshape(tuple([operand.shape[axis] for axis in order])).transpose(np.argsort(order))
