"""Files whose networks return, or go by, what is no floating number: classes, counts, the places of maxima."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

SHAPE = (2, 3, 9, 10)
FILTERS = numpy_helper.from_array(np.random.default_rng(0).integers(-3, 4, (4, 3, 1, 1)).astype("f4"), "w")
CONV = helper.make_node("Conv", ["x", "w"], ["c"])


def written(path: Path, nodes: list[Any], outputs: dict[str, int], **constants: Any) -> Path:
    """A file of these nodes behind a convolution."""
    values = [FILTERS, *(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())]
    graph = helper.make_graph(
        [CONV, *nodes], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()], values,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def forward(path: Path, x: Any, budget: str | None) -> dict[str, Any]:
    plan = ooc.onnx.load(path).plan(batch=2, train=False, budget=budget, device="cpu")
    with plan.session() as session:
        results = session.forward(x)
        return results if isinstance(results, dict) else {plan.graph.outputs[0]: results}


@pytest.fixture
def x() -> Any:
    return np.random.default_rng(1).integers(-4, 5, SHAPE).astype("f4")


def convolved(x: Any) -> Any:
    return np.einsum("nchw,kc->nkhw", x, numpy_helper.to_array(FILTERS)[:, :, 0, 0])


@pytest.mark.parametrize("budget", [None, "2 KiB"])
def test_classes_and_counts(tmp_path: Path, x: Any, budget: str | None) -> None:
    nodes = [
        helper.make_node("ArgMax", ["c"], ["class"], axis=1, keepdims=0),
        helper.make_node("Cast", ["c"], ["count"], to=TensorProto.INT64),
        helper.make_node("Greater", ["c", "limit"], ["sure"]),
        helper.make_node("ArgMax", ["c"], ["place"], axis=3),
        helper.make_node("Cast", ["place"], ["column"], to=TensorProto.UINT8),
    ]
    outputs = {"class": TensorProto.INT64, "count": TensorProto.INT64, "sure": TensorProto.BOOL, "column": TensorProto.UINT8}
    have = forward(written(tmp_path / "m.onnx", nodes, outputs, limit=np.float32(1)), x, budget)
    c = convolved(x)
    expected = {"class": c.argmax(1).astype("i4"), "count": c.astype("i4"), "sure": c > 1}
    expected["column"] = c.argmax(3)[..., None].astype("u1")
    for name, value in expected.items():
        assert have[name].dtype == value.dtype and np.array_equal(have[name], value), name


@pytest.mark.parametrize("budget", [None, "2 KiB"])
@pytest.mark.parametrize(("window", "extent"), [(2, (8, 10)), (3, (9, 9))])
def test_unpooling(tmp_path: Path, x: Any, window: int, extent: tuple[int, int], budget: str | None) -> None:
    """The first maximum of each window gets its value; what no window covers gets none."""
    how = {"kernel_shape": [window] * 2, "strides": [window] * 2}
    nodes = [helper.make_node("MaxPool", ["c"], ["p", "i"], **how), helper.make_node("Mul", ["p", "p"], ["q"])]
    nodes.append(helper.make_node("MaxUnpool", ["q", "i", "size"], ["y"], **how))
    path = written(tmp_path / "m.onnx", nodes, {"y": TensorProto.FLOAT}, size=np.array([2, 4, 9, 10]))
    c, expected = convolved(x), np.zeros((2, 4, 9, 10), "f4")
    for n, k, h, w in np.ndindex(2, 4, *(e // window for e in extent)):
        part = c[n, k, h * window : (h + 1) * window, w * window : (w + 1) * window]
        at = np.unravel_index(part.argmax(), part.shape)
        expected[n, k, h * window + at[0], w * window + at[1]] = part.max() ** 2
    assert np.array_equal(forward(path, x, budget)["y"], expected)


@pytest.mark.parametrize(
    ("node", "output", "says"),
    [
        (helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT), "y", "node y .Cast.: it reads places of maxima"),
        (helper.make_node("Cast", ["few"], ["y"], to=TensorProto.FLOAT), "y", "node few .Cast.: from f32 to another type"),
        (None, "i", "output i: it is places of maxima"),
        (helper.make_node("MaxUnpool", ["p", "i"], ["y"], kernel_shape=[2, 2]), "y", "places of windows that overlap"),
        (helper.make_node("ArgMax", ["c"], ["y"], axis=0), "y", "node y .ArgMax.: over the batch"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, node: Any, output: str, says: str) -> None:
    pool = helper.make_node("MaxPool", ["c"], ["p", "i"], kernel_shape=[2, 2])
    few = helper.make_node("Cast", ["c"], ["few"], to=TensorProto.UINT8)  # ONNX does not say what becomes of 300
    path = written(
        tmp_path / "m.onnx", [pool, few, *([node] if node else [])], {output: TensorProto.INT64 if output == "i" else 1}
    )
    with pytest.raises(ooc.UnsupportedError, match=says):
        ooc.onnx.load(path)
