"""Without a workspace the direct kernels sum in the documented order: cuts, blocks and threads change no bit."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import platform
import sys
from typing import Any

import numpy as np
import pytest

from ooc import native

pytestmark = pytest.mark.skipif(native.kernels is None, reason=native.reason or "")
TAP = tuple[int, ...]


class Problem:
    """A random problem; `pad` before x, and y as large as the pad after x makes it."""

    def __init__(self, rng: np.random.Generator, dtype: str, groups: int = 1, wide: bool = False) -> None:
        def pick(low: int, high: int) -> int:
            return int(rng.integers(low, high + 1))

        self.rng, self.dtype, self.groups = rng, np.dtype(dtype), groups
        self.last = bool(pick(0, 1))
        self.stride, self.dilation, self.pad = ([pick(1, 3) for _ in range(3)] for _ in range(3))
        self.taps = [pick(1, 3) for _ in range(3)]
        self.extent = [pick(1, 3), pick(2, 7), pick(3, 80)]
        if wide:  # rows of which vectors of columns are taken as they lie
            self.last, self.stride[2], self.taps[2], self.extent[2] = False, 1, pick(1, 9), pick(70, 150)
        self.y_extent = []
        for d in range(3):
            reach = (self.taps[d] - 1) * self.dilation[d]
            self.y_extent.append(max(0, self.extent[d] + self.pad[d] + pick(0, 3) - reach - 1) // self.stride[d] + 1)
        most = 9 if groups < 20 else 1  # many groups: depthwise
        n, c, k = pick(1, 2), groups * pick(1, most), groups * pick(1, most)
        self.x, self.w, self.y = (
            self.random(s) for s in ((n, c, *self.extent), (k, c // groups, *self.taps), (n, k, *self.y_extent))
        )

    def random(self, shape: tuple[int, ...]) -> Any:
        a = self.rng.standard_normal(shape).astype(self.dtype)
        for value in (-0.0, np.inf):
            a[self.rng.random(shape) < 0.003] = value
        if not self.last:
            return a
        return np.ascontiguousarray(np.moveaxis(a, 1, -1)).transpose(0, 4, 1, 2, 3)

    def run(
        self, name: str, x: Any, w: Any, y: Any, pad: Any, add: bool, bias: Any = None, act: int = 0,
        room: Any = None, packed: bool = False,
    ) -> None:  # fmt: skip
        assert native.kernels is not None
        operands = [v for a in (x, w, y) for v in (a.ctypes.data, a.shape, tuple(s // a.itemsize for s in a.strides))]
        code = native.DTYPE_CODES["f32" if self.dtype == np.float32 else "f64"]
        native.kernels.direct_conv(
            name, code, *operands, self.stride, self.dilation, pad, self.groups,
            bias.ctypes.data if bias is not None else 0, act, 0.0, add, room.ctypes.data if room is not None else 0,
            room.nbytes if room is not None else 0, packed, int(self.rng.integers(1, 4)),
        )  # fmt: skip

    def cuts(self, extent: int) -> Any:
        """Pieces of an axis, in order."""
        at = sorted({0, extent, *(int(v) for v in self.rng.integers(0, extent + 1, 2))})
        return list(itertools.pairwise(at))

    def rows(self, d: int, low: int, high: int) -> tuple[slice, int]:
        """The rows of y whose windows touch rows [low, high) of x, and the local pad."""
        reach, s = (self.taps[d] - 1) * self.dilation[d], self.stride[d]
        first = min(max(0, -(-(low + self.pad[d] - reach) // s)), (low + self.pad[d]) // s, self.y_extent[d])
        return slice(first, max(first, min(self.y_extent[d], (high - 1 + self.pad[d]) // s + 1))), low + self.pad[d] - first * s


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of f32 as the kernels compute it: x86 without FMA rounds the product."""
    assert native.kernels is not None
    product = a.astype(np.float64) * b.astype(np.float64)
    if native.kernels.isa() == "base" and platform.machine() in ("x86_64", "AMD64"):
        product = product.astype(np.float32)
    return (product.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)


