"""Naive float64 references of normalisations and softmax, with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle_forward import Array, Arrays, Results, activation


def averaged(op: Any) -> tuple[int, ...]:
    """The axes over which batch normalisation takes its statistics."""
    return (0,) if op.per == "activation" else (0, *range(2, 2 + len(op.extent)))


def bn_moments(op: Any, given: Arrays) -> Results:
    x, axes = given["x"], averaged(op)
    return {"mean": np.mean(x, axis=axes, keepdims=True), "var": np.var(x, axis=axes, keepdims=True)}


def unit(op: Any, given: Arrays) -> Array:
    """x, normalised."""
    return np.asarray((given["x"] - given["mean"]) / np.sqrt(given["var"] + op.eps))


def bn_apply(op: Any, given: Arrays) -> Results:
    return {"y": activation(op.act, op.coef, unit(op, given) * given["scale"] + given["b"])}


def bn_sums(op: Any, given: Arrays) -> Results:
    dscale = np.sum(given["dy"] * unit(op, given), axis=averaged(op), keepdims=True)
    return {"dscale": dscale, "db": np.sum(given["dy"], axis=averaged(op), keepdims=True)}


def bn_pull(op: Any, given: Arrays) -> Results:
    """dy, less its mean and its part along the normalised x, each in units of the deviation."""
    count = np.prod([given["x"].shape[a] for a in averaged(op)])
    spread = given["db"] / count + unit(op, given) * given["dscale"] / count
    return {"dx": given["scale"] / np.sqrt(given["var"] + op.eps) * (given["dy"] - spread)}


# ---- softmax over channels


def softmax_sum(op: Any, given: Arrays) -> Results:
    top = given["x"].max(axis=1, keepdims=True)
    return {"sums": np.concatenate([top, np.exp(given["x"] - top).sum(axis=1, keepdims=True)], axis=1)}


def log_sum(given: Arrays) -> Array:
    """log(sum of exp(x)), from the largest value and what the others are beside it."""
    return given["sums"][:, :1] + np.log(given["sums"][:, 1:])


def softmax(op: Any, given: Arrays) -> Results:
    y = given["x"] - log_sum(given)
    return {"y": y if op.how == "log" else np.exp(y)}


def softmax_summed(op: Any, given: Arrays) -> Results:
    """dot: sum over channels of y * dy; sum: of dy."""
    s = np.einsum("nk...,nk...->n...", given["dy"], given["y"]) if op.how == "dot" else given["dy"].sum(axis=1)
    return {"s": np.expand_dims(s, 1)}


def softmax_backward(op: Any, given: Arrays) -> Results:
    y, dy, s = given["y"], given["dy"], given["s"]
    return {"dx": dy - np.exp(y) * s if op.how == "log" else y * dy - y * s}


# ---- local response normalisation


def neighbours(op: Any, i: int) -> list[int]:
    """The channels whose squares channel i counts."""
    return [j for j in range(i - op.before, i - op.before + op.size) if 0 <= j < op.k]


def lrn_scale(op: Any, x: Array) -> Array:
    scale = np.zeros(x.shape)
    for i in range(op.k):
        scale[:, i] = op.base + op.alpha / op.size * sum(x[:, j] ** 2 for j in neighbours(op, i))
    return scale


def lrn(op: Any, given: Arrays) -> Results:
    return {"y": given["x"] / lrn_scale(op, given["x"]) ** op.beta}


def lrn_backward(op: Any, given: Arrays) -> Results:
    """Channel i of y depends on each of its neighbours j, and on x[i] once more: the chain rule, pair by pair."""
    x, dy = given["x"], given["dy"]
    scale = lrn_scale(op, x)
    dx = dy * scale**-op.beta
    for i in range(op.k):
        for j in neighbours(op, i):
            dx[:, j] -= dy[:, i] * x[:, i] * op.beta * scale[:, i] ** (-op.beta - 1) * op.alpha / op.size * 2 * x[:, j]
    return {"dx": dx}
