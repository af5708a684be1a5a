"""Functions of ooc on files that were opened by path."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

import ooc
from ooc.api.foreign import known
from ooc.ir.region import Span, whole


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


@pytest.mark.parametrize("suffix", ["zarr", "h5:/x", "png"])
def test_files_that_are_decoded(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read once into a raw copy, and written when they are closed."""
    pytest.importorskip({"zarr": "zarr", "h5:/x": "h5py", "png": "PIL"}[suffix])
    x = default_rng(2).integers(0, 9, (61, 83)).astype(np.uint8)
    with ooc.create(tmp_path / f"x.{suffix}", x.shape, x.dtype) as made:
        made.write(whole(x.shape), x)
    y = tmp_path / f"y.{suffix}"
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with ooc.open(tmp_path / f"x.{suffix}") as source, ooc.create(y, (60, 82), np.uint8) as sink:
        kernel = np.ones((1, 1, 2, 2), np.float32)
        with ooc.device("cpu", budget="8 KiB"):
            ooc.conv(known("x", source)[None, None], kernel, out=known("out", sink)[None, None])
        wanted = ooc.conv(x[None, None].astype(np.float32), kernel)[0, 0].astype(np.uint8)
        found = np.empty((60, 82), np.uint8)
        sink.read(whole(found.shape), found)  # what was written is there at once
        np.testing.assert_array_equal(found, wanted)
    with ooc.open(y) as source:
        source.read(whole(found.shape), found)
    np.testing.assert_array_equal(found, wanted)
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("shards", [None, (2, 4, 16, 16)])
def test_zarr_to_zarr(tmp_path: Path, shards: tuple[int, ...] | None) -> None:
    """Tiles that are no whole chunks or shards, into whole ones."""
    pytest.importorskip("zarr")
    x = default_rng(3).integers(-3, 4, (2, 3, 21, 30)).astype(np.float32)
    w = default_rng(4).integers(-3, 4, (4, 3, 3, 3)).astype(np.float32)
    with ooc.create(tmp_path / "x.zarr", x.shape, x.dtype, chunks=(1, 2, 8, 8)) as made:
        made.write(whole(x.shape), x)
    shape = (2, 4, 21, 30)
    with (
        ooc.open(tmp_path / "x.zarr") as source,
        ooc.create(tmp_path / "y.zarr", shape, np.float32, chunks=(1, 2, 8, 8), shards=shards) as sink,
        ooc.device("cpu", budget="24 KiB"),
    ):
        ooc.conv(source, w, padding=1, out=sink)
    with ooc.open(tmp_path / "y.zarr") as source:
        found = np.empty(shape, np.float32)
        source.read(whole(shape), found)
    np.testing.assert_array_equal(found, ooc.conv(x, w, padding=1))


def test_a_call_that_fails_hands_nothing_on(tmp_path: Path) -> None:
    pytest.importorskip("zarr")

    def fail(tile: int, tiles: int) -> None:
        raise KeyError

    with (
        pytest.raises(KeyError),
        ooc.create(tmp_path / "y.zarr", (1, 1, 8, 8), np.float32) as sink,
    ):
        ooc.conv(np.ones((1, 1, 8, 8), np.float32), np.ones((1, 1, 1, 1), np.float32), out=sink, callbacks=[fail])
    with ooc.open(tmp_path / "y.zarr") as source:
        found = np.ones((1, 1, 8, 8), np.float32)
        source.read(whole(found.shape), found)
    assert not found.any()


def test_what_is_changed_in_place(tmp_path: Path) -> None:
    """A file that is opened for reading and writing keeps what is not written."""
    pytest.importorskip("zarr")
    x = default_rng(5).standard_normal((1, 2, 20, 20)).astype(np.float32)
    with ooc.create(tmp_path / "x.zarr", x.shape, x.dtype, chunks=(1, 1, 7, 7)) as made:
        made.write(whole(x.shape), x)
    with ooc.open(tmp_path / "x.zarr", mode="r+") as source:
        part = known("part", source)[:, 1:]
        ooc.activation(part, "relu", out=part)
    with ooc.open(tmp_path / "x.zarr") as source:
        found = np.empty_like(x)
        source.read(whole(x.shape), found)
    np.testing.assert_array_equal(found, np.concatenate([x[:, :1], np.maximum(x[:, 1:], 0)], 1))


def test_what_was_written_before_stays(tmp_path: Path) -> None:
    """A part by region, another by a function, into a new file of chunks."""
    pytest.importorskip("zarr")
    x = default_rng(6).standard_normal((1, 2, 8, 8)).astype(np.float32)
    with ooc.create(tmp_path / "y.zarr", x.shape, x.dtype, chunks=(1, 1, 8, 8)) as sink:
        sink.write((Span(0, 1), Span(0, 1), Span(0, 8), Span(0, 8)), np.ascontiguousarray(x[:, :1]))
        ooc.activation(np.ascontiguousarray(x[:, 1:]), "relu", out=known("out", sink)[:, 1:])
    with ooc.open(tmp_path / "y.zarr") as source:
        found = np.empty_like(x)
        source.read(whole(x.shape), found)
    np.testing.assert_array_equal(found, np.concatenate([x[:, :1], np.maximum(x[:, 1:], 0)], 1))