def touched(p: Problem, tap: TAP) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """The positions of y that a tap serves, and their positions of x."""
    at_y, at_x = [], []
    for d in range(3):
        start = tap[d] * p.dilation[d] - p.pad[d]
        rows = [o for o in range(p.y_extent[d]) if 0 <= o * p.stride[d] + start < p.extent[d]]
        if not rows:
            return None
        first = rows[0] * p.stride[d] + start
        at_y.append(slice(rows[0], rows[-1] + 1))
        at_x.append(slice(first, rows[-1] * p.stride[d] + start + 1, p.stride[d]))
    return tuple(at_y), tuple(at_x)


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))


def taps(p: Problem) -> Any:
    return itertools.product(*(range(t) for t in p.taps))


@np.errstate(all="ignore")
def chain(name: str, p: Problem, old: Any) -> Any:
    """The documented chains, term by term."""
    out = old.copy()
    kg, cg = p.w.shape[0] // p.groups, p.w.shape[1]
    if name == "wgrad":
        for n, a, b in itertools.product(range(p.x.shape[0]), *(range(e) for e in p.y_extent[:2])):
            for tap in taps(p):
                at = touched(p, tap)
                if not at or not (at[0][0].start <= a < at[0][0].stop and at[0][1].start <= b < at[0][1].stop):
                    continue
                h, v = (o * p.stride[d] + tap[d] * p.dilation[d] - p.pad[d] for d, o in enumerate((a, b)))
                x, y = p.x[n, :, h, v, at[1][2]], p.y[n, :, a, b, at[0][2]]
                sums = np.zeros((p.w.shape[0], cg), np.float32)
                for q in range(x.shape[1]):
                    for g in range(p.groups):
                        ks = slice(g * kg, g * kg + kg)
                        sums[ks] = fma(x[g * cg : g * cg + cg, q][None], y[ks, q][:, None], sums[ks])
                out[(..., *tap)] += sums
        return out
    forward = name == "fprop"
    order = list(taps(p))
    for k in range(p.w.shape[0]):
        for c, tap in itertools.product(range(cg), order if forward else order[::-1]):
            at = touched(p, tap)
            if at:
                xs, ys = (slice(None), k // kg * cg + c, *at[1]), (slice(None), k, *at[0])
                if forward:
                    out[ys] = fma(p.x[xs], p.w[(k, c, *tap)], out[ys])
                else:
                    out[xs] = fma(p.y[ys], p.w[(k, c, *tap)], out[xs])
    return out


@pytest.mark.parametrize("name", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize(("seed", "wide"), [*((seed, False) for seed in range(16)), *((seed, True) for seed in range(8))])
def test_sums_follow_the_documented_order(name: str, seed: int, wide: bool) -> None:
    rng = np.random.default_rng(seed)
    p = Problem(rng, "f4", int(rng.choice([1, 1, 2, 5] if wide else [1, 1, 2, 5, 37, 37])), wide)
    operands = {"fprop": p.y, "dgrad": p.x, "wgrad": p.w}
    add = bool(rng.integers(2))
    expected = chain(name, p, operands[name] if add else np.zeros_like(operands[name]))
    p.run(name, p.x, p.w, p.y, p.pad, add)
    same(operands[name], expected)


LARGE = [  # extents, taps, stride, dilation: all taps together meet more than a box holds
    ((1, 40, 50), (1, 35, 17), (1, 1, 1), (1, 1, 1)), ((12, 13, 33), (7, 7, 7), (1, 1, 1), (1, 1, 1)),
    ((9, 16, 40), (7, 9, 7), (1, 2, 1), (1, 1, 1)), ((6, 60, 40), (3, 9, 5), (1, 1, 2), (2, 3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("name", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", LARGE)
def test_large_depthwise_filters_are_summed_in_order(name: str, dtype: str, case: Any) -> None:
    """In boxes, for some taps at a time, as where channels lie together and no box is needed."""
    rng = np.random.default_rng(0)
    p = Problem(rng, dtype, 20)
    p.last, p.pad = False, [t // 2 for t in case[1]]
    p.extent, p.taps, p.stride, p.dilation = (list(sizes) for sizes in case)
    spatial = zip(p.extent, p.taps, p.stride, p.dilation, p.pad, strict=True)
    p.y_extent = [(x + 2 * pad - (r - 1) * u - 1) // s + 1 for x, r, s, u, pad in spatial]
    p.x, p.w, p.y = p.random((2, 20, *p.extent)), p.random((20, 1, *p.taps)), p.random((2, 20, *p.y_extent))
    inner = [np.ascontiguousarray(np.moveaxis(a, 1, -1)).transpose(0, 4, 1, 2, 3) for a in (p.x, p.y)]
    w, bias = p.w.copy(), None if name == "wgrad" else p.random((20, 1, 1, 1, 1)).ravel()
    for add in (False, True):
        p.run(name, p.x, p.w, p.y, p.pad, add, bias, int(bias is not None))
        p.run(name, inner[0], w, inner[1], p.pad, add, bias, int(bias is not None))
        same({"fprop": p.y, "dgrad": p.x, "wgrad": p.w}[name], {"fprop": inner[1], "dgrad": inner[0], "wgrad": w}[name])


def test_threads_change_no_bit_of_blocked_weight_gradients() -> None:
    """With what direct_workspace asks for, whether the weights are computed at once or in parts."""
    assert native.kernels is not None
    rng = np.random.default_rng(3)
    for k, c, extent in ((8, 8, 20), (70, 50, 16), (200, 300, 5)):
        shapes = (2, c, 1, extent, extent), (k, c, 1, 3, 3), (2, k, 1, extent, extent)
        x, y = (rng.standard_normal(s).astype(np.float32) for s in (shapes[0], shapes[2]))
        results = []
        for threads in (1, 2, 3):
            need = sum(native.kernels.direct_workspace("wgrad", native.DTYPE_CODES["f32"], *shapes, *[(1, 1, 1)] * 2, 1, threads))
            room = np.zeros(need + 64, np.uint8)
            room = room[-room.ctypes.data % 64 :][:need]
            w = np.full(shapes[1], np.nan, np.float32)
            operands = [v for a in (x, w, y) for v in (a.ctypes.data, a.shape, tuple(s // 4 for s in a.strides))]
            native.kernels.direct_conv(
                "wgrad", native.DTYPE_CODES["f32"], *operands, *[(1, 1, 1)] * 2, (0, 1, 1), 1,
                0, 0, 0.0, False, room.ctypes.data, need, False, threads,
            )  # fmt: skip
            results.append(w)
        same(results[1], results[0])
        same(results[2], results[0])


@pytest.mark.parametrize("name", ["fprop", "dgrad"])
def test_packed_weights_serve_other_tiles(name: str) -> None:
    """Tiles of other extents, pads and batches use the weights that the first one packed: w itself is gone."""
    assert native.kernels is not None
    rng = np.random.default_rng(7)
    for _ in range(20):
        p = Problem(rng, "f4", int(rng.choice([1, 1, 3])))
        written = {"fprop": p.y, "dgrad": p.x}[name]
        written[...], p.w[...], given = 0, rng.integers(-2, 3, p.w.shape), {"fprop": p.x, "dgrad": p.y}[name]
        given[...] = rng.integers(-2, 3, given.shape)
        p.run(name, p.x, p.w, p.y, p.pad, False)
        expected = written.copy()
        need = native.kernels.direct_workspace(
            name, native.DTYPE_CODES["f32"], p.x.shape, p.w.shape, p.y.shape, p.stride, p.dilation, p.groups, 3
        )
        room = np.zeros(p.w.nbytes + 4096 + sum(need), np.uint8)
        room = room[-room.ctypes.data % 64 :]
        gone = np.full_like(p.w, np.nan)
        for i, (lo, hi) in enumerate(p.cuts(p.extent[1] if name == "dgrad" else p.y_extent[1])):
            if name == "dgrad":
                ys, pad = p.rows(1, lo, hi)
                x, y = p.x[:, :, :, lo:hi], p.y[:, :, :, ys]
            else:
                x, y, pad = p.x, p.y[:, :, :, lo:hi], p.pad[1] - lo * p.stride[1]
            p.run(name, x, gone if i else p.w, y, [p.pad[0], pad, p.pad[2]], False, room=room, packed=i > 0)
        np.testing.assert_array_equal(written, expected)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("seed", range(30))
def test_cuts_change_no_bit(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = Problem(rng, dtype)
    n, c, k = p.x.shape[0], p.x.shape[1], p.w.shape[0]
    bias = {"fprop": p.random((k, 1, 1, 1, 1)).ravel(), "dgrad": p.random((c, 1, 1, 1, 1)).ravel()}

    whole, pieces = np.full_like(p.y, np.nan), np.full_like(p.y, np.nan)  # fprop: outputs and channels
    p.run("fprop", p.x, p.w, whole, p.pad, False, bias["fprop"], 1)
    for (lo, hi), (q0, q1) in itertools.product(p.cuts(k), p.cuts(p.y_extent[2])):
        for c0, c1 in p.cuts(c):
            pad = [*p.pad[:2], p.pad[2] - q0 * p.stride[2]]
            b = bias["fprop"][lo:hi] if c1 == c else None
            p.run("fprop", p.x[:, c0:c1], p.w[lo:hi, c0:c1], pieces[:, lo:hi, :, :, q0:q1], pad, c0 > 0, b, int(c1 == c))
    same(pieces, whole)

    whole, pieces = np.full_like(p.x, np.nan), np.full_like(p.x, np.nan)  # dgrad: rows, columns and channels
    p.run("dgrad", whole, p.w, p.y, p.pad, False, bias["dgrad"], 1)
    for (h0, h1), (v0, v1) in itertools.product(p.cuts(p.extent[1]), p.cuts(p.extent[2])):
        (ys, pad1), (yv, pad2) = p.rows(1, h0, h1), p.rows(2, v0, v1)
        for k0, k1 in p.cuts(k):
            b = bias["dgrad"] if k1 == k else None
            y = p.y[:, k0:k1, :, ys, yv]
            p.run("dgrad", pieces[..., h0:h1, v0:v1], p.w[k0:k1], y, [p.pad[0], pad1, pad2], k0 > 0, b, int(k1 == k))
    same(pieces, whole)

    whole, pieces = np.full_like(p.w, np.nan), np.full_like(p.w, np.nan)  # wgrad: images, rows and weights
    p.run("wgrad", p.x, whole, p.y, p.pad, False)
    for (k0, k1), (c0, c1) in itertools.product(p.cuts(k), p.cuts(c)):
        first = True
        for i, d0 in itertools.product(range(n), range(p.extent[0])):
            yd, pad0 = p.rows(0, d0, d0 + 1)
            for h0, h1 in p.cuts(p.extent[1]):
                yh, pad1 = p.rows(1, h0, h1)
                x, y = p.x[i : i + 1, c0:c1, d0 : d0 + 1, h0:h1], p.y[i : i + 1, k0:k1, yd, yh]
                p.run("wgrad", x, pieces[k0:k1, c0:c1], y, [pad0, pad1, p.pad[2]], not first)
                first = False
    same(pieces, whole)


@pytest.mark.skipif(sys.platform != "linux", reason="protects a page with mprotect")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_nothing_is_read_behind_an_input(stride: int, dtype: str) -> None:
    """Rows of all lengths that end where the next page may not be touched."""
    assert native.kernels is not None
    pages, code = mmap.mmap(-1, 3 * mmap.PAGESIZE), native.DTYPE_CODES["f32" if dtype == "f4" else "f64"]
    memory = np.frombuffer(pages, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(memory.ctypes.data + 2 * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    for c, width in itertools.product((1, 40), range(1, 72, 3)):
        nbytes = c * width * np.dtype(dtype).itemsize
        if nbytes > 2 * mmap.PAGESIZE:
            continue
        x = memory[2 * mmap.PAGESIZE - nbytes : 2 * mmap.PAGESIZE].view(dtype).reshape(1, c, 1, 1, width)
        x[...] = np.arange(x.size).reshape(x.shape) % 5
        w = np.ones((64, c, 1, 1, 1), dtype)
        y = np.empty((1, 64, 1, 1, (width - 1) // stride + 1), dtype)
        operands = [v for a in (x, w, y) for v in (a.ctypes.data, a.shape, tuple(s // a.itemsize for s in a.strides))]
        room = np.empty((1 << 20) + 64, np.uint8)
        room = room[-room.ctypes.data % 64 :][: 1 << 20]
        native.kernels.direct_conv(
            "fprop", code, *operands, (1, 1, stride), (1, 1, 1), (0, 0, 0), 1, 0, 0, 0.0, False, room.ctypes.data, room.nbytes,
            False, 1,
        )  # fmt: skip
        np.testing.assert_array_equal(y[0, 0, 0, 0], x[0, :, 0, 0, ::stride].sum(0))
