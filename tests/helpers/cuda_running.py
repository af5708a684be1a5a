"""What tests of the CUDA backend share, on the emulated device and on a real one: operands where a plan says they are,
memory that is counted, lanes that overlap.

`put(array, space)` copies an array into device or pinned memory, `fetch(array)` copies a device array to the host.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
from adversarial import adversarial
from cases import is_exact
from races import races
from running import Arrays, assert_right, poisoned

from ooc.backends.device_array import DeviceArray
from ooc.errors import BudgetError
from ooc.ir.op import Op
from ooc.model.calibration import closest, load_device
from ooc.runtime.device import Device
from ooc.runtime.executor import run
from ooc.runtime.report import Report
from ooc.runtime.store import ArrayStore, Store
from ooc.schedule.budget import Budget
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

Put = Callable[[Any, str], Any]
Fetch = Callable[[Any], Any]
SPACES = {Place.DEVICE: "device", Place.PINNED: "pinned"}

# Problems of some megabytes, which small budgets cut into many tiles.
LARGE = (
    "conv.fprop n=2 c=16 h=150 w=141 k=16 r=3 s=3 pad=1 bias=1 act=relu",
    "conv.fprop n=1 c=16 h=140 w=150 k=16 r=3 s=3 stride=2 pad=1 dtype=f16 layout=channels_last",
    "conv.fprop n=1 c=8 d=24 h=40 w=40 k=8 t=3 r=3 s=3 pad=1 groups=2",
    "conv.dgrad n=2 c=8 h=130 w=131 k=12 r=3 s=3 stride=2 pad=1",
    "conv.wgrad n=2 c=12 h=120 w=121 k=12 r=3 s=3 pad=1",
    "conv.fprop n=1 c=8 h=160 w=161 k=12 r=3 s=3 pad=1 act=relu | pool.max n=1 k=12 h=160 w=161 window=2",
    "dy>db! reduce.bias n=2 k=8 h=100 w=101 | x,dy>dw! conv.wgrad n=2 c=8 h=100 w=101 k=8 r=3 s=3 pad=1 | "
    "dy,w>dx! conv.dgrad n=2 c=8 h=100 w=101 k=8 r=3 s=3 pad=1",
    "pool_backward.max n=2 k=16 h=120 w=121 window=3 stride=2 pad=1",
    "softmax.plain n=2 k=64 h=60 w=61",
    "bn.moments n=4 k=16 h=90 w=91",
    "pointwise n=2 k=16 h=120 w=121 bias=1 act=relu add=nkhw beta=2",
    "upsample.nearest n=1 k=16 h=90 w=91 size=180x182",
)


def execute(plan: Plan, arrays: Arrays, backend: Any, rng: random.Random | None, put: Put, fetch: Fetch) -> Arrays:
    """The outputs of a plan whose operands are put where it says they are."""
    todo = lower(plan)
    assert races(todo.steps, todo.layout) == []
    assert todo.layout.peaks.get("device", 0) <= plan.peak_bytes
    whole = arrays | {o.name: poisoned(o) for o in plan.op.outputs}
    placed = {n: put(a, SPACES[plan.place(n)]) if plan.place(n) in SPACES else a for n, a in whole.items()}
    stores: dict[str, Store] = {n: ArrayStore(a) for n, a in placed.items()}
    if rng is None:
        run(todo, stores, backend)
    else:
        adversarial(todo, stores, backend, rng.choice)
    made = {o.name: placed[o.name] for o in plan.op.outputs}
    return {n: fetch(a) if isinstance(a, DeviceArray) else a for n, a in made.items()}


def single_tile(op: Op, arrays: Arrays, backend: Any, kernel: str, put: Put, fetch: Fetch) -> Arrays:
    """The outputs of one tile that is the whole op, on the device."""
    places = tuple((o.name, Place.DEVICE) for o in op.operands)
    offer = next(o for o in backend.offers(op, Budget(places=places).in_place) if o.name == kernel)
    plan = Plan(op, tuple(op.dims.items()), tuple(op.dims), 1, places, True, False,
                kernel=kernel, workspace_bytes=int(offer.workspace(op.dims)))  # fmt: skip
    return execute(plan, arrays, backend, None, put, fetch)


def assert_nearly_right(
    op: Op, got: Arrays, arrays: Arrays, backend: Any, kernel: str, note: str, put: Put, fetch: Fetch
) -> None:
    """As `assert_right`; only that cuDNN may compute by transforms (Winograd, FFT), which round integers on the way. What is
    wrong differs by a sixteenth or more, so it does not pass, and a warning tells what was rounded."""

    def single(op: Op, arrays: Arrays, backend: Any, kernel: str) -> Arrays:
        return single_tile(op, arrays, backend, kernel, put, fetch)

    try:
        assert_right(op, got, arrays, backend, kernel, note, single)
    except AssertionError:
        if not kernel.startswith("cudnn") or not is_exact(op):
            raise
        made = oracle.tensors(op, arrays)
        for o in op.outputs:
            wanted = oracle.stored(made[o.name], o.dtype)
            room = 1e-3 * max(1.0, np.max(np.abs(wanted), initial=0))
            np.testing.assert_allclose(got[o.name].astype(np.float64), wanted, rtol=0, atol=min(room, 0.03), err_msg=note)
        warnings.warn(f"{kernel} rounded the integers of {op}", stacklevel=2)


class Held:
    """Device memory that a driver has handed out and not taken back, and the most of it so far."""

    def __init__(self, driver: Any) -> None:
        self.sizes: dict[int, int] = {}
        self.now_bytes = self.peak_bytes = 0
        self._malloc, self._free = driver.malloc, driver.free
        self.driver, driver.malloc, driver.free = driver, self.malloc, self.free

    def stop(self) -> None:
        """Count no further."""
        self.driver.malloc, self.driver.free = self._malloc, self._free

    def malloc(self, nbytes: int) -> int:
        address: int = self._malloc(nbytes)
        self.sizes[address] = nbytes
        self.now_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        return address

    def free(self, address: int) -> None:
        self.now_bytes -= self.sizes.pop(address)
        self._free(address)


def device_of(backend: Any, budget: int | None = None) -> Device:
    """A device with this backend, as `ooc.device` makes them."""
    return Device(backend, load_device(closest(backend.processor)), budget)


def under_budget(op: Op, arrays: Arrays, where: Device, held: Held, put: Put, fetch: Fetch) -> int:
    """Compute an op as a device plans it, from pageable and pinned memory; returns the number of tiles, 0 where nothing fits.
    Device memory taken: never more than the largest plan so far, and never more than the budget."""
    places = {o.name: (Place.HOST, Place.PINNED)[i % 2] for i, o in enumerate(op.operands)}
    try:
        plans = where.planner.plans(op, places)
    except BudgetError as error:
        assert "Raise budget= to at least" in str(error)
        return 0
    known = dict(arrays)
    for plan in plans:
        assert where.device_bytes is None or plan.peak_bytes <= where.device_bytes, str(plan)
        known |= execute(plan, {o.name: known[o.name] for o in plan.op.inputs}, where.backend, None, put, fetch)
    most = max(plan.peak_bytes for plan in plans)
    assert held.peak_bytes <= most, f"{op}: {held.peak_bytes} bytes of the device held, planned {most}"
    got = {o.name: known[o.name] for o in op.outputs}
    assert_nearly_right(op, got, arrays, where.backend, plans[0].kernel, str(plans[0].to_json()), put, fetch)
    return sum(plan.tiles for plan in plans)


def spans(report: Report, lane: str) -> list[tuple[float, float]]:
    """When the steps of a lane were under way."""
    return [
        (lo, hi)
        for part in report.parts
        for step, lo, hi in zip(part.schedule.steps, part.measured.starts, part.measured.ends, strict=True)
        if step.lane == lane and hi > lo
    ]


def overlapping(report: Report, lane: str, other: str) -> int:
    """How many steps of a lane were under way together with a step of another."""
    others = spans(report, other)
    return sum(any(lo < end and begin < hi for begin, end in others) for lo, hi in spans(report, lane))
