"""Kernels that no calibration measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ooc.backends.cpu.backend import CpuBackend
from ooc.model.calibration import load_device
from ooc.model.cost import AS_FAST
from ooc.schedule.work import Work
from perfmodel.calibrate.cpu import Samples, kernels


@pytest.mark.parametrize("kernel", AS_FAST)
@pytest.mark.parametrize("kind", ["conv.fprop/f32", "conv.dgrad/f16", "conv.wgrad/f64"])
def test_a_kernel_is_priced_by_the_one_it_is_like(kind: str, kernel: str) -> None:
    model = load_device("cpu")
    like = AS_FAST[kernel]
    assert model.compute(f"{kind}/{kernel}") is model.compute(f"{kind}/{like}") is not model.compute(f"{kind}/plain")
    assert model.entry(f"{kind}/{kernel}") == f"{kind}/{like}"


@pytest.mark.parametrize("kernel", AS_FAST)
def test_an_entry_of_its_own_counts_as_it_is(kernel: str) -> None:
    model, key = load_device("cpu"), f"conv.fprop/f32/{kernel}"
    own = model.compute("conv.fprop/f32/plain")
    assert replace(model, computes={**model.computes, key: own}).compute(key) is own


def test_calibrations_leave_them_out() -> None:
    samples = Samples()
    samples.add({Work(f"conv.fprop/f32/{kernel}", 1e9, 1 << 20, 64.0): 1.0 for kernel in (*AS_FAST, "native")})
    assert list(samples.tiles) == ["conv.fprop/f32/native"]
    assert not {family for _, family in kernels(CpuBackend(threads=2))} & AS_FAST.keys()
