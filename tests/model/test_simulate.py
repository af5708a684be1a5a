"""The simulator: timelines worked by hand, and bounds that no schedule can beat."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

import ooc
from ooc.ir.op import Op
from ooc.model.calibration import load_device
from ooc.model.cost import Compute, Copy, Model
from ooc.model.simulate import simulate
from ooc.schedule.lowering import lower
from ooc.schedule.plan import Plan
from ooc.schedule.readahead import AHEAD
from ooc.schedule.work import Work as Stage

pytestmark = pytest.mark.quick


class Work(NamedTuple):
    """A step as the model sees it."""

    lane: str
    nbytes: int = 0
    after: tuple[int, ...] = ()
    work: tuple[Stage, ...] = ()
    runs: int = 0
    what: str = ""
    again: int = 0

    @property
    def kind(self) -> str:
        return "run" if self.work else "load"


COPY = Copy(0.0, 0.0, 1.0)  # one byte a second
MODEL = Model("by hand", dict.fromkeys(("read", "h2d", "d2h", "write"), COPY), {"*/*/*": Compute(0.0, 1.0)})


def compute(flops: int, *after: int) -> Work:
    return Work("compute", after=after, work=(Stage("conv.fprop/f32/any", flops, 0),))


def test_lanes_run_side_by_side() -> None:
    timeline = simulate([Work("h2d", 3), Work("d2h", 5)], MODEL)
    assert (timeline.starts, timeline.ends, timeline.seconds) == ([0, 0], [3, 5], 5)


def test_double_buffering_hides_the_copies() -> None:
    """Loads of 2 s, tiles of 3 s, two buffers: the third load waits for the first tile, which frees its buffer."""
    steps = [
        Work("h2d", 2), compute(3, 0), Work("h2d", 2), compute(3, 2), Work("h2d", 2, (1,)), compute(3, 4), Work("d2h", 1, (5,)),
    ]  # fmt: skip
    timeline = simulate(steps, MODEL)
    assert timeline.starts == [0, 2, 2, 5, 5, 8, 11]
    assert timeline.ends == [2, 5, 4, 8, 7, 11, 12]
    assert timeline.lane_seconds == {"h2d": 6, "compute": 9, "d2h": 1}


def test_one_buffer_takes_turns() -> None:
    steps = [Work("h2d", 2), compute(3, 0), Work("h2d", 2, (1,)), compute(3, 2)]
    assert simulate(steps, MODEL).seconds == 10


def test_nothing_takes_no_time() -> None:
    assert simulate([], MODEL).seconds == 0.0


def test_contending_lanes_take_from_compute() -> None:
    """4 s of reading cost the compute lane beside it half its speed: 2 s of its work are left for when it is alone."""
    model = Model("shared", MODEL.copies, MODEL.computes, contention={"compute": {"read": 0.5}})
    timeline = simulate([Work("read", 4), compute(4), Work("write", 5)], model)
    assert timeline.ends == [4, 6, 5] and timeline.seconds == 6


def test_both_directions_of_a_link_slow_each_other() -> None:
    """6 s and 2 s alone; beside each other h2d keeps half its speed and d2h a quarter. d2h needs 8 s, in which h2d does 4 s of
    its work; the other 2 s it does alone. The read is slowed by nobody."""
    contention = {"h2d": {"d2h": 0.5}, "d2h": {"h2d": 0.75}}
    timeline = simulate([Work("h2d", 6), Work("d2h", 2), Work("read", 3)], replace(MODEL, contention=contention))
    assert timeline.ends == [10, 8, 3]


def test_who_joins_slows_those_who_are_at_work() -> None:
    """A tile of 4 s is joined after 1 s by a copy of 2 s, beside which both keep half their speed: the copy ends at 5, when the
    tile has 1 s left. The second copy waits for the first and takes the tile's last second at half speed."""
    contention = {"compute": {"h2d": 0.5}, "h2d": {"compute": 0.5}}
    steps = [Work("read", 1), compute(4), Work("h2d", 2, (0,)), Work("h2d", 1, (0,)), compute(3, 1)]
    timeline = simulate(steps, replace(MODEL, contention=contention))
    assert timeline.starts == [0, 0, 1, 5, 7]
    assert timeline.ends == [1, 7, 5, 7, 10]


