"""Pooling of shapes at random against windows one by one: the same bits, whatever lies nearest and however many threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from ooc import native

MAX, AVERAGE, AVERAGE_INSIDE = range(3)
Three = tuple[int, ...]


def lifted(a: Any) -> tuple[int, ...]:
    return tuple(s // a.itemsize for s in a.strides)


def windows(extents: Three, window: Three, stride: Three, pad: Three, outputs: Three) -> Iterator[tuple[Three, list[Three]]]:
    """Each output, and the positions of its window that are inside, in row-major order."""
    for o in product(*map(range, outputs)):
        at = [range(i * s - p, i * s - p + w) for i, s, p, w in zip(o, stride, pad, window, strict=True)]
        yield o, [q for q in product(*at) if all(0 <= a < e for a, e in zip(q, extents, strict=True))]


def forward(kind: int, x: Any, window: Three, *rest: Three) -> Any:
    y: Any = np.empty((*x.shape[:2], *rest[-1]), x.dtype)
    for o, inside in windows(x.shape[2:], window, *rest):
        acc = np.full(x.shape[:2], -np.inf if kind == MAX else 0, x.dtype)
        for q in inside:
            v = x[(..., *q)]
            acc = np.where((v > acc) | (v != v), v, acc) if kind == MAX else acc + v
        y[(..., *o)] = acc if kind == MAX else acc / x.dtype.type(np.prod(window) if kind == AVERAGE else max(1, len(inside)))
    return y


def some_layout(rng: np.random.Generator, a: Any) -> Any:
    """The same numbers, mostly w nearest, sometimes c, or any axis, or backwards."""
    if rng.random() < 0.2:
        return np.ascontiguousarray(a[..., ::-1])[..., ::-1]
    order = [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (0, 2, 3, 4, 1), tuple(rng.permutation(5))][rng.integers(4)]
    return np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))


def same(a: Any, b: Any) -> bool:
    """Zeros of the same sign, too."""
    return np.array_equal(a, b, equal_nan=True) and bool((np.signbit(a) == np.signbit(b))[b == b].all())


def some_problem(rng: np.random.Generator) -> tuple[Any, Three, Three, Three, Three]:
    """x, window, stride, padding, extents of y; some rows are longer than a block, and some windows larger."""
    while True:
        if rng.random() < 0.2:
            shape: tuple[int, ...] = (
                int(rng.integers(1, 3)),
                int(rng.integers(1, 3)),
                1,
                int(rng.integers(1, 40)),
                int(rng.integers(1, 700)),
            )
            most = 90
        else:
            shape = tuple(int(rng.integers(1, e)) for e in (4, 20, 4, 20, 20))
            most = 4
        window = tuple(int(rng.integers(1, min(e + 3, most) + 1)) if rng.random() < 0.8 else e for e in shape[2:])
        stride = tuple(int(rng.integers(1, 5)) for _ in window)
        pad = tuple(int(rng.integers(0, w)) for w in window)
        outputs = tuple((e + 2 * p - w) // s + 1 for e, p, w, s in zip(shape[2:], pad, window, stride, strict=True))
        if min(outputs) > 0 and np.prod(outputs) * np.prod(window) < 60_000:
            return rng.standard_normal(shape), window, stride, pad, outputs


@pytest.mark.parametrize("seed", range(120))
def test_forward(seed: int) -> None:
    kernels = native.kernels
    assert kernels is not None
    rng = np.random.default_rng(seed)
    kind, dtype = seed % 3, ("f4", "f8")[seed % 2]
    x, window, stride, pad, outputs = some_problem(rng)
    x = x.astype(dtype)
    if kind == MAX:
        for value in (np.nan, -np.inf, -0.0, 0.0):
            x[rng.random(x.shape) < 0.08] = value
    expected = forward(kind, x, window, stride, pad, outputs)
    x, y = some_layout(rng, x), some_layout(rng, np.full(expected.shape, 7, dtype))
    code = native.DTYPE_CODES[{"f4": "f32", "f8": "f64"}[dtype]]
    kernels.pool_fprop(
        kind, code, native.address(x), x.shape, lifted(x), native.address(y), y.shape,
        lifted(y), window, stride, pad, seed % 3 + 1,
    )  # fmt: skip
    assert same(y, expected)


def backward(kind: int, x: Any, dy: Any, window: Three, *rest: Three) -> Any:
    """Each window's gradient to its first maximum, or divided among its positions; windows in row-major order."""
    dx: Any = np.zeros(x.shape, dy.dtype)
    for o, inside in windows(x.shape[2:], window, *rest):
        g = dy[(..., *o)]
        if kind != MAX:
            g = g / dy.dtype.type(np.prod(window) if kind == AVERAGE else max(1, len(inside)))
        best, where = np.full(g.shape, -np.inf), np.zeros(g.shape, int)
        for i, q in enumerate(inside if kind == MAX else []):
            better = (x[(..., *q)] > best) | (np.isnan(x[(..., *q)]) & ~np.isnan(best))
            best, where = np.where(better, x[(..., *q)], best), np.where(better, i, where)
        for i, q in enumerate(inside):
            dx[(..., *q)] += np.where(where == i, g, 0) if kind == MAX else g
    return dx


