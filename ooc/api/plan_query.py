"""`ooc.plan`: a plan from a descriptor, with no arrays and no device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ooc.errors import ArgumentError
from ooc.ir.op import Op
from ooc.ops.descriptor import parse
from ooc.runtime.context import changed, current_device, current_named
from ooc.runtime.context import device as make_device
from ooc.runtime.device import Device
from ooc.schedule.place import Place, settled
from ooc.schedule.plan import Plan


def plan(
    descriptor: str | Op,
    budget: int | float | str | None = None,
    *,
    device: str | None = None,
    places: Mapping[str, Place | str] | None = None,
    calibration: str | Path | None = None,
) -> Plan:
    """The plan that a call would follow: how the work is cut, ordered and buffered, and what that is predicted to cost.

    No array is read and nothing is computed. A call may still cut a fused op into parts, each with a plan of its own.

    Parameters:
        descriptor: the work as one line of text, such as `conv.fprop n=32 c=64 h=224 w=224 k=64 r=3 s=3 pad=1 dtype=f32`, or
            such an op itself (`Plan.op`).
        budget: limit of the device's memory: a number of bytes, or text such as "64 MiB" or "80%"; default None: the current
            device's.
        device: "auto", "cpu", "cuda", "cuda:1" and so on, or "null", in capitals or not; default None: the current device.
        places: where operands live: a dict from their names (x, w, b, y, ...) to "disk", "host", "pinned" or "device", or to
            `ooc.Place`; default None, and for all that are not named: "host", but on a processor "device" for parameters beside
            tensors on disk, as calls use them in place.
        calibration: what predictions are made by: the name of a shipped device, in capitals or not, or the path of a JSON file;
            default None: the current device's.

        What is not given is as on the current device: pinned, workspace, deterministic, tf32 and the rest too. Where `device`
        names another than that, no limit holds but a budget given here, and the default calibration is the shipped one that is
        nearest to the processor.

    Returns:
        plan: an `ooc.Plan`; `print(plan)` shows it.

    Raises:
        ArgumentError: a descriptor, budget, name, place or calibration that is malformed or unknown.
        BudgetError: no tiling fits; `smallest_bytes` is the least budget that would do, where it is known.
        UnsupportedError: the device is not there, or has no kernel for this.
    """
    op = parse(descriptor) if isinstance(descriptor, str) else descriptor
    if not isinstance(op, Op):
        raise ArgumentError(f"plan: expected a descriptor or an op, got {type(op).__name__}")
    told = _places(op, {} if places is None else places)
    where = {o.name: Place.HOST for o in op.operands} | told
    on = _device(budget, device, calibration)
    if on.backend.shared and not on.backend.staged:
        where = settled(op, where, where.keys() - told.keys())
    return on.planner.plan(op, where)


def parse_places(pairs: Sequence[str]) -> dict[str, Place]:
    """Places from words such as `x=disk`. Raises ArgumentError."""
    places = {}
    for pair in pairs:
        name, _, where = pair.partition("=")
        try:
            places[name] = Place(where)
        except ValueError:
            expected = ", ".join(p.value for p in Place)
            raise ArgumentError(f"--place {pair}: expected NAME=PLACE with one of {expected}") from None
    return places


def _places(op: Op, places: Mapping[str, Place | str]) -> dict[str, Place]:
    if not isinstance(places, Mapping) or not all(isinstance(name, str) for name in places):
        raise ArgumentError(f"places: expected a dict from the names of operands to places, got {places!r}")
    names = [o.name for o in op.operands]
    unknown = sorted(set(places) - set(names))
    if unknown:
        raise ArgumentError(f"{op}: places: no operand {', '.join(unknown)}; expected {', '.join(names)}")
    try:
        return {name: Place(place) for name, place in places.items()}
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"{op}: places: {error}; expected one of {', '.join(p.value for p in Place)}") from None


def _device(budget: int | float | str | None, name: str | None, calibration: str | Path | None) -> Device:
    named = None if name is None else current_named(name)
    if name is not None and named is None:
        return make_device(name, budget, calibration=calibration)
    current = named or current_device()
    return current if budget is None and calibration is None else changed(current, budget, calibration)
