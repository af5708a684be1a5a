"""Bounds of resized axes: those that trying every position finds, at once."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

import ooc
from ooc.ir.axis_maps import measured
from ooc.ir.region import Line, Span
from ooc.ops.resample import KINDS, Sampled

pytestmark = pytest.mark.quick


def tried(axis: Sampled) -> bool:
    """Whether an axis has the bounds that every single position gives, in integers without end."""
    pace = Fraction(axis.extent_in, axis.extent_out)
    pace, count = (1 / pace, axis.extent_in) if axis.backward else (pace, axis.extent_out)
    up, down = pace.numerator, pace.denominator
    every = [axis.span({"h": Span(v, v + 1)}) for v in range(count)]
    low = min(down * s.lo - up * v for v, s in enumerate(every))
    high = max(down * s.hi - up * (v + 1) for v, s in enumerate(every))
    return axis.line() == Line(pace, Fraction(low, down), Fraction(high, down)) == measured(axis, pace, count)


@pytest.mark.parametrize("how", KINDS)
def test_bounds_are_those_of_every_position(how: str) -> None:
    rng = random.Random(3)
    for _ in range(300):
        extents = rng.randint(1, 60), rng.randint(1, 60)
        assert tried(Sampled("h", how, *extents, rng.random() < 0.5)), extents


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("extent", [(1 << 40) + 1, (1 << 52) + 3])
def test_bounds_of_axes_whose_products_have_more_than_64_bits(how: str, extent: int) -> None:
    assert tried(Sampled("h", how, extent, 3 << 12))


def test_axes_of_millions_are_planned_and_more_refused() -> None:
    side = 1 << 22
    plan = ooc.plan(f"upsample.nearest n=1 k=1 h={side} w=4 size={2 * side}x8", device="null", budget="1 MiB")
    assert plan.tiles > 100
    with pytest.raises(ooc.UnsupportedError, match="at most 67108864"):
        Sampled("h", "linear", 1 << 30, 16, True).line()
