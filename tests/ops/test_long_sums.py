"""Products with sums of many terms: as near to f64 as those of few, and with the bits of their order whatever the tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ooc
from ooc.ops.matmul import RUN


def product(how: str, a: Any, b: Any, budget: Any, deterministic: bool = False) -> Any:
    """a b of one sample and one head, and the bytes that it took."""
    graph = ooc.Graph("product")
    reads = [graph.input(name, (1, *x.shape), "f32") for name, x in (("a", a), ("b", b))]
    graph.output(graph.matmul(*reads, how))
    plan = graph.plan(batch=1, train=False, device="cpu", budget=budget, deterministic=deterministic)
    assert budget is None or plan.peaks["device"] <= budget
    with plan.session() as session:
        return session.forward({"a": a[None, None], "b": b[None, None]})[0, 0], plan.smallest_bytes


@pytest.mark.parametrize("budget", [None, 1 << 20, 1 << 14])
def test_sums_of_many_terms(budget: int | None) -> None:
    """One chain of so many would be off by thousandths; 2^24 and more would stand still."""
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 1 << 21), "f4") + 0.5, rng.random((3, 1 << 21), "f4") + 0.5
    y, _ = product("nt", a, b, budget)
    expected = a.astype("f8") @ b.astype("f8").T
    assert np.abs(y / expected - 1).max() < 5e-6


@pytest.mark.parametrize("how", ["nn", "nt", "tn"])
def test_bits_of_their_order(how: str) -> None:
    """At every budget, down to the smallest, which is some runs."""
    rng = np.random.default_rng(1)
    c = 5 * RUN + 77
    a, b = rng.standard_normal((7, c)).astype("f4"), rng.standard_normal((c, 5)).astype("f4")
    laid = (a.T.copy() if how == "tn" else a), (b.T.copy() if how == "nt" else b)
    whole, least = product(how, *laid, None, deterministic=True)
    expected = a.astype("f8") @ b.astype("f8")
    assert np.abs(whole - expected).max() < 1e-6 * np.abs(expected).max()
    assert least < 8 * 4 * RUN
    for budget in (1 << 20, 1 << 16, least):
        np.testing.assert_array_equal(product(how, *laid, budget, deterministic=True)[0], whole)
