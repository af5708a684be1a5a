"""From ops and arrays to a result: opens the arrays, asks for plans, runs them, reports."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from ooc.ir.op import Op, Operand, numpy_dtype
from ooc.model.simulate import simulate
from ooc.planner.cutting import between
from ooc.runtime.aliasing import check_apart, check_itself
from ooc.runtime.asked import Asked
from ooc.runtime.context import current_device
from ooc.runtime.device import Device
from ooc.runtime.executor import Run, run
from ooc.runtime.keeping import SourceUnits, planned_beside
from ooc.runtime.machine import Measured
from ooc.runtime.pinning import gathered, pinned
from ooc.runtime.progress import telling
from ooc.runtime.report import Part, Report, Rest, write_trace
from ooc.runtime.resume import WHOLE, Chapter, Resumed
from ooc.runtime.store import ArrayStore, NullStore, Store
from ooc.runtime.swap import FilePart, SwapFile
from ooc.runtime.tensors import Tensor, folder_beside, places_of, tensors_of
from ooc.schedule.lowering import WINDOW, Schedule, windows, windows_beside
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


PLAIN = Asked()


def planned(
    op: Op, tensors: Mapping[str, Tensor], outputs: Collection[str], device: Device, asked: Asked
) -> tuple[list[Plan], int]:
    """The plans by which an op would be computed now, and the bytes that units of files have beside them; all that the arguments
    or the budget do not allow is raised here."""
    for name in outputs:
        check_itself(op, tensors[name].array)
    if any(t.stored for t in tensors.values()):
        plans, room = planned_beside(op, tensors, device, asked.deterministic)
    else:
        plans, room = device.planner.plans(op, places_of(tensors), asked.deterministic), 0
    check_apart(op, plans, tensors, outputs)
    return plans, room


def check(op: Op, operands: Mapping[str, Any], targets: Mapping[str, Any], asked: Asked = PLAIN) -> None:
    """Raise all that `execute` would before the first byte, its files included."""
    device = current_device()
    tensors = tensors_of(op, {**operands, **targets}, device)
    plans, room = planned(op, tensors, targets, device, asked)
    with ExitStack() as stack:
        _open_all(tensors, targets, device, _source_units(plans, tensors, targets, room, stack), stack)


def execute(op: Op, operands: Mapping[str, Any], targets: Mapping[str, Any], asked: Asked = PLAIN) -> None:
    """Compute an op: `operands` are its inputs by name, `targets` the arrays that receive its outputs; `last_report` tells how.

    A target may be one of the inputs where each region is read before it is written and by nobody else (elementwise
    operations). Raises before the first output byte when the arguments or the budget do not allow the work. What is written is in
    its file then.
    """
    begin = time.perf_counter()
    device = current_device()
    arrays = {**operands, **targets}
    tensors = tensors_of(op, arrays, device)
    plans, room = planned(op, tensors, targets, device, asked)
    parts: list[Part] = []
    with ExitStack() as stack:
        if device.backend.staged:
            first, plans = plans, pinned(op, tensors, plans, device, asked.deterministic, stack)
            if plans is first:
                plans = gathered(op, places_of(tensors), plans, device, asked.deterministic)
        units = _source_units(plans, tensors, targets, room, stack)
        stores = _open_all(tensors, targets, device, units, stack)
        going = None if asked.resume is None else Resumed(asked.resume, plans, tensors, targets, device.device_bytes)
        if going is not None and going.complete(stores):
            return
        on_tile = None
        if asked.progress or asked.callbacks:
            on_tile = stack.enter_context(telling(sum(plan.tiles for plan in plans), asked.progress, asked.callbacks))
        for i, plan in enumerate(plans):
            for made in plan.op.outputs:
                if made.name not in stores:
                    stores[made.name] = _intermediate(made, tensors, targets, device)
                    stack.callback(stores[made.name].close)
            bound = {o.name: stores[o.name] for o in plan.op.operands}
            most = None if asked.trace else WINDOW // len(plans)
            if going is None:
                parts.append(_run(plan, bound, device, on_tile, most))
            else:
                parts += _go_on(going, plan, bound, device, on_tile, most)
            needed = {*arrays, *(o.name for later in plans[i + 1 :] for o in later.op.inputs)}
            for name in [name for name in bound if name not in needed]:
                stores.pop(name).close()
        held = 0
        if units is not None:
            units.finish()
            held = units.held_bytes if device.backend.shared else 0
        if going is not None and going.whole:
            going.finish(WHOLE, plans[-1], None, stores, time.perf_counter() - begin)
    if not parts:  # all was finished before
        return
    peak = max(sum(b for s, b in p.measured.space_bytes.items() if device.backend.shared or s == "device") for p in parts)
    _last.report = Report(tuple(parts), time.perf_counter() - begin, peak + held, room if device.backend.shared else 0)
    if asked.trace is not None:
        write_trace(asked.trace, parts)


def _go_on(
    going: Resumed, plan: Plan, stores: Mapping[str, Store], device: Device, on_tile: Callable[[int], None] | None,
    most: int | None,
) -> Iterator[Part]:  # fmt: skip
    """The units of a plan that are not finished, each written down when it is."""
    for unit, chapters in going.units(plan, stores):
        begin = time.perf_counter()
        yield _run(plan, stores, device, on_tile, most, chapters)
        if not going.whole:
            going.finish(unit, plan, chapters, stores, time.perf_counter() - begin)


def _run(
    plan: Plan, stores: Mapping[str, Store], device: Device, on_tile: Callable[[int], None] | None, most: int | None,
    chapters: Sequence[Chapter] | None = None,
) -> Part:  # fmt: skip
    """One part. most: steps of it that are kept for the report; None: all, with their predicted times, to be shown. chapters: see
    `windows`."""
    some = ((),) if chapters is None else chapters
    if most is None:
        todo = next(windows(plan, sys.maxsize, chapters=some))
        return Part(todo, run(todo, stores, device.backend, on_tile), simulate(todo.steps, device.model, todo.alone))
    kept: list[Part] = []  # the first window, with sums over the others

    def on_window(todo: Schedule, measured: Callable[[], Measured]) -> None:
        part = Part(todo, measured())
        if kept:
            kept[0] = replace(kept[0], rest=(kept[0].rest or Rest()).and_more(part))
        else:
            kept.append(part if len(todo.steps) <= most else part.cut(most))

    if chapters is None:
        device.runs.go(plan, stores, on_window, on_tile)
    else:
        once = Run(device.backend)
        try:
            made = windows_beside if device.backend.behind else windows
            once.go(made(plan, chapters=chapters), (stores,), plan.op, on_window, on_tile)
        finally:
            once.release()
    return kept[0]


# ---- where operands live


def _source_units(
    plans: Sequence[Plan], tensors: Mapping[str, Tensor], outputs: Collection[str], room: int, stack: ExitStack
) -> SourceUnits | None:
    """The units of sources, where there are sources."""
    return SourceUnits(plans, tensors, outputs, room, stack) if any(t.stored for t in tensors.values()) else None


def _open_all(
    tensors: Mapping[str, Tensor], outputs: Collection[str], device: Device, units: SourceUnits | None, stack: ExitStack
) -> dict[str, Store]:
    """Stores for every tensor, closed at the end. Nothing is written while opening."""
    stores: dict[str, Store] = {}
    for name, tensor in tensors.items():
        held = units if tensor.stored and device.backend.name != "null" else None
        stores[name] = tensor.store(device.backend, name in outputs) if held is None else held.store(tensor)
        stack.callback(stores[name].close)
    return stores


def _intermediate(made: Operand, tensors: Mapping[str, Tensor], outputs: Collection[str], device: Device) -> Store:
    """Room for what one part hands to a later one: a file without a name where the caller's tensors are files, else memory."""
    if device.backend.name == "null":
        return NullStore(made.shape)
    threads = device.backend.copy_threads
    if between(places_of(tensors), device.backend.shared) is not Place.DISK:
        return ArrayStore(np.empty(made.shape, numpy_dtype(made.dtype)), threads)
    return FilePart(made, SwapFile(made.nbytes, folder_beside(tensors, outputs)), threads=threads, own=True)
