"""Every layer of a step computed again in memory by NumPy, from what that layer itself read.

A second run of the whole network would be no measure: a unit that lies within rounding of zero is on one side of ReLU in one
run and on the other in the next, and all gradients behind it differ by percents though both runs are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
from models import Conv, Linear, Shapes
from numpy.lib.stride_tricks import sliding_window_view
from training import Array, Weights, dropout_seed

import ooc

TOLERANCE = 1e-4  # of the largest value of a tensor: sums of 100,000 products in f32, in whatever order
SMALLEST = 1e-30  # of the largest values that mean anything: products of less are no numbers of f32 any more
BAND_BYTES = 8 << 20  # of patches of a picture that are multiplied at once: they stay in the caches
ROWS = 64  # of a linear layer's matrix that are multiplied at once

Tensors = Mapping[str, Array]


class Comparison:
    """Compares what layers made with what they should have made; give `Step` its `see`."""

    def __init__(self, weights: Weights, seed: int) -> None:
        self.weights, self.seed = weights, seed
        self.worst, self.where, self.compared = 0.0, "nothing", 0

    @property
    def right(self) -> bool:
        """Whether all that was compared agrees."""
        return self.worst <= TOLERANCE

    def see(self, s: Shapes | None, tensors: Tensors) -> None:
        """A layer's tensors (None: the loss's), when its backward pass is done."""
        name = s.layer.name if s else "loss"
        for result, made, wanted in self._wanted(s, tensors):
            self.compared += 1
            off = difference(made, wanted)
            if off >= self.worst:
                self.worst, self.where = off, f"{name}.{result}"

    def _wanted(self, s: Shapes | None, t: Tensors) -> Iterator[tuple[str, Array, Array]]:
        if s is None:
            return _loss(t)
        w, b = self.weights[s.layer.name]
        return _conv(s.layer, w, b, t) if isinstance(s.layer, Conv) else _linear(s.layer, w, b, t, self.seed)


def difference(made: Array, wanted: Array) -> float:
    """The largest difference, relative to the largest value; what is not a number is infinitely wrong."""
    largest = max(float(np.abs(wanted).max()), SMALLEST)
    off = float(np.abs(np.subtract(made, wanted, dtype=np.float64)).max()) / largest
    return off if math.isfinite(off) else math.inf


# ---- layers: for each result its name, what was made, and what it should be


def _loss(t: Tensors) -> Iterator[tuple[str, Array, Array]]:
    """Cross-entropy, the mean over the pictures. Where a label is nearly certain, what is left of a difference of large numbers
    is small, and all rounding: the numbers are compared."""
    x, labels, rows = t["x"].astype(np.float64), t["labels"], np.arange(len(t["x"]))
    shifted = x - x.max(axis=1, keepdims=True)
    sums, largest = np.exp(shifted).sum(axis=1, keepdims=True), np.abs(x).max()
    yield "loss", t["loss"] + largest, np.mean(np.log(sums[:, 0]) - shifted[rows, labels]) + largest
    probabilities = t["dx"] * float(len(x))
    probabilities[rows, labels] += 1
    yield "dx", probabilities, np.exp(shifted) / sums


def _linear(layer: Linear, w: Array, b: Array, t: Tensors, seed: int) -> Iterator[tuple[str, Array, Array]]:
    if layer.dropout:
        with ooc.device("cpu"):
            mask = ooc.dropout(np.ones(t["y"].shape, np.float32), layer.dropout, dropout_seed(seed, layer.name))
        yield "z", t["z"], t["y"] * mask
        yield "dy", t["dy"], t["dz"] * mask
    x, dy = t["x"].astype(np.float64), _through_activation(layer.activation, t["y"], t["dy"]).astype(np.float64)
    y, dx = np.empty(dy.shape), np.zeros(x.shape)
    for top in range(0, len(w), ROWS):  # in float64 the whole of it would take twice its size
        rows = slice(top, top + ROWS)
        part = w[rows].astype(np.float64)
        y[:, rows] = x @ part.T + b[rows]
        dx += dy[:, rows] @ part
        yield "dw", t["dw"][rows], dy[:, rows].T @ x
    yield "y", t["y"], _activation(layer.activation, y)
    yield "dx", t["dx"], dx
    yield "db", t["db"], dy.sum(axis=0)


def _conv(layer: Conv, w: Array, b: Array, t: Tensors) -> Iterator[tuple[str, Array, Array]]:
    y, dy = t["y"], t["dz"]
    if layer.pool is not None:
        windows = _windows(y, layer.pool)
        yield "z", t["z"], windows.max(axis=-1)
        dy = _unpooled(windows, dy, y.shape, layer.pool)
    dy = _through_activation(layer.activation, y, dy)
    wanted = {name: np.zeros(t[name].shape, np.float64 if name == "dw" else np.float32) for name in ("y", "dx", "dw")}
    for i in range(len(y)):
        _one_picture(layer, w, t["x"][i], dy[i], wanted["y"][i], wanted["dx"][i], wanted["dw"])
    wanted["y"] = _activation(layer.activation, wanted["y"] + b[:, None, None])
    for name, array in wanted.items():
        yield name, t[name], array
    yield "db", t["db"], dy.sum(axis=(0, 2, 3), dtype=np.float64)


def _one_picture(layer: Conv, w: Array, x: Array, dy: Array, y: Array, dx: Array, dw: Array) -> None:
    """Fill y before its bias and dx, and add to dw, a band of rows at a time: each position's patch of x is a column."""
    (k, c, taps, _), (height, width), pad, stride = w.shape, y.shape[1:], layer.padding, layer.stride
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    gathered = np.zeros_like(padded)
    patches = sliding_window_view(padded, (taps, taps), (1, 2))[:, ::stride, ::stride].transpose(0, 3, 4, 1, 2)
    matrix, rows = w.reshape(k, -1), max(1, BAND_BYTES // (padded.itemsize * c * taps * taps * width))
    for top in range(0, height, rows):
        band = slice(top, min(top + rows, height))
        columns = patches[:, :, :, band].reshape(matrix.shape[1], -1)
        slope = dy[:, band].reshape(k, -1)
        y[:, band] = (matrix @ columns).reshape(y[:, band].shape)
        dw += (slope @ columns.T).reshape(w.shape)
        back = (matrix.T @ slope).reshape(c, taps, taps, -1, width)
        for r, s in product(range(taps), repeat=2):
            first = top * stride + r
            gathered[:, first : first + stride * back.shape[3] : stride, s : s + stride * width : stride] += back[:, r, s]
    dx[...] = gathered[:, pad : pad + dx.shape[1], pad : pad + dx.shape[2]]


def _activation(name: str | None, y: Array) -> Array:
    return np.maximum(y, 0) if name == "relu" else y


def _through_activation(name: str | None, y: Array, dy: Array) -> Array:
    return np.where(y > 0, dy, 0) if name == "relu" else dy


def _windows(y: Array, side: int) -> Array:
    """The windows of a pooling, the values of each behind each other."""
    n, k, height, width = y.shape
    p, q = height // side, width // side
    cut = np.asarray(y[:, :, : p * side, : q * side]).reshape(n, k, p, side, q, side)
    return cut.transpose(0, 1, 2, 4, 3, 5).reshape(n, k, p, q, side * side)


def _unpooled(windows: Array, dz: Array, shape: tuple[int, ...], side: int) -> Array:
    """The gradient of max pooling: it goes to the first of the largest values of a window."""
    n, k, p, q, _ = windows.shape
    spread = np.zeros_like(windows)
    np.put_along_axis(spread, windows.argmax(axis=-1)[..., None], dz[..., None], axis=-1)
    dy = np.zeros(shape, dz.dtype)
    dy[:, :, : p * side, : q * side] = (
        spread.reshape(n, k, p, q, side, side).transpose(0, 1, 2, 4, 3, 5).reshape(n, k, p * side, q * side)
    )
    return dy
