"""Packing buffers: nothing alive overlaps, and the best fit worked by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from ooc.ir.op import ALIGN, aligned
from ooc.schedule import arena
from ooc.schedule.arena import Buffer, Layout, Longer, colour, pack_in_sequence

pytestmark = pytest.mark.quick


def device(name: str, units: int, index: int = 0) -> Buffer:
    return Buffer("device", name, index, units * ALIGN)


def random_lives(seed: int) -> dict[Buffer, tuple[int, int]]:
    rng = random.Random(seed)
    lives = {}
    for i in range(rng.randint(1, 24)):
        first = rng.randrange(20)
        space = rng.choice(("device", "device", "staging"))
        lives[Buffer(space, f"b{i}", rng.randrange(3), rng.randint(0, 900))] = (first, first + rng.randrange(8))
    return lives


def load(lives: dict[Buffer, tuple[int, int]], space: str, at: int) -> int:
    return sum(aligned(b.nbytes) for b, (first, last) in lives.items() if b.space == space and first <= at <= last)


def assert_apart(layout: Layout, lives: dict[Buffer, tuple[int, int]]) -> None:
    """What lives at the same time does not overlap."""
    for one, two in itertools.combinations(lives, 2):
        together = lives[one][0] <= lives[two][1] and lives[two][0] <= lives[one][1]
        if one.space == two.space and together and one.nbytes and two.nbytes:
            assert layout.end(one) <= layout.offsets[two] or layout.end(two) <= layout.offsets[one]


@pytest.mark.parametrize("seed", range(60))
def test_live_buffers_never_overlap_and_the_peak_holds_them(seed: int) -> None:
    lives = random_lives(seed)
    layout = colour(lives)
    assert layout.offsets.keys() == lives.keys()
    assert_apart(layout, lives)
    for space, peak in layout.peaks.items():
        own = [b for b in lives if b.space == space]
        assert all(layout.offsets[b] % ALIGN == 0 and layout.end(b) <= peak for b in own)
        assert max(load(lives, space, t) for t in range(30)) <= peak <= sum(aligned(b.nbytes) for b in own)


def test_one_after_the_other_share_their_place() -> None:
    a, b = device("a", 4), device("b", 3)
    layout = colour({a: (0, 1), b: (2, 3)})
    assert layout.offsets == {a: 0, b: 0} and layout.peaks == {"device": 4 * ALIGN}


def test_a_last_use_and_a_first_use_in_one_step_do_not_share() -> None:
    a, b = device("a", 4), device("b", 3)
    layout = colour({a: (0, 1), b: (1, 2)})
    assert layout.offsets == {a: 0, b: 4 * ALIGN}


def test_best_fit_takes_the_smallest_gap_that_holds() -> None:
    """Decreasing size: wall 10 at 0, big 6 at 10 (dies), post 5 at 16, gone 4 at 21 (dies), end 3 at 25; then a gap of 6
    and one of 4 are open, and a buffer of 2 goes to the tighter one."""
    wall, big, post, gone, end, late = (device(n, u) for n, u in zip("abcdef", (10, 6, 5, 4, 3, 2)))
    lives = {wall: (0, 9), big: (0, 1), post: (0, 9), gone: (0, 1), end: (0, 9), late: (5, 9)}
    layout = colour(lives)
    assert {b.name: o // ALIGN for b, o in layout.offsets.items()} == {"a": 0, "b": 10, "c": 16, "d": 21, "e": 25, "f": 21}
    assert layout.peaks == {"device": 28 * ALIGN}


def test_the_gap_below_the_first_neighbour_counts() -> None:
    low, high, late = device("a", 4), device("b", 3), device("c", 2)
    layout = colour({low: (0, 1), high: (0, 9), late: (5, 9)})
    assert layout.offsets[high] == 4 * ALIGN and layout.offsets[late] == 0


def test_spaces_are_packed_apart() -> None:
    a, b = device("a", 2), Buffer("staging", "a", 0, 100)
    layout = colour({a: (0, 1), b: (0, 1)})
    assert layout.offsets == {a: 0, b: 0} and layout.peaks == {"device": 2 * ALIGN, "staging": 2 * ALIGN}


@pytest.mark.parametrize("seed", range(20))
def test_whole_life_buffers_pack_the_same_in_sequence(seed: int) -> None:
    buffers = list(random_lives(seed))
    always = dict.fromkeys(buffers, (0, 5))
    assert pack_in_sequence(buffers).peaks == colour(always).peaks


@pytest.mark.parametrize("seed", range(20))
def test_buffers_share_a_cell_exactly_when_their_bytes_overlap(seed: int) -> None:
    layout = colour(random_lives(seed))
    for one, two in itertools.combinations(layout.offsets, 2):
        apart = layout.end(one) <= layout.offsets[two] or layout.end(two) <= layout.offsets[one]
        overlap = one.space == two.space and not apart and bool(one.nbytes and two.nbytes)
        assert bool(set(layout.cells[one]) & set(layout.cells[two])) == overlap


def test_cells_of_a_partial_overlap() -> None:
    a, b, c = (Buffer("device", n, 0, size) for n, size in (("a", 128), ("b", 128), ("c", 0)))
    cells = Layout({a: 0, b: 64, c: 64}, {"device": 192}).cells
    assert len(cells[a]) == len(cells[b]) == 2 and len(set(cells[a]) & set(cells[b])) == 1 and cells[c] == ()


def test_buffer_text() -> None:
    assert str(Buffer("device", "x", 1, 8)) == "x#1" and str(Buffer("spill", "y", 3, 8)) == "spill:y#3"


@pytest.mark.parametrize("seed", range(60))
def test_other_orders_leave_fewer_gaps(seed: int) -> None:
    lives = random_lives(seed)
    plain, close = colour(lives), colour(lives, close=True)
    assert close.offsets.keys() == lives.keys()
    assert_apart(close, lives)
    for space, peak in close.peaks.items():
        assert max(load(lives, space, t) for t in range(30)) <= peak <= plain.peaks[space]


def test_what_ends_at_the_peak_is_placed_first() -> None:
    """By size a and b lie below c, which comes when b alone is there, at its end: c over b, where a was is too small."""
    a, b, c = device("a", 4), device("b", 4, 1), device("c", 3)
    d = device("d", 5)
    lives = {a: (0, 1), b: (1, 3), c: (2, 4), d: (4, 5)}
    assert colour(lives, close=True).peaks["device"] == max(load(lives, "device", t) for t in range(6))


@pytest.mark.parametrize("seed", range(60))
def test_what_lives_longer_does_below_the_limit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extension, if there is one, and without it."""
    lives, rng = random_lives(seed), random.Random(seed)
    until = {b: last + rng.randrange(9) for b, (_, last) in lives.items() if rng.random() < 0.5}
    peak = max(colour(lives).peaks.values())
    layouts = []
    for limit in (0, peak // 2, peak, peak * 2, 1 << 60):
        layouts.append(colour(lives, longer=Longer(until, limit)))
        assert layouts[-1].offsets.keys() == lives.keys()
        assert_apart(layouts[-1], lives)
    assert_apart(layouts[-1], {b: (first, max(last, until.get(b, last))) for b, (first, last) in lives.items()})
    monkeypatch.setattr(arena, "kernels", None)
    assert layouts == [colour(lives, longer=Longer(until, limit)) for limit in (0, peak // 2, peak, peak * 2, 1 << 60)]


def test_a_longer_life_is_cut_where_it_does_not_fit() -> None:
    """c lies over a, of which nothing has to live longer; where memory has no end, over both; where it has, over a again."""
    a, b, c = device("a", 4), device("b", 4, 1), device("c", 4, 2)
    lives = {a: (0, 1), b: (0, 9), c: (3, 4)}
    assert colour(lives).peaks["device"] == colour(lives, longer=Longer({a: 8}, 0)).peaks["device"] == 8 * ALIGN
    assert colour(lives, longer=Longer({a: 8}, 1 << 30)).peaks["device"] == 12 * ALIGN
    assert colour(lives, longer=Longer({a: 2}, 8 * ALIGN)).peaks["device"] == 8 * ALIGN


@pytest.mark.parametrize("seed", range(20))
def test_a_limit_of_the_device_is_none_of_other_spaces(seed: int) -> None:
    lives = {b._replace(space="spill"): life for b, life in random_lives(seed).items()}
    assert colour(lives, close=True, longer=Longer({device("x", 1): 9}, 1 << 40)) == colour(lives, close=True)
