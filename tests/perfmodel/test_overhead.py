"""`perfmodel overhead`: what a call takes beyond its kernel."""

from __future__ import annotations

from perfmodel.bench.overhead import line, overhead


def test_the_overhead_is_measured() -> None:
    (row,) = overhead(10, "ooc.max_pool_backward")
    for times in row["microseconds"].values():
        assert 0 < times["kernel"] < times["total"]
    assert "max_pool_backward" in line(row)
