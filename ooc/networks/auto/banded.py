"""Proposals in bands: how finely they are cut, what lasts at home, and how much is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ooc.networks.auto.bands import Bands
from ooc.networks.auto.early import in_time
from ooc.networks.auto.forms import lasting_fates
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import Call, Network
from ooc.networks.chains import Grid
from ooc.networks.judge import Judge, Trial
from ooc.networks.proposal import CLOSE, Fate, Proposal
from ooc.networks.stages import stages
from ooc.schedule.budget import show_bytes

SIZES = 8  # of tiles: half of the largest band's tensors, a fourth, and so on
LOOKED_AT = 3  # sizes that leave room to keep something
BASE = 0.6  # of the budget: what tiles take at most, where something is to be kept
HOME = 1 / 8  # of the budget: what lasts and is more is at home
FILLED = (0.9, 0.8)  # of the room: the rest is for what comes early and leaves late
CANDIDATES = 4  # that may be simulated
TRIES = 4  # at what fits, with ever less kept
LONG = 12  # calls between two sums that have one grid


class Banded(NamedTuple):
    """Proposals in bands, the first that fits is the best, and their seconds as bands tell."""

    seconds: float
    proposals: Iterator[Proposal]


def banded(prices: Prices) -> list[Banded]:
    """A training step in bands, of the largest tiles that leave room to keep something; the best first."""
    judge, net = prices.judge, prices.net
    if judge.budget is None or not net.mode.has_gradients:
        return []
    most, lasting = max((_nbytes(net, calls) for calls in runs(net)), default=0), _at_home(net, judge.budget)
    proposals, sizes = list[Banded](), 0
    for i in range(1, SIZES + 1):
        grids = slices(net, max(1, most >> i), not judge.costs.deterministic)
        if sizes < LOOKED_AT and grids and (bases := _bases(judge, Bands(prices, grids, lasting), most >> i)):
            proposals += (one for base in bases for one in _settled(prices, base, lasting))
            sizes += 1
    return sorted(proposals, key=lambda one: one.seconds)[:CANDIDATES]


def _at_home(net: Network, budget: int) -> dict[str, Fate]:
    """What lasts and does not stay on the device."""
    sizes = {t.name: t.nbytes for t in net.lasting}
    homes = [gone for _, gone in lasting_fates(net, budget)]
    few = (gone for gone in homes if sum(n for t, n in sizes.items() if t not in gone) <= budget * HOME)
    return next(few, homes[-1] if homes else {})


def _bases(judge: Judge, bands: Bands, size: int) -> list[Proposal]:
    """Proposals of which nothing stays, with the fastest kernels that leave room for something, and with some that leave more."""
    budget = judge.budget or 0
    proposal = bands.proposal(f"in bands of {show_bytes(size)}")
    lean = replace(proposal, kernels="lean", space=CLOSE, window="parts")
    free = int(budget * BASE) - judge.trial(lean).least
    if free < 0:
        return []
    fastest = replace(lean, kernels="fastest")
    if judge.trial(fastest).least <= budget * BASE:
        return [fastest]
    return [replace(lean, kernels=f"fitting:{room}") for room in (free, budget // 8) if room <= free]


def _settled(prices: Prices, base: Proposal, lasting: Mapping[str, Fate]) -> Iterator[Banded]:
    """With as much kept as shares of the room take."""
    trial = prices.judge.trial(base)
    room, computing = _room(trial, prices.judge.budget or 0), prices.by_stage(trial)
    for share in FILLED:
        bands = Bands(prices, base.grids, lasting, computing)
        bands.settle(room * share)
        yield Banded(bands.seconds(), _proposals(bands, base, room * share))


def _proposals(bands: Bands, base: Proposal, room: np.ndarray) -> Iterator[Proposal]:
    """It with loads that come early, where it turns out to keep within the budget, else with less that is kept."""
    judge = bands.prices.judge
    for _ in range(TRIES):
        settled = bands.proposal(base.label)
        proposal = replace(base, fates=settled.fates, staying=settled.staying)
        trial = judge.trial(proposal)
        over = -_room(trial, judge.budget or 0)
        if over.max() <= 0:
            yield from in_time(bands.prices, proposal)
            return
        room = room - np.maximum(over, 0) * 1.05
        bands.settle(room)


def _room(trial: Trial, budget: int) -> np.ndarray:
    """Bytes that are left at every band."""
    return np.asarray(budget - trial.program.most(trial.lowering.load()), np.float64)


def slices(net: Network, size: int, planes: bool = True) -> tuple[tuple[int, Grid], ...]:
    """Grids by which the tensors of a band take about so many bytes at a time, where samples and planes allow it: one for all
    calls between two sums over the batch; where those are many, one for neighbours that read tensors of one extent. planes:
    whether the only axis of space may be cut, too: sums have another order then."""
    parts: dict[tuple[int, ...], int] = {}  # by the extent of what is read: neighbours that cut alike wait for pieces alone
    for calls in runs(net):
        extent = _extent(net, calls[0])
        parts[extent] = max(parts.get(extent, 1), -(-_nbytes(net, calls) // size))
    able = {extent: count if planes or len(extent) > 1 else min(count, net.batch) for extent, count in parts.items()}
    extents = [(calls[0].index, _extent(net, calls[0])) for calls in runs(net)]
    return tuple((begin, _grid(net.batch, extent, able[extent])) for begin, extent in extents)


def runs(net: Network) -> Iterator[Sequence[Call]]:
    """Calls that have one grid."""
    for calls in between_sums(net):
        ends = range(1, len(calls)) if len(calls) > LONG else ()
        cuts = [0, *(i for i in ends if _extent(net, calls[i]) != _extent(net, calls[i - 1]))]
        yield from (calls[lo:hi] for lo, hi in zip(cuts, (*cuts[1:], len(calls)), strict=True))


def _nbytes(net: Network, calls: Sequence[Call]) -> int:
    return sum(net.tensors[t].nbytes for t in {t for call in calls for t in call.tensors} if net.tensors[t].per_sample)


def between_sums(net: Network) -> list[tuple[Call, ...]]:
    """The calls that tiles of one grid can pass one after the other."""
    axes = sorted({len(t.shape) - 1 for t in net.tensors.values() if t.per_sample})
    every = (stage for count in axes for stage in stages(net, Proposal("", grids=((0, (1,) * count),))) if stage.grid)
    return sorted((stage.calls for stage in every), key=lambda calls: calls[0].index)


def _extent(net: Network, call: Call) -> tuple[int, ...]:
    """Of what a call reads; of what it makes where it reads nothing of a sample's."""
    return next(net.tensors[t].shape[2:] for t in (*call.reads, *call.makes) if net.tensors[t].per_sample)


def _grid(batch: int, extent: Sequence[int], parts: int) -> Grid:
    """A grid of about so many parts: of samples, then of planes of each."""
    samples = min(batch, 1 << (parts - 1).bit_length())
    planes = min(extent[0], -(-parts // batch))
    return (samples, planes, *(1 for _ in extent[1:]))
