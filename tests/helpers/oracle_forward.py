"""Naive float64 references of forward passes, on whole tensors: (n, channels, spatial...)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Any]
Results = dict[str, Array]


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


def conv_fprop(op: Any, given: Arrays) -> Results:
    return {"y": activation(op.act, op.coef, conv(op, given["x"], given["w"], given.get("b")))}


def pool_fprop(op: Any, given: Arrays) -> Results:
    return {"y": pool(op, given["x"])}


def pointwise(op: Any, given: Arrays) -> Results:
    """Extents of 1 are repeated, as NumPy broadcasts."""
    y = np.zeros((op.n, op.k, *op.extent)) + op.alpha * given["x"]
    if "z" in given:
        y = y + op.beta * given["z"]
    if "b" in given:
        y = y + along_channels(given["b"], y.ndim)
    return {"y": activation(op.act, op.coef, y)}


def multiply(op: Any, given: Arrays) -> Results:
    """Extents of 1 are repeated, as NumPy broadcasts."""
    y = given["x"] * given["z"]
    return {"y": activation(op.act, op.coef, y + along_channels(given["b"], y.ndim) if "b" in given else y)}


def matmul(op: Any, given: Arrays) -> Results:
    letters = {"nn": "nkic,nkcj", "nt": "nkic,nkjc", "tn": "nkci,nkcj"}[op.how]
    return {"y": op.alpha * np.einsum(f"{letters}->nkij", given["a"], given["b"])}


def attention(op: Any, given: Arrays) -> Results:
    """All from the scores as a whole, with the sums that are given."""
    if op.how == "dots":
        return {"dots": (given["y"] * given["dy"]).sum(axis=3, keepdims=True)}
    scores = op.scale * np.einsum("nkic,nkjc->nkij", given["q"], given["k"])
    for name, letters in (("bias", op.by), ("mask", op.mask)):
        if letters:
            heads, whole = given[name].shape[1], op.k // op.groups
            number = {op.k: np.arange(op.k), 1: np.zeros(op.k, int)}.get(heads)
            if number is None or (op.groups > 1 and not {"g", "k"} <= set(letters)):
                number = np.arange(op.k) // whole if "g" in letters else np.arange(op.k) % whole if "k" in letters else number
            scores = scores + given[name][:, number]
    if op.how == "forward":
        base = np.ceil(scores.max(axis=3, keepdims=True) / np.log(2)) * np.log(2)
        terms = np.exp(scores - base)
        total = terms.sum(axis=3, keepdims=True)
        y = {"y": np.einsum("nkij,nkjc->nkic", terms / total, given["v"])} if "v" in given else {}
        return {"sums": np.concatenate([base, total], axis=3), **y}
    weights = np.exp(scores - given["sums"][..., :1]) / given["sums"][..., 1:]
    if op.how == "v":
        return {"dx": np.einsum("nkij,nkic->nkjc", weights, given["dy"])}
    slopes = weights * (np.einsum("nkic,nkjc->nkij", given["dy"], given["v"]) - given["dots"])
    if op.how == "scores":
        return {"dx": slopes}
    letters, factor = ("nkij,nkjc->nkic", "k") if op.how == "q" else ("nkij,nkic->nkjc", "q")
    return {"dx": op.scale * np.einsum(letters, slopes, given[factor])}


def binary(op: Any, given: Arrays) -> Results:
    """Value by value, NaN where either is of extremes."""
    x, z = np.broadcast_arrays(given["x"], given["z"])

    def one(a: float, b: float) -> float:
        with np.errstate(all="ignore"):
            return {
                "divide": lambda: float(np.float64(a) / np.float64(b)),
                "power": lambda: float(np.float64(a) ** np.float64(b)),
                "maximum": lambda: math.nan if math.isnan(a + b) else max(a, b),
                "minimum": lambda: math.nan if math.isnan(a + b) else min(a, b),
                "greater": lambda: float(a > b),
                "not_less": lambda: float(a >= b),
                "equal": lambda: float(a == b),
                "where": lambda: a if b else 0.0,
                "unless": lambda: 0.0 if b else a,
            }[op.how]()

    return {"y": np.array([one(a, b) for a, b in zip(x.ravel().tolist(), z.ravel().tolist(), strict=True)]).reshape(x.shape)}


def concat(op: Any, given: Arrays) -> Results:
    return {"y": np.concatenate([given[f"x{i}"] for i in range(len(op.channels))], axis=1)}


def place(op: Any, given: Arrays) -> Results:
    """Element by element, where it comes from."""
    y = np.full((op.n, op.k, *op.size), op.value)
    for at in itertools.product(*map(range, y.shape[1:])):
        source = tuple(i - lead for i, lead in zip(at, op.lead, strict=True))
        if all(0 <= i < e for i, e in zip(source, given["x"].shape[1:], strict=True)):
            y[(slice(None), *at)] = given["x"][(slice(None), *source)]
    return {"y": y}


def argmax(op: Any, given: Arrays) -> Results:
    return {"y": np.argmax(given["x"], axis=1)[:, None].astype(np.float64)}


def permute(op: Any, given: Arrays) -> Results:
    return {"y": np.moveaxis(given["x"], [1 + axis for axis in op.order], list(range(1, given["x"].ndim)))}


def spread(op: Any, given: Arrays) -> Results:
    """By the reshaping that ONNX's DepthToSpace is defined by, for any number of axes."""
    x, b, rank = given["x"], op.block, len(op.extent)
    split = x.reshape(op.n, *((-1, *(b,) * rank) if op.how == "crd" else (*(b,) * rank, -1)), *op.extent)
    channel = 1 if op.how == "crd" else 1 + rank
    blocks = range(2, 2 + rank) if op.how == "crd" else range(1, 1 + rank)
    order = [axis for i, at in enumerate(blocks) for axis in (2 + rank + i, at)]
    return {"y": split.transpose(0, channel, *order).reshape(op.n, -1, *(e * b for e in op.extent))}


