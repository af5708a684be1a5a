"""The public functions with one result each: how they are called, on what, and the formula of what they give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import formulas as f
import numpy as np

import ooc
from ooc import Activation, Conv, Pool

X = (2, 6, 17, 13)
Y = (2, 4, 17, 13)
W, B = (4, 6, 3, 3), (4,)
LRN = {"size": 4, "alpha": 0.3, "beta": 0.6, "base": 1.5}
OVERLAP = {"window": 3, "stride": 2, "padding": ((1, 2), (0, 1))}


@dataclass(frozen=True)
class Case:
    """A call with its inputs' shapes, and the formula of its result.

    spatial: inputs that a layout moves; empty where the function takes no layout. blends: whether alpha= and beta= are
    passed (lrn: blend=). out: the output's name. positive: inputs that must not be negative.
    """

    call: Callable[..., Any]
    formula: Callable[..., Any]
    shapes: dict[str, tuple[int, ...]]
    spatial: str = ""
    blend: bool = False
    out: str = "out"
    positive: tuple[str, ...] = ()


def same(function: Any, formula: Any, how: dict[str, Any]) -> dict[str, Any]:
    """The same keywords for a function and its formula."""
    return {"call": lambda **a: function(**a, **how), "formula": lambda **a: formula(**a, **how)}


def resized(mode: str) -> dict[str, Any]:
    """The options of an upsample."""
    return {"mode": "linear" if mode == "aligned" else mode, "align_corners": mode == "aligned"}


def moments(x: Any, layout: str) -> tuple[Any, Any]:
    """A batch's mean and variance per channel."""
    rows = np.asarray(x, np.float64)
    rows = (rows if layout == "channels_last" else np.moveaxis(rows, 1, -1)).reshape(-1, 6)
    return rows.mean(0), rows.var(0)


