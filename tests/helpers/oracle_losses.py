"""Naive float64 references of losses, with their gradients: formulas of whole tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle_forward import Array, Arrays, Results
from oracle_norm import log_sum


def onehot(op: Any, labels: Array) -> Array:
    """1 in the channel that is the label of its position."""
    return np.asarray(labels == np.arange(op.k).reshape(1, -1, *(1,) * op.rank), float)


def sought(op: Any, given: Arrays) -> Array:
    """What a label asks of each channel; nothing where it is negative."""
    q = onehot(op, given["labels"]) * (1 - op.smoothing) + op.smoothing / op.k
    if op.weighted:
        q = q * given["weights"][:-1].reshape(1, -1, *(1,) * op.rank)
    return np.asarray(q * (given["labels"] >= 0))


def cross_entropy(op: Any, given: Arrays) -> Results:
    q = sought(op, given)
    return {"loss": (q * (log_sum(given) - given["x"])).sum(axis=1, keepdims=True)}


def cross_entropy_backward(op: Any, given: Arrays) -> Results:
    """The sum of the weights is given: it need not be that of the others."""
    labels, q = given["labels"].astype(int), sought(op, given)
    one, every = (given["weights"][np.maximum(labels, 0)], given["weights"][-1]) if op.weighted else (1.0, op.k)
    in_all = (1 - op.smoothing) * one + op.smoothing / op.k * every
    return {"dx": (np.exp(given["x"] - log_sum(given)) * in_all * (labels >= 0) - q) * given["dloss"]}


def distance(op: Any, given: Arrays) -> Results:
    x, t = given["x"], given["target"]
    w = given["weights"].reshape(-1, *(1,) * op.rank) if op.weighted else 1.0
    each = {
        "mse": (x - t) ** 2,
        "l1": abs(x - t),
        "bce": w * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x),
    }[op.how]
    return {"loss": each.sum(axis=1, keepdims=True)}


def distance_backward(op: Any, given: Arrays) -> Results:
    x, t = given["x"], given["target"]
    w = given["weights"].reshape(-1, *(1,) * op.rank) if op.weighted else 1.0
    p = 1 / (1 + np.exp(-x))
    slope = {"mse": 2 * (x - t), "l1": np.sign(x - t), "bce": (1 - t) * p - w * t * (1 - p)}[op.how]
    return {"dx": slope * given["share"].reshape(())}


# ---- Dice


def guessed(op: Any, given: Arrays) -> tuple[Array, Array]:
    """Probabilities and labels as 0 and 1, both 0 where there is no label."""
    counts = given["labels"] >= 0
    if op.k == 1:
        p, t = 1 / (1 + np.exp(-given["x"])), given["labels"] == 1
    else:
        p, t = np.exp(given["x"] - log_sum(given)), onehot(op, given["labels"])
    return p * counts, t * counts


def dice_sums(op: Any, given: Arrays) -> Results:
    axes = (*((0,) if op.batch else ()), *range(2, 2 + op.rank))
    p, t = guessed(op, given)
    both = [z.sum(axis=axes, keepdims=True) for z in (p * t, p + t)]
    return {"totals": np.concatenate(both, axis=-1)}


def classes(op: Any) -> Array:
    """1 for each channel that counts."""
    return (np.arange(op.k) >= (op.k > 1 and not op.background)).reshape(1, -1, *(1,) * op.rank).astype(float)


def dice_score(op: Any, given: Arrays) -> Results:
    overlap, mass = given["totals"][..., :1], given["totals"][..., 1:]
    missed = (1 - (2 * overlap + op.smooth) / (mass + op.smooth)) * classes(op)
    return {"loss": missed.sum().reshape((1,) * (2 + op.rank))}


def slope(op: Any, given: Arrays, t: Array) -> Array:
    """Of the score, by each probability: a quotient's."""
    overlap, mass = given["totals"][..., :1], given["totals"][..., 1:] + op.smooth
    by_p = -(2 * t * mass - (2 * overlap + op.smooth)) / mass**2
    return np.asarray(by_p * classes(op) * given["share"].reshape(()))


def dice_dot(op: Any, given: Arrays) -> Results:
    p, t = guessed(op, given)
    return {"s": (p * slope(op, given, t)).sum(axis=1, keepdims=True)}


def dice_pull(op: Any, given: Arrays) -> Results:
    p, t = guessed(op, given)
    g = slope(op, given, t)
    return {"dx": p * (1 - p) * g if op.k == 1 else p * (g - given["s"])}
