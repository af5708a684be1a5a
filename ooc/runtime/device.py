"""What computes, under which limits: a backend, a budget and a model."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any

from ooc.backends.base import Backend
from ooc.cache import Cache, cached_property
from ooc.model.cost import Model
from ooc.planner.planner import Limits, Planner
from ooc.runtime.memo import Runs
from ooc.schedule.budget import show_bytes


@dataclass(frozen=True)
class Device:
    """What computes, under which limits: `with device:` makes it the one that the calls of this thread or task use.

    Made by `ooc.device`. It keeps plans that were made, the steps of short ones and, on a processor, the memory and kernels of up
    to 16 small ones, of 256 KiB each at most, which are given back where a call needs the room within the limit; threads may
    share it. It may be pickled: the same limits hold where it is loaded, and the CUDA device of the same number is opened there;
    UnsupportedError where there is none.

    Fields:
        backend: where tiles are computed; `backend.name` is "cpu", "cuda" or "null", `backend.total_bytes` its memory.
        model: what steps are predicted to take; `model.name` says of which machine.
        device_bytes: limit of the device's memory in bytes; default None: no limit.
        pinned_bytes: limit of the staging ring in pinned host memory, in bytes; default None: no limit.
        workspace_bytes: limit of the kernels' workspace, which is a part of the device's memory, in bytes; default None.
        deterministic: True takes sums in an order that does not depend on the limits; default False.
        workspace_yields: True raises workspace_bytes where no plan keeps within it, until one does; default False:
            BudgetError.
    """

    backend: Backend
    model: Model
    device_bytes: int | None = None
    pinned_bytes: int | None = None
    workspace_bytes: int | None = None
    deterministic: bool = False
    workspace_yields: bool = False

    def __repr__(self) -> str:
        """One line: what computes, its limits and its model."""
        backend = self.backend
        name = f"{backend.name}:{backend.index}" if backend.capability else backend.name
        limits = {"budget": self.device_bytes, "pinned": self.pinned_bytes, "workspace": self.workspace_bytes}
        told = [f"{what} {show_bytes(limit)}" for what, limit in limits.items() if limit is not None] or ["no limit"]
        flags = ["deterministic"] * self.deterministic + ["workspace yields"] * self.workspace_yields
        return f"<Device {name} of {show_bytes(backend.total_bytes)}: {', '.join([*told, *flags])}, {self.model!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """What makes it again: the plans that were made stay here."""
        return type(self), tuple(getattr(self, f.name) for f in fields(self))

    @cached_property
    def planner(self) -> Planner:
        """What plans for this device under its limits: a `Planner`, which remembers what was asked before. Equal devices have
        the same one."""
        limits = Limits(
            self.device_bytes, self.pinned_bytes, self.workspace_bytes, self.deterministic, self.workspace_yields
        )  # fmt: skip
        bare = self.backend.bare()
        if bare is None:
            return Planner(self.backend, self.model, limits)
        return _planners.made((bare, self.model, limits), lambda: Planner(bare, self.model, limits))

    @cached_property
    def runs(self) -> Runs:
        """Plans that were run before, ready to run again."""
        return Runs(self.backend, self.device_bytes)

    def __enter__(self) -> Device:
        """Make it the device of this thread's or task's calls until the `with` ends, and return it; devices may be nested."""
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Go back to the device before; errors pass on."""
        _entered.set(_entered.get()[:-1])
        if all(device.backend is not self.backend for device in _entered.get()):
            self.backend.idle()


_planners: Cache[Planner] = Cache(64)  # by what they plan for: devices come and go in loops

# Devices entered and not yet left, innermost last: per thread and task, so that one device may serve several of them.
_entered: contextvars.ContextVar[tuple[Device, ...]] = contextvars.ContextVar("ooc_devices", default=())


def entered() -> Device | None:
    """The device of the innermost `with` of this thread or task, or None outside any."""
    devices = _entered.get()
    return devices[-1] if devices else None
