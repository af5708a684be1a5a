"""Predictions for network plans against measurements on this machine's processor."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import ooc
from ooc.errors import BudgetError, UnsupportedError
from ooc.networks import POLICIES, NetworkPlan
from ooc.networks.models import named
from ooc.runtime.device import Device
from perfmodel.bench.torch_steps import data

Row = dict[str, Any]
# Networks that take about a second a step, and samples.
CASES: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("vgg16", 16, {"side": 96, "width": 0.25, "dropout": 0}),
    ("resnet18", 16, {"side": 112, "width": 0.5}),
    ("googlenet", 16, {"side": 112, "width": 0.5, "dropout": 0}),
    ("unet3d", 2, {"side": 32, "width": 0.5}),
)
SHARES = (1, 2, 4, 8)  # bytes of the activations that keep holds, by budget
STEPS = 3  # of which the median is taken, after one that does not count
FEWEST = 3  # plans from which on an order tells something
AIM_ERROR, AIM_RANK = 0.15, 0.9


def check(count: int, calibration: str | None = None) -> Iterator[Row]:
    """Rows of so many plans, of every network and policy in turn: seconds of a step as predicted, and as measured. calibration: a
    file, or the name of a shipped one; default: the one that is used by itself."""
    device = ooc.device("cpu", calibration=calibration)
    plans = itertools.islice(_mixed(device), count)
    for network, share, plan in plans:
        yield {
            "network": network, "batch": plan.batch, "share": share, "policy": plan.policy, "budget": plan.budget,
            "predicted_seconds": plan.predicted_seconds, "seconds": measured(plan), "why": plan.why,
        }  # fmt: skip


def _mixed(device: Device) -> Iterator[tuple[str, int, NetworkPlan]]:
    """Plans of all cases in turn: one policy after the other under a budget, so that there are orders to compare."""
    groups = [_plans(device, case, share) for share in SHARES for case in CASES]
    for group in groups:
        yield from group


def _plans(device: Device, case: tuple[str, int, dict[str, Any]], share: int) -> Iterator[tuple[str, int, NetworkPlan]]:
    """Of a network under a budget, plans that differ."""
    network, batch, sizes = case
    keep = named(network, **sizes).plan(batch=batch, policy="keep", device=device)
    budget = sum(keep.network.tensors[t].nbytes for t in keep.network.kept) // share
    seconds = set()
    for policy in ("auto", *POLICIES):
        try:
            plan = named(network, **sizes).plan(batch=batch, policy=policy, device=device, budget=budget, home="disk")
        except (BudgetError, UnsupportedError):
            continue
        if plan.predicted_seconds not in seconds:
            seconds.add(plan.predicted_seconds)
            yield network, share, plan


def measured(plan: NetworkPlan) -> float:
    """The median of some steps."""
    x, labels = data(plan)
    times = []
    with plan.session() as session:
        for turn in range(STEPS + 1):
            begin = time.perf_counter()
            session.step(x, labels)
            if turn:
                times.append(time.perf_counter() - begin)
    return statistics.median(times)


def line(row: Row) -> str:
    """A row as a line of text."""
    error = row["predicted_seconds"] / row["seconds"] - 1
    return (
        f"{row['network']:10} 1/{row['share']} {row['policy']:13} predicted {row['predicted_seconds']:.3f} s, measured "
        f"{row['seconds']:.3f} s ({error:+.0%})"
    )


class Told(NamedTuple):
    """What the rows say: the median error, that of nine in ten, the median rank correlation of the policies of a case."""

    plans: int
    error: float
    ninth: float
    rank: float

    @property
    def good(self) -> bool:
        """Whether both aims are met."""
        return self.error <= AIM_ERROR and self.rank >= AIM_RANK

    def __str__(self) -> str:
        return (
            f"{self.plans} plans: error {self.error:.0%} in the median (aim {AIM_ERROR:.0%}), {self.ninth:.0%} in nine of ten; "
            f"rank correlation over policies {self.rank:.2f} (aim {AIM_RANK})"
        )


def summary(rows: Sequence[Row]) -> Told:
    """What the rows say together."""
    errors = [abs(r["predicted_seconds"] / r["seconds"] - 1) for r in rows]
    cases: dict[tuple[str, int], list[Row]] = {}
    for r in rows:
        cases.setdefault((r["network"], r["share"]), []).append(r)
    ranks = [_rank(case) for case in cases.values() if len(case) >= FEWEST]
    return Told(len(rows), statistics.median(errors), float(np.quantile(errors, 0.9)), statistics.median(ranks or [0.0]))


def _rank(rows: Sequence[Row]) -> float:
    """Spearman's rank correlation of predicted and measured seconds."""
    one, two = (np.argsort(np.argsort([r[key] for r in rows])) for key in ("predicted_seconds", "seconds"))
    return float(np.corrcoef(one, two)[0, 1])