def _gelu_tanh_slope(x: float) -> float:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    bent = 1 / math.cosh(inner) ** 2 if abs(inner) < 300 else 0.0
    return (1 + math.tanh(inner)) / 2 + x * bent * math.sqrt(2 / math.pi) * (1 + 0.134145 * x * x) / 2


def of_one(x: float, a: float) -> dict[str, Callable[[], float]]:
    """Functions that Python's math or Python itself has; NaN outside their domain."""
    inside, above, positive = abs(x) <= 1, x >= 1, x > 0
    nan = math.nan
    root = math.sqrt(x) if x >= 0 else nan
    return {
        "abs": lambda: abs(x),
        "sign": lambda: float((x > 0) - (x < 0)),
        "floor": lambda: float(math.floor(x)),
        "ceil": lambda: float(math.ceil(x)),
        "round": lambda: float(round(x)),
        "zero": lambda: 0.0,
        "sqrt": lambda: root,
        "rsqrt": lambda: 1 / root if root else math.inf,
        "softsign": lambda: x / (1 + abs(x)),
        "soft_shrink": lambda: math.copysign(max(abs(x) - a, 0.0), x),
        "hard_shrink": lambda: x if abs(x) > a else 0.0,
        "exp": lambda: math.exp(x),
        "log": lambda: math.log(x) if positive else nan if x else -math.inf,
        "pow": lambda: x**a if x >= 0 else nan,
        "celu": lambda: max(x, 0.0) + min(0.0, a * math.expm1(x / a)) if x < 0 else x,
        "sin": lambda: math.sin(x),
        "cos": lambda: math.cos(x),
        "tan": lambda: math.tan(x),
        "asin": lambda: math.asin(x) if inside else nan,
        "acos": lambda: math.acos(x) if inside else nan,
        "atan": lambda: math.atan(x),
        "sinh": lambda: math.sinh(x),
        "cosh": lambda: math.cosh(x),
        "asinh": lambda: math.asinh(x),
        "acosh": lambda: math.acosh(x) if above else nan,
        "atanh": lambda: math.atanh(x) if abs(x) < 1 else math.copysign(math.inf, x) if inside else nan,
        "reciprocal_slope": lambda: -1 / x**2 if x else -math.inf,
        "sqrt_slope": lambda: 0.5 / root if root else math.inf,
        "rsqrt_slope": lambda: -0.5 / root**3 if root else -math.inf,
        "softsign_slope": lambda: 1 / (1 + abs(x)) ** 2,
        "hard_shrink_slope": lambda: float(abs(x) > a),
        "pow_slope": lambda: a * x ** (a - 1) if positive else nan if x else math.inf,
        "celu_slope": lambda: 1.0 if x > 0 else math.exp(x / a),
        "cos_slope": lambda: -math.sin(x),
        "tan_slope": lambda: 1 + math.tan(x) ** 2,
        "asin_slope": lambda: 1 / math.sqrt(1 - x * x) if abs(x) < 1 else math.inf if inside else nan,
        "acos_slope": lambda: -1 / math.sqrt(1 - x * x) if abs(x) < 1 else -math.inf if inside else nan,
        "atan_slope": lambda: 1 / (1 + x * x),
        "asinh_slope": lambda: 1 / math.hypot(1, x),
        "acosh_slope": lambda: 1 / math.sqrt(x * x - 1) if abs(x) > 1 else math.inf if inside and abs(x) == 1 else nan,
        "atanh_slope": lambda: 1 / (1 - x * x) if abs(x) != 1 else math.inf,
    }