def test_three_lanes_share_and_none_stops() -> None:
    """Two others that leave a lane half its speed each leave it a third: work is shared, never lost. What would stop it
    altogether leaves it a twentieth."""
    contention = {"compute": {"read": 0.5, "write": 0.5}}
    timeline = simulate([compute(5), Work("read", 20), Work("write", 20)], replace(MODEL, contention=contention))
    assert timeline.ends == [pytest.approx(15), 20, 20]
    timeline = simulate([compute(2), Work("read", 20)], replace(MODEL, contention={"compute": {"read": 1.0}}))
    assert timeline.ends == [pytest.approx(21), 20]


def test_a_lane_that_sleeps_takes_time_to_wake() -> None:
    """The tile waits for its load and wakes a second later; the second load goes on at once, its lane was not asleep; the
    second tile finds its data there when it comes to it."""
    steps = [Work("h2d", 2), compute(3, 0), Work("h2d", 2), compute(3, 2), Work("h2d", 2, (1,)), compute(3, 4)]
    timeline = simulate(steps, replace(MODEL, handoff_seconds=1))
    assert timeline.starts == [0, 3, 2, 6, 7, 10]
    assert timeline.ends == [2, 6, 4, 9, 9, 13]


def test_in_turn_nothing_overlaps_and_nobody_sleeps() -> None:
    steps = [Work("h2d", 2), compute(3, 0), Work("h2d", 2), compute(3, 2)]
    timeline = simulate(steps, replace(MODEL, handoff_seconds=1, contention={"compute": {"h2d": 0.5}}), in_turn=True)
    assert (timeline.starts, timeline.ends, timeline.seconds) == ([0, 2, 5, 7], [2, 5, 7, 10], 10)


def test_in_turn_the_system_reads_ahead() -> None:
    """Reads of 4 s from the disk and 1 s from the page cache: the first is waited for, of the second what a tile of 1 s leaves;
    then the disk is ahead."""
    model = replace(MODEL, copies={**MODEL.copies, "cached": Copy(0.0, 0.0, 4.0)})
    tiles = [1, 5, 9, 1, 1]
    steps = [step for i, seconds in enumerate(tiles) for step in (Work("read", 4), compute(seconds, 2 * i))]
    timeline = simulate(steps, model, in_turn=True)
    reads = [end - start for start, end in list(zip(timeline.starts, timeline.ends, strict=True))[::2]]
    assert reads == [4, 3, 1, 1, 1] and timeline.lane_seconds == {"read": 10, "compute": 17} and timeline.seconds == 27


def test_in_turn_a_tile_loses_to_what_the_system_fetches() -> None:
    """The second read is fetched until 8 s: a tile of 1 s at half its speed takes 2, one of 3 s takes 1 more for the 2 s that
    are left, and the last one is alone."""
    model = replace(MODEL, copies={**MODEL.copies, "cached": Copy(0.0, 0.0, 4.0)}, contention={"compute": {"fetch": 0.5}})
    steps = [Work("read", 4), compute(1, 0), compute(3), Work("read", 4), compute(3)]
    assert simulate(steps, model, in_turn=True).ends == [4, 6, 10, 11, 14]
    assert simulate(steps, model).ends == simulate(steps, replace(model, contention={})).ends  # threads read themselves


def test_what_is_read_again_is_in_the_page_cache() -> None:
    """A read of 4 s from the disk and 1 s from the page cache of which three quarters were read before: in turn the disk
    delivers in 1 s what is new, less than copying takes after the tile; on a lane of its own it takes 1.75 s."""
    model = replace(MODEL, copies={**MODEL.copies, "cached": Copy(0.0, 0.0, 4.0)})
    steps = [Work("read", 4), compute(2, 0), Work("read", 4, again=3), compute(2, 2), Work("read", 4, again=4)]
    assert simulate(steps, model, in_turn=True).ends == [4, 6, 7, 9, 10]
    assert simulate([Work("read", 4), Work("read", 4, again=3), Work("read", 4, again=4)], model).ends == [4, 5.75, 6.75]
    without = simulate(steps, MODEL, in_turn=True)  # where nobody has measured the page cache, every read takes as long
    assert without.ends == [4, 6, 10, 12, 16]


