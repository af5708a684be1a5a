"""What computes, under which limits: a backend, a budget and a model."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType

from ooc.backends.base import Backend
from ooc.model.cost import Model
from ooc.planner.planner import Limits, Planner


@dataclass(frozen=True)
class Device:
    """A backend with limits, and a model of what it takes; `with device:` makes it the one that calls use.

    device_bytes, pinned_bytes, workspace_bytes: of its memory, of pinned host memory, of kernels' workspace; None means no
    limit. deterministic: sums are taken in an order that does not depend on them. workspace_yields: where no plan keeps
    within workspace_bytes, the least that has one is taken.
    """

    backend: Backend
    model: Model
    device_bytes: int | None = None
    pinned_bytes: int | None = None
    workspace_bytes: int | None = None
    deterministic: bool = False
    workspace_yields: bool = False

    @cached_property
    def planner(self) -> Planner:
        """Its plans: what was asked before is remembered."""
        limits = Limits(
            self.device_bytes, self.pinned_bytes, self.workspace_bytes, self.deterministic, self.workspace_yields
        )  # fmt: skip
        return Planner(self.backend, self.model, limits)

    def __enter__(self) -> Device:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _entered.set(_entered.get()[:-1])


# Devices entered and not yet left, innermost last: per thread and task, so that one device may serve several of them.
_entered: contextvars.ContextVar[tuple[Device, ...]] = contextvars.ContextVar("ooc_devices", default=())


def entered() -> Device | None:
    """The device of the innermost `with` of this thread or task, or None outside any."""
    devices = _entered.get()
    return devices[-1] if devices else None
