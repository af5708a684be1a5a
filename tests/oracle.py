"""Naive float64 references for whole problems: what every tiling, kernel and backend is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def taps_of(padded: Array, taps: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Iterator[Any]:
    """For every filter position: the position, and what it sees of the padded input at every output position."""
    reach = [(t - 1) * d for t, d in zip(taps, dilation, strict=True)]
    out = [(e - r - 1) // s + 1 for e, r, s in zip(padded.shape[2:], reach, stride, strict=True)]
    for at in itertools.product(*map(range, taps)):
        starts = [t * d for t, d in zip(at, dilation, strict=True)]
        spatial = [slice(lo, lo + (o - 1) * s + 1, s) for lo, o, s in zip(starts, out, stride, strict=True)]
        yield at, padded[(slice(None), slice(None), *spatial)]


def conv(op: Any, x: Array, w: Array, b: Array | None = None) -> Array:
    """Cross-correlation of x (n, c, spatial) with w (k, c/groups, taps), plus b (k)."""
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *op.pad])
    filters, per = w.shape[0] // op.groups, w.shape[1]
    groups = []
    for g in range(op.groups):
        own, seen = w[g * filters : (g + 1) * filters].astype(np.float64), padded[:, g * per : (g + 1) * per]
        views = taps_of(seen, w.shape[2:], op.stride, op.dilation)
        groups.append(sum(np.einsum("nc...,kc->nk...", view, own[(..., *at)]) for at, view in views))
    y = np.concatenate(groups, axis=1)
    return y if b is None else y + along_channels(b, y.ndim)


def pool(op: Any, x: Array) -> Array:
    """Maximum (padding never wins), mean (padding counts as zeros), or mean of what lies inside."""

    def views(array: Array, fill: float) -> list[Array]:
        padded = np.pad(array.astype(np.float64), [(0, 0), (0, 0), *op.pad], constant_values=fill)
        return [view for _, view in taps_of(padded, op.window, op.stride, (1,) * len(op.window))]

    if op.how == "max":
        return np.asarray(np.max(np.stack(views(x, -np.inf)), axis=0))
    total = sum(views(x, 0.0))
    counted = float(np.prod(op.window)) if op.how == "average" else sum(views(np.ones(x.shape), 0.0))
    return np.asarray(total / counted)


def activation(name: str, coef: float, z: Array) -> Array:
    """An activation, from its textbook formula."""
    formulas = {
        "identity": lambda: z,
        "relu": lambda: np.maximum(z, 0.0),
        "clipped_relu": lambda: np.minimum(np.maximum(z, 0.0), coef),
        "elu": lambda: np.where(z > 0, z, coef * np.expm1(np.minimum(z, 0.0))),
        "leaky_relu": lambda: np.where(z > 0, z, coef * z),
        "sigmoid": lambda: 0.5 * (1.0 + np.tanh(0.5 * z)),
        "tanh": lambda: np.tanh(z),
    }
    return np.asarray(formulas[name]())


def along_channels(b: Array, ndim: int) -> Array:
    """One value per channel, shaped to broadcast over (n, k, spatial)."""
    return b.astype(np.float64).reshape(1, -1, *(1,) * (ndim - 2))


def stored(z: Array, dtype: str) -> Array:
    """Values as they are after being stored in a dtype; float64 again."""
    if dtype == "bf16":
        import ml_dtypes

        return z.astype(ml_dtypes.bfloat16).astype(np.float64)
    return z.astype({"f64": np.float64, "f32": np.float32, "f16": np.float16}[dtype]).astype(np.float64)


def stage(op: Any, z: Array, w: Array | None, b: Array | None) -> Array:
    """One op on whole tensors."""
    if op.kind.startswith("pool."):
        return pool(op, z)
    if op.kind == "conv.fprop":
        assert w is not None
        z = conv(op, z, w, b)
    elif b is not None:
        z = z + along_channels(b, z.ndim)
    return activation(op.act, op.coef, z)


def chain(op: Any, arrays: Mapping[str, Array]) -> Array:
    """The stages of an op on whole tensors: operands x, w, b of the first, w.1, b.1 of the second, and so on.

    What one stage hands to the next is stored in the stage's dtype; the last result is left in float64.
    """
    z = arrays["x"].astype(np.float64)
    for i, s in enumerate(op.stages):
        suffix = f".{i}" if i else ""
        with np.errstate(invalid="ignore", over="ignore"):
            z = stage(s, stored(z, s.dtype), arrays.get(f"w{suffix}"), arrays.get(f"b{suffix}"))
    return z
