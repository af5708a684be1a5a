"""Schedules: golden text, the movement rule, and waits that are all there and all needed."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from races import races

import ooc
from ooc.ir.op import Op
from ooc.ir.region import split
from ooc.ops.descriptor import parse
from ooc.schedule.arena import Buffer, Layout, colour
from ooc.schedule.emit import _nested, contiguous_runs, emit
from ooc.schedule.link import link
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place, load_route
from ooc.schedule.plan import Plan
from ooc.schedule.steps import Step

pytestmark = pytest.mark.quick

GOLDEN = Path(__file__).parent / "golden"
CONV = "conv.fprop n=1 c=4 h=6 w=4 k=2 r=3 s=3 pad=1 bias=1 act=relu dtype=f32"
DISK = (("x", Place.DISK), ("w", Place.HOST), ("b", Place.HOST), ("y", Place.DISK))


def plan_of(text: str, order: str, depth: int = 2, places: tuple[tuple[str, Place], ...] = (), staged: bool = False,
            bounce_bytes: int = 0, **sizes: int) -> Plan:  # fmt: skip
    op = parse(text)
    tile = tuple(op.legal(sizes).items())
    return Plan(op, tile, tuple(order), depth, places, staged, not staged, workspace_bytes=256, bounce_bytes=bounce_bytes)


PLANS = {
    "conv_rows": plan_of(CONV, "nkpqc", p=2),
    "conv_spill": plan_of(CONV, "ncpkq", p=3, c=2),
    "conv_disk_staged": plan_of(CONV, "nkpqc", places=DISK, staged=True, bounce_bytes=4096, p=3),
    "chain_pool": plan_of(f"{CONV} | pool.max n=1 k=2 h=6 w=4", "nkpqc", places=(("w", Place.DEVICE),), p=2, c=2),
}


@pytest.mark.parametrize("name", PLANS)
def test_golden_schedule(name: str) -> None:
    """Printed schedules, reviewed as diffs; OOC_REGEN=1 writes them anew."""
    todo = lower(PLANS[name])
    text = "\n".join([*map(str, [PLANS[name].op]), *(f"{i:3} {s}" for i, s in enumerate(todo.steps))]) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("OOC_REGEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_spills_of_the_golden_plan() -> None:
    plan = PLANS["conv_spill"]
    moved = [s for s in emit(plan) if s.what == "y" and s.lane in ("d2h", "h2d")]
    assert plan.spills(plan.op.folds[0]) == 2
    assert [(s.kind, s.lane) for s in moved] == [
        ("store", "d2h"), ("store", "d2h"), ("load", "h2d"), ("store", "d2h"), ("load", "h2d"), ("store", "d2h"),
    ]  # fmt: skip


def random_schedules(seed: int, count: int, random_op: Callable[..., Op], random_plan: Callable[..., Plan]) -> list[
    tuple[Plan, tuple[Step, ...], Layout]
]:  # fmt: skip
    """Linked schedules of a few dozen steps; some packed by lifetime, so that memory is reused across operands."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        plan = random_plan(rng, random_op(rng))
        if plan.tiles > 40:
            continue
        if rng.random() < 0.5:
            todo = lower(plan)
            found.append((plan, todo.steps, todo.layout))
        else:
            layout = colour(lives(emit(plan)))
            found.append((plan, link(emit(plan), layout), layout))
    return found


def lives(steps: Iterable[Any]) -> dict[Buffer, tuple[int, int]]:
    """The first and the last step that names each buffer."""
    found: dict[Buffer, tuple[int, int]] = {}
    for i, step in enumerate(steps):
        for ref in (*step.reads, *step.writes):
            if ref.buffer is not None:
                found[ref.buffer] = found.get(ref.buffer, (i, i))[0], i
    return found


@pytest.mark.parametrize("seed", range(10))
def test_no_schedule_has_a_race_and_no_wait_is_spare(
    seed: int, random_op: Callable[..., Op], random_plan: Callable[..., Plan]
) -> None:
    """`link` leaves out implied waits, so dropping any single one of the rest must be flagged."""
    dropped = 0
    for plan, steps, layout in random_schedules(seed, 24, random_op, random_plan):
        assert races(steps, layout) == [], str(plan)
        waits = [(i, j) for i, step in enumerate(steps) for j in step.after]
        assert all(j < i and steps[j].lane != steps[i].lane for i, j in waits)
        for i, j in random.Random(seed).sample(waits, min(12, len(waits))):
            mutant = list(steps)
            mutant[i] = steps[i]._replace(after=tuple(a for a in steps[i].after if a != j))
            found = races(mutant, layout)
            assert found, f"{plan}\nstep {i} need not wait for {j}"
            dropped += 1
    assert dropped > 20


def test_every_wait_of_a_spilling_schedule_is_needed() -> None:
    for staged, depth in itertools.product((False, True), (1, 2, 3)):
        plan = plan_of("conv.fprop n=1 c=6 w=8 k=2 s=3 pad=1 dtype=f16", "cnkq", depth, staged=staged, c=2, q=2)
        todo = lower(plan)
        assert plan.spills(plan.op.folds[0]) == 4 and sum(s.what == "acc" and s.kind == "load" for s in todo.steps) == 2 * 4
        assert races(todo.steps, todo.layout) == []
        for i, step in enumerate(todo.steps):
            for j in step.after:
                mutant = list(todo.steps)
                mutant[i] = step._replace(after=tuple(a for a in step.after if a != j))
                assert races(mutant, todo.layout), f"step {i} need not wait for {j}"


def test_races_flags_a_schedule_without_waits() -> None:
    plan = PLANS["conv_rows"]
    todo = lower(plan)
    bare = [s._replace(after=()) for s in todo.steps]
    assert {r.buffer.name for r in races(bare, todo.layout)} == {"x", "w", "b", "y"}


