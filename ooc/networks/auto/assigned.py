"""The fates of whole tensors by an integer program: each is kept, moved or made again so that both passes take least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooc.ir.op import aligned
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import UPDATE, Call, Network
from ooc.networks.proposal import CLOSE, Fate, Proposal
from ooc.networks.tensors import Mode, Role

KEPT, MOVED, MADE = 0, 1, 2  # again
SHARES = (0.9, 0.8, 0.7, 0.6)  # of the budget that is assigned: the rest is for what comes early, workspace and gaps
GAP, NODES = 5e-3, 100  # by which an assignment may be off, and subproblems that are looked at: no clock decides
MOST = 128  # tensors: of twice as many a solution takes ten seconds
TIE = 0.01  # of a second in which a lane is busy that nobody waits for: of assignments that take as long the one that does least


class Assigned(NamedTuple):
    """An assignment.

    Fields:
        seconds: of both passes, if nothing waits.
        gap: share of them by which it may be off.
        fates: of tensors that are not kept.
    """

    seconds: float
    gap: float
    fates: Mapping[str, Fate]


def assigned(prices: Prices) -> Iterator[tuple[float, list[Proposal]]]:
    """A training step whose tensors are assigned as wholes: seconds if nothing waits, and the same proposal with ever leaner
    kernels."""
    judge, net = prices.judge, prices.net
    if judge.budget is None or net.mode is not Mode.STEP:
        return
    for share in SHARES:
        best = optimum(replace(prices, judge=judge.within(int(judge.budget * share))))
        if best is not None:
            label = f"assigned within {share:.0%} of the budget"
            kernels = ("fastest", f"fitting:{judge.budget // 8}", "lean")
            yield best.seconds, [Proposal(label, best.fates, kernels=rule, space=CLOSE) for rule in kernels]


def optimum(prices: Prices, gap: float = GAP) -> Assigned | None:
    """The best that whole tensors allow within the judge's budget, if nothing waits: lanes and kernels side by side, in the
    forward pass and in the backward pass; what left comes back just for those who read it, in each pass once; kernels need no
    workspace, and what is made again is made once. None: nothing fits, or there are too many tensors. gap: share of the seconds
    by which it may be off."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    program = AssignmentProgram(prices)
    if len(program.names) > MOST:
        return None
    columns = program.columns
    upper = np.ones(columns)
    upper[[program.column(t, MADE) for t in program.names if program.again[t] == np.inf]] = 0
    upper[-2:] = np.inf
    result = milp(
        program.cost, integrality=np.r_[np.ones(columns - 2), 0, 0], bounds=Bounds(0, upper),
        constraints=[
            LinearConstraint(np.array(program.choices), 1, 1), LinearConstraint(np.array(program.used), -np.inf, program.free),
            LinearConstraint(np.array(program.busy), program.least, np.inf),
        ],
        options={"node_limit": NODES, "mip_rel_gap": gap},
    )  # fmt: skip
    if result.x is None:
        return None
    return Assigned(float(result.x[-2:].sum()), float(result.mip_gap or 0.0), program.fates(result.x > 1 / 2))


class AssignmentProgram:
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

    def __init__(self, prices: Prices) -> None:
        self.judge, self.net = prices.judge, prices.net
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
        moving = self.judge.moving_seconds
        self.leave, self.back = ({t: moving(self.net.tensors[t].nbytes)[i] for t in self.at} for i in (0, 1))
        self.busy, self.least = self._lanes(prices)

    @property
    def cost(self) -> Any:
        """Of the columns."""
        moved = {self.column(t, MOVED): TIE * (self.leave[t] * (t not in self.given) + self.back[t]) for t in self.names}
        made = {self.column(t, MADE): TIE * s for t, s in self.again.items() if s < np.inf}
        stays = {self.column(t): -TIE * (self.leave[t] + self.back[t]) for t in self.lasting}
        return self._row({**moved, **made, **stays, self.columns - 2: 1.0, self.columns - 1: 1.0})

    def fates(self, chosen: Any) -> dict[str, Fate]:
        """Of what is not kept."""
        fates = {t: Fate.OFFLOAD for t in self.names if chosen[self.column(t, MOVED)]}
        fates |= {t: Fate.RECOMPUTE for t in self.names if chosen[self.column(t, MADE)]}
        return fates | {t: Fate.OFFLOAD for t in self.lasting if not chosen[self.column(t)]}

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
        leave, back = self.leave, self.back
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
