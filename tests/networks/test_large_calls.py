"""Calls of more elements than a GPU's fast kernels take are computed in parts; which kernels compute a step is told."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from emulated_driver import emulated
from networks import data, run

import ooc
from ooc.backends import gpu_workspace
from ooc.ir.op import numpy_dtype
from ooc.model.calibration import load_device
from ooc.networks import Graph, models
from ooc.runtime.device import Device


def graph(depth: int = 0, dtype: str = "f32") -> Graph:
    """Convolutions whose tensors have some thousand elements, of pictures or of volumes."""
    g = Graph("large")
    h = g.conv(g.input("x", (3, *((depth,) if depth else ()), 12, 12), dtype), 8, 3, padding=1, bias=True, activation="relu")
    h = g.conv(g.conv(h, 8, 3, padding=1), 4, 3, padding=1, stride=2)
    g.loss("cross_entropy", g.linear(g.flatten(h), 5, bias=True))
    return g


@pytest.mark.parametrize(("batch", "depth", "dtype"), [(4, 0, "f32"), (1, 0, "f32"), (1, 4, "f32"), (4, 0, "f16"), (1, 0, "f16")])
def test_parts_of_the_batch_and_of_a_sample(batch: int, depth: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if cuDNN took 700 elements at most: the same results, by cuDNN alone."""

    def result() -> tuple[int, dict[str, np.ndarray]]:
        made, where = graph(depth, dtype), Device(emulated(3, cudnn=True), load_device("p100"))
        plan = made.plan(batch=batch, policy="keep", device=where, optimizer=ooc.SGD(0.05, 0.9))
        assert any(name.startswith("cudnn") for name in plan.kernels) and "plain" not in plan.kernels
        x, labels = data(made, batch)
        return len(plan.steps()), run(plan, x.astype(numpy_dtype(dtype)), labels)

    steps, wanted = result()
    monkeypatch.setattr(gpu_workspace, "MOST", 700)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # no tile is refused
        more, got = result()
    assert more > steps + 8
    for name, array in wanted.items():
        room = 1e-2 if dtype == "f16" else 1e-4
        np.testing.assert_allclose(got[name], array, rtol=room, atol=room / 10, err_msg=name)


@pytest.mark.parametrize(
    ("name", "batches", "sizes"),
    [("vgg16", (64, 256, 668, 1024), {}), ("resnet50", (64, 256, 512, 1024), {}), ("unet3d", (1, 2, 4, 8), {"side": 128})],
)
@pytest.mark.parametrize("device", ["h200", pytest.param("p100", marks=pytest.mark.slow)])
def test_no_step_of_the_papers_networks_is_hopeless(
    device: str, name: str, batches: tuple[int, ...], sizes: dict[str, int]
) -> None:
    """Where memory has no end, every step comes near its bound, without kernels that nobody would choose."""
    for batch in batches:
        plan = models.named(name, **sizes).plan(batch=batch, policy="keep", device=ooc.device("null", calibration=device))
        assert "plain" not in plan.kernels, plan.kernels
        assert plan.predicted_seconds <= 1.35 * plan.bound_seconds, f"{batch}: {plan}"


@pytest.mark.parametrize("device", ["h200", "p100"])
def test_a_volume_of_256(device: str) -> None:
    plan = models.unet3d(side=256).plan(batch=1, policy="keep", device=ooc.device("null", calibration=device))
    assert plan.predicted_seconds <= 1.1 * plan.bound_seconds


def test_more_memory_is_no_slower() -> None:
    where = ooc.device("null", calibration="h200")
    much, little = (models.vgg(16).plan(batch=1024, budget=f"{n} GiB", device=where).predicted_seconds for n in (120, 16))
    assert much <= little


def test_kernels_of_a_step_are_told() -> None:
    plan = graph().plan(batch=4, policy="keep", device=ooc.device("null", calibration="h200"))
    assert sum(calls for calls, _ in plan.kernels.values()) == len(plan.network.calls)
    assert sum(seconds for _, seconds in plan.kernels.values()) == pytest.approx(plan.lane_seconds["compute"])
    assert json.loads(plan.to_json())["kernels"] == {name: list(told) for name, told in plan.kernels.items()}
    assert all(f"{name} {calls} calls" in str(plan) for name, (calls, _) in plan.kernels.items())
