"""Parameters in memory beside tensors in files are used where they are; with everything in memory, all of it moves."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import assert_right, execute

import ooc
from ooc.backends.cpu.backend import CpuBackend
from ooc.ops.descriptor import parse
from ooc.schedule.budget import parse_bytes
from ooc.schedule.place import Place

N, C, K, SIZE = 4, 32, 48, 12
BUDGET = "128 KiB"
RNG = np.random.default_rng(0)
X, W, DY = (RNG.integers(-2, 3, s).astype(np.float32) for s in ((N, C, SIZE, SIZE), (K, C, 3, 3), (N, K, SIZE, SIZE)))


def mapped(path: Path, values: Any) -> Any:
    array = np.memmap(path, values.dtype, "w+", shape=values.shape)
    array[...] = values
    array.flush()
    return array


def places(budget: str = BUDGET) -> dict[str, Place]:
    """Of the last call, which has kept to its plans, and they to their budget."""
    report = ooc.last_report()
    assert report is not None
    assert report.peak_bytes <= max(plan.peak_bytes for plan in report.plans) <= parse_bytes(budget, 1)  # type: ignore[operator]
    return {name: place for plan in report.plans for name, place in plan.places}


def moved() -> int:
    report = ooc.last_report()
    assert report is not None
    return report.lane_bytes.get("h2d", 0) + report.lane_bytes.get("d2h", 0)


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", BUDGET, "256 KiB"])
def test_filters_are_read_where_they_are(tmp_path: Path, budget: str) -> None:
    x, bias = mapped(tmp_path / "x", X), np.ones(K, np.float32)
    expected = ooc.conv(X, W, bias, padding=1)
    with ooc.device("cpu", budget, threads=2):
        np.testing.assert_array_equal(ooc.conv(x, W, bias, padding=1), expected)
        assert places(budget) == {"x": Place.DISK, "w": Place.DEVICE, "b": Place.DEVICE, "y": Place.HOST}
        told = ooc.plan(f"conv.fprop n={N} c={C} h={SIZE} w={SIZE} k={K} r=3 s=3 pad=1 bias=1", places={"x": "disk"})
        assert dict(told.places) == places(budget) and told.tile == ooc.last_report().plans[0].tile  # type: ignore[union-attr]


@pytest.mark.parametrize("make", [lambda w: w[:, :, ::-1, ::-1], np.asfortranarray, lambda w: w.repeat(2, 0)[::2]])
def test_filters_of_any_strides(tmp_path: Path, make: Any) -> None:
    x, w = mapped(tmp_path / "x", X), make(W)
    with ooc.device("cpu", BUDGET, threads=2):
        y = ooc.conv(x, w, padding=1)
        assert places()["w"] is Place.DEVICE
    np.testing.assert_array_equal(y, ooc.conv(X, w, padding=1))


def test_filters_that_no_kernel_walks_through_are_copied(tmp_path: Path) -> None:
    raw = np.zeros(W.nbytes + 1, np.uint8)
    w = raw[1:].view(np.float32).reshape(W.shape)
    w[...] = W
    x = mapped(tmp_path / "x", X)
    with ooc.device("cpu", BUDGET, threads=2):
        y = ooc.conv(x, w, padding=1)
        assert places()["w"] is Place.HOST and moved() >= W.nbytes
    np.testing.assert_array_equal(y, ooc.conv(X, W, padding=1))


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", BUDGET, "256 KiB"])
def test_gradients_are_summed_where_they_are(tmp_path: Path, budget: str) -> None:
    x, dy = mapped(tmp_path / "x", X), mapped(tmp_path / "dy", DY)
    expected = ooc.conv_backward(X, W, DY, padding=1)
    out = np.full((C, K, 3, 3), np.nan, np.float32).transpose(1, 0, 2, 3)
    with ooc.device("cpu", budget, threads=2):
        found = ooc.conv_backward(x, W, dy, padding=1, dw=out, dx=mapped(tmp_path / "dx", X))
        where = places(budget)
        assert where["dw"] is where["db"] is where["w"] is Place.DEVICE and moved() == 0
    assert found.dw is out
    for name in ("dx", "dw", "db"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", ["4 KiB", BUDGET])
def test_sums_in_place_in_any_order_of_steps(budget: str, seed: int) -> None:
    """dx, dw and db in one pass; the steps have no races, and any order that they allow gives the same."""
    conv = f"n={N} c={C} h={SIZE} w={SIZE} k={K} r=3 s=3 pad=1"
    op = parse(f"dy>db! reduce.bias n={N} k={K} h={SIZE} w={SIZE} | x,dy>dw! conv.wgrad {conv} | dy,w>dx! conv.dgrad {conv}")
    told = ooc.plan(op, budget, device="cpu", places=dict.fromkeys(("x", "dy", "dx"), "disk"))
    assert {n for n, place in told.places if place is Place.DEVICE} == {"w", "dw", "db"}
    assert "dw" not in {buffer.name for buffer in told.spill_buffers}
    plan = replace(told, in_turn=False, depth=1)
    arrays, backend = {"x": X, "w": W, "dy": DY}, CpuBackend(threads=2)
    assert_right(op, execute(plan, arrays, backend, random.Random(seed)), arrays, backend, plan.kernel, "")


def test_all_in_memory_moves_all() -> None:
    with ooc.device("cpu", BUDGET, threads=2):
        ooc.conv(X, W, padding=1)
        assert Place.DEVICE not in places().values() and moved() >= X.nbytes + W.nbytes + DY.nbytes


def test_a_ring_takes_everything(tmp_path: Path) -> None:
    x = mapped(tmp_path / "x", X)
    with ooc.device("cpu", BUDGET, threads=2, pinned="64 KiB"):
        ooc.conv(x, W, padding=1)
        assert Place.DEVICE not in places().values()
