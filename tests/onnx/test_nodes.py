"""ONNX's own cases of every operator that ooc translates, under shrinking budgets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ooc

onnx = pytest.importorskip("onnx")
onnx_files = pytest.importorskip("onnx_files")

# Where ONNX's case and ONNX Runtime, whose results users know, differ: that a length which is not whole counts as it is.
OTHERWISE = {f"test_resize_downsample_scales_{mode}_align_corners" for mode in ("linear", "cubic")}
FEWEST = 420  # cases that must be served: fewer were a loss
ROUNDED = 1e-4  # some cases hold four digits


@pytest.fixture(scope="module")
def served() -> list[Any]:
    """Cases whose operators are translated, that are not refused."""
    refused = {name for name, made in onnx_files.outcomes().items() if isinstance(made, Exception)}
    return [case for case in onnx_files.cases() if case.name not in OTHERWISE | refused]


def test_most_cases_are_served(served: list[Any]) -> None:
    assert len(served) >= FEWEST


@pytest.mark.parametrize(("share", "every"), [(1, 4), *(pytest.param(share, 1, marks=pytest.mark.slow) for share in (1, 2, 0))])
def test_cases(served: list[Any], share: int, every: int) -> None:
    """Every case, or one in some, at the least that it takes (2), whole (0), and at half of what that takes (1)."""
    for case in served[::every]:
        graph, plan = onnx_files.outcomes()[case.name]
        budget = onnx_files.budget_of(plan, share)
        if budget is not None:
            plan = graph.plan(batch=plan.batch, train=False, budget=budget)
        with plan.session() as session:
            found = session.forward(case.inputs)
        made = list(found.values()) if isinstance(found, dict) else [found]
        for own, wanted in zip(made, case.wanted, strict=False):
            size = max(1.0, float(np.abs(wanted.astype(np.float64)).max(initial=0)))
            assert own.shape == wanted.shape, case.name
            np.testing.assert_allclose(
                own.astype(np.float64), wanted.astype(np.float64), rtol=ROUNDED, atol=ROUNDED * size, err_msg=case.name
            )
        if budget is not None:
            assert plan.peaks["device"] <= budget


def test_refused_cases_say_their_node() -> None:
    """What is not served is refused by the node's name, in one line."""
    told = [made for made in onnx_files.outcomes().values() if isinstance(made, Exception)]
    assert len(told) > 100
    for error in told:
        assert isinstance(error, (ooc.UnsupportedError, ooc.ShapeError, ooc.DtypeError)), error
        assert "\n" not in str(error) and any(word in str(error) for word in ("node ", "input", "output"))