def some_part(rng: np.random.Generator, extents: Three) -> tuple[slice, ...]:
    """All, or a region, as tiles are."""
    if rng.random() < 0.5:
        return tuple(slice(0, e) for e in extents)
    lows = [int(rng.integers(0, e)) for e in extents]
    return tuple(slice(lo, int(rng.integers(lo, e)) + 1) for lo, e in zip(lows, extents, strict=True))


def region(a: Any, slices: tuple[slice, ...]) -> Any:
    return a[(slice(None), slice(None), *slices)]


def outputs_of(part: slice, window: int, stride: int, pad: int, outputs: int) -> slice:
    """Those whose windows may reach a part of the input."""
    first = max(0, -(-(part.start + pad - window + 1) // stride))
    return slice(min(first, outputs), max(min(first, outputs), min(outputs, (part.stop - 1 + pad) // stride + 1)))


def inputs_of(out: slice, window: int, stride: int, pad: int, extent: int) -> slice:
    """What the windows of some outputs see; where that is nothing, a number that no window sees."""
    low = min(max(0, out.start * stride - pad), extent - 1)
    return slice(low, max(low + 1, min(extent, (out.stop - 1) * stride - pad + window)))


@pytest.mark.parametrize("seed", range(160))
def test_backward(seed: int) -> None:
    kernels = native.kernels
    assert kernels is not None
    rng = np.random.default_rng(seed)
    kind, dtype = seed % 3, ("f32", "f64", "f16")[seed // 3 % 3]
    stored, computed = {"f32": ("f4", "f4"), "f64": ("f8", "f8"), "f16": ("f2", "f4")}[dtype]
    x, window, stride, pad, outputs = some_problem(rng)
    x = x.astype(stored)
    for value in (np.nan, -np.inf, 0.25):
        x[rng.random(x.shape) < 0.08] = value
    dy = rng.standard_normal((*x.shape[:2], *outputs)).astype(stored)
    axes = list(zip(window, stride, pad, strict=True))
    part = some_part(rng, x.shape[2:])
    out = tuple(outputs_of(p, *a, e) for p, a, e in zip(part, axes, outputs, strict=True))
    seen = tuple(inputs_of(o, *a, e) for o, a, e in zip(out, axes, x.shape[2:], strict=True))
    expected = backward(kind, x.astype(computed), dy.astype(computed), window, stride, pad, outputs)
    expected = region(expected, part).astype(stored)
    dx = some_layout(rng, np.full(expected.shape, 7, stored))
    x_part, dy_part = some_layout(rng, region(x, seen)), some_layout(rng, region(dy, out))
    code, threads = native.DTYPE_CODES[dtype], seed % 3 + 1
    dx_low, x_low, dy_low = (tuple(s.start for s in some) for some in (part, seen, out))
    bytes_wanted = kernels.pool_backward_workspace(code, dx.shape, window, stride, threads)
    workspace = np.zeros(max(1, bytes_wanted), np.uint8)
    kernels.pool_backward(
        kind, code, native.address(dx), lifted(dx), dx_low, dx.shape, native.address(x_part), lifted(x_part), x_low,
        x_part.shape, native.address(dy_part), lifted(dy_part), dy_low, dy_part.shape, x.shape[2:], window, stride, pad,
        native.address(workspace) if bytes_wanted else 0, bytes_wanted, threads,
    )  # fmt: skip
    np.testing.assert_array_equal(dx, expected)