def test_what_is_read_again_into_warm_memory_has_a_rate_of_its_own() -> None:
    """A read of 4 s from the disk, 2 s from the page cache and 1 s once more: in turn and on a lane of its own, whether all of it
    or half was read before. Bounds of what is read once do not count on it."""
    model = replace(MODEL, copies={**MODEL.copies, "cached": Copy(0.0, 0.0, 2.0), "again": Copy(0.0, 0.0, 4.0)})
    steps = [Work("read", 4), compute(9, 0), Work("read", 4, again=4), Work("read", 4, again=2)]
    assert simulate(steps, model, in_turn=True).ends == [4, 13, 14, 15.5]
    assert simulate([steps[0], *steps[2:]], model).ends == [4, 5, 7.5]
    assert (model.best_rate("read"), model.best_rate("read", once=True)) == (4.0, 2.0)


def test_the_system_fetches_no_more_than_it_was_told_of() -> None:
    """Three reads fill what it is told of; it learns of the fourth when less than half of that is left."""
    model = replace(MODEL, copies={**MODEL.copies, "read": Copy(1.0, 0.0, math.inf), "cached": Copy(0.0, 0.0, math.inf)})
    steps = [compute(10), *(Work("read", AHEAD // 3 + 1) for _ in range(3)), compute(10, 3), Work("read", 1)]
    timeline = simulate(steps, model, in_turn=True)
    assert timeline.ends == [10, 11, 12, 13, 23, 23]
    assert simulate([*steps[:4], Work("read", 1)], model, in_turn=True).ends == [10, 11, 12, 13, 14]


def test_seconds_of_a_step() -> None:
    entries = {"*/*/*": Compute(1.0, 10.0, 20.0), "pool.max/f32/any": Compute(0.0, 2.0)}
    model = Model("m", {"read": Copy(1.0, 0.5, 4.0)}, entries)
    assert model.seconds(Work("read", 8, runs=2)) == 1.0 + 1.0 + 2.0
    assert model.seconds(compute(30)) == 1.0 + 3.0
    both = Work("compute", work=(Stage("conv.fprop/f32/any", 30, 40), Stage("pool.max/f32/any", 4, 1000)))
    assert model.seconds(both) == 1.0 + 3.0 + 2.0 + 2.0


def test_the_nearest_entry_of_a_kernel_is_used() -> None:
    entries = {k: Compute(0.0, float(i + 1)) for i, k in enumerate(("*/*/*", "*/*/b", "*/f32/b", "conv/*/b", "conv/f32/b"))}
    model = Model("m", {}, entries)
    rates = [model.compute(k).flops_per_second for k in ("conv/f32/b", "conv/f64/b", "pool/f32/b", "pool/f64/b", "pool/f64/c")]
    assert rates == [5, 4, 3, 2, 1]


@pytest.mark.parametrize("seed", range(30))
def test_never_below_the_busiest_lane_nor_the_critical_path(
    seed: int, random_op: Callable[..., Op], random_plan: Callable[..., Plan]
) -> None:
    rng = random.Random(seed)
    model = replace(load_device("cpu"), contention={}, handoff_seconds=None)
    steps = lower(random_plan(rng, random_op(rng))).steps
    timeline = simulate(steps, model)
    busy: dict[str, float] = {}
    chain: list[float] = []
    for step in steps:
        seconds = model.seconds(step)
        busy[step.lane] = busy.get(step.lane, 0.0) + seconds
        chain.append(seconds + max((chain[j] for j in step.after), default=0.0))
    assert timeline.seconds >= max(busy.values()) * (1 - 1e-12)
    assert timeline.seconds >= max(chain) * (1 - 1e-12)
    assert timeline.seconds <= sum(busy.values()) * (1 + 1e-12)
    assert timeline.lane_seconds == pytest.approx(busy)
    contended = simulate(steps, load_device("cpu"))
    assert contended.seconds >= timeline.seconds * (1 - 1e-12)
    for found in (timeline, contended):
        for i, step in enumerate(steps):
            assert all(found.ends[j] <= found.starts[i] for j in step.after)


def test_ten_thousand_steps_are_simulated_one_by_one() -> None:
    """No timed test: what they take is printed by `python -m perfmodel check`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = ooc.plan("conv.fprop n=512 c=64 h=56 w=56 k=64 r=3 s=3 pad=1", "1 MiB", device="null", calibration="h200")
    steps = lower(plan).steps
    timeline = simulate(steps, load_device("h200"))
    assert len(steps) >= 10_000 and len(timeline.ends) == len(steps)
    assert timeline.seconds == pytest.approx(plan.predicted_seconds, rel=0.1)
