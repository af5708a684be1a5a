"""Networks in ONNX files that are wrong by any tiling that does not know the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx_files import model_of


def node(kind: str, reads: str, makes: str, **attributes: Any) -> Any:
    return helper.make_node(kind, ["" if r == "-" else r for r in reads.split()], makes.split(), **attributes)


def picture_network(path: Path, classes: int = 4) -> None:
    """A convolution, ceil pooling, a global gate, a resize to the input's size, a convolution: wrong by any tiling that does not
    know the whole size."""
    rng = np.random.default_rng(1)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) * 0.3, "w2": rng.standard_normal((classes, 8, 3, 3)) * 0.3,
        "wg": rng.standard_normal((8, 8, 1, 1)),
    }  # fmt: skip
    nodes = [
        node("Conv", "x w1", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "b"),
        node("MaxPool", "b", "c", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("GlobalAveragePool", "c", "m"), node("Conv", "m wg", "q"), node("Sigmoid", "q", "gate"), node("Mul", "c gate", "e"),
        node("Shape", "x", "s", start=2), node("Concat", "nc s", "size", axis=0),
        node("Resize", "e - - size", "d", mode="linear"), node("Conv", "d w2", "y", pads=[1, 1, 1, 1]),
    ]  # fmt: skip
    arrays = {name: w.astype(np.float32) for name, w in weights.items()} | {"nc": np.array([1, 8])}
    onnx.save(model_of(nodes, {"x": ["n", 3, "h", "w"]}, ["y"], arrays), path)


def volume_network(path: Path) -> None:
    """3-D, with an instance norm and a transposed convolution."""
    rng = np.random.default_rng(2)
    weights = {
        "w1": rng.standard_normal((4, 1, 3, 3, 3)) * 0.3, "scale": rng.standard_normal(4), "bias": rng.standard_normal(4),
        "w2": rng.standard_normal((4, 2, 2, 2, 2)) * 0.3,
    }  # fmt: skip
    nodes = [
        node("Conv", "x w1", "a", pads=[1] * 6, strides=[2, 2, 2]), node("InstanceNormalization", "a scale bias", "b"),
        node("LeakyRelu", "b", "c"), node("ConvTranspose", "c w2", "y", strides=[2, 2, 2]),
    ]  # fmt: skip
    arrays = {name: w.astype(np.float32) for name, w in weights.items()}
    onnx.save(model_of(nodes, {"x": ["n", 1, "d", "h", "w"]}, ["y"], arrays), path)
