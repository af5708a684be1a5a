"""What is remembered of plans: the newest of them, and the steps of short ones."""

from __future__ import annotations

import numpy as np

import ooc
from ooc.cache import Cache
from ooc.ops.descriptor import parse
from ooc.runtime import memo
from ooc.runtime.executor import Run
from ooc.schedule.lowering import schedule_of
from ooc.schedule.place import Place


def test_the_oldest_make_room() -> None:
    cache: Cache[str] = Cache(3)
    for key, value in enumerate("abcd"):
        cache.keep(key, value)
    assert list(cache.values()) == ["b", "c", "d"]
    assert cache.keep(3, "other") == "d"  # a thread was faster
    assert cache.made(4, lambda: "e") == "e" and list(cache) == [2, 3, 4]


def test_a_schedule_is_linked_once() -> None:
    """Of some hundred steps; one of more steps than are kept is linked again."""
    device = ooc.device("cpu", "64 KiB")
    found = {}
    for n in (300, 4096):
        op = parse(f"conv.fprop n={n} c=8 h=16 w=16 k=8 r=3 s=3 pad=1")
        plan = device.planner.plan(op, dict.fromkeys(("x", "w", "y"), Place.DISK))
        run = Run(schedule_of(plan), device.backend, memo.SHORT)
        one, other = ([window for window in run.windows() if window is not None] for _ in range(2))
        steps = sum(len(window.steps) for window in one)
        assert [len(window.steps) for window in one] == [len(window.steps) for window in other]
        assert run.count == (steps if one[0] is other[0] else 0)
        found[steps > memo.SHORT] = one[0] is other[0], steps
    (short, some), (long, many) = found[False], found[True]
    assert short and not long, (some, many)
    assert some > 256


def test_results_of_a_remembered_schedule() -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(-2, 3, (8, 8, 3, 3)).astype(np.float32)
    with ooc.device("cpu", "64 KiB"):
        for _ in range(3):  # other contents every time
            x = rng.integers(-2, 3, (64, 8, 16, 16)).astype(np.float32)
            np.testing.assert_array_equal(ooc.conv(x, w, padding=1), _reference(x, w))


def _reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, w, optimize=True)
