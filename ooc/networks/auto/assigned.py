"""The fates of whole tensors by an integer program: each is kept, moved or made again so that both passes take least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooc.ir.op import aligned
from ooc.networks.auto.prices import Prices
from ooc.networks.auto.program import Constraints, minimum
from ooc.networks.calls import UPDATE, Call, Network
from ooc.networks.judge import Judge
from ooc.networks.policies.base import room_beside
from ooc.networks.proposal import CLOSE, Fate, Proposal
from ooc.networks.tensors import Role

FATES = (Fate.KEEP, Fate.OFFLOAD, Fate.RECOMPUTE)  # of a tensor that the backward pass reads
SHARES = (0.9, 0.8, 0.7, 0.6)  # of the budget that is assigned: the rest is for what comes early, workspace and gaps
GAP = 5e-3  # by which an assignment may be off
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


def assigned(prices: Prices) -> Iterator[tuple[float, Iterator[Proposal]]]:
    """A training step whose tensors are assigned as wholes: seconds if nothing waits, and the same with ever leaner kernels. None
    on a processor, whose copies do not go on beside its kernels."""
    judge, net = prices.judge, prices.net
    if judge.budget is None or judge.device.backend.shared or not net.mode.has_gradients or len(passed(net)) > MOST:
        return
    program = AssignmentProgram(prices)
    for share in SHARES:
        best = program.optimum(int(judge.budget * share))
        if best is not None:
            lean = Proposal(f"assigned within {share:.0%} of the budget", best.fates, kernels="lean", space=CLOSE)
            yield best.seconds, _leaner(judge, lean)


def _leaner(judge: Judge, lean: Proposal) -> Iterator[Proposal]:
    """A proposal with the fastest kernels, those that fit beside it, and the leanest."""
    yield replace(lean, kernels="fastest")
    yield replace(lean, kernels=room_beside(judge, lean))
    yield lean


def passed(net: Network) -> list[str]:
    """What of the batch the backward pass reads of the forward one."""
    return [t for t, slot in net.tensors.items() if t in net.backward_readers and slot.per_sample]


class AssignmentProgram:
    """The rows of the integer program. Columns: of each tensor that the backward pass reads whether it is kept, moved, made
    again; of each that lasts whether it stays; the seconds of both passes.

    Fields:
        names: what the backward pass reads.
        lasting: parameters, their gradients and what else there is from step to step.
        recompute: seconds of making each again, with what the backward pass does not read; none of what nothing makes.
        choices: rows of which one column is chosen.
        used, present: bytes by column at each call, and those that are there whatever is chosen.
        busy, least: seconds of a lane in a pass by column, and the least that their sum is.
    """

    def __init__(self, prices: Prices) -> None:
        self.net, tensors, moving = prices.net, prices.net.tensors, prices.judge.moving_seconds
        self.names, self.lasting = passed(self.net), [t.name for t in self.net.lasting]
        self.at = {name: i for i, name in enumerate((*self.names, *self.lasting))}
        self.columns = len(FATES) * len(self.names) + len(self.lasting) + 2
        self.turn = self.net.forward[-1].index
        self.recompute = {t: prices.making(t) for t in self.names if tensors[t].role is not Role.INPUT}
        self.leave, self.back = ({t: moving(tensors[t].nbytes)[i] for t in self.at} for i in (0, 1))
        self.choices = [self._row({self.column(t, fate): 1.0 for fate in FATES}) for t in self.names]
        self.reads, self.makes = _calls_of(self.net)
        rows = [self._at(call) for call in self.net.calls if call.phase != UPDATE]
        self.used, self.present = np.array([row for row, _ in rows]), np.array([nbytes for _, nbytes in rows])
        self.busy, self.least = self._lanes(prices)

    def optimum(self, budget: int, gap: float = GAP) -> Assigned | None:
        """The best that whole tensors allow within a budget, if nothing waits: lanes and kernels side by side, in the forward
        pass and in the backward pass; what left comes back just for those who read it, in each pass once; kernels need no
        workspace, and what is made again is made once. None: nothing fits. gap: share of the seconds by which it may be off."""
        upper = np.ones(self.columns)
        upper[[self.column(t, Fate.RECOMPUTE) for t in self.names if t not in self.recompute]] = 0
        upper[-2:] = np.inf
        constraints = [
            Constraints(np.array(self.choices), 1, 1), Constraints(self.used, -np.inf, budget - self.present),
            Constraints(np.array(self.busy), self.least, np.inf),
        ]  # fmt: skip
        best = minimum(self._cost(), upper, constraints, self.columns - 2, gap)
        if best is None:
            return None
        return Assigned(float(best.columns[-2:].sum()), best.gap, self.fates(best.columns > 1 / 2))

    def _cost(self) -> Any:
        """Of the columns."""
        leaving = {t: s if t not in self.names or t in self.recompute else 0.0 for t, s in self.leave.items()}  # inputs do not
        offload = {self.column(t, Fate.OFFLOAD): TIE * (leaving[t] + self.back[t]) for t in self.names}
        recompute = {self.column(t, Fate.RECOMPUTE): TIE * s for t, s in self.recompute.items()}
        stay = {self.column(t): -TIE * (leaving[t] + self.back[t]) for t in self.lasting}
        return self._row({**offload, **recompute, **stay, self.columns - 2: 1.0, self.columns - 1: 1.0})

    def fates(self, chosen: Any) -> dict[str, Fate]:
        """Of what is not kept."""
        fates = {t: fate for fate in FATES[1:] for t in self.names if chosen[self.column(t, fate)]}
        return fates | {t: Fate.OFFLOAD for t in self.lasting if not chosen[self.column(t)]}

    def column(self, name: str, fate: Fate = Fate.KEEP) -> int:
        """Whether a tensor has a fate."""
        lasts = self.at[name] >= len(self.names)
        return self.at[name] + len(self.names) * (len(FATES) - 1 if lasts else FATES.index(fate))

    def _row(self, values: Mapping[int, float]) -> Any:
        row = np.zeros(self.columns)
        row[list(values)] = list(values.values())
        return row

    def _at(self, call: Call) -> tuple[Any, int]:
        """The memory of a call: all that it touches; and of the rest, what stays, is kept, or is waited for in this pass."""
        present, row = sum(self._nbytes(t) for t in set(call.tensors)), dict[int, float]()
        for name, slot in self.net.tensors.items():
            first, reads = self.makes.get(name, -1), self.reads.get(name, [])
            if name in call.tensors:
                continue
            if name in self.at and not slot.per_sample:
                row[self.column(name)] = self._nbytes(name)
            elif slot.per_sample and first < call.index < (reads[-1] if reads else -1):
                waited = any(call.index < i and (i <= self.turn or first > self.turn) for i in reads)
                if name not in self.at:
                    present += self._nbytes(name) * waited
                elif first >= 0 or call.index > self.turn:
                    row[self.column(name)] = self._nbytes(name)
                    if waited and call.index <= self.turn:
                        row[self.column(name, Fate.RECOMPUTE)] = self._nbytes(name)
        return self._row(row), present

    def _nbytes(self, name: str) -> int:
        return int(aligned(self.net.tensors[name].nbytes))

    def _lanes(self, prices: Prices) -> tuple[list[Any], list[float]]:
        """What kernels and lanes are busy with in both passes."""
        forward, backward = self.columns - 2, self.columns - 1
        computing = [sum(s for i, s in prices.calls.items() if (i <= self.turn) is first) for first in (True, False)]
        leave = {self.column(t, Fate.OFFLOAD): -self.leave[t] for t in self.recompute}  # inputs are at home
        back = {self.column(t, Fate.OFFLOAD): -self.back[t] for t in self.names}
        recompute = {self.column(t, Fate.RECOMPUTE): -s for t, s in self.recompute.items()}
        rows = [self._row({forward: 1.0, **leave}), self._row({forward: 1.0}), self._row({backward: 1.0, **recompute})]
        least = [0.0, *computing]
        for column, seconds, calls, more in (
            (forward, self.back, self.reads, {}), (backward, self.back, self.reads, back), (backward, self.leave, self.makes, {}),
        ):  # fmt: skip
            moved = [t for t in self.lasting if self._touched(calls.get(t, ()), column == forward)]
            rows.append(self._row({column: 1.0, **more, **{self.column(t): seconds[t] for t in moved}}))
            least.append(sum(seconds[t] for t in moved))
        return rows, least

    def _touched(self, calls: int | Sequence[int], forward: bool) -> bool:
        """Whether some of these calls are of the forward pass, or of the backward pass."""
        return any((i <= self.turn) is forward for i in np.atleast_1d(calls))


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
