"""Tiles of some of a filter's taps: sums over parts of them are those over all, and what little room makes slow is faster."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import oracle
import pytest
import running
from races import races
from sweeps import crossed

import ooc
from ooc.ir.op import numpy_dtype
from ooc.ir.region import PartWindow, Span
from ooc.ops import ConvFprop
from ooc.ops.conv_base import PART
from ooc.ops.descriptor import parse
from ooc.planner.search import search
from ooc.runtime import engine
from ooc.runtime.context import current_device
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from ooc.schedule.steps import moved_bytes

CASES = (
    "n=2 c=3 h=20 w=23 k=4 r=9 s=5 pad=4:4x2:1", "n=1 c=2 h=30 w=30 k=3 r=31 s=31 pad=15 bias=1 act=relu",
    "n=1 c=4 h=17 w=40 k=4 r=12 s=7 groups=2 pad=9:3x3:3", "n=1 c=1 w=300 k=1 s=129 pad=64 act=relu",
    "n=1 c=2 d=12 h=11 w=13 k=2 t=9 r=9 s=9 pad=4", "n=1 c=6 h=40 w=40 k=6 r=21 s=21 pad=10 groups=6",
    "n=1 c=2 h=40 w=40 k=2 r=11 s=5 pad=5x2 stride=2x3 dilation=2x1", "n=1 c=2 h=9 w=9 k=2 r=9 s=3 pad=20x1",
    "n=1 c=2 h=20 w=20 k=3 r=9 s=9 pad=4 bias=1 layout=channels_last",
)  # fmt: skip


def computed(op: ConvFprop, inputs: dict[str, Any]) -> Any:
    y = np.full(op.outputs[0].shape, 7, numpy_dtype(op.dtype))
    with ooc.device("cpu", None):
        engine.execute(op, inputs, {"y": y})
    return y


def in_tiles(op: ConvFprop, inputs: dict[str, Any], kernel: str, cuts: dict[str, int], reduces_outside: bool) -> Any:
    """The result by tiles that cut dims in so many, its lanes in any order; None where a kernel does not serve it."""
    backend = running.poisoned_device(None).backend
    offer = next((o for o in backend.offers(op) if o.name == kernel), None)
    if offer is None:
        return None
    sizes = {d: -(-e // min(e, cuts.get(d, 1))) for d, e in op.dims.items()}
    reduced = [d for d in op.dims if d in op.reduce]
    others = [d for d in op.dims if d not in op.reduce]
    order = (*reduced, *others) if reduces_outside else (*others, *reduced)
    places = tuple((o.name, Place.HOST) for o in op.operands)
    plan = Plan(
        op, tuple(sizes.items()), order, 2, places, backend.staged, backend.shared, kernel=kernel,
        workspace_bytes=int(offer.workspace(sizes)),
    )  # fmt: skip
    return running.execute(plan, inputs, backend, random.Random(kernel))["y"]


@pytest.mark.parametrize(("case", "dtype", "kernel"), crossed(CASES, ["f32", "f64", "f16"], ["plain", "native", "fft"], every=2))
def test_parts_sum_to_the_whole(case: str, dtype: str, kernel: str) -> None:
    op = parse(f"conv.fprop {case} dtype={dtype}")
    assert isinstance(op, ConvFprop)
    parted, rng = replace(op, parted=True), np.random.default_rng(3)
    assert parse(str(parted)) == parted
    inputs = {o.name: rng.integers(-2, 3, o.shape).astype(numpy_dtype(o.dtype)) for o in op.inputs}
    expected = oracle.tensors(op, inputs)["y"]
    rows = [d for d in op.dims if d in "opq"]
    for parts, outside in ((2, False), (4, True), (op.taps[0], False)):
        y = in_tiles(parted, inputs, kernel, {PART: parts, rows[0]: 3, rows[-1]: 2, "c": 2, "g": op.groups}, outside)
        if y is None:  # of few taps, or with strides; depthwise
            assert kernel == "fft" or (kernel == "native" and op.c == op.groups)
            return
        if kernel == "fft":
            np.testing.assert_allclose(
                y.astype(np.float64), expected, rtol=0, atol=2e-5 * np.abs(expected).max() + (dtype == "f16")
            )
        else:
            np.testing.assert_array_equal(y.astype(np.float64), oracle.stored(expected, dtype))


@pytest.mark.parametrize("budget", [2 << 10, 16 << 10, 256 << 10, None])
@pytest.mark.parametrize("case", CASES[::4])
def test_any_budget_is_kept_and_gives_the_same(case: str, budget: int | None) -> None:
    """As planned: what is measured is no more than what was predicted, and that no more than the budget."""
    op = parse(f"conv.fprop {case} dtype=f64")
    assert isinstance(op, ConvFprop)
    inputs = {o.name: np.random.default_rng(5).integers(-2, 3, o.shape).astype(np.float64) for o in op.inputs}
    y = running.planned(replace(op, parted=True), inputs, running.poisoned_device(budget), random.Random(2))
    if y is None:
        assert budget == 2 << 10
        return
    expected = oracle.tensors(op, inputs)["y"]
    np.testing.assert_allclose(y["y"], expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_parts_that_do_not_wait_are_races() -> None:
    """Of each wait of a sum over parts: a mutant without it is a race."""
    op = replace(parse(f"conv.fprop {CASES[0]} dtype=f32"), parted=True)  # type: ignore[type-var]
    sizes = {d: -(-e // {PART: 3, "p": 2}.get(d, 1)) for d, e in op.dims.items()}
    places = tuple((o.name, Place.HOST) for o in op.operands)
    todo = lower(Plan(op, tuple(sizes.items()), ("n", "k", "p", "q", "c", PART), 2, places, kernel="plain", shared=True))
    waits = [(i, j) for i, step in enumerate(todo.steps) for j in step.after]
    assert not races(todo.steps, todo.layout) and waits
    for i, j in waits:
        steps = [*todo.steps]
        steps[i] = steps[i]._replace(after=tuple(k for k in steps[i].after if k != j))
        assert races(steps, todo.layout), f"{i} need not wait for {j}"


@pytest.mark.parametrize("kernel", ["plain", "native"])
def test_special_values_reach_what_their_taps_see(kernel: str) -> None:
    """Of taps that meet padding alone nothing is seen, be they infinite or no numbers."""
    op = parse("conv.fprop n=1 c=1 h=12 w=12 k=1 r=9 s=9 pad=4 dtype=f32")
    assert isinstance(op, ConvFprop)
    x, w = np.ones((1, 1, 12, 12), np.float32), np.ones((1, 1, 9, 9), np.float32)
    w[0, 0, 0, 0], x[0, 0, 11, 11] = np.nan, np.inf
    expected = computed(op, {"x": x, "w": w})
    y = in_tiles(replace(op, parted=True), {"x": x, "w": w}, kernel, {PART: 5, "p": 2}, False)
    assert np.array_equal(y, expected, equal_nan=True) and np.isfinite(y).any() and np.isnan(y).any()


def test_the_map_of_parts() -> None:
    axis = PartWindow("p", "r", 2, 3, 5)
    for p in (Span(0, 4), Span(3, 4)):
        for r in (Span(0, 1), Span(2, 5)):
            read = [i * 2 - 5 + t * 3 for i in range(*p) for t in range(*r)]
            assert axis.span({"p": p, "r": r}) == Span(min(read), max(read) + 1)
            assert axis.extent({"p": p.extent, "r": r.extent}) == max(read) + 1 - min(read)


def test_what_is_read_again_is_predicted() -> None:
    """Of x: each part of the taps meets it anew."""
    op = parse("conv.fprop n=1 c=1 h=400 w=400 k=1 r=101 s=101 pad=50 dtype=f32")
    assert isinstance(op, ConvFprop)
    with ooc.device("cpu", "256 KiB"):
        planner = current_device().planner
        places = {"x": Place.DISK, "w": Place.HOST, "y": Place.DISK}
        plan = search(replace(op, parted=True), planner.budget(places), planner.backend, planner.model)
    moved = moved_bytes(lower(plan).steps)["read"]
    assert dict(plan.sizes)[PART] < op.taps[0]
    assert moved <= plan.lane_bytes["read"] <= 1.4 * moved


def test_it_is_chosen_where_it_is_faster() -> None:
    """A tenth of one channel with many taps; not with room, nor where sums keep one order."""
    op = parse("conv.fprop n=1 c=1 h=1024 w=1024 k=1 r=255 s=255 pad=127 dtype=f32")
    places = {"x": Place.DISK, "w": Place.HOST, "y": Place.DISK}
    with ooc.device("cpu", "800 KiB"):
        planner = current_device().planner
        plan, whole = planner.plan(op, places), search(op, planner.budget(places), planner.backend, planner.model)
        assert plan.predicted_seconds <= whole.predicted_seconds
        assert isinstance(plan.op, ConvFprop) and plan.op.parted == (plan.predicted_seconds < whole.predicted_seconds / 2)
        kept = planner.plan(op, places, True)
        assert isinstance(kept.op, ConvFprop) and not kept.op.parted
    with ooc.device("cpu", None):
        roomy = current_device().planner.plan(op, places)
        assert isinstance(roomy.op, ConvFprop) and not roomy.op.parted
