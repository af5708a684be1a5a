"""Tensors of more than 2^31 and 2^32 elements through every operation: sparse files with a few values in them, at the first and
last elements and around those powers of two. Whatever counts elements in 32 bits loses some of them or finds others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc

pytestmark = pytest.mark.slow
POWERS = (1 << 31, 1 << 32)
AROUND = 8  # positions on each side of a value that are looked at
EDGE = 4  # of those, positions that a neighbourhood may reach beyond
PIECE = 1 << 26  # elements that are counted at once
BUDGET = "1 GiB"

Shape = tuple[int, ...]
Cut = tuple[slice, ...]


def shape_of(power: int) -> Shape:
    """Of a picture with two channels."""
    return (power >> 31, 2, 1 << 15, (1 << 15) + 4)


def sparse(path: Path, shape: Shape) -> Any:
    """An array of zeros in a file that takes no room, with values at the places that are looked at."""
    with path.open("wb") as file:
        file.truncate(int(np.prod(shape, dtype=np.int64)) * 2)
    made = np.memmap(path, np.float16, "r+", 0, shape)
    for i, at in enumerate(places(shape)):
        made[at] = i + 1.5
    return made


def blank(path: Path, shape: Shape) -> Any:
    """An array for results, in a file."""
    return np.memmap(path, np.float16, "w+", 0, shape)


def places(shape: Shape) -> list[Shape]:
    """Elements at both ends, and around each power of two."""
    count = int(np.prod(shape, dtype=np.int64))
    flat = {0, count - 1, *(i for power in POWERS for i in (power - 1, power) if i < count)}
    return [tuple(int(i) for i in np.unravel_index(at, shape)) for at in sorted(flat)]


def cuts(shape: Shape) -> Iterator[tuple[int, list[slice], list[slice]]]:
    """Around each place: its sample, what is taken of the input, and the part of that whose neighbours all are in it."""
    for n, _, *at in places(shape):
        taken, sure = [], []
        for i, extent in zip(at, shape[2:], strict=True):
            lo, hi = max(0, i // 4 * 4 - AROUND), min(extent, i // 4 * 4 + AROUND + 4)
            taken.append(slice(lo, hi))
            sure.append(slice(lo + EDGE * (lo > 0), hi - EDGE * (hi < extent)))
        yield n, taken, sure


def parts(spans: Sequence[slice], by: int, less: Sequence[slice] | None = None) -> Cut:
    """Positions of a tensor whose spatial axes are shorter, from where others begin on."""
    begins = [0] * len(spans) if less is None else [s.start for s in less]
    found = (slice((s.start - b) // by, (s.stop - b) // by) for s, b in zip(spans, begins, strict=True))
    return (slice(None), slice(None), *found)


def compare(x: Any, out: Any, call: Callable[..., Any], by: int) -> None:
    """What a function of a neighbourhood made, with what it makes of pieces; between them there is nothing."""
    still = np.float16(call(np.zeros((1, 2, 16, 16), np.float16))[0, 0, 5 // by, 5 // by])
    seen = set()
    for n, taken, sure in cuts(x.shape):
        wanted = call(np.array(x[(slice(n, n + 1), slice(None), *taken)]))[parts(sure, by, taken)]
        place = parts(sure, by)
        found = out[(slice(n, n + 1), *place[1:])]
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1e-3)
        begins = (n, 0, *(s.start for s in place[2:]))
        seen |= {tuple(map(int, np.add(begins, i))) for i in np.argwhere(found != still)}
    assert seen
    assert differing(out, still) == len(seen)


def differing(array: Any, value: Any) -> int:
    """How many elements are not a value."""
    flat = array.reshape(-1)
    return sum(int(np.count_nonzero(flat[i : i + PIECE] != value)) for i in range(0, flat.size, PIECE))


FILTERS = np.arange(1, 19, dtype=np.float16).reshape(1, 2, 3, 3) / 16
NORM = {name: np.array(v, np.float16) for name, v in (("scale", [2, 3]), ("b", [0, 0]), ("mean", [0, 0]), ("var", [1, 4]))}
LOCAL: dict[str, tuple[Callable[..., Any], int]] = {  # functions of a neighbourhood, and by how much extents shrink
    "conv": (lambda x, **o: ooc.conv(x, FILTERS, padding=1, **o), 1),
    "conv, activation, pool": (lambda x, **o: ooc.conv(x, FILTERS, padding=1, activation="relu", pool=2, **o), 2),
    "conv, strided": (lambda x, **o: ooc.conv(x, FILTERS[:, :, :1, :1], stride=2, **o), 2),
    "conv_transpose": (lambda x, **o: ooc.conv_transpose(x, FILTERS.reshape(2, 1, 3, 3), padding=1, **o), 1),
    "max_pool": (lambda x, **o: ooc.max_pool(x, 2, **o), 2), "avg_pool": (lambda x, **o: ooc.avg_pool(x, 2, **o), 2),
    "activation": (lambda x, **o: ooc.activation(x, "tanh", **o), 1),
    "activation_backward": (lambda x, **o: ooc.activation_backward(x, x, "relu", **o), 1),
    "softmax": (lambda x, **o: ooc.softmax(x, axis=1, **o), 1),
    "softmax_backward": (lambda x, **o: ooc.softmax_backward(x, x, axis=1, **o), 1), "lrn": (lambda x, **o: ooc.lrn(x, **o), 1),
    "batch_norm": (lambda x, **o: ooc.batch_norm(x, **NORM, **o), 1), "add": (lambda x, **o: ooc.add(x, x, **o), 1),
    "scale": (lambda x, **o: ooc.scale(x, -0.5, **o), 1), "dropout": (lambda x, **o: ooc.dropout(x, 0.0, **o), 1),
}  # fmt: skip


CASES = [(name, 1 << 31) for name in LOCAL] + [(name, 1 << 32) for name in ("conv", "max_pool", "softmax")]


@pytest.mark.parametrize(("name", "power"), CASES)
def test_functions_of_a_neighbourhood(name: str, power: int, tmp_path: Path) -> None:
    call, by = LOCAL[name]
    x = sparse(tmp_path / "x.raw", shape_of(power))
    channels = call(np.zeros((1, 2, 16, 16), np.float16)).shape[1]
    out = blank(tmp_path / "y.raw", (x.shape[0], channels, x.shape[2] // by, x.shape[3] // by))
    with ooc.device("cpu", BUDGET):
        call(x, out=out)
    compare(x, out, call, by)


def test_gradients(tmp_path: Path) -> None:
    """Of a convolution's input, filters and bias: sums of all elements are exact, as all but a few are zero."""
    dy = sparse(tmp_path / "dy.raw", (2, 1, 1 << 15, (1 << 15) + 4))
    x = sparse(tmp_path / "x.raw", dy.shape)
    dx, w = blank(tmp_path / "dx.raw", x.shape), FILTERS[:, :1]
    with ooc.device("cpu", BUDGET):
        found = ooc.conv_backward(x, w, dy, padding=1, dx=dx)
    values = np.array([dy[at] for at in places(dy.shape)], np.float64)
    assert float(found.db[0]) == np.float16(values.sum())
    assert float(found.dw[0, 0, 1, 1]) == np.float16((values * values).sum())

    def gradient(part: Any) -> Any:
        return ooc.conv_backward(None, w, part[:, :1], padding=1, want="dx", x_shape=(1, 1, *part.shape[2:])).dx

    compare(dy, dx, gradient, 1)


