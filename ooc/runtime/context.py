"""Which device a call uses: one that was entered, or the one of the environment."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ooc.backends.base import Backend
from ooc.backends.choice import open_backend
from ooc.backends.null import NullBackend
from ooc.cache import lock_across_forks
from ooc.errors import ArgumentError, OptionError, ShapeError, UnsupportedError
from ooc.model.calibration import closest, load_device
from ooc.model.cost import Model
from ooc.runtime.call_options import flag
from ooc.runtime.device import Device, entered
from ooc.schedule.budget import parse_bytes

BACKEND, BUDGET = "OOC_BACKEND", "OOC_DEVICE_BUDGET"  # environment variables
Bytes = int | float | str | None


def device(
    name: str = "auto",
    budget: Bytes = None,
    *,
    pinned: Bytes = None,
    workspace: Bytes = None,
    threads: int | None = None,
    calibration: str | Path | None = None,
    deterministic: bool | str = False,
    tf32: bool = False,
) -> Device:
    """A device to compute on: `with ooc.device("cuda", budget="4 GiB"): ...`.

    Parameters:
        name: "auto" (default: a CUDA device if there is one, else the CPU), "cpu", "cuda", "cuda:1" and so on, or "null", which
            plans and computes nothing, for the device that the calibration describes; in capitals or not.
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
            (slower, on a GPU many times; on one kind of processor). "run" gives the same bits for the same plan: on a CUDA device
            cuDNN computes with its deterministic algorithms alone, and no measurement chooses among them; a CPU does so anyway.
            Default False: what is fastest.
        tf32: True lets f32 convolutions on a CUDA device round their factors to TF32 (11 bits of mantissa; several times as
            fast), and a null device that stands for one; default False; nothing elsewhere.

    Returns:
        device: an `ooc.Device`; nothing changes until it is entered.

    Raises:
        ArgumentError: a malformed or unknown value, a calibration that cannot be read.
        BudgetError: a limit of less than one byte.
        UnsupportedError: "cuda" where there is no such device, or no CuPy.
    """
    tf32, repeatable = flag("tf32", tf32), isinstance(deterministic, str)
    if repeatable and deterministic != "run":
        raise OptionError(f'deterministic: expected True, False or "run", got {deterministic!r}')
    ordered = not repeatable and flag("deterministic", deterministic)
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ArgumentError(f"threads={threads!r}: expected a positive integer")
    backend = open_backend(name, threads, pinned is not None, tf32, repeatable)
    backend, model = _calibrated(backend, closest(backend.processor) if calibration is None else calibration)
    total = backend.total_bytes
    return Device(
        backend,
        model,
        parse_bytes(budget, total),
        parse_bytes(pinned, total, "pinned"),
        parse_bytes(workspace, total, "workspace"),
        ordered,
    )


_opening = lock_across_forks()


def _calibrated(backend: Backend, calibration: str | Path) -> tuple[Backend, Model]:
    """A backend and what it is predicted by; the null backend stands for the device that the model describes."""
    if not isinstance(calibration, (str, os.PathLike)):
        raise ArgumentError(f"calibration: expected the name of a shipped device or a path, got {calibration!r}")
    try:
        model = load_device(calibration)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"calibration={str(calibration)!r}: {str(error).removeprefix(f'{calibration}: ')}") from None
    if isinstance(backend, NullBackend):
        backend = backend.standing_for(model.memory_bytes or backend.total_bytes, model.is_gpu)
    return backend, model


def changed(base: Device, budget: Bytes, calibration: str | Path | None) -> Device:
    """A device with another budget and calibration, where they are given, and all else as it was. Raises as `device`."""
    backend, model, limit = base.backend, base.model, base.device_bytes
    if calibration is not None:
        backend, model = _calibrated(backend, calibration)
    if budget is not None:
        limit = parse_bytes(budget, backend.total_bytes)
    return replace(base, backend=backend, model=model, device_bytes=limit)


class _Default:
    """The device of calls outside any `with`: of OOC_BACKEND, and of the budget that was set, else of OOC_DEVICE_BUDGET."""

    def __init__(self) -> None:
        self._set: Bytes = None
        self._is_set = False
        self._made: tuple[tuple[str, str], Device] | None = None

    def device(self) -> Device:
        name = os.environ.get(BACKEND) or ""
        budget, source = (self._set, "budget") if self._is_set else (os.environ.get(BUDGET) or None, BUDGET)
        key = name, repr(budget)
        with _opening:
            if self._made is None or self._made[0] != key:
                device = _named(name)
                limit = parse_bytes(budget, device.backend.total_bytes, source)
                self._made = key, replace(device, device_bytes=limit)
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
        raise type(error)(f"{BACKEND}={backend!r}: {error}") from None


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


def current_named(name: str) -> Device | None:
    """The device that a call would use now, where that is what this name means: its kind, with its index if there is one."""
    kind, _, index = str(name).lower().partition(":")
    if kind == "null" and entered() is None and os.environ.get(BACKEND, "").lower() != "null":
        return None  # without opening a GPU to find that out
    current = current_device()
    if kind == "auto":
        kind = device().backend.name
    same = kind == current.backend.name and index in ("", str(getattr(current.backend, "index", "")))
    return current if same else None


def device_here(backend: str, deterministic: bool, threads: int | None) -> Device:
    """What computes a task in this process, whose budget its plan has: the current device, if it is of this kind and no number of
    threads is called for, else a new one."""
    current = current_device()
    here = current if threads is None and current.backend.name == backend else device(backend, threads=threads)
    return replace(here, device_bytes=None, deterministic=deterministic)


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
