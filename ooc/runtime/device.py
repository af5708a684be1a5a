"""Which backend computes, under which budget: a context, environment variables, and plans remembered per device."""

from __future__ import annotations

import contextvars
import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ooc.backends.base import Backend
from ooc.backends.cpu.backend import CpuBackend
from ooc.backends.null import NullBackend
from ooc.errors import BudgetError, ShapeError, UnsupportedError
from ooc.ir.op import Op
from ooc.model.calibration import closest, load_device
from ooc.model.cost import Model
from ooc.model.gaussian import Sample
from ooc.model.tile_cache import TileCache
from ooc.planner.costs import Bound, Question, bound_of
from ooc.planner.search import plan as search
from ooc.runtime.executor import Schedule, schedule
from ooc.schedule.plan import Budget, Place, Plan, parse_bytes

BACKENDS = ("auto", "cpu", "cuda", "null")
REMEMBERED = 1024  # plans kept per device
SHORT = 64  # steps of a schedule that is kept, too

Found = TypeVar("Found")


@dataclass
class Device:
    """A backend with its budget and its remembered plans. Budgets are bytes; None means no limit."""

    backend: Backend
    model: Model
    device_bytes: int | None = None
    pinned_bytes: int | None = None
    workspace_bytes: int | None = None
    deterministic: bool = False
    tiles: TileCache | None = None  # where measured tiles are kept, if they are
    # Never shared with a device of another budget, not even by dataclasses.replace.
    plans: OrderedDict[Any, Plan] = field(default_factory=OrderedDict, init=False)
    cuts: OrderedDict[Any, list[Plan]] = field(default_factory=OrderedDict, init=False)  # of calls: one plan, or several in a row
    schedules: OrderedDict[int, Schedule] = field(default_factory=OrderedDict, init=False)  # of short plans, by their identity
    _lock: Any = field(default_factory=threading.Lock, init=False)

    def __enter__(self) -> Device:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _entered.set(_entered.get()[:-1])

    def budget(self, places: dict[str, Place], deterministic: bool = False) -> Budget:
        """The budget for operands that live in these places.

        Without a limit, what is not used in place streams through an arena of a fixed size. What libraries take for
        themselves counts, unless that leaves next to nothing.
        """
        limit, own = self.device_bytes, self.backend.own_bytes
        if limit is None and set(places.values()) != {Place.DEVICE}:
            limit = self.backend.streaming_bytes
        if limit is not None and own <= limit // 8:
            limit -= own
        return Budget(
            limit,
            self.pinned_bytes,
            self.workspace_bytes,
            tuple(sorted(places.items())),
            self.backend.staged,
            self.backend.shared,
            deterministic or self.deterministic,
        )

    def plan(self, op: Op, places: dict[str, Place], deterministic: bool = False) -> Plan:
        """The plan for an op, remembered by op, budget and places. Raises BudgetError or UnsupportedError."""
        key = (op, tuple(sorted(places.items())), deterministic)
        return self.remembered(self.plans, key, lambda: self._search(op, self.budget(places, deterministic)))

    def bound(self, op: Op, places: dict[str, Place]) -> Bound:
        """What no plan for an op can beat here, by the model."""
        return bound_of(Question(op, self.budget(places), self.backend.offers(op), self.model))

    def remembered(self, known: OrderedDict[Any, Found], key: Any, make: Callable[[], Found]) -> Found:
        """What is known for a key, or is made for it now; what was not asked for longest is forgotten."""
        with self._lock:
            found = known.get(key)
            if found is not None:
                known.move_to_end(key)
                return found
        found = make()
        with self._lock:
            known[key] = found
            while len(known) > REMEMBERED:
                known.popitem(last=False)
        return found

    def learn(self, tiles: Mapping[str, Sequence[Sample]]) -> None:
        """Let measured tiles that the model did not expect correct it, from the next new plan on, and keep them for later
        processes."""
        if self.tiles is not None and (new := self.model.surprising(tiles)):
            with self._lock:
                self.model = self.model.learning(new)
            self.tiles.add(new)

    def schedule(self, plan: Plan) -> Schedule:
        """The linked steps of a plan; those of short plans are remembered."""
        with self._lock:
            found = self.schedules.get(id(plan))
        if found is not None and found.plan is plan:
            return found
        found = schedule(plan)
        if len(found.steps) <= SHORT:
            with self._lock:
                self.schedules[id(plan)] = found
                while len(self.schedules) > REMEMBERED:
                    self.schedules.popitem(last=False)
        return found

    def _search(self, op: Op, budget: Budget) -> Plan:
        try:
            return search(op, budget, self.backend, self.model)
        except BudgetError:
            if self.device_bytes is not None or budget.device_bytes is None:
                raise
            return search(op, Budget(**{**vars(budget), "device_bytes": self.backend.total_bytes // 2}), self.backend, self.model)


def device(
    name: str = "auto",
    budget: int | float | str | None = None,
    *,
    pinned: int | str | None = None,
    workspace: int | str | None = None,
    threads: int | None = None,
    calibration: str | Path | None = None,
    deterministic: bool = False,
    tf32: bool = False,
    learn: bool | None = None,
) -> Device:
    """A device to compute on: `with ooc.device("cuda", budget="4 GiB"): ...`.

    name: auto (a CUDA device if there is one), cpu, cuda, cuda:1 and so on, or null. budget, pinned, workspace: bytes, or
    text such as "256 MiB", "5 GB", "80%"; None means no limit. On the CPU, pinned= stages every operand through a ring as a
    GPU would. threads: for computing on the CPU, for staging copies to a GPU. calibration: name of a shipped device or a
    JSON file. deterministic: sums are taken in an order that does not depend on the budget, so that results have the same
    bits at any (slower; on one kind of processor). tf32: f32 convolutions on a CUDA device may round their factors to TF32
    (11 bits of mantissa; several times as fast). learn: what tiles took in use corrects the calibration and is kept in the
    folder of OOC_CACHE for later processes; None: if OOC_LEARN is 1. Raises ShapeError for a malformed value, BudgetError for
    an impossible one, UnsupportedError for a backend that is not there.
    """
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ShapeError(f"threads={threads!r}: expected a positive integer")
    backend = _backend(name, threads, pinned is not None, bool(tf32))
    try:
        model = load_device(calibration or closest(backend.processor))
    except (OSError, ValueError) as error:
        raise ShapeError(f"calibration={str(calibration)!r}: {error}") from None
    tiles = TileCache(f"{model.name} {name}") if (os.environ.get("OOC_LEARN") == "1" if learn is None else learn) else None
    if tiles is not None:
        model = model.learning(tiles.read())
    if isinstance(backend, NullBackend):  # it stands for the device that the model describes
        backend.total_bytes = model.memory_bytes or backend.total_bytes
    total = backend.total_bytes
    return Device(
        backend,
        model,
        parse_bytes(budget, total),
        parse_bytes(pinned, total, "pinned"),
        parse_bytes(workspace, total, "workspace"),
        bool(deterministic),
        tiles,
    )


def _backend(name: str, threads: int | None, staged: bool, tf32: bool) -> Backend:
    kind, _, index = str(name).partition(":")
    if kind not in BACKENDS or (index and not (kind == "cuda" and index.isdecimal())):
        raise ShapeError(f"device {name!r}: expected one of {', '.join(BACKENDS)}, or cuda:1 and so on")
    if kind == "null":
        return NullBackend()
    if kind == "cuda" or (kind == "auto" and cuda_driver()):
        from ooc.backends.cuda.backend import CudaBackend

        try:
            return CudaBackend(None, tf32, threads, int(index or 0))
        except UnsupportedError:
            if kind == "cuda":
                raise
    return CpuBackend(threads, staged)


def cuda_driver() -> bool:
    """Whether a CUDA driver is installed: only then is it worth importing CuPy to look for a device."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


# Devices entered and not yet left, innermost last: per thread and task, so that one device may serve several of them.
_entered: contextvars.ContextVar[tuple[Device, ...]] = contextvars.ContextVar("ooc_devices", default=())
_default: dict[tuple[str, str], Device] = {}
_budget_override: list[int | float | str | None] = []


def current_device() -> Device:
    """The device of the innermost `with ooc.device(...)`, else the one of OOC_BACKEND and OOC_DEVICE_BUDGET."""
    if _entered.get():
        return _entered.get()[-1]
    name = os.environ.get("OOC_BACKEND") or "auto"
    text: Any = _budget_override[0] if _budget_override else os.environ.get("OOC_DEVICE_BUDGET") or None
    key = (name, repr(text))
    if key not in _default:
        _default.clear()
        _default[key] = device(name, text)
    return _default[key]


def set_device_budget(budget: int | float | str | None) -> None:
    """Set the device budget of every call outside `with ooc.device(...)`: bytes, "256 MiB", "5 GB", "80%"; None: no limit.

    Takes precedence over OOC_DEVICE_BUDGET. Raises ShapeError or BudgetError and changes nothing when it makes no sense.
    """
    parse_bytes(budget, current_device().backend.total_bytes)
    _budget_override[:] = [budget]
