"""micro-cuDNN: everything stays; a convolution whose fast kernel asks for too much workspace is computed for a part of the batch
at a time.

Source: Oyama, Ben-Nun, Hoefler, Matsuoka, "Accelerating Deep Learning Frameworks with Micro-batches", CLUSTER 2018: workspace
division (WD), for a limit of all workspace together choose for each layer one of its undominated (time, workspace) pairs, so
that the sum of times is least; workspace reuse (WR), the same with a limit for each layer. Here layers run one after the other
and share their workspace, so that the limit is one of each layer (WR) and the best choice of each layer is the best of all.
Parts are of powers of two, as with their powerOfTwo; a call then takes parts of the size of the largest one of the division, and
what is left as the last, which are no more. Seconds are the model's, where theirs are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ooc.ir.op import Op
from ooc.networks.calls import Call
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge
from ooc.networks.policies.base import Policy
from ooc.networks.proposal import Proposal
from ooc.ops import Convolution
from ooc.planner.cutting import cheapest


class PartKernel(NamedTuple):
    """A way to compute a part of a batch: seconds, bytes of workspace, its name."""

    seconds: float
    workspace: int
    name: str


class MicroBatches(NamedTuple):
    """How a convolution is computed: parts of so many samples each, a kernel, seconds of all, bytes of workspace."""

    samples: int
    name: str
    seconds: float
    workspace: int


def divide(
    batch: int, kernels: Mapping[int, Sequence[PartKernel]], limit: int
) -> tuple[float, tuple[tuple[int, PartKernel], ...]]:
    """The fastest division of a batch into micro-batches whose workspace keeps within a limit, by dynamic programming:
    T[b] = min(kernel(b), min over s of T[b - s] + kernel(s)). `kernels`: the ways to compute parts of each size. Returns the
    seconds (inf: there is none) and the parts.
    """
    fitting = {size: [k for k in every if k.workspace <= limit] for size, every in kernels.items()}
    ones = [(size, min(every)) for size, every in fitting.items() if every]
    seconds, parts = cheapest(batch, lambda b: ((b - size, one.seconds, (size, one)) for size, one in ones if size <= b))
    return seconds, tuple(part for _, part in parts)


def desirable(choices: Iterable[MicroBatches]) -> list[MicroBatches]:
    """Those that no other one beats in both seconds and workspace, by workspace."""
    undominated: list[MicroBatches] = []
    for choice in sorted(choices, key=lambda c: (c.workspace, c.seconds)):
        if not undominated or choice.seconds < undominated[-1].seconds:
            undominated.append(choice)
    return undominated


def ways(call: Call, costs: CallCosts, batch: int) -> dict[int, list[PartKernel]]:
    """The ways to compute parts of a batch, of powers of two samples and whole: a launch each, and a share of the work."""
    dim, each = call.along or ("n", 1)
    kernels: dict[int, list[PartKernel]] = {}
    for samples in sorted({batch, *(1 << i for i in range(batch.bit_length()))}):
        for whole, _, workspace, name, _ in costs.ways(call.op, {**call.op.dims, dim: samples * each}):
            launch = costs.device.model.compute(f"{call.op.kind}/{call.op.dtype}/{name}").latency_seconds
            kernels.setdefault(samples, []).append(PartKernel(launch + (whole - launch) * samples / batch, workspace, name))
    return kernels


def choices(call: Call, costs: CallCosts, batch: int) -> list[MicroBatches]:
    """The undominated ways to compute a convolution: the best division for every workspace that a kernel asks for."""
    known = ways(call, costs, batch)
    divisions = []
    for limit in sorted({k.workspace for kernels in known.values() for k in kernels}):
        seconds, parts = divide(batch, known, limit)
        if parts:
            samples, kernel = max(parts)
            divisions.append(MicroBatches(samples, kernel.name, seconds, max(k.workspace for _, k in parts)))
    return desirable(divisions)


Table = dict[int, list[MicroBatches]]  # the choices of every convolution, by the index of its call


def table(judge: Judge) -> Table:
    """The choices of all convolutions; equal ones are looked at once."""
    known: dict[Op, list[MicroBatches]] = {}
    by_call: Table = {}
    for call in judge.net.calls:
        if isinstance(call.op, Convolution) and call.along is not None:
            if call.op not in known:
                known[call.op] = choices(call, judge.costs, judge.net.batch)
            by_call[call.index] = known[call.op]
    return by_call


def division(judge: Judge, limit: int, of: Table | None = None) -> Proposal:
    """The fastest choice of every convolution whose workspace is at most `limit` bytes; the leanest where none is. of: the
    choices, where they are known."""
    micro, chosen = [], []
    for index, every in (table(judge) if of is None else of).items():
        fitting = [c for c in every if c.workspace <= limit] or every[:1]
        best = min(fitting, key=lambda c: (c.seconds, -c.samples))
        chosen.append((index, best.name))
        if best.samples < judge.net.batch:
            micro.append((index, best.samples))
    return Proposal(f"workspace of {limit} bytes a layer", kernels="lean", micro=tuple(micro), chosen=tuple(chosen))


def propose(judge: Judge) -> Iterable[Proposal]:
    """The largest limit of workspace with which everything fits."""
    every = table(judge)
    limits = sorted({c.workspace for choices in every.values() for c in choices} | {0}, reverse=True)
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if judge.fits(division(judge, limits[middle], every)):
            high = middle
        else:
            low = middle + 1
    yield division(judge, limits[low], every)
    yield from frugal(judge)


def frugal(judge: Judge) -> Iterable[Proposal]:
    """No workspace beyond the least."""
    yield division(judge, 0)


MICRO_CUDNN = Policy("micro_cudnn", "micro-cuDNN (Oyama et al., CLUSTER 2018)", propose, frugal, whole=True)
