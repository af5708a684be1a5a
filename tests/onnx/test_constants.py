"""Constants that a file makes between a layer and the node behind it, which the layer takes in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
onnx_files = pytest.importorskip("onnx_files")
node = pytest.importorskip("apply_files").node

X = np.random.default_rng(7).standard_normal((2, 4, 7, 9)).astype(np.float32)


def made(name: str, value: Any) -> Any:
    return node("Constant", "", name, value=onnx.numpy_helper.from_array(np.asarray(value)))


def cast(name: str, value: Any) -> list[Any]:
    return [made(f"{name}_whole", value), onnx.helper.make_node("Cast", [f"{name}_whole"], [name], to=onnx.TensorProto.FLOAT)]


def statistics(how: str) -> list[Any]:
    values = {"scale": [0.5, 2, -1], "b": [0.1, 0, 1], "mean": [1, -1, 0], "var": [1, 4, 0.25]}
    if how == "Constant":
        return [made(name, np.float32(v)) for name, v in values.items()]
    nodes = [made(f"{name}_kept", np.float32(v)) for name, v in values.items()]
    return nodes + [onnx.helper.make_node("Identity", [f"{name}_kept"], [name]) for name in values]


PRODUCERS = {
    "Conv": (X, "Conv", (3, 4, 3, 3), {}),
    "grouped Conv": (X, "Conv", (3, 4, 3, 3), {}),
    "ConvTranspose": (X, "ConvTranspose", (4, 3, 2, 2), {"strides": [2, 2]}),
    "Gemm": (X[:, :, 0, 0], "Gemm", (4, 3), {}),
    "MatMul": (X[:, :, 0, 0], "MatMul", (4, 3), {}),
}
CONSUMERS = {
    "0 to 6": ([made("low", np.float32(0)), made("high", np.float32(6))], "Clip", "a low high"),
    "from 0": ([made("low", np.float32(0))], "Clip", "a low"),
    "-1 to 1": ([made("low", np.float32(-1)), made("high", np.float32(1))], "Clip", "a low high"),
    "by Cast": ([made("low", np.float32(0)), *cast("high", np.int64(2))], "Clip", "a low high"),
    "of a size": (
        [made("low", np.float32(0)), node("Size", "x", "n"), onnx.helper.make_node("Cast", ["n"], ["high"], to=1)],
        "Clip", "a low high",
    ),
    "of the result's size": (
        [made("low", np.float32(0)), node("Shape", "a", "n", start=0, end=1), node("Squeeze", "n", "one"),
         onnx.helper.make_node("Cast", ["one"], ["high"], to=1)],
        "Clip", "a low high",
    ),
    "BatchNormalization": (statistics("Constant"), "BatchNormalization", "a scale b mean var"),
    "BatchNormalization by Identity": (statistics("Identity"), "BatchNormalization", "a scale b mean var"),
}  # fmt: skip


@pytest.mark.parametrize("behind", CONSUMERS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_constants_are_where_an_exporter_writes_them(producer: str, behind: str, tmp_path: Path) -> None:
    """Behind the layer, as the TorchScript exporter has the limits of ReLU6."""
    x, kind, shape, attributes = PRODUCERS[producer]
    constants, consumer, reads = CONSUMERS[behind]
    w = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    if producer == "grouped Conv":
        x, w, attributes = np.concatenate([x, x], 1)[:, :6], w[:, :2], {"group": 3}
    nodes = [node(kind, "x w", "a", **attributes), *constants, node(consumer, reads, "y")]
    model = onnx_files.model_of(nodes, {"x": x.shape}, ["y"], {"w": w}, 17)
    onnx.save(model, tmp_path / "m.onnx")
    graph = ooc.onnx.load(tmp_path / "m.onnx")
    found = onnx_files.by_plan(graph.plan(batch=len(x), train=False), {"x": x})
    onnx_files.compare(found, onnx_files.by_runtime(model, {"x": x}), f"{producer}, {behind}")
    assert (len(graph.nodes) == 1) == (behind in ("0 to 6", "from 0", "by Cast") or ("Norm" in behind and "Conv" in producer))


@pytest.mark.parametrize("place", [4, -5, 1 << 40])
@pytest.mark.parametrize("several", [False, True])
def test_places_beyond_an_axis_are_refused(place: int, several: bool, tmp_path: Path) -> None:
    weights = {"at": np.array([0, place] if several else place)}
    onnx.save(onnx_files.model_of([node("Gather", "x at", "y", axis=1)], {"x": [1, 4, 6]}, ["y"], weights), tmp_path / "m.onnx")
    with pytest.raises(ooc.UnsupportedError, match=rf"Gather.*place {place} of 4"):
        ooc.onnx.load(tmp_path / "m.onnx")


def test_extents_that_do_not_repeat_are_refused(tmp_path: Path) -> None:
    model = onnx_files.model_of([node("Expand", "x size", "y")], {"x": [1, 4, 6]}, ["y"], {"size": np.array([2, 6])})
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ooc.UnsupportedError, match="extents of 1 are repeated"):
        ooc.onnx.load(tmp_path / "m.onnx")


def six_axes(tmp_path: Path, outputs: list[str]) -> Path:
    """Pixels in blocks, as PyTorch's TorchScript exporter has pixel_unshuffle."""
    nodes = [
        node("Reshape", "x shape", "a"),
        node("Transpose", "a", "b", perm=[0, 1, 3, 5, 2, 4]),
        node("Reshape", "b back", "y"),
    ]
    weights = {"shape": np.array([1, 4, 3, 2, 4, 2]), "back": np.array([1, 16, 3, 4])}
    onnx.save(onnx_files.model_of(nodes, {"x": [1, 4, 6, 8]}, outputs, weights), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_six_axes_between_two_reshapes(tmp_path: Path) -> None:
    x = np.arange(4.0 * 6 * 8, dtype=np.float32).reshape(1, 4, 6, 8)
    with ooc.onnx.load(six_axes(tmp_path, ["y"])).plan(batch=1, train=False).session() as session:
        y = session.forward(x)
    assert np.array_equal(y, x.reshape(1, 4, 3, 2, 4, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 16, 3, 4))


def test_more_axes_than_ooc_has_are_told_as_such(tmp_path: Path) -> None:
    """As an output; no size is baked in."""
    with pytest.raises(ooc.UnsupportedError, match=r"output b: a tensor of shape .*2 to 5 axes") as caught:
        ooc.onnx.load(six_axes(tmp_path, ["b"]))
    assert "baked" not in str(caught.value)
