"""Which device a command plans for: one of this machine, or one that need not be here."""

from __future__ import annotations

from ooc.backends.choice import BACKENDS, names_backend
from ooc.errors import ArgumentError
from ooc.model.calibration import shipped
from ooc.runtime.context import current_device, current_named, device
from ooc.runtime.device import Device


def targets() -> str:
    """What `target` takes, for a help text."""
    return f"{', '.join(BACKENDS)}; or one that need not be here: {', '.join(shipped())}, or the .json file of a calibration"


def target(name: str | None, tf32: bool = False) -> Device:
    """The device of a name: a backend, under the limits of the current device where it is one; or a calibration, shipped or a
    file, for which a null device stands. None: the current device. tf32: see `ooc.device`.

    Raises ArgumentError, UnsupportedError.
    """
    if name is not None and not names_backend(name):
        if not name.endswith(".json") and name.lower() not in shipped():
            raise ArgumentError(f"device {name!r}: expected one of {targets()}")
        return device("null", calibration=name, tf32=tf32)
    current = current_device() if name is None else current_named(name)
    if current is not None and not tf32:
        return current
    limit = None if current is None else current.device_bytes
    return device(name or current_device().backend.name, limit, tf32=tf32)
