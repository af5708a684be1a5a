"""Sums of rows of any length, layout and dtype: the documented order of additions, to the bit, and no look behind the tensor."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest

from ooc import native

LANES = 16


def lifted(a: Any) -> tuple[int, ...]:
    return tuple(s // a.itemsize for s in a.strides)


def over(acc: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of results, 0 along what is summed."""
    return tuple(0 if e == 1 and s != 1 else i for e, i, s in zip(acc.shape, lifted(acc), shape, strict=True))


def row_sum(v: Any) -> Any:
    """The sums along the last axis, as kernels/reduce.cpp says."""
    lane = np.zeros((*v.shape[:-1], LANES))
    for i in range(0, v.shape[-1], LANES):
        part = v[..., i : i + LANES]
        lane[..., : part.shape[-1]] += part
    eight = lane[..., :8] + lane[..., 8:]
    four = eight[..., :4] + eight[..., 4:]
    return (four[..., 0] + four[..., 2]) + (four[..., 1] + four[..., 3])


def in_order(x: Any, kept: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """(kept axes, rows in their order, elements of a row), and the shape of the results."""
    rows = [i for i in (0, 2, 3, 1) if i not in kept]
    inner = (4,) if 4 not in kept else ()
    laid = x.transpose(*kept, *rows, *inner).astype(np.float64)
    counts = [x.shape[i] for i in kept]
    return laid.reshape(*counts, -1, x.shape[4] if inner else 1), tuple(x.shape[i] if i in kept else 1 for i in range(5))


def merged(m: Any, more: Any, n: int) -> Any:
    """Counts, means and squared distances of rows, one row after the other."""
    s = np.zeros((3, *m.shape[:-1]))
    for r in range(m.shape[-1]):
        before, after = s[0].copy(), s[0] + n
        far, share = m[..., r] - s[1], n / after
        s[0], s[1] = after, s[1] + far * share
        s[2] = s[2] + (more[..., r] + (far * far) * (before * share))
    return s


def one_after_the_other(sums: Any, alpha: float = 1.0) -> Any:
    total = np.zeros(sums.shape[:-1])
    for r in range(sums.shape[-1]):
        total = total + alpha * sums[..., r]
    return total


def some_tensor(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers in any order of axes, the last one sometimes with a stride or backwards."""
    order = (0, 1, 2, 3, 4) if rng.random() < 0.6 else tuple(rng.permutation(5))
    wide = [shape[i] for i in order]
    step = 1 if rng.random() < 0.7 else int(rng.choice([2, -1]))
    wide[-1] *= abs(step)
    numbers = rng.standard_normal(wide).astype(np.float32)
    if dtype == "bf16":
        numbers = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    else:
        numbers = numbers.astype({"f64": "f8", "f32": "f4", "f16": "f2"}[dtype])
    return numbers[..., ::step].transpose(np.argsort(order))


def as_numbers(x: Any, dtype: str) -> Any:
    return (x.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else x


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("seed", range(40))
def test_every_kind_of_sum_follows_the_order(seed: int, dtype: str) -> None:
    kernels = native.kernels
    assert kernels is not None
    rng = np.random.default_rng(seed)
    w = int(rng.choice([1, 2, 3, 4, 7, 8, 9, 14, 15, 16, 17, 28, 31, 32, 33, 48, 56, 63, 64, 65, 80]))
    shape = (*(int(rng.integers(1, e)) for e in (5, 70, 3, 12)), w)
    kept = [(1,), (0,), (0, 1), (), (1, 2), (3,), (4,)][seed % 7]
    x, y = some_tensor(rng, shape, dtype), some_tensor(rng, shape, dtype)
    threads, code = seed % 3 + 1, native.DTYPE_CODES[dtype]
    rows_x, results = in_order(as_numbers(x, dtype), kept)
    rows_y, _ = in_order(as_numbers(y, dtype), kept)

    def check(call: Any, values: int, expected: Any) -> None:
        acc = np.full((values, *results), np.nan)
        call(acc)
        np.testing.assert_array_equal(acc.reshape(expected.shape), expected)

    alpha = float(rng.choice([1.0, -0.75]))
    at_x, at_y = (native.address(x), lifted(x)), (native.address(y), lifted(y))
    check(
        lambda acc: kernels.reduce_sum(code, native.address(acc), over(acc[0], shape), *at_x, shape, alpha, False, threads),
        1, one_after_the_other(row_sum(rows_x), alpha),
    )  # fmt: skip
    check(
        lambda acc: kernels.reduce_product(
            code, native.address(acc), over(acc[0], shape), *at_x, *at_y, shape, alpha, False, threads
        ),
        1, one_after_the_other(row_sum(rows_x * rows_y), alpha),
    )  # fmt: skip
    n = rows_x.shape[-1]
    m = row_sum(rows_x) / n
    check(
        lambda acc: kernels.bn_moments(
            code, native.address(acc), acc.strides[0] // 8, over(acc[0], shape), *at_x, shape, False, threads
        ),
        3, merged(m, row_sum((rows_x - m[..., None]) ** 2), n),
    )  # fmt: skip
    mean, rstd = rng.standard_normal(results), rng.random(results) + 0.5
    normal = (rows_x - mean.reshape(*rows_x.shape[:-2], 1, 1)) * rstd.reshape(*rows_x.shape[:-2], 1, 1)
    check(
        lambda acc: kernels.bn_backward_sums(
            code, native.address(acc), acc.strides[0] // 8, over(acc[0], shape), *at_x, *at_y, shape, native.address(mean),
            native.address(rstd), over(mean, shape), False, threads,
        ),
        2, np.stack([one_after_the_other(row_sum(rows_y * normal)), one_after_the_other(row_sum(rows_y))]),
    )  # fmt: skip


@pytest.mark.parametrize("width", [2, 7, 9, 14, 23, 41, 62])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16"])
def test_nothing_behind_a_tensor_is_read(width: int, dtype: str) -> None:
    """It ends where a page ends that is followed by one that may not be read."""
    assert native.kernels is not None
    pages = mmap.mmap(-1, 8 * mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    last = ctypes.c_void_p(first + 7 * mmap.PAGESIZE)
    assert libc.mprotect(last, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    kind = np.dtype({"f64": "f8", "f32": "f4", "f16": "f2"}[dtype])
    shape = (2, 3, 1, 5, width)
    count = int(np.prod(shape))
    x = np.frombuffer(pages, kind, count, 7 * mmap.PAGESIZE - count * kind.itemsize).reshape(shape)
    x[...] = np.arange(count).reshape(shape) % 7
    acc = np.zeros((1, 3, 1, 1, 1))
    native.kernels.reduce_sum(
        native.DTYPE_CODES[dtype], native.address(acc), over(acc, shape), native.address(x), lifted(x), shape, 1.0, False, 1
    )
    np.testing.assert_array_equal(acc[0, :, 0, 0, 0], x.sum((0, 2, 3, 4), dtype="f8"))
    assert libc.mprotect(last, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE) == 0
