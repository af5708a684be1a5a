"""Bounds of axis maps of many indices are those of every index."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from sweeps import swept

import ooc
from ooc.ir import axis_maps
from ooc.ir.axis_maps import Composed, Hull, Owned, enclosing, measured, pace_of, repeats
from ooc.ir.region import Along, AxisMap, Span, Unwindow, Window


def exhaustive(axis: AxisMap, of: int) -> axis_maps.Line:
    spans = [axis.span({axis.dims[0]: Span(v, v + 1)}) for v in range(of)]
    pace = pace_of(axis)
    assert pace is not None
    return enclosing(pace, np.array([s.lo for s in spans]), np.array([s.hi for s in spans]))


def window(rng: random.Random) -> Window | Unwindow:
    taps, stride, dilation = rng.choice((1, 2, 3, 5, 65, 901)), rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2))
    kind = rng.choice((Window, Window, Unwindow))
    return kind("q", taps, stride, dilation, rng.randint(0, (taps - 1) * dilation))


@pytest.mark.parametrize("seed", swept(range(60), suite=16))
def test_as_of_every_index(seed: int) -> None:
    rng = random.Random(seed)
    of = rng.randint(axis_maps.MOST_TRIED + 1, 2 * axis_maps.MOST_TRIED)
    one = window(rng)
    shifted = type(one)("q", rng.choice((1, 3, 7)), one.stride, one.dilation, rng.randint(0, 2))
    size = max(1, one.span({"q": Span(0, of)}).hi - rng.randint(0, 70))
    inner = Composed(Window("q", rng.choice((1, 4, 33)), 1, 1, rng.randint(0, 3)), (("q", one, size),))
    for axis in (Hull((one, shifted), of, size), Owned(one, of, size), Owned(inner, of, size), Hull((inner, one), of, size)):
        assert repeats(axis)
        assert measured(axis, pace_of(axis), of) == exhaustive(axis, of), axis


def test_tables_are_tried_at_every_index() -> None:
    from ooc.ops.resize import Taken

    table = Taken("q", "floor", 5000, 7001, (0.5, 5000.0, 7001.0, 0.5))
    assert not repeats(Hull((table, Along("q")), 7001, 5000)) and repeats(Along("q"))


def test_of_a_long_line_few_indices_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient of 3 million positions was planned for minutes."""
    x, w = np.ones((1, 1, 3 << 20), np.float32), np.ones((1, 1, 33), np.float32)
    tried: list[int] = []

    def counted(*arguments: Any) -> axis_maps.Line:
        tried.append(len(arguments[1]))
        return enclosing(*arguments)

    monkeypatch.setattr(axis_maps, "enclosing", counted)
    gradients = ooc.conv_backward(x, w, x, padding=16)
    assert gradients.dw[0, 0, 16] == x.size and tried and max(tried) <= axis_maps.MOST_TRIED
