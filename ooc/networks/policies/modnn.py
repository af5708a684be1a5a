"""moDNN: the whole step for a part of the batch at a time; gradients add up to those of the batch.

Source: Chen, Chen, Hu, "moDNN: Memory Optimal DNN Training on GPUs", DATE 2018: sub-batches that do not change the result,
their size the largest that fits with the fastest kernels, found by halving. Where it departs: nothing leaves inside a sub-batch
(theirs offloads there too), and kernels are not traded for a larger one.
"""

from __future__ import annotations

from collections.abc import Iterable

from ooc.errors import UnsupportedError
from ooc.networks.judge import Judge
from ooc.networks.policies.base import Policy, sizes
from ooc.networks.proposal import Proposal


def check(judge: Judge) -> None:
    """Raise UnsupportedError where a sub-batch would change the result: statistics over the whole batch."""
    net = judge.net
    whole = next((c for c in net.calls if c.phase != "update" and c.along is None), None)
    if net.mode.trains and whole is not None:
        raise UnsupportedError(
            f"policy modnn: {net.graph.name}: {whole.layer} ({whole.kind}) takes statistics over the whole batch, a part of it "
            "has others; choose a policy without sub-batches"
        )


def propose(judge: Judge) -> Iterable[Proposal]:
    """The largest sub-batch that fits with the fastest kernels; of one sample with the leanest."""
    check(judge)
    for size in those_that_fit(judge):
        yield Proposal(f"sub-batches of {size}", bands=((0, size),), kernels="fastest")
    yield from frugal(judge)


def those_that_fit(judge: Judge) -> list[int]:
    """The sub-batches that fit, found by halving, as what a part takes grows with it; as far as a few parts of the batch tell."""
    every = sizes(judge.net.batch)
    low, high = 0, len(every)
    while low < high:
        middle = (low + high) // 2
        parts = Proposal(f"sub-batches of {every[middle]}", bands=((0, every[middle]),), kernels="fastest")
        if judge.fits(parts, brief=True):
            high = middle
        else:
            low = middle + 1
    return every[low:]


def frugal(judge: Judge) -> Iterable[Proposal]:
    """One sample at a time, leanest kernels."""
    check(judge)
    yield Proposal("sub-batches of 1, lean kernels", bands=((0, 1),), kernels="lean")


MODNN = Policy("modnn", "moDNN (Chen et al., DATE 2018)", propose, frugal)
