"""Whole networks have PyTorch's losses, gradients, statistics, updates and outputs.

Differences are relative to the largest value of a tensor. In float64 they are below 1e-11. In float32 both sides round: they
agree within 2e-5, with batch normalisation within 3e-4, and ours are about as far from float64 as PyTorch's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ooc
from ooc import Graph
from ooc.networks import models
from ooc.networks.layers import KINDS
from ooc.networks.layers.loss import losses_of

torch = pytest.importorskip("torch")
from torch_networks import TorchNetwork  # noqa: E402

BATCH = 4


def every_layer(rank: int = 2) -> Graph:
    """A network with what the papers' networks leave out, in 1 to 3 dimensions."""
    g = Graph(f"every_layer{rank}")
    x = g.input("x", (3, *(12, 11, 9)[:rank]))
    h = g.conv(x, 8, 3, padding=1, bias=True, activation="leaky_relu")
    skip = g.instance_norm(h, activation="sigmoid", name="instance")
    h = g.conv(skip, 8, 3, padding=((2, 1),) * rank, dilation=2, groups=4, name="dilated")
    h = g.add(g.pad(h, ((1, 0),) * rank), skip, activation="tanh", name="skip")
    gate = g.linear(g.global_pool(h, how="max"), 8, bias=True, activation="sigmoid", name="gate")
    h = g.multiply(h, gate, name="gated")
    h = g.group_norm(h, 2, activation="elu", name="group")
    low = g.pool(h, 3, stride=2, padding=1, how="average", name="average")
    valid = g.pool(h, 3, stride=2, padding=1, how="average_valid", name="average_valid")
    low = g.multiply(low, valid, name="product")
    up = g.conv_transpose(
        low, 6, 3, stride=2, padding=((1, 0),) * rank, output_padding=1, groups=2, bias=True, activation="relu", name="up"
    )
    near = g.upsample(low, factor=2, how="nearest", name="near")
    smooth = g.upsample(low, g.shapes[near][1:], how="linear", name="smooth")
    aligned = g.upsample(low, g.shapes[near][1:], how="aligned", name="aligned")
    h = g.concat(near, smooth, aligned, name="sizes")
    h = g.crop(h, ((1, 0),) * rank, name="cut")
    up = g.crop(up, [(0, a - b) for a, b in zip(g.shapes[up][1:], g.shapes[h][1:], strict=True)], name="fitted")
    h = g.lrn(g.concat(h, up, name="both"), 4, alpha=0.5, base=1.0)
    h = g.batch_norm(g.conv(h, 6, 2, stride=2, name="strided"), momentum=0.3, name="norm")
    h = g.activation(h, ooc.Activation("clipped_relu", 1.5))
    h = g.multiply(h, g.softmax(h), name="attended")
    h = g.dropout(h, 0.0)
    h = g.linear(g.flatten(h), 10, name="fc")
    logits = g.softmax(h, log=True, name="logits")
    g.loss("cross_entropy", logits)
    g.output(logits, gate)
    return g


def shared() -> Graph:
    """Tensors with many readers, among them one layer twice, and a branch that no loss knows of."""
    g = Graph("shared")
    x = g.input("x", (2, 9, 9))
    z = g.input("z", (4, 9, 9))
    h = g.conv(x, 4, 3, padding=1)
    h = g.add(h, z)
    twice = g.multiply(h, h, name="square")
    twice = g.add(twice, twice, activation="relu", name="double")
    twice = g.multiply(twice, twice, name="again")
    h = g.concat(h, twice, h, name="thrice")
    apart = g.conv(h, 2, 1, name="apart")
    h = g.activation(g.conv(h, 5, 3), "sigmoid")
    h = g.add(g.linear(g.flatten(h), 6, name="one"), g.linear(g.flatten(h), 6, name="two"))
    g.loss("cross_entropy", h)
    g.output(h, apart)
    return g


def segmented(rank: int = 2) -> Graph:
    """Every loss, of logits of classes, of one channel, and of values, some of one tensor."""
    g = Graph(f"segmented{rank}")
    h = g.conv(g.input("x", (2, *(9, 8, 5)[:rank])), 6, 3, padding=1, bias=True, activation="tanh", name="h")
    logits = g.conv(h, 4, 1, bias=True, name="logits")
    g.loss("cross_entropy", logits, weights=[1, 0.5, 2, 0.25], smoothing=0.1)
    g.loss("cross_entropy", logits, smoothing=0.2, weight=0.5, name="smoothed")
    g.loss("cross_entropy", logits, weights=[1, 0.5, 2, 0.25], weight=0.25, name="weighted")
    g.loss("dice", logits, weight=2, name="dice")
    g.loss("dice", logits, batch=True, background=False, smooth=0.5, name="dice of the batch")
    one = g.conv(h, 1, 1, name="one")
    g.loss("dice", one, name="dice of one")
    g.loss("bce", one, weights=[3], weight=0.5, name="bce")
    g.loss("bce", logits, weights=[3, 1, 2, 0.5], name="bce of channels")
    values = g.linear(g.global_pool(h), 5, name="values")
    g.loss("mse", values, weight=0.3, name="mse")
    g.loss("l1", g.conv(h, 2, 3, name="picture"), name="l1")
    g.loss("bce", values, name="bce of values")
    g.output(logits, one)
    return g


