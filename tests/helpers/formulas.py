"""Textbook float64 formulas of every public function, in plain NumPy: what the functions are compared with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Array = Any
Pads = Sequence[tuple[int, int]]


def _windows(
    extent: Sequence[int], taps: Sequence[int], stride: Sequence[int], pad: Pads, dilation: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """For every tap: where the padded input lies under it, as an index of the spatial axes."""
    axes = list(zip(extent, taps, stride, pad, dilation, strict=True))
    out = [(e + sum(p) - d * (t - 1) - 1) // s + 1 for e, t, s, p, d in axes]
    for tap in itertools.product(*map(range, taps)):
        yield tap, tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, o, (_, _, s, _, d) in zip(tap, out, axes))


def _padded(x: Array, pad: Pads, fill: float = 0.0) -> Array:
    return np.pad(np.asarray(x, np.float64), [(0, 0), (0, 0), *pad], constant_values=fill)


def _inside(padded: Array, pad: Pads) -> Array:
    return padded[(..., *(slice(lo, e - hi) for (lo, hi), e in zip(pad, padded.shape[2:])))]


def _grouped(a: Array, groups: int) -> Array:
    return a.reshape(a.shape[0], groups, -1, *a.shape[2:])


def channels(values: Array, ndim: int) -> Array:
    """One value per channel, ready to be added."""
    return np.asarray(values, np.float64).reshape(1, -1, *(1,) * (ndim - 2))


class Geometry:
    """Stride, padding, dilation and groups of a convolution or pooling, per spatial axis."""

    def __init__(self, rank: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> None:
        self.stride, self.dilation = (np.broadcast_to(v, rank).tolist() for v in (stride, dilation))
        pads = [padding] * rank if np.ndim(padding) == 0 else list(padding)
        self.pad = [(p, p) if np.ndim(p) == 0 else tuple(p) for p in pads]
        self.groups = groups

    def windows(self, extent: Sequence[int], taps: Sequence[int]) -> Iterator[Any]:
        return _windows(extent, taps, self.stride, self.pad, self.dilation)


def conv(x: Array, w: Array, b: Array | None = None, **how: Any) -> Array:
    """Cross-correlation, plus a bias per channel."""
    at, w = Geometry(x.ndim - 2, **how), np.asarray(w, np.float64)
    seen, g = _padded(x, at.pad), at.groups
    total: Any = 0
    for tap, index in at.windows(x.shape[2:], w.shape[2:]):
        own = w[(..., *tap)].reshape(g, -1, w.shape[1])
        total = total + np.einsum("ngc...,gkc->ngk...", _grouped(seen[(..., *index)], g), own)
    total = total.reshape(x.shape[0], w.shape[0], *total.shape[3:])
    return total if b is None else total + channels(b, x.ndim)


def conv_dx(dy: Array, w: Array, x_shape: Sequence[int], **how: Any) -> Array:
    """The gradient of a convolution's x."""
    at, w = Geometry(dy.ndim - 2, **how), np.asarray(w, np.float64)
    dx, g = _padded(np.zeros(x_shape), at.pad), at.groups
    for tap, index in at.windows(x_shape[2:], w.shape[2:]):
        own = w[(..., *tap)].reshape(g, -1, w.shape[1])
        part = np.einsum("ngk...,gkc->ngc...", _grouped(np.asarray(dy, np.float64), g), own)
        dx[(..., *index)] += part.reshape(x_shape[0], x_shape[1], *part.shape[3:])
    return _inside(dx, at.pad)


def conv_dw(x: Array, dy: Array, w_shape: Sequence[int], **how: Any) -> Array:
    """The gradient of a convolution's filters."""
    at, dw = Geometry(x.ndim - 2, **how), np.zeros(w_shape)
    seen, g = _padded(x, at.pad), at.groups
    own = _grouped(np.asarray(dy, np.float64).reshape(*dy.shape[:2], -1), g)
    for tap, index in at.windows(x.shape[2:], w_shape[2:]):
        field = seen[(..., *index)]
        field = _grouped(field.reshape(*field.shape[:2], -1), g)
        dw[(..., *tap)] = np.einsum("ngcp,ngkp->gkc", field, own).reshape(w_shape[0], w_shape[1])
    return dw


