"""How far `auto` is from an optimum: each tensor kept, moved or made again as a whole, chosen by an integer program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import ooc
from ooc.ir.op import aligned
from ooc.networks import NetworkPlan
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import UPDATE, Call, Network
from ooc.networks.judge import Judge
from ooc.networks.models import named
from ooc.networks.tensors import Role

Row = dict[str, Any]
NETWORKS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("resnet18", 32, {"side": 64}), ("unet3d", 1, {"side": 64}), ("vgg16", 32, {"side": 64, "width": 0.5, "dropout": 0}),
    ("wrn16-2", 64, {}),
)  # fmt: skip
SHARES = (1 / 2, 1 / 3, 1 / 4, 1 / 6)
SECONDS = 60.0  # that the solver has
KEPT, MOVED, MADE = 0, 1, 2  # again


class Optimum(NamedTuple):
    """seconds: of the best assignment. gap: share of them by which the solver may be off."""

    seconds: float
    gap: float


def measure(device: str) -> Iterator[Row]:
    """Rows: of networks under budgets what auto is predicted to take, and the optimum; None where no assignment fits."""
    where = ooc.device("null", calibration=device)
    for name, batch, sizes in NETWORKS:
        keep = named(name, **sizes).plan(batch=batch, policy="keep", device=where)
        for share in SHARES:
            plan = named(name, **sizes).plan(batch=batch, budget=int(keep.peaks["device"] * share), device=where)
            best = optimum(plan)
            yield {
                "network": name, "batch": batch, **sizes, "device": device, "share": share, "budget": plan.budget,
                "keep_seconds": keep.predicted_seconds, "seconds": plan.predicted_seconds, "bound_seconds": plan.bound_seconds,
                "optimum_seconds": best and best.seconds, "gap": best and best.gap, "why": plan.why,
            }  # fmt: skip


def optimum(plan: NetworkPlan) -> Optimum | None:
    """The best that whole tensors allow within a plan's budget, if nothing waits: lanes and kernels side by side, in the forward
    pass and in the backward pass; what left comes back just for those who read it, in each pass once; kernels need no workspace,
    and what is made again is made once. No plan of whole tensors is faster; tiles need less memory. None: no assignment fits, or
    none was known in time."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    program = _Program(Judge(plan.network, plan.scene, plan.budget))
    columns = program.columns
    cost = np.zeros(columns)
    cost[-2:] = 1
    upper = np.ones(columns)
    upper[[program.column(t, MADE) for t in program.names if program.again[t] == np.inf]] = 0
    upper[-2:] = np.inf
    result = milp(
        cost, integrality=np.r_[np.ones(columns - 2), 0, 0], bounds=Bounds(0, upper),
        constraints=[
            LinearConstraint(np.array(program.choices), 1, 1), LinearConstraint(np.array(program.used), -np.inf, program.free),
            LinearConstraint(np.array(program.busy), program.least, np.inf),
        ],
        options={"time_limit": SECONDS, "mip_rel_gap": 1e-3},
    )  # fmt: skip
    return None if result.x is None else Optimum(float(result.fun), float(result.mip_gap))