NETWORKS: dict[str, Callable[[], Graph]] = {
    "alexnet": lambda: models.alexnet(side=32, classes=10, width=1 / 8, dropout=0),
    "overfeat": lambda: models.overfeat(side=32, classes=10, width=1 / 16, dropout=0),
    "vgg16": lambda: models.vgg(16, side=32, classes=10, width=1 / 8, dropout=0),
    "resnet18": lambda: models.resnet(18, side=32, classes=10, width=1 / 8),
    "resnet50": lambda: models.resnet(50, side=48, classes=10, width=1 / 16),
    "wrn": lambda: models.wrn(16, 2, side=16, classes=10, width=1 / 4),
    "googlenet": lambda: models.googlenet(side=32, classes=10, width=1 / 8, dropout=0),
    "unet3d": lambda: models.unet3d(side=16, width=1 / 8),
    "every layer, 1-D": lambda: every_layer(1),
    "every layer": every_layer,
    "every layer, 3-D": lambda: every_layer(3),
    "shared": shared,
    "segmented": segmented,
    "segmented, 3-D": lambda: segmented(3),
}


# Layers of networks that come from elsewhere, compared where these are read (tests/onnx, tests/torch).
IMPORTED = {
    "affine", "argmax", "convert", "depth_to_space", "function", "laid", "permute", "reshape", "resize", "round",
}  # fmt: skip


def wider(graph: Graph) -> Graph:
    """The same network in float64."""
    return Graph.from_json(graph.to_json().replace('"dtype": "f32"', '"dtype": "f64"'))


class Both:
    """A session and torch's network on the same numbers."""

    def __init__(self, graph: Graph, policy: str = "keep", **options: Any) -> None:
        self.graph = graph
        self.dtype = np.float64 if graph.dtypes["x"] == "f64" else np.float32
        self.plan = graph.plan(batch=BATCH, policy=policy, device=ooc.device("cpu", threads=2), **options)
        rng = np.random.default_rng(len(graph.nodes))
        begin = {  # scales and biases that are neither 1 nor 0
            name: (weights.value + 0.3 * rng.random(weights.shape)) for name, weights in graph.parameters.items()
            if weights.value is not None
        }  # fmt: skip
        self.session = self.plan.session(begin, seed=1)
        kept = {**self.session.parameters(), **self.session.statistics()}
        self.torch = TorchNetwork(graph, kept, torch.float64 if self.dtype is np.float64 else torch.float32)
        self.rng = rng

    def batch(self) -> tuple[Any, Any]:
        """Random inputs, and labels, of which one is left out, or other targets; a dict where there are several."""
        x = {name: self.rng.standard_normal((BATCH, *shape)).astype(self.dtype) for name, shape in self.graph.inputs.items()}
        targets = {}
        for name, (layer, read, inputs) in losses_of(self.graph).items():
            slot = self.plan.network.tensors[inputs.target]
            if slot.dtype == "i64":
                targets[name] = self.rng.integers(0, layer.classes(self.graph.shapes[read][0]), slot.shape)
                targets[name].reshape(-1)[1] = -1
            else:
                targets[name] = self.rng.random(slot.shape).astype(self.dtype)
        return x, targets if len(targets) > 1 else targets["loss"]


