"""SmartPool: nothing moves; memory is a colouring of intervals worked out before the first step.

Source: Zhang, Yeung, Shu, He, Wang, "Efficient Memory Management for GPU-based Deep Learning Systems", 2019, section 3:
by size, then by begin, each in the smallest gap between those that live at the same time (best fit), or in the lowest.
Their code leaves the gap below the first neighbour out when there are several; here it counts. Lifetimes are known, as the
graph is, so that no trace of an iteration is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from ooc.networks.judge import Judge
from ooc.networks.policies.base import Policy, room_beside
from ooc.networks.proposal import Proposal


def propose(judge: Judge) -> Iterable[Proposal]:
    """Best fit, then first fit, with the fastest kernels, those whose workspace fits, the leanest."""
    for kernels in ("fastest", room_beside(judge, Proposal("lean", kernels="lean")), "lean"):
        yield Proposal(f"best fit, {kernels.partition(':')[0]} kernels", space="colour", kernels=kernels)
        yield Proposal(f"first fit, {kernels.partition(':')[0]} kernels", space="first", kernels=kernels)


def frugal(judge: Judge) -> Iterable[Proposal]:
    """Either fit, with the leanest kernels."""
    yield Proposal("best fit, lean kernels", space="colour", kernels="lean")
    yield Proposal("first fit, lean kernels", space="first", kernels="lean")


SMARTPOOL = Policy("smartpool", "SmartPool (Zhang et al., 2019)", propose, frugal, whole=True)
