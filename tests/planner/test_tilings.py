"""Tiles suit kernels: what a stride leaps over cuts nothing, depthwise tiles are whole vectors, small ones pack filters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ooc
from ooc.ops.descriptor import parse
from ooc.schedule.place import Place


@pytest.mark.parametrize("out", [1, 2])
def test_what_leaps_in_memory_is_not_cut(out: int) -> None:
    op = parse(f"conv.fprop n=14 c=256 h=56 w=56 k={256 * out} r=1 s=1 stride=2")
    plan = ooc.device("cpu", threads=2, calibration="cpu").planner.plan(op, {o.name: Place.DEVICE for o in op.operands})
    assert plan.tiles == 1


@pytest.mark.parametrize("ratio", [10, 60])
@pytest.mark.parametrize("groups", [128, 144])
def test_depthwise_tiles_are_whole_vectors_of_groups(groups: int, ratio: int) -> None:
    op = parse(f"conv.fprop n=20 c={groups} h=56 w=56 k={groups} r=3 s=3 pad=1 groups={groups}")
    budget = sum(o.nbytes for o in op.operands) // ratio
    plan = ooc.device("cpu", budget, threads=2, calibration="cpu").planner.plan(op, {o.name: Place.DISK for o in op.operands})
    assert dict(plan.tile)["g"] % 16 == 0 and plan.tiles > 1


def test_a_sixtieth_of_the_tensors_is_enough_to_pack_filters(tmp_path: Path) -> None:
    """Plain loops, which need no memory but are far slower, are for less than that."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (30, 512, 14, 14)).astype("f4"), rng.integers(-2, 3, (512, 512, 3, 3)).astype("f4")
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.zeros((30, 512, 196), "f4")
    for r, s in np.ndindex(3, 3):
        expected += w[:, :, r, s] @ around[:, :, r : r + 14, s : s + 14].reshape(30, 512, 196)
    files = [np.memmap(tmp_path / name, "f4", "w+", shape=x.shape) for name in "xy"]
    files[0][...] = x
    budget = 2 * x.nbytes // 60
    with ooc.device("cpu", budget, threads=2, calibration="cpu"):
        ooc.conv(files[0], w, padding=1, out=files[1])
    report = ooc.last_report()
    assert report is not None and report.plans[0].kernel == "native_lean"
    assert 0 < report.peak_bytes <= report.predicted_peak_bytes <= budget
    np.testing.assert_array_equal(files[1].reshape(expected.shape), expected)
