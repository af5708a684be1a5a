"""Devices, plans and reports go to other processes and come back; what is remembered, and memory, stay where they are."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated_driver import EmulatedCuda, EmulatedDriver

import ooc
from ooc.backends.cuda import backend as cuda
from ooc.errors import UnsupportedError
from ooc.model.calibration import load_device
from ooc.ops.descriptor import parse
from ooc.runtime.device import Device
from ooc.schedule.place import Place

LAYER = "conv.fprop n=4 c=16 h=64 w=64 k=16 r=3 s=3 pad=1"
DEVICES: dict[str, Callable[[], Device]] = {
    "cpu": lambda: ooc.device("cpu", "1 MiB"),
    "every limit": lambda: ooc.device("cpu", "1 MiB", pinned="64 KiB", workspace="32 KiB", threads=2, deterministic=True),
    "calibrated": lambda: ooc.device("cpu", threads=1, calibration="h100"),
    "null": lambda: ooc.device("null", "80%", calibration="rtx4090"),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda found: pickle.loads(pickle.dumps(found)), "copy": copy.copy, "deepcopy": copy.deepcopy,
}  # fmt: skip
LIMITS = ("model", "device_bytes", "pinned_bytes", "workspace_bytes", "deterministic", "workspace_yields")


def limits(device: Device) -> list[Any]:
    return [getattr(device, name) for name in LIMITS]


def planned(device: Device) -> Any:
    op = parse(LAYER)
    return device.planner.plans(op, {o.name: Place.HOST for o in op.operands})


@pytest.mark.quick
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DEVICES)
def test_a_device_again_plans_the_same(name: str, way: str) -> None:
    device = DEVICES[name]()
    plans = planned(device)
    again = WAYS[way](device)
    assert type(again) is Device and limits(again) == limits(device) and planned(again) == plans
    had, has = vars(device.backend), vars(again.backend)
    assert {k: has[k] for k in has if not k.startswith("_")} == {k: had[k] for k in had if not k.startswith("_")}


@pytest.mark.quick
def test_a_device_again_computes_the_same() -> None:
    x, w = np.random.default_rng(0).random((2, 4, 32, 32)), np.random.default_rng(1).random((4, 4, 3, 3))
    device = ooc.device("cpu", "32 KiB", pinned="32 KiB")
    with device:
        wanted = ooc.conv(x, w)
    with pickle.loads(pickle.dumps(device)):
        found = ooc.conv(x, w)
        report = ooc.last_report()
    np.testing.assert_array_equal(found, wanted)
    assert report is not None and report.tiles > 1 and report.peak_bytes <= 32 << 10


@pytest.mark.quick
def test_nothing_that_is_remembered_travels() -> None:
    device = ooc.device("cpu", "1 MiB")
    fresh = len(pickle.dumps(device))
    planned(device)
    assert device.model.known and len(pickle.dumps(device)) == fresh
    assert not pickle.loads(pickle.dumps(device)).model.known


def test_another_process_takes_a_device() -> None:
    program = (
        "import pickle, sys; device = pickle.load(sys.stdin.buffer); import ooc\n"
        f"with device: print(ooc.plan({LAYER!r}).to_json())"
    )
    device = ooc.device("cpu", "256 KiB", threads=1)
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(device), capture_output=True, check=True)
    with device:
        assert ooc.Plan.from_json(done.stdout.decode()) == ooc.plan(LAYER)


@pytest.mark.parametrize("way", ("pickle", "deepcopy"))
def test_a_cuda_device_is_opened_again(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def driver(index: int) -> EmulatedDriver:
        opened.append(index)
        found = EmulatedDriver()
        found.index = index
        return found

    monkeypatch.setattr(cuda, "CupyDriver", driver)
    monkeypatch.setattr(cuda, "_opened", {})
    backend = EmulatedCuda(None, True, 3, 1)
    device = Device(backend, load_device("h200"), 1 << 20, 1 << 18, 1 << 16, True)
    plans = planned(device)
    again = WAYS[way](device)
    assert opened == [1, 1] and again.backend is not backend and again.backend.driver is not backend.driver
    assert again.backend.index == 1 and again.backend.copy_threads == 3 and again.backend.families is backend.families
    assert limits(again) == limits(device) and planned(again) == plans
    assert copy.copy(device).backend is backend


def test_a_cuda_device_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pickle.dumps(Device(EmulatedCuda(EmulatedDriver()), load_device("h200")))

    def missing(index: int) -> EmulatedDriver:
        raise UnsupportedError(f"device 'cuda:{index}': this machine has 0 CUDA device(s)")

    monkeypatch.setattr(cuda, "CupyDriver", missing)
    with pytest.raises(UnsupportedError, match="cuda:0"):
        pickle.loads(kept)


@pytest.mark.quick
@pytest.mark.parametrize("way", WAYS)
def test_reports_and_plans_come_back_equal(way: str) -> None:
    with ooc.device("cpu", "32 KiB"):
        ooc.conv(np.ones((2, 8, 64, 64), np.float32), np.ones((8, 8, 3, 3), np.float32), padding=1)
    report = ooc.last_report()
    assert report is not None
    again = WAYS[way](report)
    assert again == report and str(again) == str(report) and again._repr_html_() == report._repr_html_()
    plan = WAYS[way](report.plans[0])
    assert plan == report.plans[0] and hash(plan) == hash(report.plans[0]) and str(plan) == str(report.plans[0])
