"""Plans and calls on the emulated device: operands where a plan says they are, arrays as another library has them."""

from __future__ import annotations

import random
import warnings
from typing import Any

import cuda_running
import numpy as np
import pytest
from emulated_driver import EmulatedCuda, Foreign, emulated
from running import Arrays, assert_right

from ooc.api import foreign
from ooc.backends.device_array import DeviceArray
from ooc.ir.op import Op
from ooc.model.calibration import load_device
from ooc.runtime.device import Device
from ooc.schedule.budget import parse_bytes
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from perfmodel.calibrate import cuda as calibrate


def measure_small(patch: pytest.MonkeyPatch) -> None:
    """Calibrations measure a convolution of 8 channels where they look for a small one, one of many small images where they look
    for those, and one of 2 channels and 13 x 13 taps where they look for many: the smallest of a real device's keep the host busy
    for minutes, and quick calibrations take every second one."""
    small = ("n=1 c=8 h=6 w=6 k=8 r=3 s=3 pad=1", "n=16 c=32 h=4 w=4 k=32 r=3 s=3 pad=1")
    every_second = [shape for shape in small for _ in range(2)]
    patch.setattr(calibrate, "CONVS", (*calibrate.CONVS, *every_second))
    patch.setattr(calibrate, "MANY_TAPS", (*calibrate.MANY_TAPS, *["n=1 c=2 h=40 w=40 k=2 r=13 s=13 pad=6"] * 2))


def on(backend: EmulatedCuda, budget: str | None) -> Device:
    """A device over the emulated one, planned with the H200's datasheet."""
    total = backend.total_bytes
    return Device(backend, load_device("h200"), parse_bytes(budget, total))


def execute(plan: Plan, arrays: Arrays, backend: EmulatedCuda, rng: random.Random | None) -> Arrays:
    """The outputs of a plan whose operands are put where it says they are."""
    return cuda_running.execute(plan, arrays, backend, rng, backend.place_copy, backend.peek)


def single_tile(op: Any, arrays: Arrays, backend: Any, kernel: str) -> Arrays:
    """The outputs of one tile that is the whole op, on a device of its own."""
    backend = emulated(0, cudnn=True)
    return cuda_running.single_tile(op, arrays, backend, kernel, backend.place_copy, backend.peek)


def assert_runs(plan: Plan, arrays: Arrays, backend: EmulatedCuda, rng: random.Random) -> None:
    """A plan's results are exact, or what one tile gives, and no kernel falls back to another."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        results = execute(plan, arrays, backend, rng)
    assert_right(plan.op, results, arrays, backend, plan.kernel, str(plan.to_json()), single_tile)


def theirs(backend: EmulatedCuda, array: Any) -> Foreign:
    """An array as another library has it in device memory."""
    placed = backend.place_copy(np.asarray(array), "device")
    return foreign.owner_of(placed)


def read(array: Any) -> Any:
    """What an array holds, wherever it lies."""
    seen = foreign.known("result", array)
    return array.backend.peek(seen) if isinstance(seen, DeviceArray) else np.asarray(array)


@pytest.fixture(autouse=True)
def results_beside_foreign_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results beside arrays of the emulated library are arrays of that library. Import it where it is wanted."""
    monkeypatch.setitem(
        foreign.MAKERS, "emulated_driver", lambda owner, shape, dtype: theirs(owner.backend, np.empty(shape, dtype))
    )


def plan_of(
    op: Op, backend: EmulatedCuda, sizes: dict[str, int], kernel: str = "", place: Place = Place.DEVICE, depth: int = 1
) -> Plan:
    """A plan of tiles of operands that lie somewhere, by a kernel or the first that there is."""
    places = tuple((o.name, place) for o in op.operands)
    offers = backend.offers(op, frozenset(name for name, _ in places if place is Place.DEVICE))
    offer = next(o for o in offers if kernel in ("", o.name))
    whole = op.legal({**op.dims, **sizes})
    return Plan(op, tuple(whole.items()), tuple(op.dims), depth, places, True, False, kernel=offer.name,
                workspace_bytes=int(offer.workspace(whole)))  # fmt: skip
