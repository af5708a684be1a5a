"""Pipes, sockets and devices are told at once: reading them may wait for ever."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

CODE = "import sys, ooc\ntry:\n    {call}\nexcept ooc.OocError as error:\n    print(type(error).__name__, error)\n"
OPEN = "ooc.open(sys.argv[1])"
FILES = {
    "x.npy": OPEN, "x.tif": OPEN, "x.h5:/x": OPEN, "x.nii": OPEN, "x.nii.gz": OPEN, "x.png": OPEN, "x.jpg": OPEN, "x.bmp": OPEN,
    "x.zarr": OPEN, "x.zarr/zarr.json": OPEN.replace("[1]", "[1][:-10]"), "x.zarr/.zarray": OPEN.replace("[1]", "[1][:-8]"),
    "net.onnx": "import ooc.onnx; ooc.onnx.load(sys.argv[1], (1, 1, 8, 8))",
    "net.pt2": "from ooc.apply.models import opened; opened(sys.argv[1])",
    "graph.json": "from pathlib import Path; ooc.Graph.from_json(Path(sys.argv[1]))",
    "state.ooc": "from ooc.networks.checkpoint import saved; saved(sys.argv[1]).__enter__()",
    "raw": "from ooc.sources.raw import RawSource; import numpy; RawSource(sys.argv[1], sys.argv[1], (4,), numpy.dtype('f4'), 0)",
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
    code = CODE.format(call=FILES[name])
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    assert "Error" in done.stdout and path.name.partition(".json")[0] in done.stdout
    if make is not folder and name != "x.zarr" and name[:7] != "x.zarr/":  # there such a thing is as good as nothing
        assert "no regular file" in done.stdout


@pytest.mark.parametrize("chunk", ["c/0", "c/1"])
def test_a_chunk_of_zarr(chunk: str, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    import ooc

    with ooc.create(tmp_path / "x.zarr", (8,), "f4", chunks=(4,)) as made:
        made.write(((0, 8),), np.arange(8, dtype="f4"))
    os.remove(tmp_path / "x.zarr" / chunk)
    os.mkfifo(tmp_path / "x.zarr" / chunk)
    code = CODE.format(call="import numpy; ooc.open(sys.argv[1]).read(((0, 8),), numpy.empty(8, 'f4'))")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.zarr")], capture_output=True, text=True, timeout=120)
    assert "StoreError" in done.stdout and "no regular file" in done.stdout, done.stderr


def test_data_beside_an_onnx_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    apply_files = pytest.importorskip("apply_files")
    apply_files.volume_network(tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    os.remove(tmp_path / "net.bin")
    os.mkfifo(tmp_path / "net.bin")
    code = CODE.format(call="import ooc.onnx; ooc.onnx.load(sys.argv[1], (1, 1, 8, 8, 8))")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "net.onnx")], capture_output=True, text=True, timeout=120)
    assert "StoreError" in done.stdout and "constant" in done.stdout, done.stderr


def test_a_network_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")
    os.mkfifo(tmp_path / "net.onnx")
    args = ["apply", "net.onnx", "--input", "x.npy", "--output", "y.npy"]
    done = subprocess.run([sys.executable, "-m", "ooc", *args], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "no regular file" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "x.npy"]
