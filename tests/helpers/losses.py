"""Losses and their gradients by x, as formulas of whole float64 arrays, and graphs that have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc.networks import Graph
from ooc.networks.layers.loss import losses_of

Array = np.ndarray[Any, Any]
Said = tuple[str, dict[str, Any]]  # a loss, and its options
CLASSES = 4
W = [1.0, 2.0, 0.5, 3.0]
LOSSES: dict[str, tuple[int, tuple[Said, ...]]] = {  # channels, and losses of them
    "cross entropy": (CLASSES, (("cross_entropy", {}),)),
    "weights": (CLASSES, (("cross_entropy", {"weights": W}),)),
    "smoothing": (CLASSES, (("cross_entropy", {"smoothing": 0.1}),)),
    "weights and smoothing": (CLASSES, (("cross_entropy", {"weights": W, "smoothing": 0.3, "weight": 2.5}),)),
    "mse": (CLASSES, (("mse", {}),)),
    "l1": (CLASSES, (("l1", {}),)),
    "bce": (CLASSES, (("bce", {}),)),
    "bce, weights": (CLASSES, (("bce", {"weights": W}),)),
    "dice": (CLASSES, (("dice", {}),)),
    "dice of the batch": (CLASSES, (("dice", {"batch": True, "smooth": 0.5}),)),
    "dice without background": (CLASSES, (("dice", {"background": False, "weight": 3}),)),
    "dice of one channel": (1, (("dice", {"smooth": 0.25}),)),
    "dice and cross entropy": (CLASSES, (("dice", {"weight": 0.5}), ("cross_entropy", {}))),
    "several": (CLASSES, (("cross_entropy", {"smoothing": 0.1}), ("mse", {"weight": 0.3}), ("dice", {"weight": 0.5}))),
}
ALONE = {name: said for name, (_, said) in LOSSES.items() if len(said) == 1}


def graph_with(name: str, dtype: str = "f64", size: tuple[int, ...] = (6, 5)) -> Graph:
    """A convolution of 1 x 1, whose gradients tell that of x, and losses."""
    channels, said = LOSSES[name]
    g = Graph(name)
    y = g.conv(g.input("x", (2, *size), dtype), channels, 1, bias=True, name="y")
    for how, options in said:
        g.loss(how, y, **options)
    g.output(y)
    return g


def targets_for(graph: Graph, batch: int, seed: int = 0) -> Any:
    """Random labels, some of them negative, and targets: one array, or a dict where losses take several."""
    rng, shapes, targets = np.random.default_rng(seed), graph.shapes, {}
    labels: dict[Any, Any] = {}
    for name, (layer, x, _) in losses_of(graph).items():
        shape, dtype = layer.target(shapes[x], graph.dtypes[x])
        kind = shape, dtype, layer.classes(shapes[x][0])
        if kind not in labels and dtype == "i64":
            labels[kind] = rng.integers(-1, kind[2], (batch, *shape))
        elif kind not in labels:
            labels[kind] = rng.random((batch, *shape)).astype({"f64": "f8", "f32": "f4", "f16": "f2"}[dtype])
        targets[name] = labels[kind]
    return next(iter(targets.values())) if len(labels) == 1 else targets


def value(x: Array, targets: Any, said: tuple[Said, ...]) -> tuple[float, Array]:
    """The sum of losses, and its gradient by x."""
    total, dx = 0.0, np.zeros(x.shape)
    for i, (how, options) in enumerate(said):
        target = targets[f"loss{i + 1}" if i else "loss"] if isinstance(targets, dict) else targets
        own = {name: v for name, v in options.items() if name != "weight"}
        loss, gradient = FORMULAS[how](x, target, **own)
        total += options.get("weight", 1.0) * loss
        dx += options.get("weight", 1.0) * gradient
    return total, dx


def along(values: Any, x: Array) -> Array:
    """One value per channel, beside x."""
    return np.asarray(values, float).reshape(-1, *(1,) * (x.ndim - 2))


def onehot(labels: Array, x: Array) -> Array:
    """1 where a channel is the label; nowhere where that is negative."""
    return (labels[:, None] == along(range(x.shape[1]), x)).astype(float)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def cross_entropy(x: Array, labels: Array, weights: Any = None, smoothing: float = 0.0) -> tuple[float, Array]:
    """A sum over classes of what a label asks of each, divided by the sum of the labels' weights."""
    w = along(np.ones(x.shape[1]) if weights is None else weights, x)
    there = (labels >= 0)[:, None]
    q = there * w * ((1 - smoothing) * onehot(labels, x) + smoothing / x.shape[1])
    counted = (onehot(labels, x) * w).sum() or 1.0
    z = x - x.max(axis=1, keepdims=True)
    loss = (q * (np.log(np.exp(z).sum(axis=1, keepdims=True)) - z)).sum() / counted
    return float(loss), (softmax(x) * q.sum(axis=1, keepdims=True) - q) / counted


def mse(x: Array, t: Array) -> tuple[float, Array]:
    return float(((x - t) ** 2).mean()), 2 * (x - t) / x.size


def l1(x: Array, t: Array) -> tuple[float, Array]:
    return float(abs(x - t).mean()), np.sign(x - t) / x.size


def bce(x: Array, t: Array, weights: Any = None) -> tuple[float, Array]:
    w, p = along(np.ones(x.shape[1]) if weights is None else weights, x), 1 / (1 + np.exp(-x))
    each = w * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)
    return float(each.mean()), ((1 - t) * p - w * t * (1 - p)) / x.size


def dice(
    x: Array, labels: Array, smooth: float = 1.0, batch: bool = False, background: bool = True
) -> tuple[float, Array]:  # fmt: skip
    """The gradient by p is that of a quotient; softmax's and the sigmoid's follow."""
    there = (labels >= 0)[:, None]
    p = ((1 + np.tanh(x / 2)) / 2 if x.shape[1] == 1 else softmax(x)) * there
    t = (labels == 1)[:, None].astype(float) if x.shape[1] == 1 else onehot(labels, x)
    axes = (*((0,) if batch else ()), *range(2, x.ndim))
    overlap, mass = ((z.sum(axis=axes, keepdims=True) + s) for z, s in ((2 * p * t, smooth), (p + t, smooth)))
    counts = along([background or c > 0 for c in range(x.shape[1])], x)
    classes = counts.sum() * (1 if batch else len(x))
    loss = float(((1 - overlap / mass) * counts).sum() / classes)
    by_p = counts * (overlap - 2 * t * mass) / mass**2 / classes
    dx = p * (1 - p) * by_p if x.shape[1] == 1 else p * (by_p - (p * by_p).sum(axis=1, keepdims=True))
    return loss, dx * there


FORMULAS = {"cross_entropy": cross_entropy, "mse": mse, "l1": l1, "bce": bce, "dice": dice}