class _Program:
    """The rows of the integer program. Columns: of each tensor that the backward pass reads whether it is kept, moved, made
    again; of each that lasts whether it stays; the seconds of both passes.

    Fields:
        names: what the backward pass reads.
        lasting: parameters, their gradients and what else there is from step to step.
        again: seconds of making each again, with what the backward pass does not read; infinite where nothing makes it.
        choices: rows of which one column is chosen.
        used, free: bytes by column at each call, and the bytes that there are.
        busy, least: seconds of a lane in a pass by column, and the least that their sum is.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge, self.net, prices = judge, judge.net, Prices(judge)
        tensors = self.net.tensors
        self.names = [t for t, slot in tensors.items() if t in self.net.backward_readers and slot.per_sample]
        self.lasting = [t.name for t in self.net.lasting]
        self.at = {name: i for i, name in enumerate((*self.names, *self.lasting))}
        self.given = {t for t in self.names if tensors[t].role is Role.INPUT}
        self.again = {t: np.inf if t in self.given else prices.making(t) for t in self.names}
        self.columns = 3 * len(self.names) + len(self.lasting) + 2
        self.turn = self.net.forward[-1].index
        self.choices = [self._row({self.column(t, how): 1.0 for how in (KEPT, MOVED, MADE)}) for t in self.names]
        self.reads, self.makes = _calls_of(self.net)
        self.used: list[Any] = []
        self.free: list[float] = []
        for call in self.net.calls:
            if call.phase != UPDATE:
                self._at(call)
        self.busy, self.least = self._lanes(prices)

    def column(self, name: str, how: int = KEPT) -> int:
        """Of a tensor."""
        lasts = self.at[name] >= len(self.names)
        return self.at[name] + 2 * len(self.names) if lasts else self.at[name] + how * len(self.names)

    def _row(self, values: Mapping[int, float]) -> Any:
        row = np.zeros(self.columns)
        row[list(values)] = list(values.values())
        return row

    def _at(self, call: Call) -> None:
        """The memory of a call: all that it touches; and of the rest, what stays, is kept, or is waited for in this pass."""
        there, row = sum(self._nbytes(t) for t in set(call.tensors)), dict[int, float]()
        for name in set(self.net.tensors) - set(call.tensors):
            slot, made, reads = self.net.tensors[name], self.makes.get(name, -1), self.reads.get(name, [])
            if name in self.at and not slot.per_sample:
                row[self.column(name)] = self._nbytes(name)
            elif slot.per_sample and made < call.index < (reads[-1] if reads else -1):
                waited = any(call.index < i and (i <= self.turn or made > self.turn) for i in reads)
                if name not in self.at:
                    there += self._nbytes(name) * waited
                elif made >= 0 or call.index > self.turn:
                    row[self.column(name, KEPT)] = self._nbytes(name)
                    if waited and call.index <= self.turn:
                        row[self.column(name, MADE)] = self._nbytes(name)
        self.used.append(self._row(row))
        self.free.append((self.judge.budget or 0) - there)

    def _nbytes(self, name: str) -> int:
        return int(aligned(self.net.tensors[name].nbytes))

    def _lanes(self, prices: Prices) -> tuple[list[Any], list[float]]:
        """What kernels and lanes are busy with in both passes."""
        forward, backward = self.columns - 2, self.columns - 1
        computing = [sum(s for i, s in prices.calls.items() if (i <= self.turn) is first) for first in (True, False)]
        leave, back = ({t: self.judge.moving_seconds(self.net.tensors[t].nbytes)[i] for t in self.at} for i in (0, 1))
        out = {self.column(t, MOVED): -leave[t] for t in self.names if t not in self.given}
        come = {self.column(t, MOVED): -back[t] for t in self.names}
        rows, least = [self._row({forward: 1.0, **out})], [0.0]
        rows.append(self._row({forward: 1.0}))
        rows.append(self._row({backward: 1.0, **{self.column(t, MADE): -s for t, s in self.again.items() if s < np.inf}}))
        least += computing
        for seconds, of, first, more in (
            (back, self.reads, True, {}), (back, self.reads, False, come), (leave, self.makes, False, {}),
        ):  # fmt: skip
            moved = [t for t in self.lasting if any((i <= self.turn) is first for i in np.atleast_1d(of.get(t, [])))]
            rows.append(self._row({forward if first else backward: 1.0, **more, **{self.column(t): seconds[t] for t in moved}}))
            least.append(sum(seconds[t] for t in moved))
        return rows, least


def _calls_of(net: Network) -> tuple[Mapping[str, list[int]], Mapping[str, int]]:
    """The calls that read each tensor, and the one that makes it first."""
    reads: dict[str, list[int]] = {}
    makes: dict[str, int] = {}
    for call in net.calls:
        for t in call.reads:
            reads.setdefault(t, []).append(call.index)
        for t in call.makes:
            makes.setdefault(t, call.index)
    return reads, makes


def line(row: Row) -> str:
    """A row as a line of text."""
    over = [row[name] / row["keep_seconds"] if row[name] else None for name in ("bound_seconds", "optimum_seconds", "seconds")]
    bound, best, auto = ("none" if x is None else f"{x:.3f}" for x in over)
    far = f"{row['seconds'] / row['optimum_seconds'] - 1:+.1%}" if row["optimum_seconds"] else ""
    told = f"bound {bound}, optimum {best}, auto {auto} of keep {far}"
    return f"{row['network']:9} 1/{1 / row['share']:.0f}: {told}; {row['why'].partition(';')[0]}"