@pytest.mark.parametrize("seed", range(30))
def test_operands_move_only_when_their_region_changes(
    seed: int, random_op: Callable[..., Op], random_plan: Callable[..., Plan]
) -> None:
    rng = random.Random(seed)
    plan = random_plan(rng, random_op(rng))
    steps = list(emit(plan))
    pieces = [split(plan.op.dims[d], plan.sizes[d]) for d in plan.order]
    walked = [dict(zip(plan.order, spans, strict=True)) for spans in itertools.product(*pieces)]
    for operand in plan.op.inputs:
        regions = [operand.region(tile) for tile in walked]
        changes = 1 + sum(a != b for a, b in itertools.pairwise(regions))
        hops = len(load_route(plan.place(operand.name), plan.staged))
        moved = [s for s in steps if s.kind == "load" and s.what == operand.name]
        assert len(moved) == changes * hops, f"{plan}: {operand.name}"
        assert changes <= plan.loads(operand)
    for output in plan.op.outputs:
        written = {s.region for s in steps if s.kind == "store" and s.what == output.name and not s.writes[:1]}
        assert written <= {output.region(tile) for tile in walked}


@pytest.mark.parametrize("seed", range(30))
def test_plan_loads_is_the_number_of_load_steps(
    seed: int, random_op: Callable[..., Op], random_plan: Callable[..., Plan]
) -> None:
    """Without padding no two neighbouring regions are clipped to the same span, so the planner's count is exact."""
    rng = random.Random(seed)
    op = random_op(rng, 1)
    while any(map(any, getattr(op, "pad", ()))):
        op = random_op(rng, 1)
    plan = random_plan(rng, op)
    steps = list(emit(plan))
    for operand in op.inputs:
        hops = len(load_route(plan.place(operand.name), plan.staged))
        moved = sum(s.kind == "load" and s.what == operand.name and s.reads[:1] == () for s in steps)
        assert moved == (plan.loads(operand) if hops else 0), f"{plan}: {operand.name}"


@pytest.mark.parametrize("seed", range(20))
def test_every_tile_is_computed_once_and_every_output_stored_once(
    seed: int, random_op: Callable[..., Op], random_plan: Callable[..., Plan]
) -> None:
    rng = random.Random(500 + seed)
    plan = random_plan(rng, random_op(rng))
    steps = list(emit(plan))
    tiles = [s.tile for s in steps if s.kind == "run"]
    assert len(tiles) == len(set(tiles)) == plan.tiles
    sums = [s for s in steps if s.kind == "run" and s.phase & 2]
    assert len(sums) == plan.tiles // max(
        1, len(tiles) // len({tuple(p for p in t if p[0] not in plan.op.reduce) for t in tiles})
    )
    assert {s.lane for s in steps} <= {"read", "h2d", "compute", "d2h", "write"}


@pytest.mark.parametrize("seed", range(20))
def test_steps_name_only_the_plans_buffers(seed: int, random_op: Callable[..., Op], random_plan: Callable[..., Plan]) -> None:
    """Peak memory is the sum over the plan's buffers: a step that named another would break the budget promise."""
    rng = random.Random(700 + seed)
    plan = random_plan(rng, random_op(rng))
    named = {r.buffer for s in emit(plan) for r in (*s.reads, *s.writes) if r.buffer}
    assert named <= {*plan.buffers, *plan.spill_buffers}
    for space in ("device", "staging", "spill"):
        assert plan.space_bytes(space) == lower(plan).layout.peaks.get(space, 0)


def test_contiguous_runs_by_hand() -> None:
    x = parse("conv.fprop n=2 c=4 h=6 w=5 k=6 r=3 s=3").inputs[0]
    last = parse("conv.fprop n=2 c=4 h=6 w=5 k=6 r=3 s=3 layout=channels_last").inputs[0]

    def runs(operand: object, *spans: tuple[int, int]) -> int:
        return contiguous_runs(operand, tuple(split(hi, hi)[0]._replace(lo=lo) for lo, hi in spans))  # type: ignore[arg-type]

    assert runs(x, (0, 2), (0, 4), (0, 6), (0, 5)) == 1
    assert runs(x, (0, 2), (0, 4), (1, 3), (0, 5)) == 8
    assert runs(x, (0, 1), (0, 1), (1, 3), (1, 3)) == 2
    assert runs(last, (0, 2), (0, 4), (1, 3), (0, 5)) == 2
    assert runs(last, (0, 2), (1, 3), (1, 3), (0, 5)) == 20


# ---- schedules that nobody could write down


def test_the_first_steps_of_a_billion_tiles() -> None:
    """Planning and emitting look at the tiles they need, not at all there are."""
    plan = ooc.plan("conv.fprop n=1000000000 c=3 h=224 w=224 k=64 r=3 s=3 pad=1", "8 MiB", device="null", calibration="h200")
    assert plan.tiles >= 10**9 and plan.predicted_seconds > 1e5
    first = list(itertools.islice(emit(plan), 50))
    assert len(first) == 50 and sum(step.kind == "run" for step in first) > 5


def test_what_nothing_could_hold_is_refused() -> None:
    with pytest.raises(ooc.ShapeError, match=r"expected 2\^60"):
        ooc.plan(f"conv.fprop n={10**30} c=3 h=224 w=224 k=64 r=3 s=3 pad=1", "64 MiB", device="null")


@pytest.mark.parametrize("counts", [(), (3,), (1, 1, 1), (2, 1, 3), (1, 4, 2, 1)])
def test_nested_loops(counts: tuple[int, ...]) -> None:
    assert list(_nested(counts)) == list(itertools.product(*map(range, counts)))
