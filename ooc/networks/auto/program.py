"""Integer programs, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

NODES = 100  # subproblems that are looked at: no clock decides


class Constraints(NamedTuple):
    """Sums of columns that lie between bounds, one in each row.

    Fields:
        factors: of each column in each row.
        lower, upper: a bound for all, or one for each row.
    """

    factors: Any
    lower: Any
    upper: Any


class Minimum(NamedTuple):
    """The columns of a solution, and the share of its cost by which it may be off."""

    columns: Any
    gap: float


def minimum(cost: Any, upper: Any, constraints: Sequence[Constraints], integers: int, gap: float) -> Minimum | None:
    """The columns from 0 to `upper`, the first of them integers, that cost least; None where the constraints allow none, or none
    is reached within NODES. gap: share of the cost by which it may be off."""
    import highspy  # a planner of networks on a device alone needs it

    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("mip_max_nodes", NODES)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.passModel(_model(cost, upper, constraints, integers))
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        return None
    return Minimum(np.array(solver.getSolution().col_value), float(info.mip_gap))


def _model(cost: Any, upper: Any, constraints: Sequence[Constraints], integers: int) -> Any:
    """The program in HiGHS' words: what is not 0 of each row."""
    import highspy

    factors = np.concatenate([c.factors for c in constraints])
    kinds = [highspy.HighsVarType.kInteger] * integers + [highspy.HighsVarType.kContinuous] * (len(cost) - integers)
    row, column = np.nonzero(factors)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(factors)
    model.col_cost_, model.col_lower_, model.col_upper_, model.integrality_ = cost, np.zeros(len(cost)), upper, kinds
    model.row_lower_ = np.concatenate([np.broadcast_to(c.lower, len(c.factors)) for c in constraints])
    model.row_upper_ = np.concatenate([np.broadcast_to(c.upper, len(c.factors)) for c in constraints])
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.searchsorted(row, np.arange(len(factors) + 1))
    model.a_matrix_.index_, model.a_matrix_.value_ = column, factors[row, column]
    return model
