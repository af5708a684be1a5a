"""OME-Zarr that is written: levels, labels, places, both versions; and what other formats tell of places."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.ir.region import whole
from ooc.sources.geometry import Spacing, geometry_of

zarr = pytest.importorskip("zarr")
RNG = np.random.default_rng(5)
IMAGE = RNG.integers(0, 255, (2, 21, 530, 601)).astype(np.uint8)


def written(path: Path | str, array: Any, axes: str, **options: Any) -> None:
    with ooc.create(path, array.shape, array.dtype, axes, **options) as sink:
        sink.write(whole(sink.shape), array)


def attributes(folder: Path) -> dict[str, Any]:
    """Of a group, as OME has them."""
    if (folder / ".zattrs").exists():
        told: dict[str, Any] = json.loads((folder / ".zattrs").read_text())
        return told
    about: dict[str, Any] = json.loads((folder / "zarr.json").read_text())["attributes"]["ome"]
    return about


def levels(path: Path | str) -> list[Any]:
    count = len(attributes(Path(path))["multiscales"][0]["datasets"])
    return [np.asarray(ooc.open(f"{path}:{level}")) for level in range(count)]


def halved(array: Any, along: tuple[int, ...]) -> Any:
    """Means of boxes, of what there is of them."""
    wide = np.pad(
        array.astype(np.float64), [(0, -e % f) for e, f in zip(array.shape, along, strict=True)], constant_values=np.nan
    )
    shape = [n for e, f in zip(wide.shape, along, strict=True) for n in (e // f, f)]
    return np.nanmean(wide.reshape(shape), axis=tuple(range(1, 2 * array.ndim, 2)))


@pytest.mark.parametrize("version", ["0.5", "0.4"])
def test_levels_are_means(version: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    written(path, IMAGE, "czyx", chunks=(1, 8, 128, 100), ome=version)
    held = levels(path)
    assert [one.shape for one in held] == [(2, 21, 530, 601), (2, 11, 265, 301), (2, 6, 133, 151)]
    np.testing.assert_array_equal(held[0], IMAGE)
    for fine, coarse in itertools.pairwise(held):
        assert np.abs(coarse - halved(fine, (1, 2, 2, 2))).max() <= 0.5 + 1e-4
    image = attributes(path)["multiscales"][0]
    assert [axis["type"] for axis in image["axes"]] == ["channel", "space", "space", "space"] and image["type"] == "mean"
    (scale, moved) = image["datasets"][2]["coordinateTransformations"]
    assert scale == {"type": "scale", "scale": [1, 4, 4, 4]} and moved == {
        "type": "translation",
        "translation": [0, 1.5, 1.5, 1.5],
    }
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == {"0.4": 2, "0.5": 3}[version]
    np.testing.assert_array_equal(group["1"][:], held[1])


@pytest.mark.parametrize("version", ["0.5", "0.4"])
def test_labels_are_taken_not_averaged(version: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    written(path, IMAGE[0], "zyx", ome=version)
    for name, factor in (("cells", 7), ("nuclei", 3)):
        labels = (IMAGE[0] > 100).astype(np.uint16) * factor
        written(f"{path}/labels/{name}", labels, "zyx")
        held = levels(f"{path}/labels/{name}")
        assert len(held) == 3 and {*np.unique(held[2])} == {0, factor}
        np.testing.assert_array_equal(held[1], labels[::2, ::2, ::2])
        assert attributes(path / "labels" / name)["image-label"]["source"] == {"image": "../../"}
    assert attributes(path / "labels")["labels"] == ["cells", "nuclei"]
    assert zarr.open_group(path / "labels" / "cells", mode="r").metadata.zarr_format == {"0.4": 2, "0.5": 3}[version]
    with pytest.raises(ooc.ArgumentError, match="the image is of another version"):
        ooc.create(f"{path}/labels/more", (4, 4), "u1", "yx", ome="0.4" if version == "0.5" else "0.5")


@pytest.mark.parametrize("dtype", ["f4", "f2", "i2", "b1", "c8"])
def test_every_kind_of_number(dtype: str, tmp_path: Path) -> None:
    array = (RNG.standard_normal((300, 301)) * 100).astype(dtype)
    written(tmp_path / "a.ome.zarr", array, "yx")
    fine, coarse = levels(tmp_path / "a.ome.zarr")
    np.testing.assert_array_equal(fine, array)
    assert coarse.dtype == array.dtype and coarse.shape == (150, 151)
    if dtype == "f4":
        np.testing.assert_allclose(coarse, halved(array, (2, 2)), 1e-5, 1e-5)


def test_slices_that_lie_far_apart_are_halved_later(tmp_path: Path) -> None:
    """Until positions lie about as far apart along all axes."""
    written(tmp_path / "like.ome.zarr", np.zeros((20, 30, 30), np.uint8), "zyx")
    group = tmp_path / "like.ome.zarr" / "zarr.json"
    told = json.loads(group.read_text())
    told["attributes"]["ome"]["multiscales"][0]["datasets"][0]["coordinateTransformations"][0]["scale"] = [4.0, 1.0, 1.0]
    group.write_text(json.dumps(told))
    with ooc.open(tmp_path / "like.ome.zarr") as like:
        written(tmp_path / "a.ome.zarr", np.zeros((8, 1100, 1100), np.uint8), "zyx", like=like)
    assert [one.shape for one in levels(tmp_path / "a.ome.zarr")] == [
        (8, 1100, 1100),
        (8, 550, 550),
        (8, 275, 275),
        (4, 138, 138),
    ]


def test_nothing_is_left_half(tmp_path: Path) -> None:
    """An error in the block leaves the finest level, and nothing that says that there are others."""
    with pytest.raises(RuntimeError), ooc.create(tmp_path / "a.ome.zarr", (600, 600), "u1", "yx") as sink:
        sink.write(whole(sink.shape), np.ones((600, 600), np.uint8))
        raise RuntimeError
    assert len(attributes(tmp_path / "a.ome.zarr")["multiscales"][0]["datasets"]) == 1


def test_what_is_refused(tmp_path: Path) -> None:
    def create(path: str, axes: str = "yx", dtype: str = "u1", **options: Any) -> None:
        ooc.create(tmp_path / path, (4,) * len(axes), dtype, axes, **options)

    for error, match, arguments in (
        (ooc.ShapeError, "in this order", {"path": "a.ome.zarr", "axes": "xy"}),
        (ooc.ShapeError, "OME-Zarr has those of", {"path": "a.ome.zarr", "axes": "nyx"}),
        (ooc.ShapeError, "OME-Zarr has those of", {"path": "a.ome.zarr", "axes": ""}),
        (ooc.DtypeError, "labels are integers", {"path": "a.ome.zarr/labels/l", "dtype": "f4"}),
        (ooc.ArgumentError, "expected one of 0.4, 0.5", {"path": "a.ome.zarr", "ome": "0.6"}),
        (ooc.ArgumentError, "images are named", {"path": "a.zarr", "ome": "0.5"}),
        (ooc.OptionError, "expected a version of OME-Zarr", {"path": "a.npy", "ome": "0.5"}),
        (ooc.ArgumentError, "levels have chunks alone", {"path": "a.ome.zarr", "shards": (4, 4)}),
        (ooc.ArgumentError, "levels of OME-Zarr are not written one by one", {"path": "a.ome.zarr:0"}),
    ):
        with pytest.raises(error, match=match):
            create(**arguments)
    assert not (tmp_path / "a.ome.zarr").exists()
    create("a.ome.zarr")
    with pytest.raises(ooc.ArgumentError, match="exists already"):
        create("a.ome.zarr")
    create("a.ome.zarr", overwrite=True)
    create("a.ome.zarr/labels/l")
    with pytest.raises(ooc.ArgumentError, match="holds labels"):
        create("a.ome.zarr", overwrite=True)
    create("a.ome.zarr/labels/l", overwrite=True)


# ---------------------------------------------------------------- places


def test_places_go_along(tmp_path: Path) -> None:
    """From .nii to OME-Zarr and back, of parts and of steps."""
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(np.zeros((12, 10, 8), np.float32), np.diag([0.5, 0.5, 2.0, 1.0]))
    image.header.set_xyzt_units("micron", "sec")
    nibabel.save(image, tmp_path / "a.nii")
    expected = {"z": Spacing(2.0, 0.0, "micrometer"), "y": Spacing(0.5, 0.0, "micrometer"), "x": Spacing(0.5, 0.0, "micrometer")}
    with ooc.open(tmp_path / "a.nii") as like:
        assert geometry_of(like) == expected
    with ooc.open(f"{tmp_path}/a.nii::2:6,:,4:") as like:
        written(tmp_path / "b.ome.zarr", np.zeros((2, 10, 8), np.float32), "zyx", like=like, position={"z": (0.5, 2)})
    moved = {"z": Spacing(4.0, 5.0, "micrometer"), "y": expected["y"], "x": Spacing(0.5, 2.0, "micrometer")}
    with ooc.open(tmp_path / "b.ome.zarr") as source:
        assert geometry_of(source) == moved
        written(tmp_path / "c.nii", np.zeros((2, 10, 8), np.float32), "zyx", like=source)
    again = nibabel.load(tmp_path / "c.nii")
    assert again.header.get_xyzt_units()[0] == "mm" and np.allclose(again.header.get_zooms(), [5e-4, 5e-4, 4e-3])
    assert np.allclose(again.affine[:3, 3], [2e-3, 0, 5e-3])


@pytest.mark.parametrize("name", ["a.ome.tif", "a.tif"])
def test_tiffs_tell_of_places(name: str, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    array = np.zeros((5, 600, 700), np.uint8)
    options: dict[str, Any] = {"resolution": (20000, 10000), "resolutionunit": "CENTIMETER"}
    if "ome" in name:
        sizes = {f"PhysicalSize{axis}": size for axis, size in (("X", 0.5), ("Y", 1.0), ("Z", 3.0))}
        options = {"metadata": {"axes": "ZYX", **sizes, **{f"{name}Unit": "µm" for name in sizes}}}
    tifffile.imwrite(tmp_path / name, array if "ome" in name else array[0], **options)
    with ooc.open(tmp_path / name) as source:
        told = geometry_of(source)
    if "ome" in name:
        assert told == {"z": Spacing(3, 0, "micrometer"), "y": Spacing(1, 0, "micrometer"), "x": Spacing(0.5, 0, "micrometer")}
    else:
        assert told == {"y": Spacing(1e-4, 0, "centimeter"), "x": Spacing(5e-5, 0, "centimeter")}


# ---------------------------------------------------------------- written whole, at the end


@pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "f4", "f8"])
def test_an_ome_tiff_has_tiles_and_levels(dtype: str, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    array = (RNG.standard_normal((2, 3, 530, 601)) * 50 + 128).astype(dtype)
    with ooc.create(tmp_path / "like.ome.zarr", (3, 8, 8), "u1", "zyx") as like:
        like.geometry = {
            "z": Spacing(3, 0, "micrometer"),
            "y": Spacing(0.5, 0, "micrometer"),
            "x": Spacing(5e-4, 0, "millimeter"),
        }
        with ooc.create(tmp_path / "a.ome.tif", array.shape, array.dtype, "czyx", like=like) as sink:
            assert not (tmp_path / "a.ome.tif").exists()
            for z in range(3):  # by region, in any order
                sink.write(((0, 2), (2 - z, 3 - z), (0, 530), (0, 601)), array[:, 2 - z : 3 - z])
    with tifffile.TiffFile(tmp_path / "a.ome.tif") as file:
        (series,) = file.series
        assert file.is_ome and series.axes == "CZYX" and file.pages[0].is_tiled
        held = [level.asarray() for level in series.levels]
        assert file.pages[0].tags["ResolutionUnit"].value == 3
    assert [one.shape for one in held] == [(2, 3, 530, 601), (2, 3, 265, 301), (2, 3, 133, 151)]
    np.testing.assert_array_equal(held[0], array)
    for fine, coarse in itertools.pairwise(held):
        assert np.abs(coarse - halved(fine, (1, 1, 2, 2))).max() <= (0.5 + 1e-4 if array.dtype.kind in "iu" else 1e-3)
    with ooc.open(f"{tmp_path}/a.ome.tif:0/1") as source:
        np.testing.assert_array_equal(source, held[1])
        assert geometry_of(source)["x"].step == pytest.approx(0.5 * 601 / 301) and geometry_of(source)["z"].step == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ome.tif", "like.ome.zarr"]


def test_colours_of_an_ome_tiff(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    array = RNG.integers(0, 255, (520, 300, 3)).astype(np.uint8)
    written(tmp_path / "a.ome.tif", array, "yxs")
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "a.ome.tif"), array)
    with tifffile.TiffFile(tmp_path / "a.ome.tif") as file:
        assert [level.shape for level in file.series[0].levels] == [(520, 300, 3), (260, 150, 3), (130, 75, 3)]


def test_a_compressed_nifti(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    affine = np.array([[0, -0.5, 0, 3], [0.5, 0, 0, 4], [0, 0, 2, 5], [0, 0, 0, 1.0]])
    nibabel.save(nibabel.Nifti1Image(np.zeros((12, 10, 8), np.float32), affine), tmp_path / "like.nii.gz")
    array = RNG.standard_normal((8, 10, 12)).astype(np.float32)
    with ooc.open(tmp_path / "like.nii.gz") as like:
        written(tmp_path / "a.nii.gz", array, "zyx", like=like)
    image = nibabel.load(tmp_path / "a.nii.gz")
    np.testing.assert_array_equal(image.get_fdata(dtype=np.float32).T, array)
    np.testing.assert_allclose(image.affine, affine)
    with ooc.open(tmp_path / "a.nii.gz") as source:
        np.testing.assert_array_equal(source, array)


@pytest.mark.parametrize("name", ["y.ome.tif", "y.nii.gz"])
def test_a_function_writes_there(name: str, tmp_path: Path) -> None:
    x = RNG.standard_normal((1, 1, 20, 30, 40)).astype(np.float32)
    w = np.ones((1, 1, 3, 3, 3), np.float32)
    with ooc.create(tmp_path / name, x.shape[2:], x.dtype, "zyx") as sink:
        ooc.conv(x, w, padding=1, out=sink.expand_dims((0, 1)))
        with ooc.open(tmp_path / name) as source:  # it is whole when the call returns
            np.testing.assert_allclose(source, ooc.conv(x, w, padding=1)[0, 0], 1e-5, 1e-5)


@pytest.mark.parametrize("name", ["y.ome.tif", "y.nii.gz"])
def test_an_error_leaves_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ooc.create(tmp_path / name, (9, 9, 9), "f4", "zyx") as sink:
        sink.write(whole(sink.shape), np.ones((9, 9, 9), np.float32))
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    for wrong, error in ((("xy", "f4"), ooc.ShapeError), (("zyx", "c8"), ooc.DtypeError)):
        if name == "y.ome.tif":
            with pytest.raises(error):
                ooc.create(tmp_path / name, (9,) * len(wrong[0]), wrong[1], wrong[0])


@pytest.mark.parametrize("name", ["y.ome.tif", "y.nii.gz", "y.ome.zarr"])
def test_what_is_refused_leaves_what_was_there(name: str, tmp_path: Path) -> None:
    array = RNG.integers(0, 9, (40, 50)).astype(np.uint8)
    written(tmp_path / name, array, "yx")
    for dtype in ("f2", "f16", "u8") if "tif" in name else ("f2", "c32") if "nii" in name else ("f16",):
        with pytest.raises(ooc.DtypeError):
            ooc.create(tmp_path / name, array.shape, dtype, "yx", overwrite=True)
    with ooc.open(tmp_path / name) as source:
        np.testing.assert_array_equal(source, array)
    if name != "y.ome.zarr":  # nor does an error while it is written anew
        with pytest.raises(RuntimeError), ooc.create(tmp_path / name, array.shape, "u1", "yx", overwrite=True):
            raise RuntimeError
        with ooc.open(tmp_path / name) as source:
            np.testing.assert_array_equal(source, array)
        written(tmp_path / name, array + 1, "yx", overwrite=True)
        with ooc.open(tmp_path / name) as source:
            np.testing.assert_array_equal(source, array + 1)


@pytest.mark.parametrize("dtype", ["u1", "u4", "u8", "i8", "f4", "f8"])
def test_means_of_the_largest_numbers(dtype: str, tmp_path: Path) -> None:
    info = np.finfo(dtype) if dtype[0] == "f" else np.iinfo(dtype)
    for value in (info.max, info.min):
        written(tmp_path / "a.ome.zarr", np.full((3, 300), value, dtype), "yx", overwrite=True)
        (_, coarse) = levels(tmp_path / "a.ome.zarr")
        assert (coarse == value).all()


def test_labels_of_many_writers(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.zarr"
    written(path, np.zeros((4, 4), np.uint8), "yx")
    written(f"{path}/labels/first", np.zeros((4, 4), np.uint8), "yx")
    group = path / "labels" / "zarr.json"
    told = json.loads(group.read_text())
    told["attributes"]["mine"] = told["attributes"]["ome"]["ours"] = 1
    group.write_text(json.dumps(told))
    names = [f"l{i}" for i in range(8)]
    threads = [threading.Thread(target=written, args=(f"{path}/labels/{n}", np.zeros((4, 4), np.uint8), "yx")) for n in names]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    told = json.loads(group.read_text())["attributes"]
    assert {*told["ome"]["labels"]} == {"first", *names} and told["mine"] == told["ome"]["ours"] == 1


def test_places_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    nibabel, tifffile = pytest.importorskip("nibabel"), pytest.importorskip("tifffile")
    nibabel.save(nibabel.Nifti1Image(np.zeros((3, 4, 5), np.float32), np.eye(4)), tmp_path / "a.nii")
    raw = bytearray((tmp_path / "a.nii").read_bytes())
    raw[123] = 255  # units
    (tmp_path / "a.nii").write_bytes(raw)
    written(tmp_path / "a.ome.zarr", np.zeros((4, 4), np.uint8), "yx")
    group = tmp_path / "a.ome.zarr" / "zarr.json"
    group.write_text(group.read_text().replace("1.0,", f"1{'0' * 400},", 1))
    told = "<Pixels PhysicalSizeX='nan' PhysicalSizeY=\"0.5\" PhysicalSizeYUnit='&#181;m' A='" + "a" * 20000 + '"'
    with ooc.open(tmp_path / "a.nii") as one, ooc.open(tmp_path / "a.ome.zarr") as other:
        assert not geometry_of(one) and not geometry_of(other)
    description = f'<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">{told}></OME>'
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 4), np.uint8), description=description.encode(), metadata=None)
    with ooc.open(tmp_path / "a.tif") as source:
        assert {*geometry_of(source)} <= {"y"}


def test_where_a_volume_begins_goes_along(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    affine = np.diag([0.5, 0.5, 2.0, 1.0])
    affine[:3, 3] = 10, 20, 30
    nibabel.save(nibabel.Nifti1Image(np.zeros((8, 10, 12), np.float32), affine), tmp_path / "a.nii")
    with ooc.open(tmp_path / "a.nii") as like:
        written(tmp_path / "b.ome.zarr", np.zeros(like.shape, np.float32), "zyx", like=like)
    with ooc.open(tmp_path / "b.ome.zarr") as like:
        assert [geometry_of(like)[a].origin for a in "xyz"] == [10, 20, 30]
        written(tmp_path / "c.nii", np.zeros(like.shape, np.float32), "zyx", like=like)
    np.testing.assert_allclose(nibabel.load(tmp_path / "c.nii").affine, affine)
