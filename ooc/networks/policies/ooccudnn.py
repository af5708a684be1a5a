"""ooc_cuDNN: tensors take places on the device first come, first served; the others live at home, and every call that touches one
of them is cut into tiles that stream it.

Source: Ito, Matsumiya, Endo, "ooc_cuDNN: Accommodating Convolutional Neural Networks over GPU Memory Capacity", IEEE Big Data
2017, and its code, ooc_cudaMalloc: a tensor gets a place on the device while what is left of 90 % of its memory holds it, else
one in pinned memory of the host; nothing moves between the two, nothing is computed again, calls run one after the other, the
gradients of a convolution, with those of its activation and pooling, as one. Tiles, and the workspace of calls whose tensors all
have a place, share the rest. Where it departs: a call's first copies may begin while the one before ends; and where the rest is
too little a smaller share is given away.
"""

from __future__ import annotations

from collections.abc import Iterable

from ooc.errors import OptionError, shown
from ooc.ir.op import aligned
from ooc.networks.calls import Network
from ooc.networks.fusing import gradient_runs
from ooc.networks.judge import Judge
from ooc.networks.policies.base import KEPT, Policy
from ooc.networks.proposal import Fate, Proposal

SHARE = 0.9  # of the memory that is given away
LESS = (1.0, 0.75, 0.5, 0.25)  # of that share, where all of it does not fit


def placed(net: Network, limit: float) -> list[str]:
    """The tensors that get a place in so many bytes, asked for in the order of their first use. What no call touches any more
    gives its place back; what lasts never does, and has it from the begin of a step on."""
    last = {t: call.index for call in net.calls for t in call.tensors}
    known: set[str] = set()
    places: dict[str, int] = {}
    free = least = limit  # now, and at any time so far
    for call in net.calls:
        for t in (t for t in call.tensors if t not in known):
            known.add(t)
            nbytes, lasting = int(aligned(net.tensors[t].nbytes)), net.tensors[t].role.lasting
            if nbytes <= (least if lasting else free):
                places[t] = nbytes
                free -= nbytes
                least = min(free, least - nbytes if lasting else least)
        free += sum(places.get(t, 0) for t in call.tensors if last[t] == call.index and not net.tensors[t].role.lasting)
    return list(places)


def first_come(judge: Judge, budget: int, share: float) -> Proposal:
    """First come, first served, up to a share of the budget; workspace takes what is left."""
    runs = tuple(gradient_runs(judge.net))
    net = judge.network(Proposal("fused", fused=runs))
    names = placed(net, share * budget)
    label = f"{len(names)} of {len(net.tensors)} tensors in {share:.0%} of the memory"
    room = int((1 - share) * budget)
    return Proposal(label, dict.fromkeys(names, Fate.KEEP), Fate.STREAM, kernels=f"fitting:{room}", fused=runs)


def propose(judge: Judge, share: float = SHARE) -> Iterable[Proposal]:
    """The share, less of it, nothing on the device."""
    check(share)
    if judge.budget is None:
        yield Proposal("all tensors on the device")
        return
    for less in LESS:
        yield first_come(judge, judge.budget, share * less)
    yield from frugal(judge, share)


def frugal(judge: Judge, share: float = SHARE) -> Iterable[Proposal]:
    """Nothing on the device; or everything, where what lives at home counts, too."""
    check(share)
    yield Proposal("no tensor on the device", others=Fate.STREAM)
    yield KEPT


def check(share: float) -> None:
    """Raise OptionError for what is no share."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise OptionError(f"policy ooc_cudnn: share={shown(share)}: expected a number above 0, at most 1")


OOC_CUDNN = Policy("ooc_cudnn", "ooc_cuDNN (Ito et al., IEEE Big Data 2017)", propose, frugal, options=("share",), streams=True)
