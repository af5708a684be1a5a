"""Which way the caller's memory takes to a device: pinned for the call, as copies from it are direct then, but pinning takes time
itself; or, pinned already, through the staging ring all the same, where rows are too short for copy engines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from ooc.errors import BackendError, OocError
from ooc.ir.op import ITEM_BYTES, Op, Operand
from ooc.ir.region import Span, clip, elements
from ooc.runtime.device import Device
from ooc.runtime.tensors import Tensor, places_of
from ooc.schedule.emit import contiguous_runs
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

GAIN = 1.1  # what pinning must win at least, by the model
LEAST = 1 << 20  # bytes of an array worth thinking about
SHORT_ROW = 256  # bytes of a row below which copy engines are far slower than the link


def pinned(
    op: Op, tensors: Mapping[str, Tensor], plans: list[Plan], device: Device, deterministic: bool, stack: ExitStack
) -> list[Plan]:
    """The plans to run: those given, or better ones after some of the caller's arrays were pinned until the stack closes.

    The model knows what pinning costs, if that was measured on this device. A pinned= budget forbids it.
    """
    cost, backend = device.model.register, device.backend
    if cost is None or device.pinned_bytes is not None:
        return plans
    arrays = {name: t.array for name, t in tensors.items() if t.place is Place.HOST and t.array.nbytes >= LEAST}
    names = [name for name, array in arrays.items() if backend.walks(array)]
    whole = {id(arrays[n]): arrays[n] for n in names}
    seconds = float(sum(cost.seconds(a.nbytes) for a in whole.values()))
    if not names or seconds * GAIN >= sum(p.predicted_seconds for p in plans):
        return plans
    better = _planned(op, places_of(tensors) | dict.fromkeys(names, Place.PINNED), device, deterministic)
    if better is None or (sum(p.predicted_seconds for p in better) + seconds) * GAIN >= sum(p.predicted_seconds for p in plans):
        return plans
    with ExitStack() as trial:
        try:
            for array in whole.values():
                trial.enter_context(backend.pin(array))
        except BackendError:  # the system pins no more, or somebody else has pinned a part of it: then as planned before
            return plans
        stack.push(trial.pop_all())
    return better


def gathered(op: Op, places: Mapping[str, Place], plans: list[Plan], device: Device, deterministic: bool) -> list[Plan]:
    """The plans to run: those given, or better ones by the model, in which the host gathers the short rows of pinned arrays in
    the staging ring, and the copy engines move whole pieces."""
    short = [o.name for p in plans for o in p.op.operands if p.place(o.name) is Place.PINNED and _row_bytes(p, o) < SHORT_ROW]
    if not short or device.pinned_bytes is not None:
        return plans
    better = _planned(op, {**places, **dict.fromkeys(short, Place.HOST)}, device, deterministic)
    if better is None or sum(p.predicted_seconds for p in better) * GAIN >= sum(p.predicted_seconds for p in plans):
        return plans
    return better


def _row_bytes(plan: Plan, operand: Operand) -> int:
    """Bytes of a tile's contiguous pieces in an operand."""
    region = clip(operand.region({d: Span(0, size) for d, size in plan.tile}), operand.shape)
    return elements(region) * ITEM_BYTES[operand.dtype] // contiguous_runs(operand, region)


def _planned(op: Op, places: Mapping[str, Place], device: Device, deterministic: bool) -> list[Plan] | None:
    try:
        return device.planner.plans(op, places, deterministic)
    except OocError:
        return None