def function(op: Any, given: Arrays) -> Results:
    """One value at a time, from the formulas of ONNX's operators."""

    def one(x: float) -> float:
        sigmoid = 1 / (1 + math.exp(-x)) if x > -700 else 0.0
        return {
            "clip": lambda: min(max(x, op.a), op.b),
            "hard_sigmoid": lambda: max(0.0, min(1.0, op.a * x + op.b)),
            "hard_swish": lambda: x * max(0.0, min(1.0, x / 6 + 0.5)),
            "silu": lambda: x * sigmoid,
            "gelu": lambda: x * 0.5 * math.erfc(-x / math.sqrt(2)),
            "gelu_tanh": lambda: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            "erf": lambda: math.erf(x),
            "reciprocal": lambda: 1 / x if x else math.copysign(math.inf, x),
            "above": lambda: float(x > op.a),
            "softplus": lambda: math.log1p(math.exp(-abs(x))) + max(x, 0.0),
            "clip_slope": lambda: float(op.a < x < op.b),
            "hard_sigmoid_slope": lambda: op.a if 0 < op.a * x + op.b < 1 else 0.0,
            "hard_swish_slope": lambda: 0.0 if x < -3 else 1.0 if x > 3 else x / 3 + 0.5,
            "silu_slope": lambda: sigmoid * (1 + x * (1 - sigmoid)),
            "gelu_slope": lambda: math.erfc(-x / math.sqrt(2)) / 2 + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
            "gelu_tanh_slope": lambda: _gelu_tanh_slope(x),
            "erf_slope": lambda: 2 / math.sqrt(math.pi) * math.exp(-x * x),
            "softplus_slope": lambda: sigmoid,
            **of_one(x, op.a),
        }[op.how]()

    return {"y": np.array([one(x) for x in given["x"].ravel().tolist()], np.float64).reshape(given["x"].shape)}


def convert_in(op: Any, given: Arrays) -> Results:
    scale, offset = (
        along_channels(given[n], len(op.outputs[0].shape)) if n in given else getattr(op, n) for n in ("scale", "offset")
    )
    return {"y": given["x"] * scale + offset}


def convert_out(op: Any, given: Arrays) -> Results:
    """Python's round goes to the even one of two."""
    lo, hi = {"u8": (0, 255), "u16": (0, 65535), "i16": (-32768, 32767), "i32": (-(2**31), 2**31 - 1), "b8": (0, 1)}[op.store]
    held = [0 if np.isnan(v) else round(min(max(v, lo), hi)) for v in given["x"].ravel().tolist()]
    return {"y": np.array(held, np.float64).reshape(given["x"].shape)}


def reduce(op: Any, given: Arrays) -> Results:
    """Sums of each channel's values, over everything else or for each image."""
    x, per_image = given["x"], op.how == "positions"
    y = np.zeros((op.n, op.k))
    for n, k in itertools.product(range(op.n), range(op.k)):
        y[n, k] = op.alpha * np.sum(x[n, k])
    return {"y": y.reshape(op.n, op.k, *(1,) * len(op.extent)) if per_image else y.sum(axis=0)}


