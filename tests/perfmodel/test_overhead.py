"""`perfmodel overhead`: what a call takes beyond its kernel."""

from __future__ import annotations

import random
from collections import Counter

from cases import data
from emulated_device import execute
from emulated_driver import emulated

from ooc.ops.descriptor import parse
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from perfmodel.bench.gpu import host
from perfmodel.bench.overhead import line, overhead


def test_the_overhead_is_measured() -> None:
    (row,) = overhead(10, "ooc.max_pool_backward")
    for times in row["microseconds"].values():
        assert 0 < times["kernel"] < times["total"]
    assert "max_pool_backward" in line(row)


def test_what_the_host_does_on_a_gpu_is_measured() -> None:
    (row,) = host.host_work("pooling")
    assert row["microseconds"]["run"] > 0 and row["microseconds"]["emit_and_link"] > 0
    assert "pooling" in host.line(row)


def streamed(tiles: int) -> Plan:
    """A sample at a time, from pinned memory and back."""
    op = parse(f"pointwise n={tiles} k=2 h=4 w=4 act=relu dtype=f32")
    places = tuple((o.name, Place.PINNED) for o in op.operands)
    return Plan(op, tuple({**op.dims, "n": 1}.items()), tuple(op.dims), 3, places, True, False, kernel="cuda")


def test_calls_of_the_driver_for_each_tile() -> None:
    """A tile of an element-wise operation: two copies, a launch, an event each, and waits for what it needs."""
    plan, backend = streamed(40), emulated(2)
    execute(plan, data(random.Random(1), plan.op), backend, None)
    calls = Counter(call.what for call in backend.driver.log)
    assert calls["copy"] == 80 and calls["launch"] == 40
    assert calls["record"] <= 3 * 40 + 8 and calls["wait"] <= 4 * 40
