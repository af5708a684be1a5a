"""Sampling at positions that a network computes: the same bits under any budget, near an even grid with a halo alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle_sampling import even_grid, grid_sample
from sweeps import crossed

import ooc
from ooc.ops import GridSample

SHAPE, SIZE = (3, 24, 20), (22, 26)


def network(**how: Any) -> ooc.Graph:
    g = ooc.Graph("warp")
    x, grid = g.input("x", SHAPE, "f64"), g.input("grid", (2, *SIZE), "f64")
    g.output(g.grid_sample(g.conv(x, 4, 1, name="c"), grid, name="y", **how))
    return g


def arrays(rng: Any, moved: float) -> tuple[Any, Any]:
    """Whole numbers, and positions on quarters of pixels, up to so many pixels from an even grid."""
    op = GridSample(2, 4, SHAPE[1:], SIZE)
    pixels = (even_grid(op) + 1) * np.array(SHAPE[:0:-1]).reshape(2, 1, 1) / 2  # from the outer edge
    pixels = np.round(4 * (pixels + rng.uniform(-moved, moved, (2, 2, *SIZE)))) / 4
    x = rng.integers(-3, 4, (2, *SHAPE)).astype(np.float64)
    return x, pixels * 2 / np.array(SHAPE[:0:-1]).reshape(2, 1, 1) - 1


def expected(x: Any, grid: Any, w: Any, **words: Any) -> Any:
    op = GridSample(2, 4, SHAPE[1:], SIZE, dtype="f64", **words)
    return grid_sample(op, {"x": np.einsum("kc,nchw->nkhw", w, x), "grid": grid})["y"]


@pytest.mark.parametrize(
    ("how", "padding", "budget"),
    crossed(["linear", "cubic"], ["zeros", "border", "reflection"], [16 << 10, 256 << 10, None], every=2),
)
def test_exact_at_any_budget(how: str, padding: str, budget: int | None) -> None:
    rng = np.random.default_rng(7)
    x, grid = arrays(rng, 3)
    w = rng.integers(-2, 3, (4, 3)).astype(np.float64)
    want = expected(x, grid, w, mode=how, padding=padding)
    for displacement in (None, 4):
        g = network(how=how, padding=padding, displacement=displacement)
        g.begin_with({"c.w": w[..., None, None]})
        plan = g.plan(batch=2, train=False, budget=budget)
        with plan.session() as session:
            y = session.forward({"x": x, "grid": grid})
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-13)
        assert budget is None or plan.peaks["device"] <= budget


@pytest.mark.parametrize("budget", [2 << 10, 16 << 10, 256 << 10])
@pytest.mark.parametrize("how", ["nearest", "linear", "cubic"])
def test_both_passes_have_the_same_bits_at_any_budget(how: str, budget: int) -> None:
    """Of whole numbers; with a halo down to 2 KiB, with all positions where these fit."""
    rng, near = np.random.default_rng(11), 0 if budget < 16 << 10 else 4
    x, grid = arrays(rng, near + 0.4)
    dy = rng.integers(-2, 3, (2, 3, *SIZE)).astype(np.float64)
    for displacement in (near, None) if near else (near,):
        g = ooc.Graph("both")
        y = g.grid_sample(
            *(g.input(n, s, "f64") for n, s in (("x", SHAPE), ("grid", (2, *SIZE)))), how=how, displacement=displacement
        )
        g.output(y)
        results = []
        for limit in (budget, None):
            plan = g.plan(batch=2, train="both", gradients=("x", "grid"), budget=limit)
            with plan.session() as session:
                out = session.forward({"x": x, "grid": grid})
                gradients = session.backward({"x": x, "grid": grid}, {y: dy})
            results.append([np.array(out), *(np.array(gradients[n]) for n in ("x", "grid"))])
            assert limit is None or plan.peaks["device"] <= limit
        for one, other in zip(*results, strict=True):
            assert np.array_equal(one, other) and one.any() == (how != "nearest" or one.shape[1] != 2)


def test_a_halo_alone_is_held_where_positions_are_near() -> None:
    """A picture of half a megabyte, of which a pixel's neighbours are held at least."""

    def planned(displacement: int | None) -> Any:
        g = ooc.Graph("large")
        x, grid = g.input("x", (1, 2048, 64)), g.input("grid", (2, 2048, 64))
        g.output(g.grid_sample(x, grid, displacement=displacement))
        return g.plan(batch=1, train=False, budget=2 << 10)

    with pytest.raises(ooc.BudgetError) as caught:
        planned(None)
    assert caught.value.smallest_bytes > 2048 * 64 * 4
    assert planned(4).peaks["device"] <= 2 << 10


@pytest.mark.parametrize("budget", [16 << 10, None])
def test_results_that_lie_too_far_are_not_numbers(budget: int | None) -> None:
    x, grid = arrays(np.random.default_rng(5), 1)
    grid[0, :, 3, 4] += 0.9
    g = network(displacement=2)
    plan = g.plan(batch=2, train=False, budget=budget)
    with plan.session() as session:
        session.begin_with({"c.w": np.ones((4, 3, 1, 1))})
        y = session.forward({"x": x, "grid": grid})
    bad = np.isnan(y)
    assert bad[0, :, 3, 4].all() and bad.sum() == 4


def test_what_is_no_number_is_the_first_end_and_what_is_infinite_lies_beyond() -> None:
    x = np.arange(12.0).reshape(1, 1, 3, 4)
    grid = np.array([[np.nan, np.inf, -np.inf, 0.0], [-1, 0, 0, np.nan]]).reshape(1, 2, 1, 4)
    for padding, want in (("zeros", [0, 0, 0, 0.75]), ("border", [0, 7, 4, 1.5])):
        g = ooc.Graph("odd")
        names = g.input("x", (1, 3, 4), "f64"), g.input("grid", (2, 1, 4), "f64")
        g.output(g.grid_sample(*names, padding=padding))
        with g.plan(batch=1, train=False).session() as session:
            y = session.forward({"x": x, "grid": grid}).ravel()
        np.testing.assert_allclose(y, want)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"how": "sinc"}, "how: expected one of nearest, linear, cubic; got 'sinc'"),
        ({"padding": "mirror"}, "padding: expected one of zeros, border, reflection; got 'mirror'"),
        ({"displacement": -1}, "displacement: expected 2 numbers, 0 or more"),
        ({"displacement": (1, 2, 3)}, "displacement"),
        ({"displacement": 1.5}, "displacement"),
        ({"aligned": "yes"}, "aligned"),
    ],
)
def test_words_that_are_none(words: dict[str, Any], says: str) -> None:
    with pytest.raises(ooc.OocError, match=says):
        network(**words)


def test_a_grid_of_other_axes() -> None:
    g = ooc.Graph("axes")
    x, grid = g.input("x", (3, 8, 8)), g.input("grid", (3, 4, 4))
    with pytest.raises(ooc.ShapeError, match="expected a grid of 2 channels and as many axes"):
        g.grid_sample(x, grid)
