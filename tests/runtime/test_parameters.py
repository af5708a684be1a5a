"""Parameters in memory beside tensors in files are used where they are; with everything in memory, all of it moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
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


def places() -> dict[str, Place]:
    report = ooc.last_report()
    assert report is not None and report.peak_bytes <= 128 << 10
    return {name: place for plan in report.plans for name, place in plan.places}


def moved() -> int:
    report = ooc.last_report()
    assert report is not None
    return report.lane_bytes.get("h2d", 0) + report.lane_bytes.get("d2h", 0)


def test_filters_are_read_where_they_are(tmp_path: Path) -> None:
    x, bias = mapped(tmp_path / "x", X), np.ones(K, np.float32)
    expected = ooc.conv(X, W, bias, padding=1)
    with ooc.device("cpu", BUDGET, threads=2):
        np.testing.assert_array_equal(ooc.conv(x, W, bias, padding=1), expected)
        assert places() == {"x": Place.DISK, "w": Place.DEVICE, "b": Place.DEVICE, "y": Place.HOST}
        told = ooc.plan(f"conv.fprop n={N} c={C} h={SIZE} w={SIZE} k={K} r=3 s=3 pad=1 bias=1", places={"x": "disk"})
        assert dict(told.places) == places() and told.tile == ooc.last_report().plans[0].tile  # type: ignore[union-attr]


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


@pytest.mark.parametrize("budget", ["16 KiB", BUDGET])
def test_gradients_are_summed_where_they_are(tmp_path: Path, budget: str) -> None:
    x, dy = mapped(tmp_path / "x", X), mapped(tmp_path / "dy", DY)
    expected = ooc.conv_backward(X, W, DY, padding=1)
    out = np.full((C, K, 3, 3), np.nan, np.float32).transpose(1, 0, 2, 3)
    with ooc.device("cpu", budget, threads=2):
        found = ooc.conv_backward(x, W, dy, padding=1, dw=out, dx=mapped(tmp_path / "dx", X))
        where = places()
        assert where["dw"] is where["db"] is where["w"] is Place.DEVICE and moved() == 0
    assert found.dw is out
    for name in ("dx", "dw", "db"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_all_in_memory_moves_all() -> None:
    with ooc.device("cpu", BUDGET, threads=2):
        ooc.conv(X, W, padding=1)
        assert Place.DEVICE not in places().values() and moved() >= X.nbytes + W.nbytes + DY.nbytes


def test_a_ring_takes_everything(tmp_path: Path) -> None:
    x = mapped(tmp_path / "x", X)
    with ooc.device("cpu", BUDGET, threads=2, pinned="64 KiB"):
        ooc.conv(x, W, padding=1)
        assert Place.DEVICE not in places().values()
