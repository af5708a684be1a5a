"""Where a network runs, from what its user says."""

from __future__ import annotations

from dataclasses import replace

from ooc.backends.null import GPU_KERNELS, NullBackend
from ooc.errors import ArgumentError, shown
from ooc.networks.scene import SPILL
from ooc.runtime.context import current_device
from ooc.runtime.context import device as named_device
from ooc.runtime.device import Device
from ooc.schedule.place import FILE, PAGEABLE

HOMES = {"pinned": SPILL, "host": PAGEABLE, "disk": FILE}


def device_of(device: Device | str | None) -> Device:
    """The device of an argument; a null one that stands for a GPU has that GPU's kernels."""
    if device is None:
        where = current_device()
    elif isinstance(device, Device):
        where = device
    elif isinstance(device, str):
        where = named_device(device)
    else:
        raise ArgumentError(f"device: expected an ooc.Device or its name, got {shown(device)}")
    if isinstance(where.backend, NullBackend) and any("/cudnn" in key for key in where.model.computes):
        return replace(where, backend=NullBackend(where.backend.total_bytes, GPU_KERNELS))
    return where


def space_of(home: str | None, device: Device) -> str:
    """The space of homes. Raises ArgumentError for no home."""
    if home is None:
        return FILE if device.backend.shared else SPILL
    if home not in HOMES:
        raise ArgumentError(f"home={shown(home)}: expected one of {', '.join(HOMES)}")
    return SPILL if device.backend.shared and home == "host" else HOMES[home]
