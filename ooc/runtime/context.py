"""Which device a call uses: one that was entered, or the one of the environment."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ooc.backends.choice import open_backend
from ooc.backends.null import NullBackend
from ooc.cache import lock_across_forks
from ooc.errors import ShapeError, UnsupportedError
from ooc.model.calibration import closest, load_device
from ooc.runtime.asked import flag
from ooc.runtime.device import Device, entered
from ooc.schedule.budget import parse_bytes

BUDGET = "OOC_DEVICE_BUDGET"  # the environment variable
Bytes = int | float | str | None


def device(
    name: str = "auto",
    budget: Bytes = None,
    *,
    pinned: Bytes = None,
    workspace: Bytes = None,
    threads: int | None = None,
    calibration: str | Path | None = None,
    deterministic: bool = False,
    tf32: bool = False,
) -> Device:
    """A device to compute on: `with ooc.device("cuda", budget="4 GiB"): ...`.

    Parameters:
        name: "auto" (default: a CUDA device if there is one, else the CPU), "cpu", "cuda", "cuda:1" and so on, or "null", which
            plans and computes nothing; in capitals or not.
        budget: limit of the device's memory: bytes (1000, 1e9), a share of the device's memory (0.8: between 0 and 1), or text:
            either of them, or such as "256 MiB", "5 GB", "80%"; default None: no limit. On the CPU all buffers of a call count,
            its arrays do not.
        pinned: limit of the staging ring in pinned host memory, as budget; default None: no limit. On the CPU, any value stages
            every operand through a ring as a GPU would.
        workspace: limit of the kernels' workspace, which is a part of the device's memory, as budget; default None: no limit.
        threads: at least 1, for computing on the CPU, for staging copies to a GPU; default None: the processors that this
            process may use.
        calibration: what predictions are made by: the name of a shipped device (cpu, h100, ..., in capitals or not) or the path
            of a JSON file; default None: the shipped device that is nearest to the processor.
        deterministic: True takes sums in an order that does not depend on the budget, so that results have the same bits at any
            (slower; on one kind of processor); default False.
        tf32: True lets f32 convolutions on a CUDA device round their factors to TF32 (11 bits of mantissa; several times as
            fast); default False; nothing elsewhere.

    Returns:
        device: an `ooc.Device`; nothing changes until it is entered.

    Raises:
        ShapeError: a malformed or unknown value, a calibration that cannot be read.
        BudgetError: a limit of less than one byte.
        UnsupportedError: "cuda" where there is no such device, or no CuPy.
    """
    if calibration is not None and not isinstance(calibration, (str, os.PathLike)):
        raise ShapeError(f"calibration: expected the name of a shipped device or a path, got {calibration!r}")
    deterministic, tf32 = flag("deterministic", deterministic), flag("tf32", tf32)
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ShapeError(f"threads={threads!r}: expected a positive integer")
    backend = open_backend(name, threads, pinned is not None, tf32)
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
        deterministic,
    )


_opening = lock_across_forks()


class _Default:
    """The device of calls outside any `with`: of OOC_BACKEND, and of the budget that was set, else of OOC_DEVICE_BUDGET."""

    def __init__(self) -> None:
        self._set: Bytes = None
        self._is_set = False
        self._made: tuple[tuple[str, str], Device] | None = None

    def device(self) -> Device:
        name = os.environ.get("OOC_BACKEND") or ""
        budget, source = (self._set, "budget") if self._is_set else (os.environ.get(BUDGET) or None, BUDGET)
        key = name, repr(budget)
        with _opening:
            if self._made is None or self._made[0] != key:
                made = _named(name)
                limit = parse_bytes(budget, made.backend.total_bytes, source)
                self._made = key, replace(made, device_bytes=limit)
            return self._made[1]

    def set_budget(self, budget: Bytes) -> None:
        self._set, self._is_set = budget, True


def _named(backend: str) -> Device:
    """The device of what OOC_BACKEND says; errors say that it said so."""
    if not backend:
        return device()
    try:
        return device(backend)
    except (ShapeError, UnsupportedError) as error:
        raise type(error)(f"OOC_BACKEND={backend!r}: {error}") from None


_default = _Default()


def current_device() -> Device:
    """The device that a call would use now.

    Returns:
        device: that of the innermost `with ooc.device(...)` of this thread or task; outside any, one of the backend that the
            environment variable OOC_BACKEND names (default auto), under the budget of `set_device_budget`, else of
            OOC_DEVICE_BUDGET, else no limit.

    Raises:
        ShapeError, BudgetError, UnsupportedError: as `ooc.device`, for what these variables say.
    """
    return entered() or _default.device()


def set_device_budget(budget: Bytes) -> None:
    """Set the device budget of every later call outside `with ooc.device(...)`, in all threads.

    Parameters:
        budget: as `ooc.device` takes it; None: no limit. Takes precedence over the environment variable OOC_DEVICE_BUDGET,
            whose text means the same.

    Raises:
        ShapeError: a malformed value.
        BudgetError: less than one byte.
        Nothing changes then.
    """
    parse_bytes(budget, current_device().backend.total_bytes)
    _default.set_budget(budget)
