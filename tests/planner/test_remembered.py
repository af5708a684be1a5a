"""What a planner remembers: schedules up to so many steps, the newest of them."""

from __future__ import annotations

import numpy as np

import ooc
from ooc.cache import Cache
from ooc.ops.descriptor import parse
from ooc.planner import planner as planners
from ooc.planner.planner import Limits, Planner
from ooc.schedule.place import Place


def test_the_oldest_make_room_by_weight() -> None:
    cache: Cache[str] = Cache(5, len)
    for key, value in enumerate(("aa", "bb", "c", "dd")):
        cache.keep(key, value)
    assert list(cache.values()) == ["bb", "c", "dd"]
    assert cache.keep(9, "heavier") == "heavier"  # than all may be: alone
    assert list(cache) == [9]
    assert cache.keep(10, "aa") == "aa"
    assert list(cache) == [10]
    assert cache.keep(10, "bb") == "aa"


def test_a_schedule_is_linked_once() -> None:
    """Of some hundred steps; one of more steps than are kept is linked again."""
    device = ooc.device("cpu", "64 KiB")
    planner = Planner(device.backend, device.model, Limits(device_bytes=64 << 10))
    found = {}
    for n in (300, 4096):
        op = parse(f"conv.fprop n={n} c=8 h=16 w=16 k=8 r=3 s=3 pad=1")
        plan = planner.plan(op, dict.fromkeys(("x", "w", "y"), Place.DISK))
        one, other = ([window for window in planner.windows(plan) if window is not None] for _ in range(2))
        steps = sum(len(window.steps) for window in one)
        assert [len(window.steps) for window in one] == [len(window.steps) for window in other]
        found[steps > planners.SHORT] = one[0] is other[0], steps
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
