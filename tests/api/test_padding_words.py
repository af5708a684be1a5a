"""padding="same", "valid", "reflect", "replicate" and "circular": in `ooc.conv`, chains, gradients and graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ooc

WORDS = ("valid", "same", "reflect", "replicate", "circular")
MODES = {"same": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # of numpy.pad
RNG = np.random.default_rng
PROBLEMS = (  # of x, of w, stride, dilation
    ((2, 3, 9, 11), (4, 3, 3, 5), 1, 1),
    ((1, 2, 10, 7), (2, 2, 4, 3), (2, 3), 1),
    ((2, 4, 23), (6, 2, 5), 1, 2),
    ((1, 2, 6, 7, 8), (3, 2, 3, 3, 2), 2, 1),
)


def integers(shape: tuple[int, ...], seed: int) -> Any:
    return RNG(seed).integers(-4, 5, shape).astype(np.float32)


def amounts(x: Any, w: Any, stride: Any, dilation: int, word: str) -> list[tuple[int, int]]:
    """Around each axis."""
    rank = x.ndim - 2
    strides = (stride,) * rank if isinstance(stride, int) else stride
    pads = []
    for e, r, s in zip(x.shape[2:], w.shape[2:], strides, strict=True):
        missing = max(0, (-(-e // s) - 1) * s + (r - 1) * dilation + 1 - e) if word != "valid" else 0
        pads.append((missing // 2, missing - missing // 2))
    return pads


def around(x: Any, pads: list[tuple[int, int]], word: str) -> Any:
    return x if word == "valid" else np.pad(x, [(0, 0), (0, 0), *pads], mode=MODES[word])


def taken_back(dx: Any, x: Any, pads: list[tuple[int, int]], word: str) -> Any:
    """The gradient of x from that of x with its border: each position gets what its copies have."""
    places = around(np.arange(x[0, 0].size).reshape(1, 1, *x.shape[2:]), pads, word)
    if word in ("valid", "same"):
        inside = tuple(slice(before, before + e) for (before, _), e in zip(pads, x.shape[2:], strict=True))
        return dx[(slice(None), slice(None), *inside)]
    total = np.zeros((x.shape[0], x.shape[1], x[0, 0].size), dx.dtype)
    for n, c in np.ndindex(x.shape[:2]):
        np.add.at(total[n, c], places.ravel(), dx[n, c].ravel())
    return total.reshape(x.shape)


@pytest.mark.parametrize("budget", [None, "64 KiB", "6 KiB"])
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("problem", range(len(PROBLEMS)))
def test_as_padded_before(problem: int, word: str, budget: str | None) -> None:
    x_shape, w_shape, stride, dilation = PROBLEMS[problem]
    x, w = integers(x_shape, 0), integers(w_shape, 1)
    groups = x_shape[1] // w_shape[1]
    pads = amounts(x, w, stride, dilation, word)
    padded = around(x, pads, word)
    how = {"stride": stride, "dilation": dilation, "groups": groups}
    expected = ooc.conv(padded, w, activation="relu", **how)
    dy = integers(expected.shape, 2)
    dz = dy * (expected > 0)
    gradients = ooc.conv_backward(padded, w, dz, **how)
    with ooc.device("cpu", budget=budget):
        y = ooc.conv(x, w, padding=word, activation="relu", **how)
        np.testing.assert_array_equal(y, expected)
        if word != "valid":
            strides = (stride,) * (x.ndim - 2) if isinstance(stride, int) else stride
            assert y.shape[2:] == tuple(-(-e // s) for e, s in zip(x_shape[2:], strides, strict=True))
        have = ooc.conv_backward(x, w, dy, y=y, padding=word, activation="relu", **how)
    np.testing.assert_array_equal(have.dw, gradients.dw)
    np.testing.assert_array_equal(have.db, gradients.db)
    np.testing.assert_array_equal(have.dx, taken_back(gradients.dx, x, pads, word))


@pytest.mark.parametrize("word", WORDS)
def test_layers_in_a_row(word: str) -> None:
    """With pooling, residuals, channels last, and gradients of all."""
    x, w, v = integers((1, 12, 10, 3), 0), integers((4, 3, 3, 3), 1), integers((2, 4, 3, 4), 2)
    first = np.moveaxis(x, -1, 1)
    pads = amounts(first, w, 1, 1, word)
    y = ooc.conv(around(first, pads, word), w)
    beside = integers(y.shape, 3)
    last = {"layout": "channels_last"}
    both = ooc.conv(x, w, padding=word, residual=np.moveaxis(beside, 1, -1), pool=2, with_unpooled=True, **last)
    np.testing.assert_array_equal(np.moveaxis(both[0], -1, 1), y + beside)
    np.testing.assert_array_equal(np.moveaxis(both[1], -1, 1), ooc.max_pool(y + beside, 2))
    layers = (ooc.Conv(w, padding=word, pool=2), ooc.Conv(v, padding=word))
    pooled = ooc.max_pool(y, 2)
    expected = ooc.conv(around(pooled, amounts(pooled, v, 1, 1, word), word), v)
    np.testing.assert_array_equal(ooc.chain(first, *layers), expected)
    dy = integers(expected.shape, 4)
    dx, gradients = ooc.chain_backward(first, dy, *layers)
    of_v = ooc.conv_backward(pooled, v, dy, padding=word)
    of_w = ooc.conv_backward(first, w, of_v.dx, y=y, padding=word, pool=2)
    np.testing.assert_array_equal(dx, of_w.dx)
    filters = [g.dw for g in gradients if g.dw is not None]
    np.testing.assert_array_equal(filters[0], of_w.dw)
    np.testing.assert_array_equal(filters[1], of_v.dw)


@pytest.mark.parametrize("word", WORDS)
def test_networks(word: str) -> None:
    g = ooc.Graph()
    g.output(g.conv(g.input("x", (3, 9, 8)), 2, (3, 4), padding=word, name="conv"))
    x, w = integers((2, 3, 9, 8), 0), integers((2, 3, 3, 4), 1)
    with g.plan(batch=2, train=False, device="cpu").session(parameters={"conv.w": w}) as session:
        np.testing.assert_array_equal(session.forward(x), ooc.conv(x, w, padding=word))


def test_other_words_are_refused() -> None:
    x, w = integers((1, 1, 5, 5), 0), integers((1, 1, 3, 3), 1)
    for padding in ("SAME", "zeros", ""):
        with pytest.raises(
            ooc.ArgumentError, match="padding: expected integers or one of valid, same, reflect, replicate, circular"
        ):
            ooc.conv(x, w, padding=padding)
    with pytest.raises(ooc.ArgumentError, match="padding: expected an integer"):
        ooc.conv_transpose(x, w, padding="same")
    with pytest.raises(ooc.ArgumentError, match="padding: expected an integer"):
        ooc.max_pool(x, 2, padding="same")
