"""Names of files: what they are opened as, and what is said of those that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ooc
from ooc.ir.region import whole

tifffile = pytest.importorskip("tifffile")
MAKERS = ["svs", "scn", "btf", "qptiff", "lsm", "SVS"]


@pytest.mark.parametrize("suffix", ["tif", "ndpi", *MAKERS])
def test_names_of_makers_are_known(suffix: str, tmp_path: Path) -> None:
    """What is missing is the file."""
    with pytest.raises(ooc.StoreError, match="No such file"):
        ooc.open(tmp_path / f"x.{suffix}")


@pytest.mark.parametrize("suffix", MAKERS)
def test_tiffs_of_makers_are_opened(suffix: str, tmp_path: Path) -> None:
    """By what they are, with series and levels as any other; none is written under such a name."""
    path, x = tmp_path / f"x.{suffix}", np.random.default_rng(1).integers(0, 255, (64, 48), np.uint8)
    with tifffile.TiffWriter(path, bigtiff=suffix == "btf") as file:
        file.write(x, subifds=1, tile=(16, 16))
        file.write(x[::2, ::2], subfiletype=1, tile=(16, 16))
    for text, wanted in ((f"{path}", x), (f"{path}:0/1", x[::2, ::2]), (f"{path}:0/1::3:9", x[::2, ::2][3:9])):
        with ooc.open(text) as source:
            found = np.empty(source.shape, source.dtype)
            source.read(whole(source.shape), found)
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ooc.UnsupportedError, match=r"only read; write \.tif"):
        ooc.create(tmp_path / f"y.{suffix}", (4, 4), "u1")


@pytest.mark.parametrize(
    ("inside", "told"),
    [("2", "no series 2; the file has 0 to 1"), ("0/2", "series 0 has no level 2; it has 0 to 1"),
     ("1/1", "series 1 has no level 1; it has 0 alone"), ("9/9", "no series 9; the file has 0 to 1")],
)  # fmt: skip
def test_levels_that_are_not_there(inside: str, told: str, tmp_path: Path) -> None:
    x = np.zeros((64, 48), np.uint8)
    with tifffile.TiffWriter(tmp_path / "x.tif") as file:
        file.write(x, subifds=1, tile=(16, 16))
        file.write(x[::2, ::2], subfiletype=1, tile=(16, 16))
        file.write(np.zeros((5, 7), np.uint16))
    with pytest.raises(ooc.ShapeError, match=told):
        ooc.open(f"{tmp_path}/x.tif:{inside}")


@pytest.mark.parametrize("version", [2, 3])
def test_an_array_has_no_levels(version: int, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "x.zarr", shape=(4, 4), dtype="u1", zarr_format=version)
    with pytest.raises(ooc.ShapeError, match="an array, which has no levels; leave ':0' away"):
        ooc.open(f"{tmp_path}/x.zarr:0")


@pytest.mark.parametrize("version", [2, 3])
def test_an_array_without_axes(version: int, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "x.zarr", shape=(), dtype="f4", zarr_format=version)[...] = 7
    with ooc.open(tmp_path / "x.zarr", "r+") as source:
        found = np.empty((), "f4")
        source.read((), found)
        assert found == 7
        source.write((), np.array(9, "f4"))
    assert zarr.open_array(tmp_path / "x.zarr")[...] == 9
