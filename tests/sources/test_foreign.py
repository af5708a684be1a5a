"""Files that other programs wrote: what their libraries read whole is what is read here by region."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooc.errors import ShapeError, UnsupportedError
from ooc.ir.region import Span, whole
from ooc.sources import create
from ooc.sources import open as open_source
from ooc.sources.raw import RawSource
from tests.sources.files import check, numbers, ome

h5py = pytest.importorskip("h5py")
nibabel = pytest.importorskip("nibabel")
tifffile = pytest.importorskip("tifffile")
zarr = pytest.importorskip("zarr")
Image = pytest.importorskip("PIL.Image")


# ---- Zarr


@pytest.mark.parametrize("dtype", ["u1", ">u2", "f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_zarr_2(dtype: str, order: Any, tmp_path: Path, zarr_library: str) -> None:
    want = numbers((11, 13, 9), dtype)
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=2)
    array = group.create_array("a/b", shape=want.shape, dtype=dtype, chunks=(4, 5, 3), order=order)
    array[...] = want
    array.attrs["_ARRAY_DIMENSIONS"] = ["Z", "Y", "X"]
    with open_source(tmp_path / "x.zarr/a/b", "r+") as source:
        assert source.axes == "zyx" and source.own(whole((1, 1, 1))) == whole((4, 5, 3))
        check(source, want.astype(want.dtype.newbyteorder("=")))
        source.write(whole(want.shape), (want[::-1]).astype(source.dtype))
    np.testing.assert_array_equal(array[...], want[::-1])


@pytest.mark.parametrize("shards", [None, (8, 10, 6)])
def test_zarr_3(shards: Any, tmp_path: Path, zarr_library: str) -> None:
    want = numbers((11, 13, 9), "f4")
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=want.shape, dtype="f4", chunks=(4, 5, 3), shards=shards)
    array[...] = want
    with open_source(tmp_path / "x.zarr") as source:
        assert source.axes == "" and source.own(whole((1, 1, 1))) == whole(shards or (4, 5, 3))
        check(source, want)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
def test_a_codec_that_tensorstore_lacks_is_read_by_zarr(tmp_path: Path, zarr_library: str) -> None:
    from zarr.codecs import numcodecs

    want = numbers((11, 13), "u2")
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=want.shape, dtype="u2", chunks=(4, 5), compressors=numcodecs.Zlib())
    array[...] = want
    with open_source(tmp_path / "x.zarr") as source:
        check(source, want)


def test_chunks_that_were_never_written_are_the_fill_value(tmp_path: Path, zarr_library: str) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), shape=(9, 9), dtype="u2", chunks=(4, 4), fill_value=7)
    with open_source(tmp_path / "x.zarr") as source:
        check(source, np.full((9, 9), 7, "u2"), count=4)


@pytest.mark.parametrize("version", [2, 3])
def test_ome_zarr(version: int, tmp_path: Path, zarr_library: str) -> None:
    levels = [numbers((2, 20, 30), "u2"), numbers((2, 10, 15), "u2", 1)]
    ome(tmp_path / "x.ome.zarr", levels, version)
    for text, want in (("", levels[0]), (":0", levels[0]), (":1", levels[1]), ("/s1", levels[1])):
        with open_source(f"{tmp_path}/x.ome.zarr{text}") as source:
            assert source.axes == ("" if text == "/s1" else "cyx")
            check(source, want, count=6)
    with open_source(f"{tmp_path}/x.ome.zarr:1::0,:,3:9") as source:
        assert source.axes == "yx"
        check(source, levels[1][0, :, 3:9], count=4)
    with pytest.raises(ShapeError, match="0 to 1"):
        open_source(f"{tmp_path}/x.ome.zarr:2")


# ---- TIFF


TIFFS = [
    ((40, 50), "yx", {"tile": (16, 32), "compression": "zlib"}),
    ((40, 50), "yx", {"rowsperstrip": 7, "compression": "lzw", "predictor": True}),
    ((40, 50), "yx", {"tile": (16, 16)}),
    ((40, 50, 3), "yxs", {"photometric": "rgb", "tile": (16, 16), "compression": "zstd"}),
    ((3, 40, 50), "syx", {"photometric": "rgb", "planarconfig": "separate", "tile": (16, 32), "compression": "zlib"}),
    ((4, 40, 50), "zyx", {"compression": "zlib", "metadata": {"axes": "ZYX"}, "photometric": "minisblack"}),
    ((2, 3, 19, 21), "tcyx", {"rowsperstrip": 4, "compression": "zlib", "metadata": {"axes": "TCYX"},
                              "photometric": "minisblack"}),
    ((20, 40, 50), "zyx", {"tile": (8, 16, 16), "compression": "zlib", "volumetric": True, "metadata": {"axes": "ZYX"},
                           "photometric": "minisblack"}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4"])
@pytest.mark.parametrize("shape,axes,options", TIFFS)
def test_compressed_tiff(shape: tuple[int, ...], axes: str, options: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    want = numbers(shape, dtype)
    if options.get("predictor") and dtype == "f4":
        options = options | {"predictor": 3}
    tifffile.imwrite(tmp_path / "x.tif", want, **options)
    with open_source(tmp_path / "x.tif") as source:
        assert source.axes == axes and not isinstance(source, RawSource)
        if "tile" in options:
            corner = [s.hi for s in source.own(tuple(Span(0, 1) for _ in shape))]
            tile = [
                dict(zip("zyx", options["tile"][-3:] if len(options["tile"]) == 3 else (1, *options["tile"]))).get(a, 0)
                for a in axes
            ]
            assert all(t in (0, c) for t, c in zip(tile, corner))
        check(source, want)
    with pytest.raises(UnsupportedError, match="uncompressed"):
        open_source(tmp_path / "x.tif", "r+")


@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_plain_tiff_is_read_and_written_in_place(byteorder: Any, tmp_path: Path) -> None:
    want = numbers((3, 20, 30), "u2")
    tifffile.imwrite(tmp_path / "x.tif", want, byteorder=byteorder, photometric="minisblack")
    with open_source(tmp_path / "x.tif", "r+") as source:
        assert source.axes == "qyx" and source.buffer_bytes == 0
        check(source, want)
        source.write((Span(1, 2), Span(3, 9), Span(5, 30)), want[1:2, 3:9, 5:] + 1)
    want[1:2, 3:9, 5:] += 1
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "x.tif"), want)


def test_pyramid_and_series(tmp_path: Path) -> None:
    levels = [numbers((64, 80, 3), "u1"), numbers((32, 40, 3), "u1", 1)]
    options: dict[str, Any] = {"photometric": "rgb", "tile": (16, 16), "compression": "zlib"}
    other = numbers((3, 17, 19), "f4", 2)
    with tifffile.TiffWriter(tmp_path / "x.tif") as file:
        file.write(levels[0], subifds=1, **options)
        file.write(levels[1], subfiletype=1, **options)
        file.write(other, photometric="minisblack")
    for text, want in (("", levels[0]), (":0", levels[0]), (":0/1", levels[1]), (":1", other), (":1/0::2,3:9", other[2, 3:9])):
        with open_source(f"{tmp_path}/x.tif{text}") as source:
            check(source, want, count=6)
    for text in (":2", ":0/2", ":-1", ":a", ":1/1"):
        with pytest.raises(ShapeError):
            open_source(f"{tmp_path}/x.tif{text}")


def test_jpeg_in_tiff(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    smooth = np.add.outer(np.arange(64), np.arange(80))[..., None].repeat(3, 2).astype("u1")
    tifffile.imwrite(tmp_path / "x.tif", smooth, photometric="rgb", tile=(32, 32), compression="jpeg")
    with open_source(tmp_path / "x.tif") as source:
        check(source, tifffile.imread(tmp_path / "x.tif"))


# ---- HDF5


@pytest.mark.parametrize("options", [{}, {"chunks": (3, 8, 5)}, {"chunks": (3, 8, 5), "compression": "gzip", "shuffle": True}])
@pytest.mark.parametrize("dtype", ["u1", ">u2", "f4"])
def test_hdf5(options: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    want = numbers((7, 20, 13), dtype)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("g/d", data=want, **options)
    want = want.astype(want.dtype.newbyteorder("="))
    with open_source(f"{tmp_path}/x.hdf5:/g/d", "r+") as source:
        assert source.own(whole((1, 1, 1))) == whole(options.get("chunks", (1, 1, 1)))
        check(source, want)
        source.write((Span(1, 6), Span(2, 17), Span(0, 4)), want[1:6, 2:17, :4] + 1)  # chunks that are cut: one process writes
    want[1:6, 2:17, :4] += 1
    with open_source(f"{tmp_path}/x.hdf5:g/d") as source:
        check(source, want)


def test_the_only_dataset_needs_no_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = numbers((3, 4), "u1")
    with open_source(tmp_path / "x.h5") as source:
        check(source, numbers((3, 4), "u1"), count=2)
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file["b"] = 1
    with pytest.raises(ShapeError, match="a, b"):
        open_source(tmp_path / "x.h5")


# ---- NIfTI


@pytest.fixture(params=["gzip", "indexed_gzip"])
def gzip_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "indexed_gzip":
        pytest.importorskip("indexed_gzip")
    else:
        monkeypatch.setitem(sys.modules, "indexed_gzip", None)


@pytest.mark.parametrize("kind", ["Nifti1Image", "Nifti2Image"])
@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i2", "f4"])
@pytest.mark.parametrize("shape", [(9, 11), (9, 11, 7), (9, 11, 7, 3)])
def test_nifti(kind: str, dtype: str, shape: tuple[int, ...], tmp_path: Path, gzip_library: None) -> None:
    want = numbers(shape, dtype)
    header = getattr(nibabel, kind.replace("Image", "Header"))(endianness=">" if dtype[0] == ">" else "<")
    image = getattr(nibabel, kind)(want, np.diag([2, 3, 4, 1]), header, dtype=want.dtype)
    for name in ("x.nii", "x.nii.gz"):
        nibabel.save(image, tmp_path / name)
        with open_source(tmp_path / name) as source:
            assert source.axes == "tzyx"[-len(shape) :]
            check(source, want.T.astype(want.dtype.newbyteorder("=")))
            assert (source.buffer_bytes == 0) == (name == "x.nii")


@pytest.mark.parametrize("name", ["x.nii", "x.nii.gz"])
def test_scaled_nifti(name: str, tmp_path: Path, gzip_library: None) -> None:
    stored = numbers((9, 11, 7), "i2")
    image = nibabel.Nifti1Image(stored, None)
    image.header.set_slope_inter(0.5, -3)
    nibabel.save(image, tmp_path / name)
    raw = bytearray(gzip.decompress((tmp_path / name).read_bytes()) if name.endswith("gz") else (tmp_path / name).read_bytes())
    raw[112:120] = np.array([0.5, -3], "<f4").tobytes()  # nibabel wrote its own scale
    raw[352:] = stored.tobytes("F")
    (tmp_path / name).write_bytes(gzip.compress(bytes(raw)) if name.endswith("gz") else raw)
    want = np.asarray(nibabel.load(tmp_path / name).dataobj).T.astype("f4")
    assert want[0, 0, 0] == stored[0, 0, 0] * 0.5 - 3
    with open_source(tmp_path / name) as source:
        check(source, want)
    with pytest.raises(UnsupportedError, match="only read"):
        open_source(tmp_path / name, "r+")


def test_geometry_is_taken_over(tmp_path: Path) -> None:
    affine = np.array([[2, 0, 0, -9], [0, 3, 0, 5], [0, 0, 4, 1], [0, 0, 0, 1.0]])
    image = nibabel.Nifti1Image(numbers((9, 11, 7), "u1"), affine)
    image.header.set_xyzt_units("mm", "sec")
    nibabel.save(image, tmp_path / "x.nii")
    with open_source(tmp_path / "x.nii") as like, create(tmp_path / "y.nii", (2, 7, 11, 9), "f4", like=like) as sink:
        assert sink.axes == "tzyx"
    with open_source(f"{tmp_path}/x.nii::0:3") as like:
        create(tmp_path / "z.nii", (3, 11, 9), "f4", like=like).close()
    for name in ("y.nii", "z.nii"):
        found = nibabel.load(tmp_path / name)
        np.testing.assert_array_equal(found.affine, affine)
        assert found.header.get_zooms()[:3] == (2, 3, 4) and found.header.get_xyzt_units()[0] == "mm"


def test_axes_longer_than_nifti_1_has(tmp_path: Path) -> None:
    with create(tmp_path / "x.nii", (2, 40000), "u1") as sink:
        sink.write(whole((2, 40000)), numbers((2, 40000), "u1"))
    np.testing.assert_array_equal(np.asarray(nibabel.load(tmp_path / "x.nii").dataobj).T, numbers((2, 40000), "u1"))


# ---- pictures


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
@pytest.mark.parametrize("suffix", [".png", ".bmp", ".jpg"])
def test_pictures(mode: str, suffix: str, tmp_path: Path) -> None:
    picture = Image.fromarray(numbers((13, 17, 4), "u1"), "RGBA" if mode != "CMYK" else "CMYK") if mode != "I;16" else None
    picture = Image.fromarray(numbers((13, 17), "u2")) if picture is None else picture.convert("RGB").convert(mode)
    try:
        picture.save(tmp_path / f"x{suffix}")
    except OSError:
        pytest.skip(f"no {mode} in {suffix}")
    with Image.open(tmp_path / f"x{suffix}") as found, open_source(tmp_path / f"x{suffix}") as source:
        want = np.asarray(found.convert("RGB") if found.mode == "P" else found)
        check(source, want, count=6)
        with pytest.raises(UnsupportedError):
            open_source(tmp_path / f"x{suffix}", "r+")


def test_a_large_picture_opens(tmp_path: Path) -> None:
    """58 million pixels, and more than Pillow lets through by itself."""
    for size in ((10800, 5400), (20000, 10000)):
        Image.new("1", size).save(tmp_path / "x.png")
        with open_source(tmp_path / "x.png") as source:
            assert source.shape == size[::-1]
        with open_source(tmp_path / "x.png") as source:
            out = np.ones((2, 3), bool)
            source.read((Span(0, 2), Span(0, 3)), out)
            assert not out.any()


def test_sixteen_bits_of_colour_are_not_halved(tmp_path: Path) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(2 * 6) for _ in range(3))
    header = struct.pack(">IIBBBBB", 2, 3, 16, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (tmp_path / "x.png").write_bytes(png)
    with pytest.raises(UnsupportedError, match="16 bits"):
        open_source(tmp_path / "x.png")
