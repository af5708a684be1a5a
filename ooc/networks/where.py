"""Where a network runs, from what its user says."""

from __future__ import annotations

from ooc.errors import ArgumentError, shown
from ooc.networks.scene import SPILL
from ooc.runtime.context import current_device
from ooc.runtime.context import device as named_device
from ooc.runtime.device import Device
from ooc.schedule.place import FILE, PAGEABLE

HOMES = {"pinned": SPILL, "host": PAGEABLE, "disk": FILE}


def device_of(device: Device | str | None) -> Device:
    """The device of an argument."""
    if device is None:
        return current_device()
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return named_device(device)
    raise ArgumentError(f"device: expected an ooc.Device or its name, got {shown(device)}")


def space_of(home: str | None, device: Device) -> str:
    """The space of homes. Raises ArgumentError for no home."""
    if home is None:
        return FILE if device.backend.shared else SPILL
    if home not in HOMES:
        raise ArgumentError(f"home={shown(home)}: expected one of {', '.join(HOMES)}")
    return SPILL if device.backend.shared and home == "host" else HOMES[home]
