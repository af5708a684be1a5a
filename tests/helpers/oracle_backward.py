"""Naive float64 references of gradients, on whole tensors: (n, channels, spatial...)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from oracle_forward import Array, Arrays, Results, activation, along_channels, meetings, takings, taps_of


def conv_dgrad(op: Any, given: Arrays) -> Results:
    """Every value of dy is scattered over the positions that its window saw; then bias (per c) and activation."""
    dy, w = given["dy"], given["w"]
    padded = np.zeros((op.n, op.c, *(e + sum(p) for e, p in zip(op.extent, op.pad, strict=True))))
    filters, per = op.k // op.groups, op.c // op.groups
    for g in range(op.groups):
        own = slice(g * filters, (g + 1) * filters)
        for at, view in taps_of(padded[:, g * per : (g + 1) * per], op.taps, op.stride, op.dilation):
            view += np.einsum("nk...,kc->nc...", dy[:, own], w[(own, slice(None), *at)])
    inside = tuple(slice(before, before + e) for e, (before, _) in zip(op.extent, op.pad, strict=True))
    z = padded[(..., *inside)]
    if "b" in given:
        z = z + along_channels(given["b"], z.ndim)
    return {"dx": activation(op.act, op.coef, z)}


def conv_wgrad(op: Any, given: Arrays) -> Results:
    padded = np.pad(given["x"], [(0, 0), (0, 0), *op.pad])
    filters, per = op.k // op.groups, op.c // op.groups
    dw = np.zeros((op.k, per, *op.taps))
    for g, k in itertools.product(range(op.groups), range(filters)):
        dy = given["dy"][:, g * filters + k, None]
        for at, view in taps_of(padded[:, g * per : (g + 1) * per], op.taps, op.stride, op.dilation):
            dw[(g * filters + k, slice(None), *at)] = np.sum(view * dy, axis=(0, *range(2, view.ndim)))
    return {"dw": dw}


def windows(op: Any) -> Any:
    """Every window of a pooling: its position in y, and the box of x inside it."""
    for at in itertools.product(*map(range, op.out)):
        starts = [i * s - before for i, s, (before, _) in zip(at, op.stride, op.pad, strict=True)]
        yield at, tuple(slice(max(lo, 0), min(lo + w, e)) for lo, w, e in zip(starts, op.window, op.extent, strict=True))


def pool_backward(op: Any, given: Arrays) -> Results:
    """Window by window: all to the first maximum (argmax is that, NaN counting as largest), or equal parts."""
    dx, dy = np.zeros((op.n, op.k, *op.extent)), given["dy"]
    for at, box in windows(op):
        for n, k in itertools.product(range(op.n), range(op.k)):
            part = dx[(n, k, *box)]
            if op.how == "max":
                part[np.unravel_index(np.argmax(given["x"][(n, k, *box)]), part.shape)] += dy[(n, k, *at)]
            else:
                part += dy[(n, k, *at)] / (part.size if op.how == "average_valid" else np.prod(op.window))
    return {"dx": dx}


def slope(name: str, coef: float, y: Array) -> Array:
    """The derivative of an activation where its value is y; at a kink the one on the left."""
    one = np.ones(y.shape)
    return {
        "identity": lambda: one,
        "relu": lambda: one * (y > 0),
        "clipped_relu": lambda: one * ((y > 0) & (y < coef)),
        "elu": lambda: np.where(y > 0, 1.0, y + coef),
        "leaky_relu": lambda: np.where(y > 0, 1.0, coef),
        "sigmoid": lambda: y * (1 - y),
        "tanh": lambda: 1 - y**2,
    }[name]()


def activation_backward(op: Any, given: Arrays) -> Results:
    return {"dx": given["dy"] * slope(op.act, op.coef, given["y"])}


def resize_backward(op: Any, given: Arrays) -> Results:
    dx = np.zeros((op.n, op.k, *op.extent))
    for at, source, weight in takings(op):
        dx[(..., *source)] += weight * given["dy"][(..., *at)]
    return {"dx": dx}


def upsample_backward(op: Any, given: Arrays) -> Results:
    dx = np.zeros((op.n, op.k, *op.extent))
    for at, source, weight in meetings(op):
        dx[(..., *source)] += weight * given["dy"][(..., *at)]
    return {"dx": dx}
