"""From ops and arrays to a result: opens the arrays, asks for plans, runs them, reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooc.ir.op import Op, Operand, numpy_dtype
from ooc.model.simulate import simulate
from ooc.planner.cutting import between
from ooc.runtime.aliasing import check_apart, check_itself
from ooc.runtime.call_options import CallOptions
from ooc.runtime.context import current_device
from ooc.runtime.device import Device
from ooc.runtime.executor import run
from ooc.runtime.keeping import planned_beside, units_of_call
from ooc.runtime.machine import Measured
from ooc.runtime.pinning import gathered, pinned
from ooc.runtime.progress import telling
from ooc.runtime.report import Part, RemainingSteps, Report
from ooc.runtime.resume import WHOLE, Chapter, Resumed
from ooc.runtime.store import ArrayStore, NullStore, Store
from ooc.runtime.swap import FilePart, SwapFile
from ooc.runtime.tensors import Tensor, folder_beside, places_of, tensors_of
from ooc.runtime.trace import write_trace
from ooc.schedule.lowering import WINDOW, Schedule, lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan


class _Last(threading.local):
    """Of a thread: the report of its last call."""

    report: Report | None = None


_last = _Last()


def last_report() -> Report | None:
    """The report of this thread's last call.

    Returns:
        report: an `ooc.Report`, or None before the first call. A call that computes in several steps (`ooc.concat`, or alpha or
            beta with several results) leaves that of its last one, a call that failed that of the one before.
    """
    return _last.report


PLAIN = CallOptions()


def planned(
    op: Op, tensors: Mapping[str, Tensor], outputs: Collection[str], device: Device, options: CallOptions
) -> tuple[list[Plan], int]:
    """The plans by which an op would be computed now, and the bytes that units of files have beside them; all that the arguments
    or the budget do not allow is raised here."""
    for name in outputs:
        check_itself(op, tensors[name].array)
    if any(t.stored for t in tensors.values()):
        plans, room = planned_beside(op, tensors, device, options.deterministic)
    else:
        plans, room = device.planner.plans(op, places_of(tensors), options.deterministic), 0
    check_apart(op, plans, tensors, outputs)
    return plans, room


def check(op: Op, operands: Mapping[str, Any], targets: Mapping[str, Any], options: CallOptions = PLAIN) -> None:
    """Raise all that `execute` would before the first byte, its files included."""
    device = current_device()
    tensors = tensors_of(op, {**operands, **targets}, device)
    plans, room = planned(op, tensors, targets, device, options)
    with ExitStack() as stack:
        _Stores(plans, tensors, targets, device, room, stack)


def execute(op: Op, operands: Mapping[str, Any], targets: Mapping[str, Any], options: CallOptions = PLAIN) -> None:
    """Compute an op: `operands` are its inputs by name, `targets` the arrays that receive its outputs; `last_report` tells how.

    A target may be one of the inputs where each region is read before it is written and by nobody else (elementwise
    operations). Raises before the first output byte when the arguments or the budget do not allow the work. What is written is in
    its file then.
    """
    begin = time.perf_counter()
    device = current_device()
    tensors = tensors_of(op, {**operands, **targets}, device)
    plans, room = planned(op, tensors, targets, device, options)
    parts: list[Part] = []
    with ExitStack() as stack:
        if device.backend.staged:
            plans = _routed(op, tensors, plans, device, options.deterministic, stack)
        stores = _Stores(plans, tensors, targets, device, room, stack)
        going = None if options.resume is None else Resumed(options.resume, plans, tensors, targets, device.device_bytes)
        if going is not None and going.complete(stores.open):
            return
        on_tile = None
        if options.progress or options.callbacks:
            on_tile = stack.enter_context(telling(sum(plan.tiles for plan in plans), options.progress, options.callbacks))
        most = None if options.trace else WINDOW // len(plans)
        run_part = partial(_run, device=device, on_tile=on_tile, most=most, beside=room)
        for i, plan in enumerate(plans):
            bound = stores.of(plan)
            if going is None:
                parts.append(run_part(plan, bound))
            else:
                parts += _go_on(going, plan, bound, run_part)
            if later := plans[i + 1 :]:
                stores.leave(plan, later)
        held = stores.finish()
        if going is not None and going.whole:
            going.finish(WHOLE, plans[-1], None, stores.open, time.perf_counter() - begin)
    if not parts:  # all was finished before
        return
    shared = device.backend.shared
    peak = max(sum(b for s, b in p.measured.space_bytes.items() if shared or s == "device") for p in parts)
    _last.report = Report(tuple(parts), time.perf_counter() - begin, peak + held * shared, room * shared)
    if options.trace is not None:
        write_trace(options.trace, parts)


def _routed(
    op: Op, tensors: Mapping[str, Tensor], plans: list[Plan], device: Device, deterministic: bool, stack: ExitStack
) -> list[Plan]:
    """The plans to run on a device that reaches pinned memory alone, by whichever way is faster."""
    better = pinned(op, tensors, plans, device, deterministic, stack)
    return gathered(op, places_of(tensors), plans, device, deterministic) if better is plans else better


def _go_on(going: Resumed, plan: Plan, stores: Mapping[str, Store], run_part: Callable[..., Part]) -> Iterator[Part]:
    """The units of a plan that are not finished, each written down when it is."""
    for unit, chapters in going.units(plan, stores):
        begin = time.perf_counter()
        yield run_part(plan, stores, chapters)
        if not going.whole:
            going.finish(unit, plan, chapters, stores, time.perf_counter() - begin)


def _run(
    plan: Plan, stores: Mapping[str, Store], chapters: Sequence[Chapter] | None = None, *, device: Device,
    on_tile: Callable[[int], None] | None, most: int | None, beside: int,
) -> Part:  # fmt: skip
    """One part. chapters: see `schedule_of`. most: steps of it that are kept for the report; None: all, with their predicted
    times, to be shown. beside: bytes of units of files."""
    if most is None:
        device.runs.make_room(plan.peak_bytes + beside)
        todo = lower(plan, ((),) if chapters is None else chapters)
        return Part(todo, run(todo, stores, device.backend, on_tile), simulate(todo.steps, device.model, todo.alone))
    kept: list[Part] = []  # the first window, with sums over the others

    def on_window(todo: Schedule, measured: Callable[[], Measured]) -> None:
        part = Part(todo, measured())
        if kept:
            kept[0] = replace(kept[0], rest=(kept[0].rest or RemainingSteps()).and_more(part))
        else:
            kept.append(part if len(todo.steps) <= most else part.cut(most))

    device.runs.go(plan, stores, on_window, on_tile, chapters, beside)
    return kept[0]


class _Stores:
    """The stores of a call: of its arrays, and of what one part of a cut op hands to a later one. Nothing is written while
    opening; the stack closes them."""

    def __init__(
        self, plans: Sequence[Plan], tensors: Mapping[str, Tensor], outputs: Collection[str], device: Device, room: int,
        stack: ExitStack,
    ) -> None:  # fmt: skip
        self.tensors, self.outputs, self.device = tensors, outputs, device
        stored = any(t.stored for t in tensors.values())
        self.units = units_of_call(plans, tensors, outputs, room) if stored else None
        self.open = dict[str, Store]()
        stack.callback(self._close)
        for name, tensor in tensors.items():
            self.open[name] = self._store(name, tensor)

    def of(self, plan: Plan) -> dict[str, Store]:
        """Those that a part reads and writes."""
        for output in plan.op.outputs:
            if output.name not in self.open:
                self.open[output.name] = self._between(output)
        return {o.name: self.open[o.name] for o in plan.op.operands}

    def leave(self, plan: Plan, later: Sequence[Plan]) -> None:
        """A part is done: what no later one reads goes."""
        needed = {*self.tensors, *(o.name for one in later for o in one.op.inputs)}
        for name in {o.name for o in plan.op.operands} - needed:
            self.open.pop(name).close()

    def finish(self) -> int:
        """All that was written is in its file; the bytes of units that were held in memory."""
        if self.units is None:
            return 0
        self.units.finish()
        return self.units.held_bytes

    def _close(self) -> None:
        for store in self.open.values():
            store.close()
        if self.units is not None:
            self.units.close()

    def _store(self, name: str, tensor: Tensor) -> Store:
        if self.units is not None and tensor.stored and self.device.backend.name != "null":
            return self.units.store(tensor, name in self.outputs)
        return tensor.store(self.device.backend, name in self.outputs)

    def _between(self, operand: Operand) -> Store:
        """Room for what a part hands on: a file without a name where the caller's tensors are files, else memory."""
        backend = self.device.backend
        if backend.name == "null":
            return NullStore(operand.shape)
        if between(places_of(self.tensors), backend.shared) is not Place.DISK:
            return ArrayStore(np.empty(operand.shape, numpy_dtype(operand.dtype)), backend.copy_threads)
        file = SwapFile(operand.nbytes, folder_beside(self.tensors, self.outputs))
        return FilePart(operand, file, threads=backend.copy_threads, sole=True)
