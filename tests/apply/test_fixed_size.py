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


def fixed(path: Path, size: tuple[int, ...], last: bool = False, bound: bool = True) -> Any:
    """A network for one size. bound: to it, by a constant of that size."""
    w = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    z = np.zeros(size, np.float32)
    nodes = [node("Conv", "t w" if last else "x w", "a", pads=[1, 1, 1, 1])]
    nodes += [node("Add", "a z", "b")] if bound else []
    nodes += [node("Relu", "b" if bound else "a", "r" if last else "y")]
    if last:
        nodes = [node("Transpose", "x", "t", perm=[0, 3, 1, 2]), *nodes, node("Transpose", "r", "y", perm=[0, 2, 3, 1])]
    model = onnx_files.model_of(
        nodes, {"x": [1, *size, 3] if last else [1, 3, *size]}, ["y"], {"w": w, **({"z": z} if bound else {})}
    )
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


@pytest.mark.parametrize("last", [False, True])
def test_a_size_that_no_node_needs_is_forgotten(last: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The network on the whole, as one that was exported with open axes; it is told, and verified."""
    model = fixed(tmp_path / "m.onnx", (16, 24), last, bound=False)
    x = np.random.default_rng(2).standard_normal((1, 3, 40, 48)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    given = ["--input", f"{tmp_path}/x.npy", "--axes", "ncyx", "--output", f"{tmp_path}/y.npy"]
    assert main(["apply", f"{tmp_path}/m.onnx", *given, "--verify", "3"]) == 0
    told = capsys.readouterr().out
    assert "was exported for 16x24; all its nodes compute the same at any size" in told and "3 windows" in told
    dim = model.graph.input[0].type.tensor_type.shape.dim
    for axis in (1, 2) if last else (2, 3):
        dim[axis].Clear()
    (y,) = onnx_files.by_runtime(model, {"x": np.moveaxis(x, 1, -1) if last else x})
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), np.moveaxis(y, -1, 1) if last else y, atol=1e-4)


POOL = ("MaxPool", "x", "b", {"kernel_shape": [2, 2], "strides": [2, 2]})
FREE = {
    "scales": [
        POOL, ("Resize", "b none scales", "c", {"mode": "nearest"}), ("Concat", "c x", "d", {"axis": 1}),
        ("Conv", "d w", "e", {"pads": [1, 1, 1, 1]}), ("Softmax", "e", "y", {"axis": 1}),
    ],
    "each channel": [("Mul", "x each", "a", {}), ("Add", "a one", "b", {}), ("PRelu", "b each", "y", {})],
    "whole": [("GlobalAveragePool", "x", "a", {}), ("Sigmoid", "a", "b", {}), ("Mul", "x b", "y", {})],
}  # fmt: skip
BOUND = {
    "sizes": [POOL, ("Resize", "b none none sizes", "y", {"mode": "nearest"})],
    "each column": [("Mul", "x columns", "y", {})],
    "flat": [("Flatten", "x", "a", {}), ("Relu", "a", "y", {})],
    "a window of all": [("AveragePool", "x", "a", {"kernel_shape": [16, 16]}), ("Mul", "x a", "y", {})],
    "along columns": [("Softmax", "x", "y", {"axis": 3})],
    "rows behind rows": [("Concat", "x x", "y", {"axis": 2})],
    "to a shape": [("Reshape", "x shape", "y", {})],
}


@pytest.mark.parametrize("name", [*FREE, *BOUND])
def test_every_node_has_a_say(name: str) -> None:
    from ooc.onnx.freeing import frees

    values = {
        "w": np.zeros((4, 6, 3, 3), np.float32), "none": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32),
        "each": np.zeros((3, 1, 1), np.float32), "one": np.zeros((), np.float32), "sizes": np.array([1, 3, 16, 16]),
        "columns": np.zeros(16, np.float32), "shape": np.array([1, 3, 256]),
    }  # fmt: skip
    nodes = [node(kind, reads, makes, **how) for kind, reads, makes, how in {**FREE, **BOUND}[name]]
    read = {one for _, reads, _, _ in {**FREE, **BOUND}[name] for one in reads.split()}
    model = onnx_files.model_of(nodes, {"x": [1, 3, 16, 16]}, ["y"], {k: v for k, v in values.items() if k in read})
    assert frees(model) is (name in FREE)