# ---- resizing


def sources(how: str, extent: int, out: int, i: int) -> list[tuple[int, float]]:
    """The positions that result i of `out` is made of along an axis of `extent`, with their weights; in rationals."""
    if how == "nearest":
        return [(int(Fraction(i * extent, out)), 1.0)]
    if how == "aligned":
        at = Fraction(i * (extent - 1), out - 1) if out > 1 else Fraction(0)
    else:
        at = max(Fraction(2 * i + 1, 2) * Fraction(extent, out) - Fraction(1, 2), Fraction(0))
    first = min(int(at), extent - 1)
    return [(first, float(1 - (at - first))), (min(first + 1, extent - 1), float(at - first))]


def meetings(op: Any) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], float]]:
    """Every position of y, with each position of x that it is made of and its weight."""
    for at in itertools.product(*map(range, op.size)):
        axes = [sources(op.how, e, o, i) for e, o, i in zip(op.extent, op.size, at, strict=True)]
        for corner in itertools.product(*axes):
            yield at, tuple(p for p, _ in corner), float(np.prod([w for _, w in corner]))


def upsample(op: Any, given: Arrays) -> Results:
    y = np.zeros((op.n, op.k, *op.size))
    for at, source, weight in meetings(op):
        y[(..., *at)] += weight * given["x"][(..., *source)]
    return {"y": y}


def taken(how: str, extent: int, line: tuple[float, ...], i: int) -> list[tuple[int, float]]:
    """The positions that result i is made of along an axis, with their weights; in rationals."""
    a, m, d, b = map(Fraction, line)
    at = (i + a) * m / d - b
    if how == "linear":
        inside = min(max(at, Fraction(0)), Fraction(extent - 1))
        first = int(inside)
        return [(first, float(1 - (inside - first))), (min(first + 1, extent - 1), float(inside - first))]
    half = Fraction(1, 2)
    source = {"ceil": math.ceil(at), "prefer_floor": math.ceil(at - half), "prefer_ceil": math.floor(at + half)}.get(
        how, math.floor(at)
    )
    while how == "reflect" and extent > 1 and not 0 <= source < extent:
        source = -source if source < 0 else 2 * (extent - 1) - source
    return [(source % extent if how == "wrap" else min(max(source, 0), extent - 1), 1.0)]


def takings(op: Any) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], float]]:
    """Each result, a position that it is made of, and its weight."""
    for at in itertools.product(*map(range, op.size)):
        axes = [taken(op.how, e, op.lines[4 * j : 4 * j + 4], i) for j, (e, i) in enumerate(zip(op.extent, at, strict=True))]
        for corner in itertools.product(*axes):
            yield at, tuple(p for p, _ in corner), float(np.prod([w for _, w in corner]))


def resize(op: Any, given: Arrays) -> Results:
    y = np.zeros((op.n, op.k, *op.size))
    for at, source, weight in takings(op):
        y[(..., *at)] += weight * given["x"][(..., *source)]
    return {"y": y}


# ---- dropout


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10, a block of four words, in plain integers. Source: Salmon et al., SC 2011, and Random123."""
    (a, b, c, d), (left, right) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * a, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c, 1 << 32)
        a, b, c, d = high1 ^ b ^ left, low1, high0 ^ d ^ right, low0
        left, right = (left + 0x9E3779B9) % (1 << 32), (right + 0xBB67AE85) % (1 << 32)
    return a, b, c, d


def dropout(op: Any, given: Arrays) -> Results:
    """Element i, in row-major order, is dropped where word i of the generator is below rate * 2**32."""
    x, key = given["x"].ravel(), op.seed
    if op.drawn:
        key = (key + int(given["draw"][0]) * 0x9E3779B97F4A7C15) % (1 << 64)
    y, words = np.zeros(x.size), (0, 0, 0, 0)
    for i in range(x.size):
        if i % 4 == 0:
            words = philox((i // 4, 0, 0, 0), (key % (1 << 32), key >> 32))
        y[i] = x[i] / (1 - op.rate) if words[i % 4] >= round(op.rate * (1 << 32)) else 0.0
    return {"y": y.reshape(given["x"].shape)}