STRIDED = {"stride": (2, 1), "padding": ((1, 2), (0, 1)), "dilation": (1, 2)}
UP = {"stride": (2, 3), "padding": ((1, 0), (2, 1)), "output_padding": (1, 2)}
RESIZED, MODES = (23, 6), ("nearest", "linear", "aligned")
LABELS = np.random.default_rng(1).integers(-1, 6, (2, 17, 13))
CASES: dict[str, Case] = {
    "conv": Case(**same(ooc.conv, f.conv, {"padding": 1}), shapes={"x": X, "w": W, "b": B}, spatial="x"),
    "conv strided": Case(**same(ooc.conv, f.conv, STRIDED), shapes={"x": X, "w": W}, spatial="x"),
    "conv grouped": Case(
        **same(ooc.conv, f.conv, {"groups": 2, "stride": 2}), shapes={"x": X, "w": (4, 3, 3, 2), "b": B}, spatial="x"
    ),
    "conv 1-D": Case(**same(ooc.conv, f.conv, {"padding": 2}), shapes={"x": (3, 5, 90), "w": (7, 5, 4), "b": (7,)}, spatial="x"),
    "conv 3-D": Case(
        **same(ooc.conv, f.conv, {"padding": 1, "groups": 3}), shapes={"x": (1, 3, 7, 8, 9), "w": (6, 1, 3, 2, 3)}, spatial="x"
    ),
    "conv, activation, pool": Case(
        lambda x, w, b, **o: ooc.conv(x, w, b, padding=1, activation="tanh", pool=Pool("average", 3, 2, 1), **o),
        lambda x, w, b: f.pool("average", f.act("tanh", f.conv(x, w, b, padding=1)), 3, stride=2, padding=1),
        {"x": X, "w": W, "b": B}, "x",
    ),
    "conv, residual": Case(
        lambda x, w, z, **o: ooc.conv(x, w, residual=z, padding=1, activation="relu", **o),
        lambda x, w, z: f.act("relu", f.conv(x, w, padding=1) + z), {"x": X, "w": W, "z": Y}, "xz",
    ),
    "conv, residual, pool": Case(
        lambda x, w, b, z, **o: ooc.conv(x, w, b, residual=z, padding=1, activation="sigmoid", pool=2, **o),
        lambda x, w, b, z: f.pool("max", f.act("sigmoid", f.conv(x, w, b, padding=1) + z), 2),
        {"x": X, "w": W, "b": B, "z": Y}, "xz",
    ),
    "conv_transpose": Case(**same(ooc.conv_transpose, f.conv_transpose, UP), shapes={"x": (2, 4, 7, 5), "w": W}, spatial="x"),
    "conv_transpose, bias, activation": Case(
        lambda **a: ooc.conv_transpose(**a, padding=1, dilation=2, activation="elu"),
        lambda **a: f.act("elu", f.conv_transpose(**a, padding=1, dilation=2)),
        {"x": (2, 4, 9, 8), "w": (4, 3, 3, 2), "b": (3,)}, "x",
    ),
    "conv_transpose 1-D grouped": Case(
        **same(ooc.conv_transpose, f.conv_transpose, {"stride": 3, "groups": 2, "output_padding": 1}),
        shapes={"x": (2, 4, 21), "w": (4, 5, 4), "b": (10,)}, spatial="x",
    ),
    "conv_transpose 3-D": Case(
        **same(ooc.conv_transpose, f.conv_transpose, {"stride": 2, "padding": 1}),
        shapes={"x": (1, 3, 4, 5, 3), "w": (3, 2, 3, 3, 2)}, spatial="x",
    ),
    "chain": Case(
        lambda x, w, v, **o: ooc.chain(x, Conv(w, padding=1), Activation("relu"), Pool("max", 2), Conv(v, stride=2), **o),
        lambda x, w, v: f.conv(f.pool("max", f.act("relu", f.conv(x, w, padding=1)), 2), v, stride=2),
        {"x": X, "w": W, "v": (5, 4, 2, 3)}, "x",
    ),
    "max_pool": Case(**same(ooc.max_pool, lambda x, **k: f.pool("max", x, **k), OVERLAP), shapes={"x": X}, spatial="x"),
    "max_pool 3-D": Case(**same(ooc.max_pool, lambda x, **k: f.pool("max", x, **k), {"window": 2}),
                         shapes={"x": (1, 3, 8, 7, 6)}, spatial="x"),
    "avg_pool": Case(**same(ooc.avg_pool, lambda x, **k: f.pool("average", x, **k), OVERLAP), shapes={"x": X}, spatial="x"),
    "avg_pool, padding not counted": Case(
        lambda x, **o: ooc.avg_pool(x, **OVERLAP, count_padding=False, **o),
        lambda x: f.pool("average_valid", x, **OVERLAP), {"x": X}, "x",
    ),
    "global_avg_pool": Case(ooc.global_avg_pool, lambda x: np.mean(x, (2, 3), np.float64, keepdims=True), {"x": X}, "x"),
    "max_pool_backward": Case(
        **same(ooc.max_pool_backward, lambda x, dy, **k: f.pool_dx("max", x, dy, **k), OVERLAP),
        shapes={"x": X, "dy": (2, 6, 9, 6)}, spatial="xdy",
    ),
    "avg_pool_backward": Case(
        lambda dy, layout="channels_first", **o: ooc.avg_pool_backward(
            dy, X if layout == "channels_first" else (2, 17, 13, 6), **OVERLAP, count_padding=False, layout=layout, **o),
        lambda dy: f.pool_dx("average_valid", np.zeros(X), dy, **OVERLAP), {"dy": (2, 6, 9, 6)}, "dy",
    ),
    "bias_backward": Case(ooc.bias_backward, lambda dy: np.sum(dy, (0, 2, 3), np.float64), {"dy": X}, "dy"),
    **{f"activation {name}": Case(lambda x, name=name, **o: ooc.activation(x, name, **o), lambda x, name=name: f.act(name, x),
                                  {"x": (3, 5, 41)}) for name in f.ACTIVATIONS},
    **{f"activation_backward {name}": Case(
        lambda y, dy, name=name, **o: ooc.activation_backward(f.act(name, y).astype(y.dtype), dy, name, **o),
        lambda y, dy, name=name: f.act_dx(name, f.act(name, y), dy), {"y": (3, 5, 41), "dy": (3, 5, 41)},
    ) for name in f.ACTIVATIONS},
    "linear": Case(lambda x, w, b, **o: ooc.linear(x, w, b, activation="tanh", **o),
                   lambda x, w, b: np.tanh(x @ w.T + b), {"x": (13, 57), "w": (19, 57), "b": (19,)}),
    "softmax": Case(ooc.softmax, f.softmax, {"x": X}),
    "log softmax of rows": Case(**same(ooc.softmax, f.softmax, {"axis": -1, "log": True}), shapes={"x": (9, 300)}),
    "softmax_backward": Case(**same(ooc.softmax_backward, f.softmax_dx, {"axis": 2}), shapes={"y": X, "dy": X}),
    "log softmax_backward": Case(**same(ooc.softmax_backward, f.softmax_dx, {"log": True}), shapes={"y": X, "dy": X}),
    "cross_entropy_backward": Case(
        lambda x, **o: ooc.cross_entropy_backward(x, LABELS, 2.0, reduction="sum", **o),
        lambda x: f.cross_entropy_dx(x, LABELS, np.full(LABELS.shape, 2.0)), {"x": X},
    ),
    "lrn": Case(**same(ooc.lrn, lambda x, **k: f.lrn(x, before=1, **k), LRN), shapes={"x": X}, spatial="x", blend=True),
    "lrn, other window": Case(**same(ooc.lrn, f.lrn, {**LRN, "before": 3}), shapes={"x": X}, spatial="x", blend=True),
    "lrn_backward": Case(**same(ooc.lrn_backward, lambda x, dy, **k: f.lrn_dx(x, dy, before=1, **k), LRN),
                         shapes={"x": X, "dy": X}, spatial="xdy", blend=True),
    "add": Case(lambda x, z, **o: ooc.add(x, z, scale=(2, -0.5), activation="relu", **o),
                lambda x, z: f.act("relu", 2 * x - 0.5 * z), {"x": X, "z": X}),
    "add per channel": Case(ooc.add, lambda x, z: x + z, {"x": X, "z": (1, 6, 1, 1)}),
    "add a row": Case(ooc.add, lambda x, z: x + z, {"x": X, "z": (2, 1, 1, 13)}),
    "add one value": Case(ooc.add, lambda x, z: x + z, {"x": (700,), "z": (1,)}),
    "scale": Case(lambda x, **o: ooc.scale(x, -1.5, **o), lambda x: -1.5 * x, {"x": (3, 4, 5, 6, 7)}),
    "concat": Case(lambda x, z, **o: ooc.concat([x, z, x], 1, **o), lambda x, z: np.concatenate([x, z, x], 1), {"x": X, "z": Y}),
    **{f"upsample {mode}": Case(lambda x, mode=mode, **o: ooc.upsample(x, RESIZED, **resized(mode), **o),
                                lambda x, mode=mode: f.upsample(x, RESIZED, mode), {"x": X}, "x") for mode in MODES},
    **{f"upsample_backward {mode}": Case(
        lambda dy, mode=mode, **o: ooc.upsample_backward(dy, X[2:], **resized(mode), **o),
        lambda dy, mode=mode: f.upsample_dx(dy, X[2:], mode), {"dy": (2, 6, *RESIZED)}, "dy") for mode in MODES},
    "batch_norm": Case(
        ooc.batch_norm, lambda x, **s: f.batch_norm(x, **{k: f.channels(v, 4) for k, v in s.items()}),
        {"x": X, "scale": (6,), "b": (6,), "mean": (6,), "var": (6,)}, "x", positive=("var",),
    ),
    "batch_norm, training, activation": Case(
        lambda x, **o: ooc.batch_norm(x, training=True, activation="relu", **o).y,
        lambda x: f.act("relu", f.batch_norm(x, 1, 0, x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True))),
        {"x": X}, "x",
    ),
    "batch_norm_backward": Case(
        lambda x, dy, scale, layout="channels_first", **o: ooc.batch_norm_backward(
            x, dy, scale, *moments(x, layout), layout=layout, **o).dx,
        lambda x, dy, scale: f.batch_norm_dx(x, dy, f.channels(scale, 4))[0],
        {"x": X, "dy": X, "scale": (6,)}, "xdy", out="dx",
    ),
}  # fmt: skip
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3}


def inputs_of(case: Case, dtype: Any = np.float32) -> dict[str, Any]:
    """Numbers that the dtype holds, the same for every call."""
    rng = np.random.default_rng(7)
    made = {name: rng.standard_normal(shape).astype(dtype) for name, shape in case.shapes.items()}
    return {name: np.abs(a) + dtype(0.5) if name in case.positive else a for name, a in made.items()}


def expected(case: Case, arrays: dict[str, Any]) -> Any:
    return case.formula(**{name: a.astype(np.float64) for name, a in arrays.items()})


def agrees(result: Any, wanted: Any, dtype: Any) -> None:
    """As close as rounding allows, relative to the largest value."""
    assert result.shape == wanted.shape
    error = np.abs(np.asarray(result, np.float64) - wanted).max() / max(1.0, np.abs(wanted).max())
    assert error <= TOLERANCE[np.dtype(dtype).name], error
