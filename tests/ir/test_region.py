"""Spans, regions and axis maps, against brute force over all positions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
from cases import tiles_of

from ooc.ir.axis_maps import Composed, compose, hull, owned
from ooc.ir.op import Op
from ooc.ir.region import (  # fmt: skip
    Along,
    AxisMap,
    Grouped,
    Span,
    Unwindow,
    Whole,
    Window,
    clip,
    elements,
    extents,
    least,
    slices,
    spans,
    split,
    whole,
)

pytestmark = pytest.mark.quick

SIZES = [
    (size, stride, dilation, pad) for size, stride, dilation, pad in itertools.product((1, 2, 3), (1, 2, 3, 5), (1, 2), (0, 1, 3))
]


def test_clip_keeps_exactly_the_positions_inside() -> None:
    for lo, extent, bound in itertools.product(range(-4, 9), range(5), range(6)):
        span = Span(lo, lo + extent)
        kept = span.clip(bound)
        assert list(range(*kept)) == [i for i in range(*span) if 0 <= i < bound]
        assert 0 <= kept.lo <= kept.hi <= bound


def test_span_extent_shift_and_text() -> None:
    assert Span(2, 5).extent == 3
    assert Span(2, 5).shift(-4) == Span(-2, 1)
    assert str(Span(2, 5)) == "2:5"


def test_region_covers_shape_and_counts() -> None:
    region = clip((Span(-1, 3), Span(4, 9)), (2, 6))
    assert region == (Span(0, 2), Span(4, 6))
    assert extents(region) == (2, 2) and elements(region) == 4
    assert np.arange(12).reshape(2, 6)[slices(region)].tolist() == [[4, 5], [10, 11]]
    assert whole((2, 6)) == (Span(0, 2), Span(0, 6))


def test_clip_refuses_a_region_of_another_rank() -> None:
    with pytest.raises(ValueError):
        clip((Span(0, 1),), (1, 1))


def test_split_partitions_in_order() -> None:
    for extent, tile in itertools.product(range(1, 20), range(1, 22)):
        spans = split(extent, tile)
        assert [i for s in spans for i in range(*s)] == list(range(extent))
        assert all(s.extent == tile for s in spans[:-1]) and 1 <= spans[-1].extent <= tile


@pytest.mark.parametrize(("size", "stride", "dilation", "pad"), SIZES)
def test_window_is_the_receptive_field(size: int, stride: int, dilation: int, pad: int) -> None:
    axis = Window("p", size, stride, dilation, pad)
    for lo, extent in itertools.product(range(4), range(1, 4)):
        read = [o * stride - pad + t * dilation for o in range(lo, lo + extent) for t in range(size)]
        span = axis.span({"p": Span(lo, lo + extent)})
        assert span == Span(min(read), max(read) + 1)
        assert span.extent == axis.extent({"p": extent})


@pytest.mark.parametrize(("size", "stride", "dilation", "pad"), SIZES)
def test_unwindow_is_the_preimage_of_window(size: int, stride: int, dilation: int, pad: int) -> None:
    """Every output whose window spans the tile, from its first to its last; floor may add one below."""
    forward, back = Window("p", size, stride, dilation, pad), Unwindow("h", size, stride, dilation, pad)
    outputs = {o: forward.span({"p": Span(o, o + 1)}) for o in range(-20, 20)}
    for lo, extent in itertools.product(range(5), range(1, 5)):
        span = back.span({"h": Span(lo, lo + extent)})
        touching = [o for o, field in outputs.items() if field.lo < lo + extent and field.hi > lo]
        assert list(range(*span)) in (touching, [span.lo, *touching])
        assert span.lo * stride - pad <= lo  # the local pad is never negative
        assert span.extent <= back.extent({"h": extent})


def test_grouped_channels() -> None:
    axis = Grouped("g", "c", 4)
    for g, c in itertools.product(range(3), range(4)):
        one = axis.span({"g": Span(g, g + 1), "c": Span(c, 4)})
        assert list(range(*one)) == [g * 4 + i for i in range(c, 4)]
    assert axis.span({"g": Span(1, 3), "c": Span(0, 4)}) == Span(4, 12)
    assert axis.extent({"g": 2, "c": 4}) == 8


def test_whole_and_along() -> None:
    assert Whole(5).span({}) == Span(0, 5) and Whole(5).extent({}) == 5
    assert Along("n").span({"n": Span(1, 3)}) == Span(1, 3) and Along("n").extent({"n": 2}) == 2


def test_composed_windows_read_through_both_layers() -> None:
    """A pool over a convolution: the inputs of every intermediate that exists, and no others."""
    for (r, s, pad), (window, stride, pool_pad) in itertools.product(
        ((3, 1, 1), (2, 2, 0), (1, 3, 2)), ((2, 2, 0), (3, 1, 1), (2, 3, 1))
    ):
        extent = (9 + 2 * pad - r) // s + 1
        composed = Composed(Window("p", r, s, 1, pad), (("p", Window("q", window, stride, 1, pool_pad), extent),))
        for lo, size in itertools.product(range(3), (1, 2)):
            made = range(lo * stride - pool_pad, (lo + size - 1) * stride - pool_pad + window)
            read = [i * s - pad + t for i in made if 0 <= i < extent for t in range(r)]
            span = composed.span({"q": Span(lo, lo + size)})
            if read:
                assert span == Span(min(read), max(read) + 1)
            assert span.extent <= composed.extent({"q": size})


def test_composed_keeps_only_the_dims_it_needs() -> None:
    inner = (("p", Along("p"), 8), ("k", Along("k"), 4))
    assert Composed(Along("p"), inner).dims == ("p",)
    assert Composed(Whole(3), inner).dims == ()


def test_least_of_numbers_and_arrays() -> None:
    assert least(7, 5) == 5
    assert least(np.array([3, 9]), 5).tolist() == [3, 5]


@pytest.mark.parametrize("seed", range(40))
def test_output_regions_cover_the_output_exactly_once(seed: int, random_op: Callable[..., Op]) -> None:
    rng = random.Random(seed)
    op = random_op(rng)
    sizes = op.legal({d: rng.randint(1, e) for d, e in op.dims.items()})
    for output in op.outputs:
        written = np.zeros(output.shape, int)
        for tile in tiles_of(op, sizes | {d: op.dims[d] for d in op.reduce}):
            written[slices(output.region(tile))] += 1
        assert (written == 1).all(), str(op)


@pytest.mark.parametrize("seed", range(40))
def test_extent_bounds_every_span(seed: int, random_op: Callable[..., Op]) -> None:
    rng = random.Random(1000 + seed)
    op = random_op(rng)
    sizes = op.legal({d: rng.randint(1, e) for d, e in op.dims.items()})
    for tile, operand in itertools.product(tiles_of(op, sizes), (*op.operands, *op.state)):
        for axis, span in zip(operand.axes, operand.reach(tile), strict=True):
            assert span.extent <= axis.extent(sizes), f"{op}: {operand.name} {axis}"
        assert elements(operand.region(tile)) <= operand.count(sizes)


@pytest.mark.parametrize("seed", range(10))
def test_extent_of_arrays_equals_extent_of_ints(seed: int, random_op: Callable[..., Op]) -> None:
    """The planner asks for thousands of tilings at once: the same answers as one by one."""
    rng = random.Random(2000 + seed)
    op = random_op(rng)
    many = [op.legal({d: rng.randint(1, e) for d, e in op.dims.items()}) for _ in range(8)]
    arrays = {d: np.array([s[d] for s in many]) for d in op.dims}
    for operand in (*op.operands, *op.state):
        together = np.broadcast_to(operand.block_bytes(arrays), (8,))
        assert together.tolist() == [operand.block_bytes(s) for s in many]


def random_map(rng: random.Random, dim: str) -> AxisMap:
    size, stride, dilation, pad = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 2), rng.randint(0, 4)
    return rng.choice((Along(dim), Window(dim, size, stride, dilation, pad), Unwindow(dim, size, stride, dilation, pad)))


@pytest.mark.parametrize("seed", range(20))
def test_hulls_cover_their_parts_and_owned_spans_cut_an_axis(seed: int) -> None:
    """Whatever maps are joined, windows in gaps and padding included; and both stay within the extent they promise."""
    rng = random.Random(seed)
    for _ in range(100):
        loops, middle, size = {"h": rng.randint(1, 20)}, rng.randint(1, 20), rng.randint(1, 25)
        axis = compose(random_map(rng, "x"), {"x": (random_map(rng, "h"), middle)})
        parts = (axis, random_map(rng, "h"), owned(axis, loops, size))
        joined, own, step = hull(parts, loops, size), parts[2], rng.randint(1, loops["h"])
        found: list[int] = []
        for piece in split(loops["h"], step):
            span = joined.span({"h": piece}).clip(size)
            assert span.extent <= joined.extent({"h": step})
            for part in parts:
                inside = part.span({"h": piece}).clip(size)
                assert inside.extent == 0 or (span.lo <= inside.lo and inside.hi <= span.hi)
            mine = own.span({"h": piece})
            assert mine.extent <= own.extent({"h": step})
            found += range(*mine)
        assert found == list(range(size))


def test_spans_are_those_of_split_however_many() -> None:
    for extent, tile in ((5, 2), (1, 7), (10_001, 2)):
        made = spans(extent, tile)
        assert list(made) == split(extent, tile) and len(made) == -(-extent // tile) and made[-1] == split(extent, tile)[-1]
    assert spans(10**15, 1)[10**14] == Span(10**14, 10**14 + 1)
