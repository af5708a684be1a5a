"""The problem sets that come with the package: every line is an op, and has a plan however little memory there is."""

from __future__ import annotations

import re

import pytest

import ooc
from ooc.errors import BudgetError
from perfmodel.problems.sets import PROBLEMS, collect, problems

SETS = sorted(path.stem for path in PROBLEMS.glob("*.txt"))
FEWEST = {"resnet50": 23, "deepbench": 90, "micro": 6}  # distinct lines


def lines(name: str) -> list[str]:
    return [t for t in (PROBLEMS / f"{name}.txt").read_text().splitlines() if t.strip() and not t.startswith("#")]


@pytest.mark.parametrize("name", SETS)
def test_every_line_describes_itself(name: str) -> None:
    ops = problems(name)
    assert [str(op) for op in ops] == lines(name) and len(set(ops)) == len(ops)
    assert len(ops) == FEWEST.get(name, len(ops))
    assert (PROBLEMS / f"{name}.txt").read_text().startswith("# ")


@pytest.mark.parametrize("name", SETS)
def test_every_problem_has_a_batch(name: str) -> None:
    own, other = problems(name), collect([name], 6)
    assert len(set(other)) == len(other) and len(other) == len({re.sub(r"n=\d+", "", str(op)) for op in own})
    for op in other:
        assert all(stage.n == 6 for stage in op.stages)  # type: ignore[attr-defined]
    assert {re.sub(r"n=\d+", "", str(op)) for op in own} == {str(op).replace("n=6", "") for op in other}


@pytest.mark.parametrize(("share", "every"), [(2, 6), (50, 6), pytest.param(2, 1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SETS)
def test_every_line_has_a_plan(name: str, share: int, every: int) -> None:
    """Under a share of its tensors, or the error says what would do, and that does. every: of so many lines of a long set one."""
    ops = problems(name)
    for op in ops if len(ops) < 30 else ops[::every]:
        budget = sum(o.nbytes for o in op.operands) // share
        try:
            found = ooc.plan(op, budget, device="null", calibration="p100")
        except BudgetError as error:
            assert error.smallest_bytes is not None and error.smallest_bytes > budget
            budget = error.smallest_bytes
            found = ooc.plan(op, budget, device="null", calibration="p100")
        assert found.peak_bytes <= budget


def test_resnet50_is_all_of_it() -> None:
    """4.09 G multiplications (v1.5; He et al. say 3.8 G for strides in the 1 x 1), counted with how often each shape occurs."""
    times = (1, 1, 3, 4, 2, 1, 1, 4, 1, 3, 3, 1, 1, 6, 1, 5, 5, 1, 1, 3, 1, 2, 2)
    total = sum(n * op.flops(op.dims) / 2 for n, op in zip(times, problems("resnet50"), strict=True))
    assert total == pytest.approx(4.09e9, rel=0.01)
