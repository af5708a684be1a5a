"""Entries of a calibration, fitted to what was measured: they predict that, and what is like it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ooc.model.calibration import read_model
from ooc.model.cost import Compute, Model, sample_of
from ooc.model.gaussian import MOST, Sample
from ooc.ops.descriptor import parse
from ooc.schedule.work import Moved
from perfmodel.calibrate.entries import compute_entry, copies_entry, copies_error, tiles_entry, tiles_error

pytestmark = pytest.mark.quick


def sample(positions: float, seconds: float, k: float = 16.0) -> Sample:
    shape = (positions, 16.0, k, 16.0, 9.0, 1.0)
    return Sample(2 * math.prod(shape) / 16, 4 * positions, shape, seconds)


def test_an_entry_predicts_what_it_was_made_of() -> None:
    ops = [parse(f"conv.fprop n=1 c={c} h={h} w=16 k=16 r=3 s=3 pad=1") for c in (4, 16, 64) for h in (4, 16, 64)] * 4
    took = [1e-5 + op.flops(op.dims) / 1e10 * (3 if op.dims["c"] < 8 else 1) for op in ops]
    entry, error = compute_entry(ops, took)
    assert error < 0.5 and len(entry["samples"]) == 36
    made = Compute(*[entry[k] for k in ("latency_seconds", "flops_per_second", "bytes_per_second")],
                   tuple(Sample(r[0], r[1], tuple(r[2:8]), r[8]) for r in entry["samples"]))  # fmt: skip
    for op, real in zip(ops, took, strict=True):
        assert made.seconds(op.effort(op.dims), op.touched_bytes(op.dims), 1, op.shape(op.dims)) == pytest.approx(real, rel=0.15)


def test_few_tiles_of_a_type_are_known_by_those_of_another() -> None:
    """Thin tiles are slow in both types; only one of them was measured on thin tiles."""
    slower = [1.0 + 8 / k for k in (2.0, 4.0, 16.0, 64.0)]
    known = [
        sample(2.0**i, 2.0**i * s * 1e-6 * k, k)
        for i in range(6, 12)
        for k, s in zip((2.0, 4.0, 16.0, 64.0), slower, strict=True)
    ]
    few = [s._replace(seconds=2 * s.seconds) for s in known if s.shape[2] == 64.0][:3]
    thin = known[0]

    def predicted(entry: dict[str, Any]) -> float:
        line = [entry[k] for k in ("latency_seconds", "flops_per_second", "bytes_per_second")]
        made = Compute(*line, tuple(Sample(r[0], r[1], tuple(r[2:8]), r[8]) for r in entry["samples"]))
        return float(made.seconds(thin.effort, thin.nbytes, 1, thin.shape))

    assert predicted(tiles_entry(few, known)) == pytest.approx(2 * thin.seconds, rel=0.2)
    assert abs(math.log(predicted(tiles_entry(few)) / (2 * thin.seconds))) > 0.5
    assert tiles_error(few, known) < 0.2
    assert len(tiles_entry(few * MOST, known)["samples"]) == 3 * MOST  # no room for others


def test_measured_copies_correct_the_line() -> None:
    """Rows of 4 KiB cost ten times as much as their bytes say: so do copies like those, and no others."""
    rows = [(n, n // 4096, 10 * n / 1e9) for n in (1 << 16, 1 << 18, 1 << 20)]
    whole = [(n, 1, n / 1e9) for n in (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)]
    samples = [sample_of(Moved("read", nbytes, runs), seconds) for nbytes, runs, seconds in rows + whole]
    entry, error = copies_entry(samples), copies_error(samples)
    assert error < 0.5 and len(entry["samples"]) == 9
    raw = {"copies": dict.fromkeys(("read", "h2d", "d2h", "write"), entry), "computes": {"*/*/*": {
        "latency_seconds": 0.0, "flops_per_second": 1e9, "bytes_per_second": 1e9}}}  # fmt: skip
    model: Model = read_model(raw, "here")
    for nbytes, runs, seconds in rows + whole:
        assert model.copy("read").seconds(nbytes, runs) == pytest.approx(seconds, rel=0.35)
    sizes = np.array([1 << 16, 1 << 20])
    together = model.copy("read").seconds(sizes, np.array([16, 256]))
    np.testing.assert_allclose(together, [model.copy("read").seconds(n, n // 4096) for n in sizes.tolist()], rtol=1e-5)
