"""A file of a stranger's does not show what lies outside its folder; who trusts it says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.cli.main import main

SECRET = np.arange(64, dtype="f4").reshape(1, 1, 8, 8)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Where the file is that is named, and where others are."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    SECRET.tofile(tmp_path / "there" / "secret.bin")
    return tmp_path / "here", tmp_path / "there"


def h5(path: Path, fill: Callable[[Any, Any], Any]) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        fill(h5py, file)
    return path


def other(there: Path) -> Path:
    return h5(there / "other.h5", lambda h5py, f: f.create_dataset("x", data=SECRET))


def external(here: Path, there: Path) -> str:
    kept = [(str(there / "secret.bin"), 0, SECRET.nbytes)]
    return f"{h5(here / 'a.h5', lambda h5py, f: f.create_dataset('x', SECRET.shape, 'f4', external=kept))}:/x"


def _virtual(source: str) -> Callable[[Any, Any], Any]:
    def fill(h5py: Any, file: Any) -> None:
        layout = h5py.VirtualLayout(SECRET.shape, "f4")
        layout[...] = h5py.VirtualSource(source, "x", SECRET.shape)
        file.create_virtual_dataset("x", layout)

    return fill


def virtual(here: Path, there: Path) -> str:
    return f"{h5(here / 'a.h5', _virtual(str(other(there))))}:/x"


def virtual_above(here: Path, there: Path) -> str:
    other(there)
    return f"{h5(here / 'a.h5', _virtual('../there/other.h5'))}:/x"


def virtual_of_external(here: Path, there: Path) -> str:
    """Through a file that lies beside it."""
    inner = external(here, there).partition(":")[0]
    os.rename(inner, here / "inner.h5")
    return f"{h5(here / 'a.h5', _virtual('inner.h5'))}:/x"


def virtual_behind_a_link(here: Path, there: Path) -> str:
    (here / "b.h5").symlink_to(other(there))
    return f"{h5(here / 'a.h5', _virtual('b.h5'))}:/x"


def external_link(here: Path, there: Path) -> str:
    path = str(other(there))
    return f"{h5(here / 'a.h5', lambda h5py, f: f.__setitem__('y', h5py.ExternalLink(path, '/x')))}:/y"


def external_group(here: Path, there: Path) -> str:
    """A link on the way."""
    path = str(other(there))
    return f"{h5(here / 'a.h5', lambda h5py, f: f.__setitem__('g', h5py.ExternalLink(path, '/')))}:/g/x"


def soft_link(here: Path, there: Path) -> str:
    """To a link to another file."""
    path = str(other(there))

    def fill(h5py: Any, file: Any) -> None:
        file["g/y"] = h5py.ExternalLink(path, "/x")
        file["z"] = h5py.SoftLink("/g/y")

    return f"{h5(here / 'a.h5', fill)}:/z"


def zarr(here: Path) -> Path:
    pytest.importorskip("zarr")
    with ooc.create(here / "a.zarr", SECRET.shape, "f4", chunks=(1, 1, 4, 8)) as made:
        made.write(tuple((0, e) for e in SECRET.shape), SECRET)
    return here / "a.zarr"


def moved(path: Path, there: Path) -> None:
    """A part of it lies elsewhere, behind a link."""
    os.rename(path, there / path.name)
    path.symlink_to(there / path.name)


def zarr_chunk(here: Path, there: Path, part: str = "c/0/0/1/0") -> str:
    made = zarr(here)
    moved(made / part, there)
    return str(made)


def zarr_folder(here: Path, there: Path) -> str:
    return zarr_chunk(here, there, "c/0")


def zarr_metadata(here: Path, there: Path) -> str:
    return zarr_chunk(here, there, "zarr.json")


def zarr_array(here: Path, there: Path) -> str:
    made = zarr(there)
    (here / "g.zarr").mkdir()
    (here / "g.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    (here / "g.zarr" / "x").symlink_to(made)
    return str(here / "g.zarr/x")


def zarr_2(here: Path, there: Path) -> str:
    library = pytest.importorskip("zarr")
    made = library.create_array(here / "a.zarr", shape=SECRET.shape, chunks=(1, 1, 4, 8), dtype="f4", zarr_format=2)
    made[...] = SECRET
    moved(here / "a.zarr" / "0.0.1.0", there)
    return str(here / "a.zarr")


WAYS = [
    external, virtual, virtual_above, virtual_of_external, virtual_behind_a_link, external_link, external_group, soft_link,
    zarr_chunk, zarr_folder, zarr_metadata, zarr_array, zarr_2,
]  # fmt: skip


def read(path: str, **options: Any) -> Any:
    with ooc.open(path, **options) as found:
        held = np.empty(found.shape, found.dtype)
        found.read(tuple((0, e) for e in found.shape), held)
    return held


@pytest.mark.parametrize("way", WAYS)
def test_nothing_outside_is_read(way: Callable[[Path, Path], str], folders: tuple[Path, Path]) -> None:
    path = way(*folders)
    with pytest.raises(ooc.StoreError, match=r"(?s)outside.*trust=True"):
        read(path)
    assert np.array_equal(read(path, trust=True), SECRET)


@pytest.mark.parametrize("way", [virtual, zarr_chunk])
def test_the_command_line_may_trust(way: Callable[[Path, Path], str], folders: tuple[Path, Path], capsys: Any) -> None:
    apply_files = pytest.importorskip("apply_files")
    here, there = folders
    path = way(here, there)
    net = here / "net.onnx"
    weights = {"w": np.ones((1, 1, 1, 1), np.float32)}
    import onnx
    from onnx_files import model_of

    onnx.save(model_of([apply_files.node("Conv", "x w", "y")], {"x": ["n", 1, "h", "w"]}, ["y"], weights), net)
    for i, more in enumerate(([], ["--resume"])):
        args = ["apply", str(net), "--input", path, "--output", str(here / f"y{i}.npy"), *more]
        assert main(args) == 2 and "--trust" in capsys.readouterr().err
        if more:
            continue
        assert main([*args, "--trust", "--overwrite"]) == 0 and np.array_equal(np.load(here / f"y{i}.npy"), SECRET)
    assert main(["apply", str(net), "--input", path, "--output", str(here / "z.npy"), "--resume", "--trust"]) == 0
    assert np.array_equal(np.load(here / "z.npy"), SECRET)


def test_parts_of_a_picture_elsewhere_are_not_opened(folders: tuple[Path, Path]) -> None:
    tifffile = pytest.importorskip("tifffile")
    here, there = folders
    os.mkfifo(there / "b.tif")  # who opens it waits for ever
    mine, other = ("urn:uuid:" + c * 8 + "-1111-1111-1111-111111111111" for c in "12")
    plane = '<TiffData IFD="0" FirstZ="{}" PlaneCount="1"><UUID FileName="{}">{}</UUID></TiffData>'
    text = (
        f'<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="{mine}"><Image ID="Image:0">'
        '<Pixels ID="P:0" DimensionOrder="XYCZT" Type="uint8" SizeX="8" SizeY="8" SizeC="1" SizeZ="2" SizeT="1">'
        f"{plane.format(0, 'a.ome.tif', mine)}{plane.format(1, '../there/b.tif', other)}</Pixels></Image></OME>"
    )
    tifffile.imwrite(here / "a.ome.tif", np.ones((8, 8), "u1"), description=text, metadata=None)
    with pytest.raises(ooc.StoreError, match="outside"):
        ooc.open(here / "a.ome.tif")
    beside = text.replace("../there/b.tif", "b.tif")
    tifffile.imwrite(here / "a.ome.tif", np.ones((8, 8), "u1"), description=beside, metadata=None)
    tifffile.imwrite(here / "b.tif", np.ones((8, 8), "u1"))
    with pytest.raises(ooc.UnsupportedError, match="several files"):
        ooc.open(here / "a.ome.tif")


def test_nothing_outside_is_written(folders: tuple[Path, Path]) -> None:
    here, there = folders
    pytest.importorskip("h5py")
    path = external_group(here, there)
    before = (there / "other.h5").read_bytes()
    with pytest.raises(ooc.StoreError, match="outside"):
        ooc.create(path.replace("/g/x", "/g/new"), (4,), "f4")
    with pytest.raises(ooc.StoreError, match="outside"):
        ooc.open(path, "r+")
    assert (there / "other.h5").read_bytes() == before
    made = zarr_chunk(here, there)
    before = (there / "0").read_bytes()
    with ooc.open(made, "r+") as found, pytest.raises(ooc.StoreError, match="outside"):
        found.write(((0, 1), (0, 1), (4, 8), (0, 8)), np.zeros((1, 1, 4, 8), "f4"))
    assert (there / "0").read_bytes() == before


def test_what_is_named_may_be_a_link_and_lead_to_its_neighbours(folders: tuple[Path, Path], monkeypatch: Any) -> None:
    here, there = folders
    h5(there / "a.h5", _virtual("other.h5"))
    other(there)
    (here / "link.h5").symlink_to(there / "a.h5")
    assert np.array_equal(read(f"{there}/a.h5"), SECRET) and np.array_equal(read(f"{here}/link.h5:/x"), SECRET)
    kept = [("secret.bin", 0, SECRET.nbytes)]
    monkeypatch.chdir(there)
    h5(there / "b.h5", lambda h5py, f: f.create_dataset("x", SECRET.shape, "f4", external=kept))
    assert np.array_equal(read("b.h5"), SECRET)
    made = zarr(there)
    (here / "link.zarr").symlink_to(made)
    assert np.array_equal(read(f"{here}/link.zarr"), SECRET)
    os.rename(made / "c/0/0/1/0", made / "c/0/0/1/kept")
    (made / "c/0/0/1/0").symlink_to("kept")
    assert np.array_equal(read(str(made)), SECRET)


@pytest.mark.parametrize("location", ["in.bin\0x", "../there/secret.bin", "a/../../there/secret.bin"])
def test_constants_of_onnx_lie_beside_it(location: str, folders: tuple[Path, Path]) -> None:
    onnx = pytest.importorskip("onnx")
    apply_files = pytest.importorskip("apply_files")
    from onnx_files import model_of

    here, _ = folders
    SECRET.tofile(here / "in.bin")
    for as_node in (False, True):
        tensor = onnx.numpy_helper.from_array(np.ones((1, 1, 8, 8), np.float32), "w")
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("length", str(SECRET.nbytes))):
            tensor.external_data.add(key=key, value=value)
        nodes = [apply_files.node("Conv", "x w", "y")]
        if as_node:
            nodes = [onnx.helper.make_node("Constant", [], ["w"], value=tensor), *nodes]
        model = model_of(nodes, {"x": [1, 1, 8, 8]}, ["y"], {})
        if not as_node:
            model.graph.initializer.append(tensor)
        (here / "net.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ooc.OocError):
            ooc.onnx.load(here / "net.onnx")