def furthest(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """For each tensor the largest difference, relative to the largest value."""
    assert set(ours) == set(theirs)
    found = {}
    for name, wanted in theirs.items():
        assert ours[name].shape == wanted.shape, name
        found[name] = float(np.abs(ours[name] - wanted).max() / max(np.abs(wanted).max(), 1e-30))
    return found


def all_of(both: Both) -> dict[str, float]:
    """The differences of a step and of an inference after it."""
    x, labels = both.batch()
    loss = both.session.step(x, labels)
    wanted, gradients = both.torch.gradients(x, labels)
    found = furthest(both.session.gradients(), gradients)
    statistics = {name: t.numpy() for name, t in both.torch.statistics.items()}
    found |= furthest(both.session.statistics(), statistics)
    found["the loss"] = abs(loss - wanted) / abs(wanted)
    made = both.session.forward(x)
    outputs = made if isinstance(made, dict) else {both.graph.outputs[0]: made}
    return found | {f"output {n}": d for n, d in furthest(outputs, both.torch(x)).items()}


def test_every_kind_of_layer_is_compared() -> None:
    assert {n.layer.kind for make in NETWORKS.values() for n in make().nodes} == {*KINDS} - IMPORTED


@pytest.mark.parametrize("name", NETWORKS)
def test_in_float64(name: str) -> None:
    found = all_of(Both(wider(NETWORKS[name]())))
    worst = max(found, key=found.__getitem__)
    print(f"{name}: {worst} {found[worst]:.2g}")
    assert found[worst] < 1e-11, worst


@pytest.mark.parametrize("name", NETWORKS)
def test_in_float32(name: str) -> None:
    both = Both(NETWORKS[name]())
    exact = TorchNetwork(both.graph, {**both.session.parameters(), **both.session.statistics()}, torch.float64)
    x, labels = both.batch()
    loss = both.session.step(x, labels)
    (wanted, theirs), (_, truth) = both.torch.gradients(x, labels), exact.gradients(doubled(x), labels)
    ours = both.session.gradients()
    found = furthest(ours, theirs)
    worst = max(found, key=found.__getitem__)
    own, other = (statistics.median(furthest(g, truth).values()) for g in (ours, theirs))
    print(f"{name}: {worst} {found[worst]:.2g}; from float64 {own:.2g}, PyTorch {other:.2g}")
    normed = any(n.layer.kind == "batch_norm" for n in both.graph.nodes)
    assert found[worst] < (3e-4 if normed else 2e-5), worst
    assert abs(loss - wanted) / abs(wanted) < 1e-5 and own <= 3 * other


def doubled(x: Any) -> Any:
    return {name: a.astype(np.float64) for name, a in x.items()}


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "every layer", "shared", "segmented"])
def test_streamed(name: str) -> None:
    """Each call in tiles, under a budget that is less than most layers take."""
    both = Both(wider(NETWORKS[name]()), "stream", budget="24 KiB")
    found = all_of(both)
    worst = max(found, key=found.__getitem__)
    print(f"{name}: {worst} {found[worst]:.2g}; budget {both.plan.budget}")
    assert found[worst] < 1e-11, worst
    assert both.plan.peaks["device"] <= 24 << 10


# ---- updates

RULES: dict[str, dict[str, Any]] = {
    "plain": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "decay": {"lr": 0.05, "weight_decay": 0.1},
    "all": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
    "nesterov": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["resnet18", "every layer", "shared"])
def test_three_steps_of_sgd(name: str, rule: str) -> None:
    """Parameters, statistics and losses of three updates."""
    both = Both(wider(NETWORKS[name]()), optimizer=ooc.SGD(**RULES[rule]))
    optimizer = torch.optim.SGD(both.torch.parameters.values(), **RULES[rule])
    for _ in range(3):
        x, labels = both.batch()
        loss = both.session.step(x, labels)
        wanted, _ = both.torch.gradients(x, labels)
        optimizer.step()
        assert loss == pytest.approx(wanted, rel=1e-9)
    found = furthest(both.session.parameters(), {n: p.detach().numpy() for n, p in both.torch.parameters.items()})
    found |= furthest(both.session.statistics(), {n: t.numpy() for n, t in both.torch.statistics.items()})
    assert max(found.values()) < 1e-9, max(found, key=found.__getitem__)


def test_sgd_in_float32() -> None:
    both = Both(NETWORKS["alexnet"](), optimizer=ooc.SGD(**RULES["nesterov"]))
    optimizer = torch.optim.SGD(both.torch.parameters.values(), **RULES["nesterov"])
    for _ in range(3):
        x, labels = both.batch()
        assert both.session.step(x, labels) == pytest.approx(both.torch.gradients(x, labels)[0], rel=1e-5)
        optimizer.step()
    found = furthest(both.session.parameters(), {n: p.detach().numpy() for n, p in both.torch.parameters.items()})
    assert max(found.values()) < 2e-5


def test_no_label_counts() -> None:
    """A batch without labels is a loss of 0 and gradients of 0 (torch: not a number)."""
    both = Both(NETWORKS["every layer"]())
    x, labels = both.batch()
    assert both.session.step(x, np.full_like(labels, -1)) == 0
    assert not any(g.any() for g in both.session.gradients().values())
