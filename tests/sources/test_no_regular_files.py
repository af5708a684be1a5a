"""Pipes, sockets and devices are told at once: reading them may wait for ever."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import no_hang

import ooc
from ooc.cli.main import main
from ooc.networks.checkpoint import saved
from ooc.sources.raw import RawSource


def onnx_model(path: str) -> Any:
    import ooc.onnx

    return ooc.onnx.load(path, (1, 1, 8, 8))


def program(path: str) -> Any:
    from ooc.apply.models import opened

    return opened(path)


FILES: dict[str, Callable[[str], Any]] = {
    "x.npy": ooc.open, "x.tif": ooc.open, "x.h5:/x": ooc.open, "x.nii": ooc.open, "x.nii.gz": ooc.open, "x.png": ooc.open,
    "x.jpg": ooc.open, "x.bmp": ooc.open, "x.zarr": ooc.open, "x.zarr/zarr.json": lambda path: ooc.open(path[:-10]),
    "x.zarr/.zarray": lambda path: ooc.open(path[:-8]), "net.onnx": onnx_model, "net.pt2": program,
    "graph.json": lambda path: ooc.Graph.from_json(Path(path)), "state.ooc": lambda path: saved(path).__enter__(),
    "raw": lambda path: RawSource(path, path, (4,), np.dtype("f4"), 0),
}  # fmt: skip
NEEDS = {
    "bmp": "PIL", "png": "PIL", "jpg": "PIL", "tif": "tifffile", "h5": "h5py", "nii": "nibabel", "onnx": "onnx", "pt2": "torch",
}  # fmt: skip


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)  # such names are short
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [pipe, listener, device, folder])
@pytest.mark.parametrize("name", FILES)
def test_it_is_refused_at_once(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    pytest.importorskip(next((package for ending, package in NEEDS.items() if f".{ending}" in name), "numpy"))
    if name == "x.zarr" and make is folder:
        pytest.skip("that is one")
    if name == "raw" and make is folder:
        pytest.skip("told as it is read")
    path = tmp_path / name.partition(":")[0]
    path.parent.mkdir(exist_ok=True)
    make(path)
    with no_hang(), pytest.raises(ooc.OocError) as refused:
        FILES[name](f"{tmp_path}/{name}")
    assert path.name.partition(".json")[0] in str(refused.value)
    if make is not folder and name != "x.zarr" and name[:7] != "x.zarr/":  # there such a thing is as good as nothing
        assert "no regular file" in str(refused.value)


@pytest.mark.parametrize("chunk", ["c/0", "c/1"])
def test_a_chunk_of_zarr(chunk: str, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    with ooc.create(tmp_path / "x.zarr", (8,), "f4", chunks=(4,)) as made:
        made.write(((0, 8),), np.arange(8, dtype="f4"))
    os.remove(tmp_path / "x.zarr" / chunk)
    os.mkfifo(tmp_path / "x.zarr" / chunk)
    with no_hang(), ooc.open(tmp_path / "x.zarr") as source, pytest.raises(ooc.StoreError, match="no regular file"):
        source.read(((0, 8),), np.empty(8, "f4"))


def test_data_beside_an_onnx_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    apply_files = pytest.importorskip("apply_files")
    apply_files.volume_network(tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    os.remove(tmp_path / "net.bin")
    os.mkfifo(tmp_path / "net.bin")
    with no_hang(), pytest.raises(ooc.StoreError, match="constant"):
        onnx_model(f"{tmp_path}/net.onnx")


def test_a_network_is_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "x.npy")
    os.mkfifo(tmp_path / "net.onnx")
    args = ["apply", "net.onnx", "--input", "x.npy", "--output", "y.npy"]
    with no_hang():
        assert main([name if name[0] == "-" or name == "apply" else f"{tmp_path}/{name}" for name in args]) == 2
    assert "no regular file" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "x.npy"]
