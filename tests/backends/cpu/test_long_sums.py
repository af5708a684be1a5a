"""Sums of many terms at few positions: as exact as in blocks, whichever loops serve them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ooc

EPS = float(np.finfo(np.float32).eps)


def uniform(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).random(shape, np.float32)


def fprop(c: int, taps: int) -> tuple[Any, Any]:
    x, w = uniform(1, c, taps, taps), uniform(4, c, taps, taps)
    return ooc.conv(x, w).ravel(), np.einsum("nchw,kchw->k", x.astype(np.float64), w.astype(np.float64))


def dgrad(c: int, taps: int) -> tuple[Any, Any]:
    dy, w = uniform(1, c, 1, 1), uniform(c, 4, 1, 1)
    found = ooc.conv_backward(None, w, dy, want="dx", x_shape=(1, 4, 1, 1)).dx
    return found.ravel(), dy.ravel().astype(np.float64) @ w[:, :, 0, 0].astype(np.float64)


def linear(c: int, taps: int) -> tuple[Any, Any]:
    x, w = uniform(3, c), uniform(4, c)
    return ooc.linear(x, w), x.astype(np.float64) @ w.T.astype(np.float64)


@pytest.mark.parametrize(
    ("call", "c", "taps"), [(fprop, 20_000, 1), (fprop, 200_000, 1), (fprop, 20_000, 3), (dgrad, 50_000, 1), (linear, 25_088, 1)]
)
def test_few_positions(call: Callable[[int, int], tuple[Any, Any]], c: int, taps: int) -> None:
    """One chain of so many terms of one sign loses some hundred units in the last place, blocks of them some ten."""
    found, wanted = call(c, taps)
    assert np.abs(found / wanted - 1).max() < 32 * EPS


def test_in_order_bits_come_first() -> None:
    """With deterministic=True they do not depend on the tiling: a sum is one chain then."""
    x, w = uniform(1, 20_000, 1, 1), uniform(4, 20_000, 1, 1)
    found = []
    for budget in ("64 KiB", "256 KiB", None):
        with ooc.device("cpu", budget=budget, deterministic=True):
            found.append(ooc.conv(x, w))
    assert all(np.array_equal(one, found[0]) for one in found)
