"""When pinning the caller's own memory pays: the device then copies from it directly, but pinning takes time itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ooc.errors import BackendError, OocError
from ooc.ir.op import Op
from ooc.runtime.device import Device
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

GAIN = 1.1  # what pinning must win at least, by the model
LEAST = 1 << 20  # bytes of an array worth thinking about


def pinned(
    op: Op, arrays: Mapping[str, Any], places: Mapping[str, Place], plans: list[Plan], device: Device, deterministic: bool,
    stack: ExitStack,
) -> list[Plan]:  # fmt: skip
    """The plans to run: those given, or better ones after some of the caller's arrays were pinned until the stack closes.

    The model knows what pinning costs, if that was measured on this device. A pinned= budget forbids it.
    """
    cost, backend = device.model.register, device.backend
    if cost is None or device.pinned_bytes is not None:
        return plans
    names = [n for n, place in places.items() if place is Place.HOST and arrays[n].nbytes >= LEAST and backend.walks(arrays[n])]
    whole = {id(arrays[n]): arrays[n] for n in names}
    seconds = float(sum(cost.seconds(a.nbytes) for a in whole.values()))
    if not names or seconds * GAIN >= sum(p.predicted_seconds for p in plans):
        return plans
    better = _planned(op, {**places, **dict.fromkeys(names, Place.PINNED)}, device, deterministic)
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


def _planned(op: Op, places: Mapping[str, Place], device: Device, deterministic: bool) -> list[Plan] | None:
    try:
        return device.planner.plans(op, places, deterministic)
    except OocError:
        return None
