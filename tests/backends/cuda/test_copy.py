"""Strided copies as calls of the runtime: every byte once, in as few calls as rows and slices allow."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import pytest

from ooc.backends.cuda.copy import MOST_PITCH, PitchedRows, rows
from ooc.backends.device_array import device_array

pytestmark = pytest.mark.quick


def strided(rng: random.Random, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of a shape with gaps, and its axes in any order in memory."""
    order = rng.sample(range(len(shape)), len(shape)) if rng.random() < 0.5 else list(range(len(shape)))
    room = np.zeros([shape[axis] + rng.choice((0, 0, 3)) for axis in order], dtype)
    view = room[tuple(slice(0, shape[axis]) for axis in order)]
    return view.transpose(np.argsort(order))


def done(call: PitchedRows) -> None:
    """What the runtime does, with its rules about pitches."""
    if call.height > 1 or call.depth > 1:
        assert call.width <= call.target_pitch <= MOST_PITCH and call.width <= call.source_pitch <= MOST_PITCH
    if call.depth > 1:
        assert call.target_height >= call.height and call.source_height >= call.height
    for z in range(call.depth):
        for y in range(call.height):
            to = call.target + (z * call.target_height + y) * call.target_pitch
            of = call.source + (z * call.source_height + y) * call.source_pitch
            ctypes.memmove(to, of, call.width)


@pytest.mark.parametrize("first", range(0, 300, 30))
def test_copies_of_any_strides(first: int) -> None:
    for seed in range(first, first + 30):
        _copied(random.Random(seed))


def _copied(rng: random.Random) -> None:
    shape = tuple(rng.choice((1, 2, 3, 5)) for _ in range(rng.randint(1, 5)))
    dtype = rng.choice((np.int8, np.float16, np.float32, np.float64))
    source, target = strided(rng, shape, dtype), strided(rng, shape, dtype)
    source[...] = np.arange(source.size).reshape(shape)
    calls = list(rows(target, source))
    for call in calls:
        done(call)
    np.testing.assert_array_equal(target, source)
    assert sum(c.width * c.height * c.depth for c in calls) == source.nbytes


@pytest.mark.parametrize(
    ("shape", "index", "count", "sizes"),
    [
        ((4, 6, 8), (slice(None), slice(None), slice(None)), 1, (768, 1, 1)),  # contiguous
        ((4, 6, 8), (slice(1, 3), slice(None), slice(None)), 1, (384, 1, 1)),  # a piece of the outermost axis
        ((4, 6, 8), (slice(None), slice(2, 5), slice(None)), 1, (96, 4, 1)),  # rows
        ((4, 6, 8), (slice(None), slice(2, 5), slice(1, 7)), 1, (24, 3, 4)),  # slices of rows
        ((2, 4, 6, 8), (slice(None), slice(1, 3), slice(2, 5), slice(1, 7)), 2, (24, 3, 2)),  # a call per outer element
    ],
)
def test_fewest_calls(shape: Any, index: Any, count: int, sizes: Any) -> None:
    source = np.zeros(shape, np.float32)[index]
    calls = list(rows(np.zeros(source.shape, np.float32), source))
    assert len(calls) == count and (calls[0].width, calls[0].height, calls[0].depth) == sizes


def test_rows_too_far_apart_are_copied_one_by_one() -> None:
    """The runtime takes no pitch of 2 GiB or more (addresses only: nothing lies there)."""
    far = device_array(1 << 40, (3, 16), np.float32, (3 << 30, 4))
    calls = list(rows(device_array(1 << 41, (3, 16), np.float32), far))
    assert [(c.width, c.height) for c in calls] == [(64, 1)] * 3
    assert [c.source for c in calls] == [(1 << 40) + i * (3 << 30) for i in range(3)]


def test_nothing_to_copy() -> None:
    assert list(rows(np.zeros((0, 3)), np.zeros((0, 3)))) == []
