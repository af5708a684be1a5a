"""Bad input of every function beyond plain convolution: one typed error each, before a single output byte is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ooc
from ooc import Conv, Pool
from ooc.errors import BudgetError, DtypeError, OocError, ShapeError

pytestmark = pytest.mark.quick

POISON = -77.0
ONES = {
    "x": (2, 4, 6, 6), "w": (6, 4, 3, 3), "dy": (2, 6, 4, 4), "rows": (5, 7), "matrix": (3, 7), "drows": (5, 3), "k": (4,),
}  # fmt: skip
X, W, DY, ROWS, MATRIX, DROWS, KS = (np.ones(s, np.float32) for s in ONES.values())
LABELS = np.zeros((2, 6, 6), np.int64)
DOUBLE = X.astype(np.float64)
INTS = X.astype(np.int64)
SHORT = X[:, :, :5]
Call = tuple[Callable[..., Any], type[OocError], str]


def back(dy: Any = DY, x: Any = X, w: Any = W, **options: Any) -> Callable[..., Any]:
    return lambda **outs: ooc.conv_backward(x, w, dy, **options, **outs)


def chained(*layers: Any, dy: Any = DY, x: Any = X, **options: Any) -> Callable[..., Any]:
    return lambda **outs: ooc.chain_backward(x, dy, *layers, outs=outs, **options)


def up(**options: Any) -> Callable[..., Any]:
    return lambda **o: ooc.conv_transpose(DY, W, **options, **o)


def bn(**options: Any) -> Callable[..., Any]:
    return lambda **o: ooc.batch_norm(X, training=True, **options, **o)


def loss(x: Any = X, labels: Any = LABELS, **options: Any) -> Callable[..., Any]:
    return lambda **o: ooc.cross_entropy_backward(x, labels, **options, **o)


# what is called, the error, and what its message says
BACKWARD: dict[str, Call] = {
    "dy of another shape": (back(X), ShapeError, r"dy must have the shape of the result, \(2, 6, 4, 4\)"),
    "dy of another dtype": (back(DY.astype(np.float64)), DtypeError, "dy: expected dtype float32, got float64"),
    "dy of ints": (back(DY.astype(int)), DtypeError, "int64.*expected"),
    "dy a matrix": (back(DY[0, 0]), ShapeError, "expected 3 to 5 axes"),
    "x of another dtype": (back(x=DOUBLE), DtypeError, "w is float32 but x is float64"),
    "x of another shape": (back(x=SHORT), ShapeError, "dy must have the shape"),
    "w of other channels": (back(w=W[:, :3]), ShapeError, "w takes 3 channels"),
    "no x for dw": (back(x=None, x_shape=X.shape), ShapeError, "dw needs x"),
    "no x and no shape": (back(x=None, want="dx"), ShapeError, "pass x_shape="),
    "x_shape too short": (back(x=None, want="dx", x_shape=(2, 4, 6)), ShapeError, "w must have 3 axes"),
    "want unknown": (back(want=("dx", "dz")), ShapeError, "want: expected some of dx, dw, db.*dz"),
    "want nothing": (back(want=()), ShapeError, "want: expected some of dx, dw, db"),
    "no y for an activation": (back(activation="relu"), ShapeError, "pass y="),
    "no y for max pooling": (back(np.ones((2, 6, 2, 2), np.float32), pool=2), ShapeError, "pass y="),
    "y of another shape": (back(activation="relu", y=DY[:, :5]), ShapeError, r"y: expected shape \(2, 6, 4, 4\)"),
    "y of another dtype": (back(activation="relu", y=DY.astype(np.float64)), DtypeError, "y: expected dtype float32"),
    "activation without inverse": (back(activation=ooc.Activation("elu", -1.0), y=DY), ShapeError, "cannot be inverted"),
    "groups": (back(groups=3), ShapeError, "groups=3 must divide"),
    "layout": (back(layout="NHWC"), ShapeError, "layout: expected one of"),
    "stride": (back(stride=0), ShapeError, "stride must be at least 1"),
    "alpha": (back(alpha="much"), ShapeError, "alpha: expected a number"),
    "chain: dy": (chained(Conv(W), Pool("max", 2)), ShapeError, "dy must have the shape"),
    "chain: no layer": (chained(), ShapeError, "at least one layer"),
    "chain: layer": (chained(np.tanh), ShapeError, "expected Conv, Pool or Activation layers"),
    "chain: want": (chained(Conv(W), want="y"), ShapeError, "want: expected"),
    "chain: w": (chained(Conv(W), Conv(W)), ShapeError, "w takes 4 channels.*x has 6"),
}
ONE_OUTPUT: dict[str, Call] = {
    "transposed: channels": (lambda **o: ooc.conv_transpose(X, W, **o), ShapeError, "does not take the 4 channels"),
    "transposed: rank": (lambda **o: ooc.conv_transpose(DY, W[..., 0], **o), ShapeError, "does not take"),
    "transposed: dtype": (lambda **o: ooc.conv_transpose(DY.astype("f8"), W, **o), DtypeError, "w is float32 but x is float64"),
    "transposed: output_padding": (up(output_padding=1), ShapeError, "must be smaller than stride"),
    "transposed: output_padding negative": (up(output_padding=-1), ShapeError, "must be smaller than stride"),
    "transposed: padding": (up(padding=4), ShapeError, "extent must be at least 1"),
    "transposed: bias": (lambda **o: ooc.conv_transpose(DY, W, np.ones(6, np.float32), **o), ShapeError, r"shape \(4,\)"),
    "transposed: groups": (up(groups=4), ShapeError, "groups=4 must divide"),
    "linear: channels": (lambda **o: ooc.linear(ROWS, W[0, 0], **o), ShapeError, "does not fit w"),
    "linear: w of 3 axes": (lambda **o: ooc.linear(ROWS, MATRIX[None], **o), ShapeError, "does not fit w"),
    "linear: dtype": (lambda **o: ooc.linear(ROWS, MATRIX.astype("f8"), **o), DtypeError, "w is float64 but x is float32"),
    "linear: bias": (lambda **o: ooc.linear(ROWS, MATRIX, np.ones(7, np.float32), **o), ShapeError, r"shape \(3,\)"),
    "linear: rows apart": (lambda **o: ooc.linear(SHORT, np.ones((2, 6), np.float32), **o), ShapeError, "as one axis"),
    "linear: no rows": (lambda **o: ooc.linear(ROWS[:0], MATRIX, **o), ShapeError, "at least 1"),
    "softmax: axis": (lambda **o: ooc.softmax(X, 4, **o), ShapeError, "axis 4"),
    "softmax: nothing": (lambda **o: ooc.softmax(X[:0], **o), ShapeError, "non-empty"),
    "softmax: ints": (lambda **o: ooc.softmax(INTS, **o), DtypeError, "int64.*expected"),
    "softmax_backward: shapes": (lambda **o: ooc.softmax_backward(X, SHORT, **o), ShapeError, "dy: expected shape"),
    "softmax_backward: dtypes": (lambda **o: ooc.softmax_backward(X, DOUBLE, **o), DtypeError, "dy: expected dtype float32"),
    "loss: label too large": (loss(labels=LABELS + 4), ShapeError, "label 4: expected less than 4"),
    "loss: labels' shape": (loss(labels=LABELS[:, :5]), ShapeError, "labels of shape"),
    "loss: labels' dtype": (loss(labels=LABELS * 1.0), DtypeError, "must be integers"),
    "loss: logits of 1 axis": (loss(x=KS), ShapeError, "do not fit x"),
    "loss: reduction": (loss(reduction="max"), ShapeError, "reduction: expected"),
    "dropout: rate": (lambda **o: ooc.dropout(X, 1.0, **o), ShapeError, "0 <= rate < 1"),
    "dropout: negative rate": (lambda **o: ooc.dropout(X, -0.1, **o), ShapeError, "0 <= rate < 1"),
    "dropout: seed": (lambda **o: ooc.dropout(X, 0.5, -1, **o), ShapeError, "seed of 64 bits"),
    "dropout: float seed": (lambda **o: ooc.dropout(X, 0.5, 1.5, **o), ShapeError, "seed: expected an integer"),
    "add: shapes": (lambda **o: ooc.add(X, SHORT, **o), ShapeError, "does not broadcast"),
    "add: x too small": (lambda **o: ooc.add(X[:, :1], X, **o), ShapeError, "does not broadcast"),
    "add: ranks": (lambda **o: ooc.add(X, KS, **o), ShapeError, "does not broadcast"),
    "add: dtypes": (lambda **o: ooc.add(X, DOUBLE, **o), DtypeError, "z is float64 but x is float32"),
    "add: 6 axes": (lambda **o: ooc.add(X[None, None], X[None, None], **o), ShapeError, "at most 5 axes"),
    "add: activation": (lambda **o: ooc.add(X, X, activation="gelu", **o), ShapeError, "expected one of identity"),
    "scale: factor": (lambda **o: ooc.scale(X, "twice", **o), ShapeError, "factor: expected a number"),
    "scale: axes apart": (
        lambda **o: ooc.scale(np.ones((2,) * 6)[..., ::-1].transpose(5, 4, 3, 2, 1, 0), 2.0, **o), ShapeError, "contiguous",
    ),
    "concat: nothing": (lambda **o: ooc.concat([], **o), ShapeError, "at least one array"),
    "concat: axis": (lambda **o: ooc.concat([X], 4, **o), ShapeError, "axis 4"),
    "concat: shapes": (lambda **o: ooc.concat([X, SHORT], **o), ShapeError, "differ beyond axis 1"),
    "concat: dtypes": (lambda **o: ooc.concat([X, DOUBLE], **o), DtypeError, "dtypes differ"),
    "lrn: size": (lambda **o: ooc.lrn(X, 0, **o), ShapeError, "size >= 1"),
    "lrn: before": (lambda **o: ooc.lrn(X, 3, before=3, **o), ShapeError, "before < size"),
    "lrn: beta": (lambda **o: ooc.lrn(X, beta=None, **o), ShapeError, "beta: expected a number"),
    "lrn: axes": (lambda **o: ooc.lrn(ROWS, **o), ShapeError, "expected 3 to 5 axes"),
    "lrn_backward: shapes": (lambda **o: ooc.lrn_backward(X, SHORT, **o), ShapeError, "dy: expected shape"),
    "upsample: size": (lambda **o: ooc.upsample(X, 0, **o), ShapeError, "size must be at least 1"),
    "upsample: sizes": (lambda **o: ooc.upsample(X, (3, 3, 3), **o), ShapeError, "expected 1 or 2 values"),
    "upsample: mode": (lambda **o: ooc.upsample(X, 8, "cubic", **o), ShapeError, "mode: expected nearest or linear"),
    "upsample: corners": (lambda **o: ooc.upsample(X, 8, align_corners=True, **o), ShapeError, "align_corners"),
    "upsample_backward: extent": (lambda **o: ooc.upsample_backward(X, -1, **o), ShapeError, "at least 1"),
    "max_pool_backward: dy": (lambda **o: ooc.max_pool_backward(X, X, 2, **o), ShapeError, "dy: expected shape"),
    "max_pool_backward: dtype": (lambda **o: ooc.max_pool_backward(DOUBLE, X[..., ::2, ::2], 2, **o), DtypeError, "float32"),
    "avg_pool_backward: window": (lambda **o: ooc.avg_pool_backward(X, X.shape, 9, **o), ShapeError, "does not fit"),
    "activation_backward: shapes": (lambda **o: ooc.activation_backward(X, SHORT, "relu", **o), ShapeError, "same shape"),
    "activation_backward: name": (lambda **o: ooc.activation_backward(X, X, "gelu", **o), ShapeError, "expected one of"),
    "bias_backward: axes": (lambda **o: ooc.bias_backward(ROWS, **o), ShapeError, "expected 3 to 5 axes"),
    "global_avg_pool: layout": (lambda **o: ooc.global_avg_pool(X, layout="NHWC", **o), ShapeError, "layout: expected"),
    "batch_norm: no statistics": (lambda **o: ooc.batch_norm(X, **o), ShapeError, "needs mean= and var="),
    "batch_norm: negative eps": (bn(eps=-1e-3), ShapeError, "eps must not be negative"),
    "batch_norm: scale": (bn(scale=ROWS), ShapeError, r"scale must have shape \(4,\)"),
    "batch_norm: scale of ints": (bn(scale=np.ones(4, int)), DtypeError, "int64.*expected"),
    "batch_norm: per activation": (bn(scale=KS, per_activation=True), ShapeError, r"shape \(4, 6, 6\)"),
    "batch_norm: running mean": (bn(mean=np.zeros(3), var=np.ones(4)), ShapeError, r"mean must have shape \(4,\)"),
    "batch_norm: running list": (bn(mean=[0.0] * 4), ShapeError, "writable array"),
    "batch_norm: activation": (bn(activation="gelu"), ShapeError, "expected one of"),
    "residual: shape": (lambda **o: ooc.conv(X, W, residual=X, **o), ShapeError, "residual: expected the shape"),
    "residual: dtype": (lambda **o: ooc.conv(X, W, residual=DY.astype("f8"), **o), DtypeError, "residual"),
}  # fmt: skip


def refused(call: Callable[..., Any], error: type[OocError], says: str, outs: dict[str, Any]) -> None:
    """The call raises this error, says this, and leaves its outputs as they were."""
    before = {name: np.array(out) for name, out in outs.items()}
    with pytest.raises(OocError) as caught:
        call(**outs)
    assert isinstance(caught.value, error), f"{type(caught.value).__name__}: {caught.value}"
    assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)
    for name, out in outs.items():
        np.testing.assert_array_equal(out, before[name])


def gradients() -> dict[str, Any]:
    return {n: np.full(s, POISON, np.float32) for n, s in (("dx", X.shape), ("dw", W.shape), ("db", (6,)))}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_of_a_layer(name: str) -> None:
    call, error, says = BACKWARD[name]
    refused(call, error, says, {})
    outs = gradients() if "x_shape" not in name and name != "no x and no shape" else {"dx": gradients()["dx"]}
    with pytest.raises(OocError):
        call(**outs)
    assert all((out == POISON).all() for out in outs.values())


@pytest.mark.parametrize("name", ONE_OUTPUT)
def test_functions_of_one_output(name: str) -> None:
    call, error, says = ONE_OUTPUT[name]
    refused(call, error, says, {})
    out = np.full(X.shape, POISON, np.float32)
    with pytest.raises(OocError):
        call(out=out)
    assert (out == POISON).all()


# ---- outputs: good calls of every function, and the outputs that do not do

GOOD: dict[str, tuple[Callable[..., Any], str]] = {
    "conv_transpose": (lambda **o: ooc.conv_transpose(DY, W, **o), "out"),
    "linear": (lambda **o: ooc.linear(ROWS, MATRIX, **o), "out"),
    "softmax": (lambda **o: ooc.softmax(X, **o), "out"),
    "softmax_backward": (lambda **o: ooc.softmax_backward(X, X, **o), "out"),
    "cross_entropy_backward": (lambda **o: ooc.cross_entropy_backward(X, LABELS, **o), "out"),
    "lrn": (lambda **o: ooc.lrn(X, **o), "out"),
    "lrn_backward": (lambda **o: ooc.lrn_backward(X, X, **o), "out"),
    "dropout": (lambda **o: ooc.dropout(X, **o), "out"),
    "add": (lambda **o: ooc.add(X, X, **o), "out"),
    "scale": (lambda **o: ooc.scale(X, 2.0, **o), "out"),
    "upsample": (lambda **o: ooc.upsample(X, 9, **o), "out"),
    "upsample_backward": (lambda **o: ooc.upsample_backward(X, 9, **o), "out"),
    "activation_backward": (lambda **o: ooc.activation_backward(X, X, "relu", **o), "out"),
    "max_pool_backward": (lambda **o: ooc.max_pool_backward(X, X[..., ::2, ::2], 2, **o), "out"),
    "avg_pool_backward": (lambda **o: ooc.avg_pool_backward(X, (2, 4, 12, 12), 2, **o), "out"),
    "bias_backward": (lambda **o: ooc.bias_backward(X, **o), "out"),
    "global_avg_pool": (lambda **o: ooc.global_avg_pool(X, **o), "out"),
    "residual": (lambda **o: ooc.conv(X, W, residual=DY, **o), "out"),
    "batch_norm": (lambda **o: ooc.batch_norm(X, mean=KS, var=KS, **o), "out"),
    "batch_norm, training": (lambda **o: ooc.batch_norm(X, training=True, **o).y, "out"),
    "batch_norm_backward": (lambda **o: ooc.batch_norm_backward(X, X, None, KS, KS, **o).dx, "dx"),
    "dx": (lambda **o: ooc.conv_backward(X, W, DY, **o).dx, "dx"),
    "dw": (lambda **o: ooc.conv_backward(X, W, DY, **o).dw, "dw"),
    "db": (lambda **o: ooc.conv_backward(X, W, DY, **o).db, "db"),
    "chain_backward": (lambda dx=None, **o: ooc.chain_backward(X, DY, Conv(W), outs={"dx": dx}, **o)[0], "dx"),
    "linear_backward": (lambda **o: ooc.linear_backward(ROWS, MATRIX, DROWS, **o).dx, "dx"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_outputs_that_do_not_do(name: str) -> None:
    call, out = GOOD[name]
    shape = call().shape
    wrong = (*shape[:-1], shape[-1] + 1)
    refused(call, ShapeError, r"(out|d[xwb]\S*): expected shape", {out: np.full(wrong, POISON, np.float32)})
    refused(call, DtypeError, r"(out|d[xwb]\S*): expected dtype float32", {out: np.full(shape, POISON, np.float64)})
    locked = np.full(shape, POISON, np.float32)
    locked.flags.writeable = False
    refused(call, ShapeError, "read-only", {out: locked})
    if shape[0] > 1:
        repeated = np.broadcast_to(np.full(shape[1:], POISON, np.float32), shape)
        repeated.flags.writeable = True
        refused(call, ShapeError, "overlaps itself", {out: repeated})
    blend = {"blend": (1.0, 2.0)} if name.startswith("lrn") else {"beta": 2.0}
    refused(lambda **o: call(**blend, **o), ShapeError, "adds to an existing output", {})


@pytest.mark.parametrize("name", GOOD)
def test_the_smallest_budget_is_named_and_works(name: str) -> None:
    call, out = GOOD[name]
    whole = call()
    poisoned = np.full(whole.shape, POISON, np.float32)
    with ooc.device("cpu", 60), pytest.raises(BudgetError) as caught:
        call(**{out: poisoned})
    assert (poisoned == POISON).all()
    said = re.search(r"Raise budget= to at least (\d+) bytes", str(caught.value))
    assert said, str(caught.value)
    with ooc.device("cpu", int(said[1])):
        np.testing.assert_allclose(call(**{out: poisoned}), whole, rtol=1e-5, atol=1e-6)
    report = ooc.last_report()
    assert report is not None and report.peak_bytes <= int(said[1])


# ---- overlaps


@pytest.mark.parametrize("budget", [None, "4 KiB"])
def test_gradients_that_overlap(budget: str | None) -> None:
    room = np.full(600, POISON, np.float32)
    outs = gradients() | {"dx": room[:288].reshape(X.shape), "dw": room[200:416].reshape(W.shape)}
    with ooc.device("cpu", budget, threads=1):
        refused(back(), ShapeError, "the outputs dw and dx overlap", outs)
        refused(back(x=outs["dx"]), ShapeError, "overlap", gradients() | {"dw": outs["dw"]})
        refused(back(outs["dw"].reshape(-1)[:192].reshape(DY.shape)), ShapeError, "overlap", gradients() | {"dx": outs["dx"]})
        refused(back(), ShapeError, "overlap", gradients() | {"db": outs["db"], "dw": np.lib.stride_tricks.as_strided(
            outs["db"], W.shape, (0, 0, 0, 4))})  # fmt: skip


@pytest.mark.parametrize("budget", [None, "4 KiB"])
def test_two_results_of_one_pass_that_overlap(budget: str | None) -> None:
    room = np.full(400, POISON, np.float32)
    y, z = room[:192].reshape(2, 6, 4, 4), room[180:228].reshape(2, 6, 2, 2)

    def call() -> Any:
        return ooc.conv(X, W, pool=2, with_unpooled=True, out=(y, z))

    with ooc.device("cpu", budget, threads=1):
        refused(call, ShapeError, "overlap", {})
    assert (room == POISON).all()


def test_unpooled_without_pooling() -> None:
    refused(lambda: ooc.conv(X, W, with_unpooled=True), ShapeError, "needs pool=", {})
    refused(lambda: ooc.conv(X, W, residual=DY, with_unpooled=True), ShapeError, "needs pool=", {})


def test_an_output_that_is_not_wanted() -> None:
    refused(back(want=("dw",)), ShapeError, r"outputs \['dx'\]", {"dx": gradients()["dx"]})
    refused(chained(Conv(W), want="dx"), ShapeError, r"outputs \['db', 'dw'\]", {k: gradients()[k] for k in ("dw", "db")})


@pytest.mark.parametrize("per", [False, True])
def test_running_statistics_stay_when_the_call_is_refused(per: bool) -> None:
    mean, var = np.zeros((4, 6, 6) if per else 4), np.ones((4, 6, 6) if per else 4)
    with ooc.device("cpu", 60), pytest.raises(BudgetError):
        ooc.batch_norm(X, None, None, mean, var, training=True, per_activation=per)
    var.flags.writeable = False
    with pytest.raises(ShapeError, match="var must be a writable array"):
        ooc.batch_norm(X, None, None, mean, var, training=True, per_activation=per)
    assert not mean.any() and (var == 1).all()


def test_loss_of_bad_labels() -> None:
    for labels, error in ((LABELS + 4, ShapeError), (LABELS[0], ShapeError), (LABELS > 0, DtypeError)):
        with pytest.raises(error, match=r"label"):
            ooc.cross_entropy(X, labels)
    with pytest.raises(ShapeError, match="reduction: expected mean, sum or none"):
        ooc.cross_entropy(X, LABELS, reduction="median")
