"""Which device a call uses: one that was entered, or the one of the environment."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ooc.backends.choice import open_backend
from ooc.backends.null import NullBackend
from ooc.errors import ShapeError
from ooc.model.calibration import closest, load_device
from ooc.runtime.device import Device, entered
from ooc.schedule.budget import parse_bytes

Bytes = int | float | str | None


def device(
    name: str = "auto",
    budget: Bytes = None,
    *,
    pinned: int | str | None = None,
    workspace: int | str | None = None,
    threads: int | None = None,
    calibration: str | Path | None = None,
    deterministic: bool = False,
    tf32: bool = False,
) -> Device:
    """A device to compute on: `with ooc.device("cuda", budget="4 GiB"): ...`.

    name: auto (a CUDA device if there is one), cpu, cuda, cuda:1 and so on, or null. budget, pinned, workspace: bytes, or
    text such as "256 MiB", "5 GB", "80%"; None means no limit. On the CPU, pinned= stages every operand through a ring as a
    GPU would. threads: for computing on the CPU, for staging copies to a GPU. calibration: name of a shipped device or a
    JSON file. deterministic: sums are taken in an order that does not depend on the budget, so that results have the same
    bits at any (slower; on one kind of processor). tf32: f32 convolutions on a CUDA device may round their factors to TF32
    (11 bits of mantissa; several times as fast). Raises ShapeError for a malformed value, BudgetError for an impossible one,
    UnsupportedError for a backend that is not there.
    """
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ShapeError(f"threads={threads!r}: expected a positive integer")
    backend = open_backend(name, threads, pinned is not None, bool(tf32))
    try:
        model = load_device(calibration or closest(backend.processor))
    except (OSError, ValueError) as error:
        raise ShapeError(f"calibration={str(calibration)!r}: {error}") from None
    if isinstance(backend, NullBackend) and model.memory_bytes:
        backend = NullBackend(model.memory_bytes)  # it stands for the device that the model describes
    total = backend.total_bytes
    return Device(
        backend,
        model,
        parse_bytes(budget, total),
        parse_bytes(pinned, total, "pinned"),
        parse_bytes(workspace, total, "workspace"),
        bool(deterministic),
    )


class _Default:
    """The device of calls outside any `with`: of OOC_BACKEND, and of the budget that was set, else of OOC_DEVICE_BUDGET."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set: Bytes = None
        self._is_set = False
        self._made: tuple[tuple[str, str], Device] | None = None

    def device(self) -> Device:
        name = os.environ.get("OOC_BACKEND") or "auto"
        budget = self._set if self._is_set else os.environ.get("OOC_DEVICE_BUDGET") or None
        key = name, repr(budget)
        with self._lock:
            if self._made is None or self._made[0] != key:
                self._made = key, device(name, budget)
            return self._made[1]

    def set_budget(self, budget: Bytes) -> None:
        self._set, self._is_set = budget, True


_default = _Default()


def current_device() -> Device:
    """The device of the innermost `with ooc.device(...)`, else the one of OOC_BACKEND and OOC_DEVICE_BUDGET."""
    return entered() or _default.device()


def set_device_budget(budget: Bytes) -> None:
    """Set the device budget of every call outside `with ooc.device(...)`: bytes, "256 MiB", "5 GB", "80%"; None: no limit.

    Takes precedence over OOC_DEVICE_BUDGET. Raises ShapeError or BudgetError and changes nothing when it makes no sense.
    """
    parse_bytes(budget, current_device().backend.total_bytes)
    _default.set_budget(budget)
