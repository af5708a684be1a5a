"""Products that networks compute: scaled, biased, through a softmax and multiplied again they are one layer, else products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc

onnx = pytest.importorskip("onnx")
onnx_files = pytest.importorskip("onnx_files")
node = pytest.importorskip("apply_files").node

QKV = {"q": [2, 3, 6, 4], "k": [2, 3, 5, 4], "v": [2, 3, 5, 7]}
SCORES = [node("Transpose", "k", "t", perm=[0, 1, 3, 2]), node("MatMul", "q t", "s")]
CONSTANTS = {"half": np.float32(0.5), "two": np.float32(2), "b": np.linspace(-1, 1, 90, dtype=np.float32).reshape(3, 6, 5)}
BEHIND: dict[str, tuple[list[Any], float, bool]] = {
    "alone": ([node("Softmax", "s", "p", axis=-1)], 1.0, False),
    "scaled": ([node("Mul", "s half", "a"), node("Softmax", "a", "p", axis=3)], 0.5, False),
    "divided": ([node("Div", "s two", "a"), node("Softmax", "a", "p", axis=-1), ], 0.5, False),
    "scaled from the left": ([node("Mul", "half s", "a"), node("Softmax", "a", "p", axis=-1)], 0.5, False),
    "biased": ([node("Add", "s b", "a"), node("Softmax", "a", "p", axis=-1)], 1.0, True),
    "both": ([node("Mul", "s half", "a"), node("Add", "b a", "c"), node("Softmax", "c", "p", axis=-1)], 0.5, True),
    "through nothing": (
        [node("Identity", "s", "i"), node("Softmax", "i", "o", axis=-1), node("Dropout", "o", "p")], 1.0, False,
    ),
}  # fmt: skip


def inferred(path: Path, arrays: dict[str, Any]) -> tuple[list[str], Any]:
    graph = ooc.onnx.load(path)
    with graph.plan(batch=2, train=False, device="cpu").session() as session:
        return [n.layer.kind for n in graph.nodes], session.forward(arrays)


@pytest.mark.parametrize("how", BEHIND)
def test_one_layer(how: str, tmp_path: Path) -> None:
    nodes, scale, biased = BEHIND[how]
    used = {name: CONSTANTS[name] for name in CONSTANTS if any(name in n.input for n in nodes)}
    model = onnx_files.model_of([*SCORES, *nodes, node("MatMul", "p v", "y")], QKV, ["y"], used)
    onnx.save(model, tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in QKV.items()}
    kinds, y = inferred(tmp_path / "m.onnx", arrays)
    assert [kind for kind in kinds if kind != "parameter"] == ["attention"]
    scores = scale * np.einsum("nhic,nhjc->nhij", arrays["q"], arrays["k"]) + (CONSTANTS["b"] if biased else 0)
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    expected = np.einsum("nhij,nhjc->nhic", weights / weights.sum(axis=3, keepdims=True), arrays["v"])
    np.testing.assert_allclose(y, expected, atol=2e-6)


def test_over_other_axes_it_is_products(tmp_path: Path) -> None:
    nodes = [*SCORES, node("Softmax", "s", "p", axis=2), node("MatMul", "p v", "y")]
    onnx.save(onnx_files.model_of(nodes, QKV, ["y"], {}), tmp_path / "m.onnx")
    arrays = {name: np.random.default_rng(0).standard_normal(shape).astype(np.float32) for name, shape in QKV.items()}
    kinds, y = inferred(tmp_path / "m.onnx", arrays)
    assert [k for k in kinds if k in ("matmul", "softmax", "attention")] == ["matmul", "softmax", "matmul"]
    exps = np.exp(np.einsum("nhic,nhjc->nhij", arrays["q"], arrays["k"]))
    np.testing.assert_allclose(y, np.einsum("nhij,nhjc->nhic", exps / exps.sum(axis=2, keepdims=True), arrays["v"]), atol=2e-6)
