"""Packages of bioimage.io, built here: `ooc apply package.zip` is the network with what is done before and after it."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

spec = pytest.importorskip("bioimageio.spec")
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
onnx_files = pytest.importorskip("onnx_files")
node = pytest.importorskip("apply_files").node

from bioimageio.spec.model import v0_5  # noqa: E402

from ooc.cli.main import main  # noqa: E402

RNG = np.random.default_rng(4)
AXES = [{"type": "batch"}, {"type": "channel", "channel_names": ["a", "b"]}]
SPACE = [{"type": "space", "id": a, "size": {"min": 8, "step": 4}} for a in "yx"]


def package(folder: Path, before: Sequence[Any], after: Sequence[Any], weights: str = "onnx") -> tuple[Path, Any]:
    """A package of a small network, and the network."""
    w = RNG.standard_normal((3, 2, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("MaxPool", "a", "b", kernel_shape=[4, 4], strides=[4, 4]),
        node("Resize", "b none scales", "y", mode="nearest"),
    ]  # fmt: skip
    values = {"w": w, "none": np.zeros(0, np.float32), "scales": np.array([1, 1, 4, 4], np.float32)}
    model = onnx_files.model_of(nodes, {"x": [1, 2, "h", "w"]}, ["y"], values)
    onnx.save(model, folder / "weights.onnx")
    np.save(folder / "in.npy", np.ones((1, 2, 16, 16), np.float32))
    np.save(folder / "out.npy", np.ones((1, 3, 16, 16), np.float32))
    (folder / "README.md").write_text("# A network\n\n# Validation\n")
    out = [{"type": "batch"}, {"type": "channel", "channel_names": ["k", "l", "m"]}]
    out += [{"type": "space", "id": a, "size": {"tensor_id": "x", "axis_id": a}} for a in "yx"]
    held = {"onnx": {"source": str(folder / "weights.onnx"), "opset_version": 13}}
    if weights != "onnx":
        held = {"torchscript": {"source": str(folder / "weights.onnx"), "pytorch_version": "2.0"}}
    first, last = ({"source": str(folder / name)} for name in ("in.npy", "out.npy"))
    descr = v0_5.ModelDescr(
        name="A network", description="for a test", authors=[{"name": "nobody"}], license="MIT",
        cite=[{"text": "none", "doi": "10.1234/5678"}], documentation={"source": str(folder / "README.md")},
        inputs=[{"id": "x", "axes": AXES + SPACE, "test_tensor": first, "preprocessing": list(before)}],
        outputs=[{"id": "y", "axes": out, "test_tensor": last, "postprocessing": list(after)}],
        weights=held,
    )  # fmt: skip
    spec.save_bioimageio_package(descr, output_path=folder / "package.zip")
    return folder / "package.zip", model


def expected(model: Any, x: Any) -> Any:
    return onnx_files.by_runtime(model, {"x": np.ascontiguousarray(x, np.float32)})[0]


def applied(folder: Path, x: Any, model: Path, *more: str) -> Any:
    np.save(folder / "x.npy", x)
    given = ["apply", str(model), "--input", f"{folder}/x.npy", "--output", f"{folder}/y.npy", "--overwrite", "--quiet", *more]
    assert main(given) == 0
    return np.load(folder / "y.npy")


@pytest.fixture
def x() -> Any:
    return RNG.integers(0, 255, (1, 2, 24, 32)).astype(np.uint8)


CASES: dict[str, Any] = {
    "linear": (
        [{"id": "ensure_dtype", "kwargs": {"dtype": "float32"}},
         {"id": "scale_linear", "kwargs": {"axis": "channel", "gain": [0.5, 0.25], "offset": [1.0, -1.0]}}],
        [{"id": "sigmoid"}], lambda x: x * np.float32([0.5, 0.25]).reshape(2, 1, 1) + np.float32([1, -1]).reshape(2, 1, 1),
        lambda y: 1 / (1 + np.exp(-y)),
    ),
    "moments": (
        [{"id": "zero_mean_unit_variance", "kwargs": {"axes": ["x", "y"]}}], [{"id": "softmax", "kwargs": {"axis": "channel"}}],
        lambda x: (x - x.mean((2, 3), keepdims=True)) / x.std((2, 3), keepdims=True),
        lambda y: np.exp(y) / np.exp(y).sum(1, keepdims=True),
    ),
    "percentiles": (
        [{"id": "scale_range", "kwargs": {"axes": ["channel", "x", "y"], "min_percentile": 1.0, "max_percentile": 99.0}},
         {"id": "clip", "kwargs": {"min": 0.0, "max": 1.0}}],
        [{"id": "binarize", "kwargs": {"threshold": 0.25}}],
        lambda x: np.clip((x - np.percentile(x, 1)) / (np.percentile(x, 99) - np.percentile(x, 1)), 0, 1), lambda y: y > 0.25,
    ),
    "fixed": (
        [{"id": "fixed_zero_mean_unit_variance", "kwargs": {"axis": "channel", "mean": [9.0, 7.0], "std": [2.0, 4.0]}}], [],
        lambda x: (x - np.float32([9, 7]).reshape(2, 1, 1)) / np.float32([2, 4]).reshape(2, 1, 1), lambda y: y,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_done_before_and_after(name: str, x: Any, tmp_path: Path) -> None:
    before, after, begin, end = CASES[name]
    path, model = package(tmp_path, before, after)
    y = applied(tmp_path, x, path)
    np.testing.assert_allclose(y, end(expected(model, begin(x.astype(np.float32)))), rtol=1e-3, atol=2e-3)


def test_sizes_are_filled_up(x: Any, tmp_path: Path) -> None:
    """To the multiples that the description asks for, and cut back."""
    path, _ = package(tmp_path, [], [])
    assert applied(tmp_path, x[..., :21, :30].astype(np.float32), path).shape == (1, 3, 21, 30)


def test_words_of_the_caller_come_first(x: Any, tmp_path: Path) -> None:
    path, model = package(tmp_path, [{"id": "scale_linear", "kwargs": {"gain": 2.0}}], [{"id": "sigmoid"}])
    y = applied(tmp_path, x, path, "--pre", "/ 255", "--post", "add 1")
    np.testing.assert_allclose(y, expected(model, x / np.float32(255)) + 1, atol=1e-4)


def test_a_description_beside_its_files(x: Any, tmp_path: Path) -> None:
    path, model = package(tmp_path, [], [])
    with zipfile.ZipFile(path) as held:
        held.extractall(tmp_path / "open")
    (name,) = [p for p in (tmp_path / "open").iterdir() if p.suffix == ".yaml"]
    np.testing.assert_allclose(applied(tmp_path, x, name), expected(model, x), rtol=1e-4, atol=1e-3)


def test_what_is_refused(x: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(path: Path) -> str:
        np.save(tmp_path / "x.npy", x)
        assert main(["apply", str(path), "--input", f"{tmp_path}/x.npy", "--output", f"{tmp_path}/y.npy"]) == 2
        return capsys.readouterr().err

    (tmp_path / "no.zip").write_bytes(b"none")
    assert "not a valid model of bioimage.io" in told(tmp_path / "no.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as empty:
        empty.writestr("rdf.yaml", "type: model\nformat_version: 0.5.3\n")
    assert "not a valid model of bioimage.io" in told(tmp_path / "empty.zip")
    assert "no.zip" in told(tmp_path / "no.zip")
    path, _ = package(tmp_path, [], [], weights="torchscript")
    assert "its weights are TorchScript" in told(path)
    (tmp_path / "two").mkdir()
    path, _ = package(tmp_path / "two", [{"id": "clip", "kwargs": {"min_percentile": 1.0, "max_percentile": 99.0}}], [])
    assert "clip: by percentiles" in told(path)