@pytest.mark.parametrize("power", POWERS)
def test_statistics(power: int, tmp_path: Path) -> None:
    """Means over all positions, gradients of a bias, and maxima along a row of them all."""
    x = sparse(tmp_path / "x.raw", shape_of(power))
    sums = np.zeros(x.shape[:2])
    for i, at in enumerate(places(x.shape)):
        sums[at[:2]] += i + 1.5
    with ooc.device("cpu", BUDGET):
        assert ooc.bias_backward(x).tolist() == sums.sum(0).tolist()
        np.testing.assert_allclose(ooc.global_avg_pool(x)[:, :, 0, 0], sums / (x.shape[2] * x.shape[3]), atol=1e-7)
        found = ooc.max_pool(x.reshape(x.shape[0], 2, -1), x.shape[3])  # a window is a row
    largest = np.zeros(x.shape[:3])
    for i, at in enumerate(places(x.shape)):
        largest[at[:3]] = max(largest[at[:3]], i + 1.5)
    assert np.array_equal(found, largest)


@pytest.mark.parametrize("power", POWERS)
def test_an_axis_that_is_longer(power: int, tmp_path: Path) -> None:
    """A signal of one row: positions themselves do not fit 32 bits."""
    x = sparse(tmp_path / "x.raw", (1, 1, power + 12))
    out = blank(tmp_path / "y.raw", (1, 1, x.shape[2] // 2))

    def call(part: Any, **more: Any) -> Any:
        return ooc.conv(part, FILTERS[:, :1, 0], padding=1, pool=2, **more)

    with ooc.device("cpu", BUDGET):
        call(x, out=out)
    still, seen = np.float16(0), 0
    for _, (taken,), (sure,) in cuts(x.shape):
        wanted = call(np.array(x[:, :, taken]))[parts([sure], 2, [taken])]
        np.testing.assert_allclose(out[parts([sure], 2)], wanted, rtol=2e-3)
    seen = {i for _, _, (sure,) in cuts(x.shape) for i in range(sure.start // 2, sure.stop // 2) if out[0, 0, i]}
    assert differing(out, still) == len(seen) > 0
