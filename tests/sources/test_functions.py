"""Functions of ooc on files that were opened by path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

import ooc
from ooc.ir.region import whole


@pytest.mark.parametrize("budget", ["24 KiB", "1 MiB"])
@pytest.mark.parametrize("suffix", ["npy", "tif", "nii"])
def test_a_convolution_from_file_to_file(tmp_path: Path, suffix: str, budget: str) -> None:
    """The regions that tiles need are read from the file, and written to it."""
    rng = default_rng(0)
    x, w = rng.integers(-3, 4, (2, 3, 20, 30)).astype(np.float32), rng.integers(-3, 4, (4, 3, 3, 3)).astype(np.float32)
    with ooc.create(tmp_path / f"x.{suffix}", x.shape, x.dtype, "tzyx") as made:
        made.write(whole(x.shape), x)
    with ooc.open(tmp_path / f"x.{suffix}") as source, ooc.create(tmp_path / "y.npy", (2, 4, 20, 30), np.float32) as sink:
        with ooc.device("cpu", budget=budget):
            ooc.conv(source, w, padding=1, out=sink)
        report = ooc.last_report()
        assert report is not None and report.peak_bytes <= {"24 KiB": 24 << 10, "1 MiB": 1 << 20}[budget]
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), ooc.conv(x, w, padding=1))


def test_a_part_of_a_file(tmp_path: Path) -> None:
    x = default_rng(1).integers(0, 9, (4, 2, 9, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    with ooc.open(f"{tmp_path}/x.npy::1:3,:,2:8,:") as source:
        np.testing.assert_array_equal(ooc.max_pool(source, 2), ooc.max_pool(x[1:3, :, 2:8], 2))


def test_a_file_that_is_decoded_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    with ooc.create(tmp_path / "x.png", (8, 9), np.uint8) as made:
        made.write(whole((8, 9)), np.zeros((8, 9), np.uint8))
    with ooc.open(tmp_path / "x.png") as source, pytest.raises(ooc.UnsupportedError, match="x: this file is decoded"):
        ooc.conv(source, np.ones((1, 1, 3, 3), np.float32))
