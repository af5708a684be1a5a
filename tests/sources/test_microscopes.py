"""Files of electron microscopes (.mrc) and of Imaris (.ims): read by region, with where positions lie."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.sources.geometry import Spacing, geometry_of

h5py = pytest.importorskip("h5py")
RNG = np.random.default_rng(2)
MODES = {"i1": 0, "i2": 1, "f4": 2, "c8": 4, "u2": 6, "f2": 12}


def mrc(array: Any, order: str = "<", group: int = 1, extended: int = 0, samples: int = 0, **change: Any) -> bytes:
    """A file of a tensor. samples: sections of a volume, where there are several."""
    nz, ny, nx = (
        (*[1] * (3 - array.ndim), *array.shape) if array.ndim < 4 else (array.shape[0] * array.shape[1], *array.shape[2:])
    )
    header = bytearray(1024)
    mode = change.get("mode", MODES.get(array.dtype.str[1:], 2))
    struct.pack_into(f"{order}10i", header, 0, nx, ny, nz, mode, 0, 0, 0, nx, ny, samples or nz)
    struct.pack_into(f"{order}3f", header, 40, nx * 2.5, ny * 2.5, (samples or nz) * 5.0)
    struct.pack_into(f"{order}3i", header, 64, *change.get("axes", (1, 2, 3)))
    struct.pack_into(f"{order}2i", header, 88, group, change.get("told", extended))
    struct.pack_into(f"{order}3f", header, 196, 1.0, 2.0, 3.0)
    header[208:212] = change.get("name", b"MAP ")
    header[212:214] = change.get("stamp", b"\x44\x44" if order == "<" else b"\x11\x11")
    return bytes(header) + b"x" * extended + array.astype(array.dtype.newbyteorder(order)).tobytes()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", MODES)
def test_a_volume(dtype: str, order: str, tmp_path: Path) -> None:
    array = (RNG.standard_normal((4, 6, 8)) * 50).astype(dtype)
    (tmp_path / "a.mrc").write_bytes(mrc(array, order, extended=80))
    with ooc.open(tmp_path / "a.mrc") as source:
        np.testing.assert_array_equal(source, array)
        np.testing.assert_array_equal(source[1:3, ::2, 5], array[1:3, ::2, 5])
        assert source.axes == "zyx" and source.dtype == array.dtype
        expected = {"z": Spacing(5, 3, "angstrom"), "y": Spacing(2.5, 2, "angstrom"), "x": Spacing(2.5, 1, "angstrom")}
        assert geometry_of(source) == expected


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", ["i1", "f4"])
def test_older_files_have_no_stamp(dtype: str, order: str, tmp_path: Path) -> None:
    array = (RNG.standard_normal((4, 6, 8)) * 50).astype(dtype)
    (tmp_path / "a.mrc").write_bytes(mrc(array, order, stamp=b"\0\0"))
    with ooc.open(tmp_path / "a.mrc") as source:
        np.testing.assert_array_equal(source, array)


def test_stacks(tmp_path: Path) -> None:
    images, volumes = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 5, 6), (2, 3, 5, 6)))
    (tmp_path / "a.mrcs").write_bytes(mrc(images, group=0))
    (tmp_path / "b.map").write_bytes(mrc(volumes, group=401, samples=3))
    for name, array, axes in (("a.mrcs", images, "tyx"), ("b.map", volumes, "tzyx")):
        with ooc.open(tmp_path / name) as source:
            np.testing.assert_array_equal(source, array)
            assert source.axes == axes


def test_the_library_reads_the_same(tmp_path: Path) -> None:
    library = pytest.importorskip("mrcfile")
    array = RNG.standard_normal((4, 6, 8)).astype(np.float32)
    with library.new(tmp_path / "a.mrc") as file:
        file.set_data(array)
        file.set_volume()
        file.voxel_size = 1.5
    with ooc.open(tmp_path / "a.mrc") as source:
        np.testing.assert_array_equal(source, array)
        assert source.axes == "zyx" and geometry_of(source)["x"] == Spacing(1.5, 0, "angstrom")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"stamp": b"\x22\x22"}, ooc.StoreError), ({"name": b"xxxx"}, ooc.StoreError),
        ({"mode": 3}, ooc.UnsupportedError), ({"axes": (3, 2, 1)}, ooc.UnsupportedError), ({"told": -1}, ooc.StoreError),
        ({"told": 1 << 30}, ooc.StoreError),
    ],
)  # fmt: skip
def test_headers_that_make_no_sense(change: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "a.mrc").write_bytes(mrc(np.zeros((2, 3, 4), np.float32), **change))
    with pytest.raises(error, match=r"a\.mrc"):
        ooc.open(tmp_path / "a.mrc")


@pytest.mark.parametrize("length", [0, 100, 1023, 1030])
def test_a_file_that_was_cut_off(length: int, tmp_path: Path) -> None:
    (tmp_path / "a.mrc").write_bytes(mrc(np.zeros((2, 3, 4), np.float32))[:length])
    with pytest.raises(ooc.StoreError, match=r"a\.mrc"):
        ooc.open(tmp_path / "a.mrc")


# ---------------------------------------------------------------- Imaris


def letter_by_letter(text: Any) -> Any:
    return np.frombuffer(str(text).encode(), "S1")


def imaris(path: Path, array: Any, levels: int = 2) -> None:
    """A file as Imaris writes it. array: t c z y x."""
    times, channels, *extent = array.shape
    with h5py.File(path, "w") as file:
        image = file.create_group("DataSetInfo/Image")
        for axis, (e, step) in enumerate(zip(extent[::-1], (0.5, 0.5, 2.0), strict=True)):
            image.attrs[f"ExtMin{axis}"], image.attrs[f"ExtMax{axis}"] = letter_by_letter(1.0), letter_by_letter(1.0 + e * step)
        image.attrs["Unit"] = letter_by_letter("um")
        for level in range(levels):
            part = array[..., :: 2**level, :: 2**level]
            for t in range(times):
                for c in range(channels):
                    group = file.create_group(f"DataSet/ResolutionLevel {level}/TimePoint {t}/Channel {c}")
                    for letter, e in zip("ZYX", part.shape[2:], strict=True):
                        group.attrs[f"ImageSize{letter}"] = letter_by_letter(e)
                    filled = np.zeros([-(-e // 8) * 8 for e in part.shape[2:]], array.dtype)
                    filled[tuple(slice(e) for e in part.shape[2:])] = part[t, c]
                    group.create_dataset("Data", data=filled, chunks=(8, 8, 8), compression="gzip")


@pytest.mark.parametrize(("times", "channels", "axes"), [(1, 1, "zyx"), (1, 2, "czyx"), (3, 1, "tzyx"), (2, 3, "tczyx")])
def test_all_times_and_channels(times: int, channels: int, axes: str, tmp_path: Path) -> None:
    array = RNG.integers(0, 99, (times, channels, 5, 12, 18)).astype(np.uint16)
    imaris(tmp_path / "a.ims", array)
    for level in (0, 1):
        with ooc.open(f"{tmp_path}/a.ims:{level}" if level else tmp_path / "a.ims") as source:
            expected = array[..., :: 2**level, :: 2**level].reshape(source.shape)
            np.testing.assert_array_equal(source, expected)
            np.testing.assert_array_equal(source[..., 1:4, 2, 3:], expected[..., 1:4, 2, 3:])
            assert source.axes == axes
            lies = geometry_of(source)
            assert lies["z"] == Spacing(2, 2, "micrometer") and lies["x"].step == pytest.approx(0.5 * 18 / source.shape[-1])
    with ooc.open(tmp_path / "a.ims") as source:  # as any other
        x = source.expand_dims(0) if len(axes) == 4 else source.expand_dims((0, 1)) if axes == "zyx" else None
        if x is not None:
            np.testing.assert_array_equal(ooc.max_pool(x, 2), ooc.max_pool(x[...], 2))


@pytest.mark.parametrize("kind", ["bytes", "text", "array", "variable"])
def test_sizes_however_they_are_written(kind: str, tmp_path: Path) -> None:
    array = RNG.integers(0, 99, (1, 1, 12, 100, 120)).astype(np.uint16)
    imaris(tmp_path / "a.ims", array, 1)
    makes = {"bytes": np.bytes_, "text": str, "array": lambda text: np.array([text], "S3")}
    makes["variable"] = lambda text: np.array([text], dtype=h5py.string_dtype())
    with h5py.File(tmp_path / "a.ims", "r+") as file:
        group = file["DataSet/ResolutionLevel 0/TimePoint 0/Channel 0"]
        for letter, extent in zip("ZYX", array.shape[2:], strict=True):
            group.attrs[f"ImageSize{letter}"] = makes[kind](str(extent))
    with ooc.open(tmp_path / "a.ims") as source:
        np.testing.assert_array_equal(source, array[0, 0])


def test_files_that_are_none(tmp_path: Path) -> None:
    imaris(tmp_path / "a.ims", RNG.integers(0, 9, (1, 2, 4, 8, 8)).astype(np.uint8))
    for path, error in (("a.ims:2", "no level 2"), ("a.ims:x", "expected a level")):
        with pytest.raises(ooc.ArgumentError, match=error):
            ooc.open(tmp_path / path)
    for mode in ("r+",):
        with pytest.raises(ooc.UnsupportedError, match="only read"):
            ooc.open(tmp_path / "a.ims", mode)
    with pytest.raises(ooc.UnsupportedError, match="only read"):
        ooc.create(tmp_path / "b.ims", (3, 3), "u1")
    with h5py.File(tmp_path / "empty.ims", "w"):
        pass
    (tmp_path / "no.ims").write_bytes(b"none")
    with h5py.File(tmp_path / "a.ims", "r+") as file:
        del file["DataSet/ResolutionLevel 0/TimePoint 0/Channel 1/Data"]
        file["DataSet/ResolutionLevel 0/TimePoint 0/Channel 1/Data"] = np.zeros((8, 8), np.uint8)
    for name in ("empty.ims", "no.ims", "a.ims"):
        with pytest.raises(ooc.OocError, match=name):
            ooc.open(tmp_path / name)


def test_it_leads_to_no_files_elsewhere(tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    imaris(secret / "b.ims", RNG.integers(0, 9, (1, 1, 4, 8, 8)).astype(np.uint8))
    (tmp_path / "here").mkdir()
    with h5py.File(tmp_path / "here" / "a.ims", "w") as file:
        file["DataSet"] = h5py.ExternalLink(str(secret / "b.ims"), "/DataSet")
    with pytest.raises(ooc.StoreError, match="leads to"):
        ooc.open(tmp_path / "here" / "a.ims")
    with ooc.open(tmp_path / "here" / "a.ims", trust=True) as source:
        assert source.shape == (4, 8, 8)
