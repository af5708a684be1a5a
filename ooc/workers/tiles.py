"""Tiles of a chain that one worker computes, in ever smaller ones until they fit its budget."""

from __future__ import annotations

from dataclasses import replace

from ooc.errors import BudgetError
from ooc.networks.calls import Network
from ooc.networks.chains import summing
from ooc.networks.judge import Judge
from ooc.networks.plan import NetworkPlan
from ooc.networks.proposal import Proposal
from ooc.schedule.budget import show_bytes


def fitted(judge: Judge, proposal: Proposal, net: Network) -> NetworkPlan:
    """The plan of a proposal whose tiles are cut until they fit. Raises BudgetError where single positions do not."""
    smaller = fitting(judge, proposal, net)
    return NetworkPlan.of(judge, "tasks", {}, smaller, judge.needs(smaller))


def fitting(judge: Judge, proposal: Proposal, net: Network) -> Proposal:
    """A proposal in tiles that fit. Raises BudgetError where single positions do not."""
    while proposal.cells and not judge.fits(proposal) and (smaller := _halved(proposal, net)) is not None:
        proposal = smaller
    needed = judge.needs(proposal)
    if judge.budget is not None and needed > judge.budget:
        raise BudgetError(f"{net.graph.name}: a tile takes {show_bytes(needed)}, the budget is {show_bytes(judge.budget)}")
    return proposal


def _halved(proposal: Proposal, net: Network) -> Proposal | None:
    """The same tiles, each in two; None: they are single positions. Shares of a finer grid lie within those of a coarser one."""
    ((begin, grid),) = proposal.grids
    last = net.calls[-1]
    batch, _, *extent = net.tensors[summing(net, last) or last.makes[0]].shape
    room = [e / n for e, n in zip((batch, *extent), grid, strict=True)]
    axis = max(range(len(grid)), key=room.__getitem__)
    if room[axis] < 2:
        return None
    finer = tuple(2 * n if i == axis else n for i, n in enumerate(grid))
    cells = tuple((*at[:axis], 2 * at[axis] + half, *at[axis + 1 :]) for at in proposal.cells for half in range(2))
    return replace(proposal, grids=((begin, finer),), cells=cells)
