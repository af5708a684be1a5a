"""Predicted against measured seconds, on fresh random problems: is the model to be believed, and is its choice good?

The chosen plans give the errors. Of a few problems, random feasible plans and the greedy point of ooc_cuDNN are measured
too: whether the model ranks them rightly, and how far the chosen plan is behind the best of them (its regret).
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ooc.api.plan_query import plan
from ooc.errors import BudgetError
from ooc.ir.op import Op
from ooc.model.calibration import load_device
from ooc.model.simulate import simulate
from ooc.planner.alternatives import alternatives
from ooc.runtime.device import Device
from ooc.schedule.budget import show_bytes
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from perfmodel.calibrate.entries import median
from perfmodel.calibrate.trial import LEAST_BUDGET, RATIOS, TimedProblem, TrialQuestion, question

MEDIAN, NINTH, RANK = 0.15, 0.30, 0.8  # what is aimed at: errors at most, rank correlation at least
VISITS = 7  # of each question
LONG_ENOUGH = 2.0  # seconds after which a plan has been measured often enough
HOPELESS = 2.0  # times as slow as the fastest one: another run would say nothing of who is best
LONG = "conv.fprop n=512 c=64 h=56 w=56 k=64 r=3 s=3 pad=1"  # more than ten thousand steps in 1 MiB


class Summary(NamedTuple):
    """What the rows say. Errors and regrets are shares; rank: the median of Spearman's correlations. Unsteady: how far a run of a
    plan is off those at other moments, in the median and in nine of ten: errors that a perfect model would have, too."""

    median: float
    ninth: float
    worst: float
    rank: float
    regret: float
    worst_regret: float
    behind_greedy: float
    unsteady: float
    unsteady_ninth: float

    @property
    def good(self) -> bool:
        """Whether the aims are met."""
        return self.median <= MEDIAN and self.ninth <= NINTH and self.rank >= RANK

    def __str__(self) -> str:
        return (
            f"check: error median {self.median:.0%}, nine in ten {self.ninth:.0%}, worst {self.worst:.0%}; "
            f"rank correlation {self.rank:.2f}; regret median {self.regret:.0%}, worst {self.worst_regret:.0%}, "
            f"behind greedy at most {self.behind_greedy:.0%}: " + ("the aims are met" if self.good else "the aims are missed")
        )


def random_questions(count: int, seed: int) -> Iterator[TrialQuestion]:
    """So many random problems, half of them with their tensors in files."""
    rng = random.Random(seed)
    return (question(rng) for _ in range(count))


def questions_of(ops: Sequence[Op], count: int | None, seed: int) -> list[TrialQuestion]:
    """Given problems in host memory under budgets from half of their tensors to a fiftieth, or so many of those questions
    at random."""
    questions = list(_questions_of(ops))
    return questions if count is None else random.Random(seed).sample(questions, min(count, len(questions)))


def _questions_of(ops: Sequence[Op]) -> Iterator[TrialQuestion]:
    for op in ops:
        total = sum(o.nbytes for o in op.operands)
        for ratio in RATIOS:
            yield TrialQuestion(op, {o.name: Place.HOST for o in op.operands}, max(LEAST_BUDGET, total // ratio))


def check(
    base: Device, questions: Iterable[TrialQuestion], ranked: int, plans: int, folder: str | None, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """A row for each question that has a plan; for the first `ranked` of them `plans` random plans are measured too.

    All questions are visited several times: neighbours on a shared machine slow it down for seconds, which would be all that
    is seen of some questions if each had its runs at once.
    """
    races = []
    for i, one in enumerate(questions):
        with contextlib.suppress(BudgetError):  # what does not fit is not predicted
            races.append(_race(one, base, plans if i < ranked else 0, random.Random(i)))
    for visit in range(VISITS):
        say(f"visit {visit + 1} of {VISITS}")
        for race in races:
            race.run(folder)
            if visit == VISITS - 1:
                row = race.row()
                say(_line(row))
                yield row


@dataclass
class _Race:
    """The plan that is chosen for a question, the greedy one if it fits, and random ones; and what they took."""

    asked: TrialQuestion
    device: Device
    plans: list[Plan]
    greedy: bool
    seconds: list[list[float]]

    def run(self, folder: str | None) -> None:
        """Plans take turns, so that a disturbance of the machine hits all of them."""
        with TimedProblem(self.asked.op, self.asked.places, self.device, folder) as trial:
            self._warm_up(trial)
            for plan, seconds in zip(self.plans, self.seconds, strict=True):
                if not seconds or self.tells(seconds):
                    seconds.append(trial.seconds(plan))

    def _warm_up(self, trial: TimedProblem) -> None:
        """Runs that do not count: new kernels, and of the first plan new arrays. Of plans that are far behind they say enough."""
        fastest = math.inf
        for one, seconds in zip(self.plans, self.seconds, strict=True):
            if not seconds or one is self.plans[0]:
                first = trial.seconds(one)
                fastest = min(fastest, first)
                if not seconds and first > 2 * HOPELESS * fastest:
                    seconds.append(first)

    def tells(self, seconds: Sequence[float]) -> bool:
        """Whether another run of a plan says more than those before. Of the chosen one it does, however slow it is."""
        chosen, best = self.seconds[0], min(min(some, default=math.inf) for some in self.seconds)
        return sum(seconds) < LONG_ENOUGH and (seconds is chosen or min(seconds) < HOPELESS * best)

    def row(self) -> dict[str, Any]:
        """What is predicted, and the median of what was measured."""
        chosen, seconds = self.plans[0], self.seconds[0]
        measured = [statistics.median(s) for s in self.seconds]
        predicted = [p.predicted_seconds for p in self.plans]
        row: dict[str, Any] = {
            "problem": str(self.asked.op), "budget_bytes": self.asked.budget,
            "on_disk": Place.DISK in self.asked.places.values(),
            "tile": dict(chosen.tile), "kernel": chosen.kernel, "depth": chosen.depth, "tiles": chosen.tiles,
            "in_turn": chosen.in_turn,
            "predicted_seconds": predicted[0], "measured_seconds": measured[0], "error": predicted[0] / measured[0] - 1,
            "unsteady": apart(seconds),
            "lane_seconds": dict(chosen.lane_seconds), "bound_seconds": chosen.bound_seconds,
        }  # fmt: skip
        if len(self.plans) > 2:
            row |= {"rank": spearman(predicted, measured), "regret": measured[0] / min(measured) - 1, "plans": len(self.plans)}
            row |= {"all_predicted": predicted, "all_measured": measured}
        if self.greedy:
            row["over_greedy"] = measured[0] / measured[1] - 1
        return row


def apart(runs: Sequence[float]) -> list[float]:
    """How far each run is off the others."""
    others = [[*runs[:i], *runs[i + 1 :]] for i in range(len(runs))]
    return [one / statistics.median(rest) - 1 for one, rest in zip(runs, others, strict=True) if rest]


def _race(problem: TrialQuestion, base: Device, others: int, rng: random.Random) -> _Race:
    device = replace(base, device_bytes=problem.budget)
    chosen = device.planner.plan(problem.op, problem.places)
    greedy: list[Plan] = []
    some: list[Plan] = []
    if others:
        greedy, some = alternatives(chosen.op, device.planner.budget(problem.places), device.backend, device.model, others, rng)
    plans = [chosen, *greedy, *some]
    return _Race(problem, device, plans, bool(greedy), [[] for _ in plans])


def simulated() -> tuple[int, float]:
    """The steps of a long schedule, and the seconds it takes to simulate them: the median of a few times."""
    steps = lower(plan(LONG, "1 MiB", device="null", calibration="h200")).steps
    model = load_device("h200")
    return len(steps), median(lambda: simulate(steps, model))


def _line(row: dict[str, Any]) -> str:
    predicted, measured = row["predicted_seconds"] * 1e3, row["measured_seconds"] * 1e3
    text = (
        f"{row['error']:+5.0%}  {predicted:8.1f} ms predicted {measured:8.1f} measured  "
        f"{row['problem']} {'on disk ' if row['on_disk'] else ''}under {show_bytes(row['budget_bytes'])}"
    )
    return text + (f"; of {row['plans']} plans: rank {row['rank']:.2f}, regret {row['regret']:.0%}" if "rank" in row else "")


def summary(rows: Sequence[dict[str, Any]]) -> Summary:
    """Of at least one row."""
    errors, unsteady = [row["error"] for row in rows], [e for row in rows for e in row["unsteady"]]
    compared = [row for row in rows if "rank" in row]
    ranks, regrets = ([row[key] for row in compared] or [math.nan] for key in ("rank", "regret"))
    behind = max((max(0.0, row["over_greedy"]) for row in rows if "over_greedy" in row), default=math.nan)
    return Summary(
        *_sizes(errors), max(map(abs, errors)), statistics.median(ranks), statistics.median(regrets), max(regrets), behind,
        *_sizes(unsteady or [math.nan]),
    )  # fmt: skip


def _sizes(errors: Sequence[float]) -> tuple[float, float]:
    """Their sizes, whatever their sign: the median, and what nine in ten do not exceed."""
    sizes = sorted(map(abs, errors))
    return statistics.median(sizes), sizes[math.ceil(0.9 * len(sizes)) - 1]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation; equal values share the mean of their ranks. 0 where all are equal."""
    ranks = [_ranks(np.asarray(values, float)) for values in (a, b)]
    apart = [r - r.mean() for r in ranks]
    size = math.sqrt(float((apart[0] ** 2).sum() * (apart[1] ** 2).sum()))
    return float((apart[0] * apart[1]).sum()) / size if size else 0.0


def _ranks(values: Any) -> Any:
    return (values[:, None] > values).sum(1) + ((values[:, None] == values).sum(1) - 1) / 2
