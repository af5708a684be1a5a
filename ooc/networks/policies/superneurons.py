"""SuperNeurons: what is cheap is computed again between checkpoints, which leave when memory asks for it.

Source: Wang, Ye, Zhao, Wu, Li, Song, Xu, Kraska, "SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural Networks",
PPoPP 2018, and its code: liveness analysis; a tensor cache that evicts the least recently used checkpoint under pressure; cost
aware recomputation: what lies between two checkpoints is made again once and kept where that takes no more than the largest
layer, else made again for every use; the fastest convolution whose workspace fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ooc.networks.calls import BACKWARD, Network
from ooc.networks.judge import Judge
from ooc.networks.layers import LOSSES
from ooc.networks.policies.base import Policy, room_beside
from ooc.networks.proposal import Fate, Proposal

# Kinds of layers whose results are kept. Sums, too, which their list may have: to make one of a residual network again takes
# the one before it, and so on back to the first.
CHECKPOINTS = ("conv", "conv_transpose", "linear", "add", *LOSSES)


def layer_peak(net: Network) -> int:
    """Bytes of the largest working set of a layer's backward pass."""
    sizes: dict[str, set[str]] = {}
    for call in net.calls:
        if call.phase == BACKWARD:
            sizes.setdefault(call.layer, set()).update(call.tensors)
    return max((sum(net.tensors[t].nbytes for t in names) for names in sizes.values()), default=0)


def segments(net: Network) -> list[list[str]]:
    """Activations that the backward pass reads, between one checkpoint and the next."""
    every = set(checkpoints(net))
    groups: list[list[str]] = [[]]
    for t in net.kept:
        if t in every:
            groups.append([])
        else:
            groups[-1].append(t)
    return [s for s in groups if s]


def checkpoints(net: Network) -> list[str]:
    """Results that are kept or leave, the least recently used first: of such layers, and where the backward pass does not read
    these, of the layers behind them that it does read, which would have to compute them again."""
    dear: dict[str, bool] = {}
    for call in net.forward:
        gone = (t for t in call.reads if t not in net.backward_readers)
        is_dear = call.kind in CHECKPOINTS or any(dear.get(t, False) for t in gone)
        dear |= dict.fromkeys(call.makes, is_dear)
    return [t for t in net.kept if dear[t]]


def plan_with(judge: Judge, evicted: int, kernels: str) -> Proposal:
    """Recomputation between checkpoints, of which the first ones leave."""
    net, most = judge.net, layer_peak(judge.net)
    fates: dict[str, Fate] = {}
    anew: set[str] = set()
    for segment in segments(net):
        fates |= dict.fromkeys(segment, Fate.RECOMPUTE)
        if sum(net.tensors[t].nbytes for t in segment) > most:
            anew |= set(segment)
    every = checkpoints(net)
    fates |= dict.fromkeys(every[:evicted], Fate.OFFLOAD)
    label = f"recompute {len(fates) - evicted}, evict {evicted} of {len(every)} checkpoints"
    return Proposal(label, fates, window="demand", again=frozenset(anew), kernels=kernels, patient=True)


def propose(judge: Judge) -> Iterable[Proposal]:
    """The fewest evictions with which it fits, then the fastest kernels for what is left."""
    low, high = 0, len(checkpoints(judge.net))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if judge.fits(plan_with(judge, middle, "lean")) else (middle + 1, high)
    lean = plan_with(judge, low, "lean")
    yield replace(lean, kernels=room_beside(judge, lean))
    yield lean
    yield from frugal(judge)


def frugal(judge: Judge) -> Iterable[Proposal]:
    """Every checkpoint leaves."""
    yield plan_with(judge, len(checkpoints(judge.net)), "lean")


SUPERNEURONS = Policy("superneurons", "SuperNeurons (Wang et al., PPoPP 2018)", propose, frugal)
