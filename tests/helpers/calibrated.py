"""The CPU with the shipped calibration, whatever this machine's is, and threads that wake as quickly as a test wants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ooc
from ooc.ir.op import Op
from ooc.model.calibration import load_device
from ooc.runtime.device import Device
from ooc.schedule.place import Place

CONV = "conv.fprop n=8 c=16 h=24 w=24 k=16 r=3 s=3 pad=1"


def device(handoff: float | None, budget: int | None = 64 << 10) -> Device:
    """handoff: seconds until a thread wakes; None: steps are queued on a device, whose queues need no waking."""
    found = ooc.device("cpu", budget, calibration="cpu")
    return replace(found, model=replace(load_device("cpu"), handoff_seconds=handoff))


def needing_workspace(op: Op) -> Device:
    """One on which a kernel that needs memory for an op is the fastest by far, whatever was measured. Skips the test where there
    is none."""
    found = ooc.device("cpu", threads=1)
    names = {offer.name for offer in found.backend.offers(op) if int(offer.workspace(op.dims))}
    if not names:
        pytest.skip("no kernel needs memory for this")
    computes = {
        key: cost if key.rpartition("/")[2] in names else replace(cost, latency_seconds=cost.latency_seconds + 1)
        for key, cost in found.model.computes.items()
    }
    return replace(found, model=replace(found.model, computes=computes))


def places(plan_or_op: Any, place: Place = Place.HOST) -> dict[str, Place]:
    """Every operand in the same place."""
    return {o.name: place for o in plan_or_op.operands}
