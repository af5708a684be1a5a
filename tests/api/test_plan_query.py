"""`ooc.plan`: what is not given is as on the current device, unless another one is named."""

from __future__ import annotations

from typing import Any

import pytest
from emulated_driver import emulated

import ooc
from ooc.api import plan_query
from ooc.backends.cuda.backend import ROUNDED
from ooc.errors import ShapeError
from ooc.model.calibration import load_device
from ooc.runtime import context
from ooc.runtime.device import Device

CONV = "conv.fprop n=4 c=16 h=56 w=56 k=16 r=3 s=3 pad=1 dtype=f32"


def asked(budget: Any = None, device: str | None = None, calibration: str | None = None) -> Device:
    """The device that plans."""
    return plan_query._device(budget, device, calibration)


def limits(device: Device) -> tuple[Any, ...]:
    return device.pinned_bytes, device.workspace_bytes, device.deterministic, device.workspace_yields


@pytest.mark.parametrize("name", [None, "cpu", "CPU"])
def test_all_else_stays_as_on_the_current_device(name: str | None) -> None:
    own = ooc.device("cpu", "8 MiB", pinned="1 MiB", workspace="2 MiB", threads=1, calibration="h100", deterministic=True)
    with own:
        assert asked(device=name) is own
        for found in asked("4 MiB", name), asked(calibration="p100", device=name), asked("50%", name, "P100"):
            assert found.backend is own.backend and limits(found) == limits(own)
        assert asked("4 MiB", name).device_bytes == 4 << 20 and asked("4 MiB", name).model is own.model
        other = asked(None, name, "p100")
        assert other.device_bytes == 8 << 20 and other.model is load_device("p100")
        plan = ooc.plan(CONV, "4 MiB", device=name)
    assert plan.staged and plan.kernel in ("plain", "reference") and plan.peak_bytes <= 4 << 20
    assert own.device_bytes == 8 << 20


def test_another_kind_of_device_has_nothing_of_the_current_one() -> None:
    with ooc.device("cpu", "8 MiB", pinned="1 MiB", workspace="2 MiB", calibration="h100", deterministic=True):
        found = asked(device="null")
        assert found.backend.name == "null" and found.device_bytes is None and found.model is load_device("cpu")
        assert limits(found) == (None, None, False, False)
        found = asked("1 GiB", "null", "P100")
        assert found.device_bytes == 1 << 30 and found.model is load_device("p100") and found.backend.total_bytes == 16 << 30


def test_a_described_device_stays_described() -> None:
    with ooc.device("null", calibration="h200", workspace="1 GiB") as own:
        found = asked("50%")
        assert found.device_bytes == own.backend.total_bytes // 2 and found.model is own.model
        other = asked("50%", calibration="p100")
        assert other.device_bytes == (16 << 30) // 2 and other.workspace_bytes == 1 << 30


def test_the_same_gpu_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = emulated()
    backend.index, backend.families = 1, ROUNDED
    own = Device(backend, load_device("h200"), 64 << 20, 8 << 20, deterministic=True)
    opened: list[str] = []

    def opening(name: str, *others: Any) -> Any:
        opened.append(name)
        return emulated()

    monkeypatch.setattr(context, "open_backend", opening)
    with own:
        for name in (None, "cuda", "cuda:1", "CUDA:1"):
            found = asked("32 MiB", name)
            assert found.backend is backend and found.model is own.model and found.device_bytes == 32 << 20
            assert limits(found) == limits(own) and not opened
        found = asked("32 MiB", "cuda:0")
        assert opened == ["cuda:0"] and found.backend is not backend and limits(found) == (None, None, False, False)
        assert asked("32 MiB", "auto").backend is backend  # which is a GPU here


def test_outside_any_device_the_environment_s_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOC_BACKEND", "cpu")
    monkeypatch.setenv("OOC_DEVICE_BUDGET", "3 MiB")
    monkeypatch.setattr(context, "_default", context._Default())
    assert asked().device_bytes == asked(device="cpu").device_bytes == asked(calibration="p100").device_bytes == 3 << 20
    assert asked(device="null").device_bytes is None
    monkeypatch.setenv("OOC_BACKEND", "null")
    assert asked(device="null").device_bytes == 3 << 20 and asked(device="cpu").device_bytes is None


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cuda:x", ""])
def test_unknown_devices(name: str) -> None:
    with ooc.device("cpu"), pytest.raises(ShapeError, match="device '"):
        asked(device=name)
