"""Filters as everybody has them, k x c/groups x taps, beside pictures whose channels come last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ooc

NUMBERS = np.random.default_rng(0)
X = NUMBERS.integers(-3, 4, (2, 3, 9, 8)).astype("f")
W = NUMBERS.integers(-3, 4, (16, 3, 3, 3)).astype("f")  # fits both readings
DY = NUMBERS.integers(-3, 4, (2, 16, 9, 8)).astype("f")


def last(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def first(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.moveaxis(array, -1, 1)


@pytest.mark.parametrize("budget", [None, "4 KiB"])
@pytest.mark.parametrize("filter_layout", ["channels_first", "channels_last"])
def test_filters_keep_their_layout_beside_channels_last(filter_layout: str, budget: str | None) -> None:
    how: dict[str, Any] = {"layout": "channels_last"}
    w, back = W, np.asarray
    if filter_layout == "channels_last":
        how["filter_layout"], w, back = filter_layout, last(W), first
    with ooc.device("cpu", budget=budget):
        np.testing.assert_array_equal(first(ooc.conv(last(X), w, padding=1, **how)), ooc.conv(X, W, padding=1))
        np.testing.assert_array_equal(
            first(ooc.chain(last(X), ooc.Conv(w, padding=1), ooc.Pool(), **how)), ooc.chain(X, ooc.Conv(W, padding=1), ooc.Pool())
        )
        np.testing.assert_array_equal(
            first(ooc.conv_transpose(last(DY), w, padding=1, **how)), ooc.conv_transpose(DY, W, padding=1)
        )
        made, wanted = ooc.conv_backward(last(X), w, last(DY), padding=1, **how), ooc.conv_backward(X, W, DY, padding=1)
        np.testing.assert_array_equal(first(made.dx), wanted.dx)
        np.testing.assert_array_equal(back(made.dw), wanted.dw)
        _, (of_chain,) = ooc.chain_backward(last(X), last(DY), ooc.Conv(w, padding=1), **how)
        np.testing.assert_array_equal(back(of_chain.dw), wanted.dw)


def test_the_other_reading_is_told_of() -> None:
    w = np.ones((4, 5, 5, 3), "f")
    with pytest.raises(ooc.ShapeError, match="filter_layout='channels_last'"):
        ooc.conv(last(X), w, layout="channels_last")
    with pytest.raises(ooc.ShapeError, match=r"^filter_layout: expected one of"):
        ooc.conv(X, W, filter_layout="KRSC")


def test_parameters_of_positions_keep_their_layout_too() -> None:
    scale = NUMBERS.random((3, 9, 8)).astype("f")
    how = {"training": True, "per_activation": True}
    np.testing.assert_allclose(
        first(ooc.batch_norm(last(X), scale, layout="channels_last", **how).y), ooc.batch_norm(X, scale, **how).y, rtol=1e-6
    )
