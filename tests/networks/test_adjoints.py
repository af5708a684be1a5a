"""The gradients of every kind of layer are the slopes of the loss, in float64.

Below each layer are convolutions with parameters, so slopes pass through its inputs; above it is a linear one, where it is not
the last itself. All parameters are tried: their largest gradient, and entries at random.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import POSITIVE, WITHIN_ONE

import ooc
from ooc import Activation, Graph
from ooc.errors import ArgumentError, UnsupportedError
from ooc.networks.calls import LayerNode
from ooc.networks.layers import KINDS, BatchNormLayer, Laid, ResizeLayer
from ooc.networks.layers.base import Layer, Shape
from ooc.networks.layers.loss import losses_of
from ooc.networks.writer import Writer
from ooc.ops import Pointwise
from ooc.ops.function import FUNCTIONS, slope_of

pytestmark = pytest.mark.quick

BATCH, CLASSES, ENTRIES = 2, 3, 3
Made = Callable[[Graph, str, str], str]  # from two tensors of 4 x 6 x 5, smooth functions of parameters


def unpooled(g: Graph, h: str, window: Any, stride: Any, padding: Any) -> str:
    """Means of windows where their maxima are."""
    values = g.pool(h, window, stride=stride, padding=padding, how="average")
    return g.max_unpool(h, values, window, stride=stride, padding=padding)


def frozen_norm(g: Graph, h: str, z: str) -> str:
    y = g.add_layer(BatchNormLayer(1e-2, act="tanh", frozen=True), (h,), "norm")
    g.begin_with({"norm.mean": np.array([0.1, -0.3, 0.2, 0.0]), "norm.var": np.array([0.5, 1.5, 2.0, 0.25])})
    return y


TRIED = ("clip", "hard_sigmoid", "hard_swish", "silu", "gelu", "gelu_tanh", "erf", "softplus")  # in cases of their own
NUMBERS = {"pow": (1.5,), "celu": (0.5,), "soft_shrink": (0.25,), "hard_shrink": (0.25,)}


def within(g: Graph, h: str, z: str, how: str) -> str:
    """What a function has values of: h is between -1 and 1, z between 0 and 1."""
    if how == "acosh":
        return g.function(g.multiply(z, g.function(h, "exp")), "exp")
    if how in POSITIVE:
        return g.multiply(z, g.function(h, "exp"))
    return g.multiply(z, g.activation(h, "sigmoid")) if how in WITHIN_ONE else h


SAME = (0.0, 1.0, 1.0, 0.0)  # an axis as it is


def moved_by(g: Graph, moves: str) -> str:
    """An even grid of 6 x 5, with moves of up to a pixel and a half."""
    rows, columns = (np.arange(6) * 2 + 1) / 6 - 1, (np.arange(5) * 2 + 1) / 5 - 1
    grid = np.stack(np.meshgrid(rows, columns, indexing="ij")[::-1])
    return g.affine(g.affine(moves, "scale", np.full((1, 1, 1), 0.5)), "shift", grid)


def sampled_by_itself(g: Graph, x: str) -> str:
    return g.grid_sample(x, x, aligned=True)


CASES: dict[str, tuple[str, Made]] = {
    "sigmoid": ("activation", lambda g, h, z: g.activation(h, "sigmoid")),
    "tanh": ("activation", lambda g, h, z: g.activation(h, "tanh")),
    "elu": ("activation", lambda g, h, z: g.activation(h, Activation("elu", 0.7))),
    "leaky relu": ("activation", lambda g, h, z: g.activation(h, Activation("leaky_relu", 0.2))),
    "relu": ("activation", lambda g, h, z: g.activation(h, "relu")),
    "clipped relu": ("activation", lambda g, h, z: g.activation(h, Activation("clipped_relu", 0.4))),
    "add": ("add", lambda g, h, z: g.add(h, z, activation="sigmoid")),
    "add itself": ("add", lambda g, h, z: g.add(h, h)),
    "subtract": ("add", lambda g, h, z: g.add(h, z, beta=-1.5)),
    "add to repeated": ("add", lambda g, h, z: g.add(g.reshape(g.global_pool(h), (4, 1, 1)), z, beta=0.5)),
    "add a repeated plane": ("add", lambda g, h, z: g.add(h, g.conv(z, 1, 1), beta=-2.0)),
    "add repeated rows": ("add", lambda g, h, z: g.add(h, g.pool(z, (6, 1), how="average"))),
    "scale": ("affine", lambda g, h, z: g.affine(h, "scale", np.ones((4, 1, 1)), activation="tanh")),
    "scale all by one": ("affine", lambda g, h, z: g.affine(h, "scale", np.ones((1, 1, 1)))),
    "scale by columns": ("affine", lambda g, h, z: g.affine(h, "scale", np.ones((1, 1, 5)))),
    "shift": ("affine", lambda g, h, z: g.affine(h, "shift", np.ones((4, 6, 5)), alpha=0.5)),
    "shift of repeated": ("affine", lambda g, h, z: g.affine(g.pool(h, (6, 5), how="average"), "shift", np.ones((1, 6, 1)))),
    "depth to space": ("depth_to_space", lambda g, h, z: g.depth_to_space(h, 2)),
    "depth to space, dcr": ("depth_to_space", lambda g, h, z: g.depth_to_space(h, 2, how="dcr")),
    "permute": ("permute", lambda g, h, z: g.permute(h, (2, 0, 1))),
    "laid": ("laid", lambda g, h, z: g.add_layer(Laid((-1, 2, -1), (6, 7, 3), 0.5), (h,))),
    **{
        how: ("function", lambda g, h, z, how=how: g.function(h, how)) for how in ("silu", "gelu", "gelu_tanh", "erf", "softplus")
    },
    **{
        f"{how} of what it takes": (
            "function",
            lambda g, h, z, how=how: g.function(within(g, h, z, how), how, *NUMBERS.get(how, ())),
        )
        for how in FUNCTIONS
        if how not in TRIED and not how.endswith("_slope") and slope_of(how) not in (None, "zero")
    },
    "quotient": ("binary", lambda g, h, z: g.binary(h, z, "divide")),
    "quotient by itself and more": ("binary", lambda g, h, z: g.binary(z, g.add(z, g.function(h, "exp")), "divide")),
    "quotient by channels": ("binary", lambda g, h, z: g.binary(h, g.global_pool(z), "divide")),
    "quotient by a plane": ("binary", lambda g, h, z: g.binary(h, g.function(g.conv(z, 1, 1), "exp"), "divide")),
    "larger": ("binary", lambda g, h, z: g.binary(h, z, "maximum")),
    "smaller of a plane": ("binary", lambda g, h, z: g.binary(h, g.conv(z, 1, 1), "minimum")),
    "larger of itself": ("binary", lambda g, h, z: g.binary(g.add(h, z), g.multiply(h, z), "maximum")),
    "product": ("matmul", lambda g, h, z: g.matmul(h, g.permute(z, (0, 2, 1)))),
    "product of one turned": ("matmul", lambda g, h, z: g.matmul(h, z, "nt", alpha=0.5)),
    "product of the other turned": ("matmul", lambda g, h, z: g.matmul(h, z, "tn")),
    "product with itself": ("matmul", lambda g, h, z: g.matmul(g.add(h, z), g.add(h, z), "tn")),
    "attention": ("attention", lambda g, h, z: g.attention(h, z, g.add(h, z))),
    "attention of itself": ("attention", lambda g, h, z: g.attention(h, h, h, scale=0.3)),
    "attention, biased": ("attention", lambda g, h, z: g.attention(h, z, z, g.matmul(h, z, "nt"))),
    "attention, biased by keys": (
        "attention",
        lambda g, h, z: g.attention(
            h, z, g.conv(h, 4, 3, padding=1), g.reshape(g.linear(g.global_pool(z), 24), (4, 1, 6)), scale=1.0
        ),
    ),
    "where": ("binary", lambda g, h, z: g.binary(g.multiply(h, z), g.function(z, "above", 0.5), "where")),
    "unless, of channels": (
        "binary",
        lambda g, h, z: g.binary(g.add(h, z), g.function(g.global_pool(z), "above", 0.5), "unless"),
    ),
    "expand channels": ("expand", lambda g, h, z: g.expand(g.reshape(g.global_pool(h), (4, 1, 1)), (4, 6, 5))),
    "expand a plane": ("expand", lambda g, h, z: g.multiply(g.expand(g.conv(z, 1, 1), (4, 6, 5)), h)),
    "expand rows": ("expand", lambda g, h, z: g.expand(g.pool(h, (6, 1), how="average"), (4, 3, 5))),
    "parameter": ("parameter", lambda g, h, z: g.concat(h, g.parameter(np.ones((4, 6, 5)), dtype="f64"))),
    "parameter of rows": ("parameter", lambda g, h, z: g.multiply(h, g.parameter(np.ones((1, 6, 1)), (4, 6, 5), "f64"))),
    "hard swish": ("function", lambda g, h, z: g.function(g.conv(h, 4, 3, padding=1), "hard_swish")),
    "hard sigmoid": ("function", lambda g, h, z: g.function(h, "hard_sigmoid", 0.8, 0.4)),
    "clip": ("function", lambda g, h, z: g.function(h, "clip", -0.3, 0.6)),
    "batch norm": ("batch_norm", lambda g, h, z: g.batch_norm(h, activation="tanh", eps=1e-2)),
    "batch norm of values": ("batch_norm", lambda g, h, z: g.batch_norm(g.global_pool(h), eps=0.1)),
    "batch norm by statistics that run": ("batch_norm", frozen_norm),
    "concat": ("concat", lambda g, h, z: g.concat(h, z, h)),
    "conv": ("conv", lambda g, h, z: g.conv(h, 5, 3, bias=True, activation="tanh")),
    "conv, all options": (
        "conv",
        lambda g, h, z: g.conv(h, 6, (2, 3), stride=(2, 1), padding=((1, 0), (2, 1)), dilation=(1, 2), groups=2),
    ),
    "transposed": ("conv_transpose", lambda g, h, z: g.conv_transpose(h, 3, 2, bias=True, activation="sigmoid")),
    "transposed, all options": (
        "conv_transpose",
        lambda g, h, z: g.conv_transpose(
            h, 6, 3, stride=2, padding=((1, 0), (0, 2)), output_padding=(0, 1), dilation=(1, 2), groups=2
        ),
    ),
    "cross entropy of positions": ("cross_entropy", lambda g, h, z: g.conv(h, CLASSES, 1)),
    "cross entropy of values": ("cross_entropy", lambda g, h, z: g.linear(g.global_pool(h), CLASSES)),
    "cross entropy of classes": (
        "cross_entropy",
        lambda g, h, z: g.loss("cross_entropy", g.conv(h, CLASSES, 1), weights=[1, 0.5, 2], smoothing=0.2),
    ),
    "squares": ("mse", lambda g, h, z: g.loss("mse", g.multiply(h, z))),
    "absolute values": ("l1", lambda g, h, z: g.loss("l1", g.multiply(h, z), weight=2)),
    "binary cross entropy": ("bce", lambda g, h, z: g.loss("bce", g.multiply(h, z), weights=[0.5, 1, 2, 3])),
    "binary cross entropy of values": ("bce", lambda g, h, z: g.loss("bce", g.linear(g.global_pool(h), 3))),
    "dice": ("dice", lambda g, h, z: g.loss("dice", g.conv(h, CLASSES, 1), smooth=0.5)),
    "dice of the batch": ("dice", lambda g, h, z: g.loss("dice", g.conv(h, CLASSES, 1), batch=True, background=False)),
    "dice of one channel": ("dice", lambda g, h, z: g.loss("dice", g.conv(h, 1, 1))),
    "dropout": ("dropout", lambda g, h, z: g.dropout(h, 0.4)),
    "flatten": ("flatten", lambda g, h, z: g.flatten(h)),
    "reshape": ("reshape", lambda g, h, z: g.reshape(h, (math.prod(g.shapes[h]) // 2, 2))),
    "sampled": ("grid_sample", lambda g, h, z: g.grid_sample(h, g.conv(z, 2, 1, activation="tanh"))),
    "sampled between borders": (
        "grid_sample",
        lambda g, h, z: g.grid_sample(h, g.conv(z, 2, (3, 2)), how="cubic", padding="border", aligned=True),
    ),
    "sampled nearby": (
        "grid_sample",
        lambda g, h, z: g.grid_sample(z, moved_by(g, g.conv(h, 2, 1, activation="tanh")), padding="reflection", displacement=3),
    ),
    "nearest ones": ("grid_sample", lambda g, h, z: g.add(g.grid_sample(h, "x", how="nearest"), z)),
    "sampled by itself": ("grid_sample", lambda g, h, z: sampled_by_itself(g, g.conv(h, 2, 1, activation="tanh"))),
    "mean of all": ("global_pool", lambda g, h, z: g.global_pool(h)),
    "maximum of all": ("global_pool", lambda g, h, z: g.global_pool(h, how="max")),
    "instance norm": ("group_norm", lambda g, h, z: g.instance_norm(h, eps=1e-2, activation="tanh")),
    "instance norm, plain": ("group_norm", lambda g, h, z: g.instance_norm(h, eps=1e-2, affine=False, activation="tanh")),
    "group norm, plain": ("group_norm", lambda g, h, z: g.group_norm(h, 2, eps=1e-2, affine=False)),
    "group norm": ("group_norm", lambda g, h, z: g.group_norm(h, 2, eps=1e-2)),
    "linear": ("linear", lambda g, h, z: g.linear(g.flatten(h), 4, bias=True, activation="tanh")),
    "lrn": ("lrn", lambda g, h, z: g.lrn(h, 3, alpha=0.5, base=1.0)),
    "lrn, even": ("lrn", lambda g, h, z: g.lrn(h, 4, alpha=2.0)),
    "multiply": ("multiply", lambda g, h, z: g.multiply(h, z, activation="sigmoid")),
    "multiply itself": ("multiply", lambda g, h, z: g.multiply(h, h)),
    "gate": ("multiply", lambda g, h, z: g.multiply(h, g.global_pool(z))),
    "gate of a plane": ("multiply", lambda g, h, z: g.multiply(h, g.conv(z, 1, 1))),
    "gate of rows": ("multiply", lambda g, h, z: g.multiply(h, g.pool(z, (6, 1), how="average"))),
    "gate with positions": ("multiply", lambda g, h, z: g.multiply(h, g.conv(z, 4, (6, 5)))),
    "pad": ("pad", lambda g, h, z: g.pad(h, ((1, 0), (0, 2)))),
    "crop": ("pad", lambda g, h, z: g.crop(h, ((1, 2), (0, 1)))),
    "max pool": ("pool", lambda g, h, z: g.pool(h, 2)),
    "max pool that overlaps": ("pool", lambda g, h, z: g.pool(h, 3, stride=2, padding=((1, 1), (0, 1)))),
    "average pool": ("pool", lambda g, h, z: g.pool(h, 3, stride=2, padding=1, how="average")),
    "average of what is valid": ("pool", lambda g, h, z: g.pool(h, 3, stride=2, padding=1, how="average_valid")),
    "values where maxima were": ("max_unpool", lambda g, h, z: unpooled(g, h, (3, 2), (3, 3), ((1, 0), (0, 1)))),
    "values in a line": ("max_unpool", lambda g, h, z: unpooled(g, g.reshape(h, (4, 30)), 3, 4, 0)),
    "softmax": ("softmax", lambda g, h, z: g.softmax(h)),
    "log of softmax": ("softmax", lambda g, h, z: g.softmax(g.flatten(h), log=True)),
    "wrapped": ("resize", lambda g, h, z: g.add_layer(ResizeLayer("wrap", (9, 8), (-2.0, 1.0, 1.0, 0.0) * 2), (h,))),
    "reflected": ("resize", lambda g, h, z: g.add_layer(ResizeLayer("reflect", (9, 8), (-2.0, 1.0, 1.0, 0.0) * 2), (h,))),
    "repeated borders": ("resize", lambda g, h, z: g.add_layer(ResizeLayer("edge", (9, 8), (-1.0, 1.0, 1.0, 0.0) * 2), (h,))),
    "in steps": ("resize", lambda g, h, z: g.add_layer(ResizeLayer("floor", (2, 5), (0.0, 3.0, 1.0, -1.0, *SAME)), (h,))),
    "backwards": ("resize", lambda g, h, z: g.add_layer(ResizeLayer("floor", (6, 5), (0.0, -1.0, 1.0, -5.0, *SAME)), (h,))),
    "between sizes": ("resize", lambda g, h, z: g.add_layer(ResizeLayer("linear", (8, 9), (0.5, 1.0, 1.3, 0.5) * 2), (h,))),
    "nearest": ("upsample", lambda g, h, z: g.upsample(h, factor=(2, 3))),
    "linear upsampling": ("upsample", lambda g, h, z: g.upsample(h, (9, 8), how="linear")),
    "aligned": ("upsample", lambda g, h, z: g.upsample(h, (9, 8), how="aligned")),
}


def network(make: Made) -> Graph:
    """The layer between layers with parameters, and a loss."""
    g = Graph("adjoint")
    x = g.input("x", (2, 6, 5), "f64")
    h = g.conv(x, 4, 3, padding=1, bias=True, activation="tanh", name="below")
    z = g.conv(x, 4, 1, activation="sigmoid", name="beside")
    y = make(g, h, z)
    last = g.nodes[-1]
    if last.layer.is_loss:
        return g
    if last.layer.kind in ("conv", "linear") and last.shape[0] == CLASSES:
        g.loss("cross_entropy", y)
    else:
        flat = g.flatten(y) if len(g.shapes[y]) > 1 else y
        g.loss("cross_entropy", g.linear(flat, CLASSES, name="above"))
    return g


class Sloped:
    """A network whose loss is a function of its parameters."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.plan = graph.plan(batch=BATCH, device=ooc.device("cpu", threads=1))
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.x = self.rng.standard_normal((BATCH, *graph.inputs["x"]))
        ((_, (layer, x, _)),) = losses_of(graph).items()
        target = self.plan.network.tensors["labels"]
        self.labels: Any = self.rng.random(target.shape)
        if target.dtype == "i64":
            self.labels = self.rng.integers(0, layer.classes(graph.shapes[x][0]), target.shape)
            self.labels.reshape(BATCH, -1)[0, 1:2] = -1  # of positions
        self.start = {
            n: self.rng.standard_normal(w.shape) * 0.4 + (w.value or 0.0) for n, w in graph.parameters.items()
            if not n.endswith((".mean", ".var"))
        }  # fmt: skip

    def step(self, start: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        with self.plan.session(start, seed=1) as session:
            return session.step(self.x, self.labels), session.gradients()

    def slope(self, name: str, at: tuple[int, ...], width: float = 2e-4) -> float:
        """By Richardson's rule: the error is of the fourth order of the width."""
        found = []
        for h in (width, width / 2):
            sides = []
            for sign in (1, -1):
                moved = self.start[name].copy()
                moved[at] += sign * h
                sides.append(self.step({**self.start, name: moved})[0])
            found.append((sides[0] - sides[1]) / (2 * h))
        return (4 * found[1] - found[0]) / 3


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_slopes(name: str) -> None:
    kind, make = CASES[name]
    graph = network(make)
    assert kind in {n.layer.kind for n in graph.nodes}
    sloped = Sloped(graph, name)
    _, gradients = sloped.step(sloped.start)
    beside = any("beside" in n.reads for n in graph.nodes)
    for parameter, gradient in gradients.items():
        if parameter.startswith("beside.") and not beside:
            assert not gradient.any()
            continue
        most = np.abs(gradient).max()
        assert most > 0, parameter
        largest = [np.unravel_index(int(np.abs(gradient).argmax()), gradient.shape)]
        drawn = [tuple(int(sloped.rng.integers(e)) for e in gradient.shape) for _ in range(ENTRIES - 1)]
        for at in (*largest, *drawn):
            assert abs(sloped.slope(parameter, at) - gradient[at]) <= 1e-5 * most, (parameter, at)


# Of inference.
WITHOUT_GRADIENT = {
    "argmax",
    "round",
    "convert",
    "stop",
}


def test_every_kind_is_tried() -> None:
    assert {kind for kind, _ in CASES.values()} == {*KINDS} - WITHOUT_GRADIENT
    for kind in WITHOUT_GRADIENT:
        assert KINDS[kind].backward is Layer.backward


# ---- where gradients stop


@pytest.mark.parametrize("share", [1, 4])
def test_half_of_a_sum_is_stopped(share: int) -> None:
    """What is added twice has half the gradient where one of them is stopped; all bits are the same but for that."""
    steps = []
    for stopped in (False, True):
        graph = network(lambda g, h, z, stopped=stopped: g.add(h, g.stop(h) if stopped else h))
        sloped = Sloped(graph, "stop")
        budget = sloped.plan.peaks["device"] // share
        with graph.plan(batch=BATCH, device="cpu", budget=budget, policy="auto").session(sloped.start, seed=1) as session:
            steps.append((session.step(sloped.x, sloped.labels), session.gradients()))
    (loss, both), (same, half) = steps
    assert loss == same and both["below.w"].any()
    for name, gradient in both.items():
        np.testing.assert_array_equal(gradient, half[name] * (2 if name.startswith("below") else 1))


def test_nothing_learns_in_front_of_a_stop() -> None:
    graph = network(lambda g, h, z: g.stop(h))
    sloped = Sloped(graph, "stop")
    _, gradients = sloped.step(sloped.start)
    assert not any(name.startswith("below") and gradient.any() for name, gradient in gradients.items())
    assert gradients["above.w"].any()


def test_a_gradient_that_is_not_known_is_refused() -> None:
    g = Graph("unknown")
    h = g.stop(g.conv(g.input("x", (2, 6, 5)), 4, 3, name="below"), how="unknown", name="here")
    g.output(g.linear(g.flatten(h), CLASSES, name="above"))
    g.loss("cross_entropy", g.outputs[0])
    with pytest.raises(UnsupportedError, match=r"layer here \(stop\): ooc has no gradient of this layer; plan with train=False"):
        g.plan(batch=BATCH, device="cpu")
    x = np.ones((BATCH, 2, 6, 5), "f4")
    with g.plan(batch=BATCH, train=False, device="cpu").session(seed=1) as session:
        assert session.forward(x).any()
    with pytest.raises(ArgumentError, match="how: expected zero or unknown; got 'none'"):
        g.stop("x", how="none")


# ---- a layer without a gradient


@dataclass(frozen=True)
class Doubled(Layer):
    """y = 2 x, and no more is known of it."""

    kind = "doubled"

    def shape(self, reads: list[Shape]) -> Shape:
        return reads[0]

    def forward(self, writer: Writer, node: LayerNode) -> None:
        (x,) = node.reads
        op = Pointwise(writer.batch, *writer.shape(x), alpha=2.0, dtype=writer.dtype(x))
        writer.call(op, (x,), (node.made,))


def doubled(front: bool) -> Graph:
    g = Graph("no gradient")
    h = g.input("x", (2, 6, 5), "f64")
    if front:
        h = g.add_layer(Doubled(), (h,), "twice")
    h = g.conv(h, CLASSES, 1, name="conv")
    if not front:
        h = g.add_layer(Doubled(), (h,), "twice")
    g.loss("cross_entropy", h)
    g.output(h)
    return g


def test_a_layer_without_a_gradient_serves_inference_alone() -> None:
    with pytest.raises(
        UnsupportedError, match=r"layer twice \(doubled\): ooc has no gradient of this layer; plan with train=False"
    ):
        doubled(front=False).plan(batch=2)
    plan = doubled(front=False).plan(batch=2, train=False, device=ooc.device("cpu", threads=1))
    x = np.random.default_rng(0).standard_normal((2, 2, 6, 5))
    with plan.session() as session:
        w = session.parameters()["conv.w"]
        np.testing.assert_allclose(session.forward(x), 2 * np.einsum("kc,nchw->nkhw", w[..., 0, 0], x), rtol=1e-12)


def test_no_gradient_is_needed_in_front_of_all_parameters() -> None:
    sloped = Sloped(doubled(front=True), "front")
    _, gradients = sloped.step(sloped.start)
    at = (1, 0, 0, 0)
    assert sloped.slope("conv.w", at) == pytest.approx(gradients["conv.w"][at], rel=1e-5)
