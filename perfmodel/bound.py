"""The physical bound of a problem: what no plan can beat on a machine as calibrated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ooc.device import Device
from ooc.op import Op, Operand
from ooc.plan import Place, load_route, store_route


class Bound(NamedTuple):
    """Seconds, what they are spent on (`compute` or a lane), and the bytes that must pass each lane."""

    seconds: float
    by: str
    lane_bytes: dict[str, int]


def bound_of(op: Op, places: Mapping[str, Place], device: Device) -> Bound:
    """The largest of: all of the op computed in one piece by its best kernel, and every lane's least bytes at its
    bandwidth. Each operand moves once; nothing else does."""
    moved: dict[str, int] = {}
    for lane, operand in _moves(op, places, device.backend.staged):
        moved[lane] = moved.get(lane, 0) + operand.nbytes
    seconds = {lane: nbytes / device.model.copy(lane).bytes_per_second for lane, nbytes in moved.items()}
    seconds["compute"] = sum(best_seconds(stage, device) for stage in op.stages)
    by = max(seconds, key=seconds.__getitem__)
    return Bound(seconds[by], by, moved)


def best_seconds(stage: Op, device: Device) -> float:
    """Seconds to compute one stage in one piece by the best of the kernels that the device offers."""
    work = stage.effort(stage.dims), stage.touched_bytes(stage.dims), 1, stage.shape(stage.dims)
    keys = (f"{stage.kind}/{stage.dtype}/{offer.name}" for offer in device.backend.offers(stage))
    return min((float(device.model.compute(key).seconds(*work)) for key in keys), default=0.0)


def _moves(op: Op, places: Mapping[str, Place], staged: bool) -> Iterator[tuple[str, Operand]]:
    """Every operand with each lane that it must pass."""
    for o in op.inputs:
        yield from ((lane, o) for lane in load_route(places.get(o.name, Place.HOST), staged))
    for o in op.outputs:
        yield from ((lane, o) for lane in store_route(places.get(o.name, Place.HOST), staged))