def conv_transpose(x: Array, w: Array, b: Array | None = None, output_padding: Any = 0, **how: Any) -> Array:
    """The transposed convolution: the gradient of a convolution of the extents that output_padding says."""
    at, rank = Geometry(x.ndim - 2, **how), x.ndim - 2
    extra = np.broadcast_to(output_padding, rank)
    axes = zip(x.shape[2:], at.stride, at.pad, at.dilation, w.shape[2:], extra)
    extent = tuple(int((i - 1) * s - sum(p) + d * (t - 1) + e + 1) for i, s, p, d, t, e in axes)
    y = conv_dx(x, w, (x.shape[0], w.shape[1] * at.groups, *extent), **how)
    return y if b is None else y + channels(b, x.ndim)


ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {  # of x; derivative, of y
    "identity": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0), lambda y: (y > 0) * 1.0),
    "clipped_relu": (lambda x: np.clip(x, 0, 6), lambda y: ((y > 0) & (y < 6)) * 1.0),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), lambda y: np.where(y > 0, 1.0, y + 1)),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), lambda y: np.where(y > 0, 1.0, 0.01)),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda y: y * (1 - y)),
    "tanh": (np.tanh, lambda y: 1 - y * y),
}


def act(name: str, x: Array) -> Array:
    """An activation with its usual coefficient."""
    return ACTIVATIONS[name][0](np.asarray(x, np.float64))


def act_dx(name: str, y: Array, dy: Array) -> Array:
    """The gradient of an activation's input, from its output."""
    return ACTIVATIONS[name][1](np.asarray(y, np.float64)) * dy


def _views(x: Array, window: Any, how: dict[str, Any], fill: float) -> tuple[list[Array], list[Any], Geometry]:
    rank = x.ndim - 2
    how = {"stride": window, **{k: v for k, v in how.items() if v is not None}}
    at, taps = Geometry(rank, **how), np.broadcast_to(window, rank).tolist()
    indices = [index for _, index in at.windows(x.shape[2:], taps)]
    seen = _padded(x, at.pad, fill)
    return [seen[(..., *index)] for index in indices], indices, at


def pool(kind: str, x: Array, window: Any, **how: Any) -> Array:
    """max, average or average_valid pooling."""
    if kind == "max":
        return np.max(_views(x, window, how, -np.inf)[0], axis=0)
    return sum(_views(x, window, how, 0.0)[0]) / _counts(kind, x.shape, window, how)


def _counts(kind: str, shape: Sequence[int], window: Any, how: dict[str, Any]) -> Array:
    ones = _views(np.ones(shape), window, how, 0.0 if kind == "average_valid" else 1.0)[0]
    return sum(ones)


def pool_dx(kind: str, x: Array, dy: Array, window: Any, **how: Any) -> Array:
    """The gradient of pooling's x: to the first maximum of each window, or in equal parts."""
    views, indices, at = _views(x, window, how, -np.inf if kind == "max" else 0.0)
    dx = _padded(np.zeros(x.shape), at.pad)
    winner = np.argmax(views, axis=0)
    counts = None if kind == "max" else _counts(kind, x.shape, window, how)
    for i, index in enumerate(indices):
        dx[(..., *index)] += np.where(winner == i, dy, 0) if counts is None else dy / counts
    return _inside(dx, at.pad)


def softmax(x: Array, axis: int = 1, log: bool = False) -> Array:
    """Softmax or its logarithm."""
    x = np.asarray(x, np.float64)
    shifted = x - x.max(axis=axis, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return logs if log else np.exp(logs)


def softmax_dx(y: Array, dy: Array, axis: int = 1, log: bool = False) -> Array:
    """The gradient of softmax's x from its result."""
    y, dy = np.asarray(y, np.float64), np.asarray(dy, np.float64)
    if log:
        return dy - np.exp(y) * dy.sum(axis=axis, keepdims=True)
    return y * (dy - (y * dy).sum(axis=axis, keepdims=True))


def cross_entropy(x: Array, labels: Array) -> Array:
    """The loss of every position; 0 where the label is negative."""
    logs = softmax(x, 1, log=True)
    chosen = np.take_along_axis(logs, np.maximum(labels, 0)[:, None], axis=1)[:, 0]
    return np.where(labels < 0, 0.0, -chosen)


def cross_entropy_dx(x: Array, labels: Array, dloss: Any) -> Array:
    """The gradient of the logits; dloss has a value per position."""
    hot = np.arange(x.shape[1]).reshape(1, -1, *(1,) * (x.ndim - 2)) == labels[:, None]
    return np.where(labels[:, None] < 0, 0.0, (softmax(x, 1) - hot) * np.asarray(dloss)[:, None])


def _lrn_sums(a: Array, size: int, before: int) -> Array:
    padded = np.pad(a, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (a.ndim - 2)])
    return sum(padded[:, i : i + a.shape[1]] for i in range(size))


