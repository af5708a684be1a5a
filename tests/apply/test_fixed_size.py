"""Networks that were exported for one size, which is what exporters do unless they are told otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooc.cli.main import main

onnx = pytest.importorskip("onnx")
onnx_files = pytest.importorskip("onnx_files")
node = pytest.importorskip("apply_files").node


def fixed(path: Path, size: tuple[int, ...], last: bool = False) -> Any:
    w = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [node("Conv", "t w" if last else "x w", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "r" if last else "y")]
    if last:
        nodes = [node("Transpose", "x", "t", perm=[0, 3, 1, 2]), *nodes, node("Transpose", "r", "y", perm=[0, 2, 3, 1])]
    model = onnx_files.model_of(nodes, {"x": [1, *size, 3] if last else [1, 3, *size]}, ["y"], {"w": w})
    onnx.save(model, path)
    return model


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("size", "window"), [((16, 16), "16x16"), ((16, 24), "16x24")])
def test_windows_of_its_size_are_the_remedy(
    size: tuple[int, ...], window: str, last: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The window that the error names works, and its values are those of the network."""
    model = fixed(tmp_path / "m.onnx", size, last)
    x = np.random.default_rng(2).standard_normal((1, 3, 40, 48)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    given = ["--input", f"{tmp_path}/x.npy", "--axes", "ncyx", "--output", f"{tmp_path}/y.npy"]
    assert main(["apply", f"{tmp_path}/m.onnx", *given]) == 2
    error = capsys.readouterr().err
    assert f"takes {window} alone, the input has 40x48; --semantics window={window}" in error and "dynamic axes" in error
    assert main(["apply", f"{tmp_path}/m.onnx", *given, "--semantics", f"window={window},overlap=0"]) == 0
    corner = x[:, :, : size[0], : size[1]]
    (y,) = onnx_files.by_runtime(model, {"x": np.moveaxis(corner, 1, -1) if last else corner})
    y = np.moveaxis(y, -1, 1) if last else y
    np.testing.assert_allclose(np.load(tmp_path / "y.npy")[:, :, : size[0] // 2, : size[1] // 2],
                               y[:, :, : size[0] // 2, : size[1] // 2], atol=1e-4)  # fmt: skip


def test_memory_is_of_this_process_alone(tmp_path: Path) -> None:
    """A large process that starts the command does not count; its own memory does."""
    fixed(tmp_path / "m.onnx", (64, 64))
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 64, 64), "f4"))
    command = [sys.executable, "-m", "ooc", "apply", "m.onnx", "--input", "x.npy", "--output", "y.npy", "--json"]
    code = (
        "import json, resource, subprocess\nheld = bytearray(b'1') * (700 << 20)\n"
        f"told = json.loads(subprocess.run({command}, capture_output=True, check=True).stdout)\n"
        "print(told['resident_bytes'], len(held))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    resident, held = map(int, done.stdout.split())
    assert 10 << 20 < resident < held
