"""Entries of a calibration, fitted to what was measured: they predict that, and say how far they are off."""

from __future__ import annotations

import pytest

from ooc.model.cost import Compute, Copy
from ooc.ops.descriptor import parse
from ooc.schedule.work import Moved, Work
from perfmodel.calibrate.entries import compute_entry, copies_entry, tiles_entry

pytestmark = pytest.mark.quick

SHAPES = [(c, h) for c in (4, 16, 64) for h in (4, 16, 64)]


def test_an_entry_predicts_what_it_was_made_of() -> None:
    ops = [parse(f"conv.fprop n=1 c={c} h={h} w=16 k=16 r=3 s=3 pad=1") for c, h in SHAPES]
    took = [1e-5 + op.flops(op.dims) / 1e10 + op.touched_bytes(op.dims) / 1e9 for op in ops]
    entry, error = compute_entry(ops, took)
    assert error < 1e-6
    for op, real in zip(ops, took, strict=True):
        assert Compute(**entry).seconds(op.effort(op.dims), op.touched_bytes(op.dims)) == pytest.approx(real, rel=1e-6)


def test_the_error_is_that_of_the_median_measurement() -> None:
    """Of three tiles alike one took twice as long: two are as expected, give or take what the third one bends."""
    timed = {Work("conv.fprop/f32/native", 2.0**i, 64): 2.0**i * 1e-6 for i in range(10, 20)}
    entry, error = tiles_entry(timed)
    assert error < 1e-6 and Compute(**entry).seconds(2.0**21, 64) == pytest.approx(2.0**21 * 1e-6, rel=1e-3)
    slowed = {work: seconds * (2 if i % 3 == 0 else 1) for i, (work, seconds) in enumerate(timed.items())}
    assert 0.05 < tiles_entry(slowed)[1] < 0.5


def test_scatter_makes_no_entry_too_fast() -> None:
    """Tiles alike that take half or twice as long as expected, or are held up: as many are predicted too fast as too slow."""
    shares = (0.5, 0.9, 1, 2, 9)
    sizes = [(2.0**i, 64 + j, share) for i in range(10, 30) for j, share in enumerate(shares)]
    timed = {Work("conv.fprop/f32/native", effort, nbytes): effort * share * 1e-6 for effort, nbytes, share in sizes}
    entry, _ = tiles_entry(timed)
    for work in timed:
        assert Compute(**entry).seconds(work.effort, work.nbytes) == pytest.approx(work.effort * 1e-6, rel=0.1)


def test_copies_cost_by_the_piece_and_by_the_byte() -> None:
    """Rows of 4 KiB cost ten times as much as their bytes say."""
    rows = [(n, n // 4096) for n in (1 << 16, 1 << 18, 1 << 20)]
    whole = [(n, 1) for n in (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)]
    timed = {Moved("read", n, pieces): 1e-6 + n / 1e9 + pieces * 9 * 4096 / 1e9 for n, pieces in rows + whole}
    entry, error = copies_entry(timed)
    assert error < 1e-6
    for moved, seconds in timed.items():
        assert Copy(**entry).seconds(moved.nbytes, moved.pieces) == pytest.approx(seconds, rel=1e-6)