def lrn(x: Array, size: int, alpha: float, beta: float, base: float, before: int) -> Array:
    """Local response normalisation."""
    x = np.asarray(x, np.float64)
    return x * (base + alpha / size * _lrn_sums(x * x, size, before)) ** -beta


def lrn_dx(x: Array, dy: Array, size: int, alpha: float, beta: float, base: float, before: int) -> Array:
    """The gradient of lrn's x."""
    x = np.asarray(x, np.float64)
    s = base + alpha / size * _lrn_sums(x * x, size, before)
    return dy * s**-beta - 2 * alpha * beta / size * x * _lrn_sums(dy * x * s ** (-beta - 1), size, size - 1 - before)


def batch_axes(x: Array, per_activation: bool) -> tuple[int, ...]:
    """The axes that a batch norm's statistics are taken over."""
    return (0,) if per_activation else (0, *range(2, x.ndim))


def batch_norm(x: Array, scale: Array, b: Array, mean: Array, var: Array, eps: float = 1e-5) -> Array:
    """Normalisation with statistics that broadcast to x."""
    return (np.asarray(x, np.float64) - mean) / np.sqrt(var + eps) * scale + b


def batch_norm_dx(x: Array, dy: Array, scale: Array, per_activation: bool = False, eps: float = 1e-5) -> tuple[Array, ...]:
    """Gradients of a training batch norm's x, scale and bias."""
    axes = batch_axes(x, per_activation)
    x, dy = np.asarray(x, np.float64), np.asarray(dy, np.float64)
    norm = 1 / np.sqrt(x.var(axis=axes, keepdims=True) + eps)
    hat = (x - x.mean(axis=axes, keepdims=True)) * norm
    dscale, db = (dy * hat).sum(axis=axes, keepdims=True), dy.sum(axis=axes, keepdims=True)
    count = math.prod(x.shape[a] for a in axes)
    return scale * norm * (dy - (db + hat * dscale) / count), dscale, db


def _resize_matrix(size: int, out: int, mode: str) -> Array:
    """Weights (out x size) of one axis."""
    if mode == "nearest":
        return np.eye(size)[np.arange(out) * size // out]
    at = np.arange(out) * (size - 1) / max(out - 1, 1) if mode == "aligned" else (np.arange(out) + 0.5) * size / out - 0.5
    at = np.clip(at, 0, size - 1)
    low = np.minimum(np.floor(at).astype(int), max(size - 2, 0))
    high = np.minimum(low + 1, size - 1)
    part = (at - low)[:, None]
    return np.eye(size)[low] * (1 - part) + np.eye(size)[high] * part


def upsample(x: Array, size: Sequence[int], mode: str) -> Array:
    """Resized spatial axes; mode nearest, linear or aligned (linear with align_corners)."""
    y = np.asarray(x, np.float64)
    for axis, out in enumerate(size, 2):
        y = np.moveaxis(np.tensordot(_resize_matrix(x.shape[axis], out, mode), y, (1, axis)), 0, axis)
    return y


def upsample_dx(dy: Array, extent: Sequence[int], mode: str) -> Array:
    """The gradient of upsample's x."""
    dx = np.asarray(dy, np.float64)
    for axis, size in enumerate(extent, 2):
        dx = np.moveaxis(np.tensordot(_resize_matrix(size, dy.shape[axis], mode).T, dx, (1, axis)), 0, axis)
    return dx
