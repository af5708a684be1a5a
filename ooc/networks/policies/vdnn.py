"""vDNN: what layers read leaves while they run, and comes back one layer ahead.

Source: Rhu, Gimelshein, Clemons, Zulfiqar, Keckler, "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient
Neural Network Design", MICRO 2016; the search window as vDNN++'s authors have it (findPrefetchLayer).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ooc.networks.calls import Network
from ooc.networks.judge import Judge
from ooc.networks.layers import LOSSES
from ooc.networks.policies.base import Policy, layer_inputs, room_beside
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.tensors import Role

CONVOLUTIONS = ("conv", "conv_transpose")
IN_PLACE = ("activation", "softmax", "flatten", "dropout", *LOSSES)  # layers whose input stays


def candidates(net: Network, kinds: Sequence[str] | None) -> dict[str, Fate]:
    """Inputs of layers of these kinds (None: of all but those that work in place) that leave. What the network's last layer
    that is not in place reads is needed again at once and stays, whatever the kinds; the batch itself is not stored, it is read
    again from where the caller has it."""
    every = [n for n in net.graph.nodes if n.layer.kind not in IN_PLACE]
    layer_kinds = kinds if kinds is not None else [n.layer.kind for n in every]
    names = layer_inputs(net, set(layer_kinds))
    last = {net.resolve(t) for t in every[-1].reads} if every else set()
    return {t: Fate.OFFLOAD for t in names if t not in last or net.tensors[t].role is Role.INPUT}


def rung(net: Network, kinds: Sequence[str] | None, kernels: str, label: str) -> Proposal:
    """One proposal: `kernels` "lean" is the paper's (m), "fastest" its (p)."""
    return Proposal(label, candidates(net, kinds), window="vdnn", barrier=True, kernels=kernels, patient=False)


def every(judge: Judge) -> Iterable[Proposal]:
    """vDNN_all: inputs of all layers, (p) then (m)."""
    yield rung(judge.net, None, "fastest", "all (p)")
    yield rung(judge.net, None, "lean", "all (m)")


def convolutions(judge: Judge) -> Iterable[Proposal]:
    """vDNN_conv: inputs of convolutions alone, (p) then (m)."""
    yield rung(judge.net, CONVOLUTIONS, "fastest", "conv (p)")
    yield rung(judge.net, CONVOLUTIONS, "lean", "conv (m)")


def ladder(judge: Judge) -> Iterable[Proposal]:
    """vDNN_dyn: all (m) must fit; then none (p), conv (p), all (p), conv and all with the fastest kernels whose workspace fits,
    conv (m), all (m): the first that does."""
    net = judge.net
    yield Proposal("none (p)", kernels="fastest")
    yield rung(net, CONVOLUTIONS, "fastest", "conv (p)")
    yield rung(net, None, "fastest", "all (p)")
    for kinds, name in ((CONVOLUTIONS, "conv"), (None, "all")):
        yield rung(net, kinds, room_beside(judge, rung(net, kinds, "lean", f"{name} (m)")), f"{name} (greedy)")
    yield rung(net, CONVOLUTIONS, "lean", "conv (m)")
    yield rung(net, None, "lean", "all (m)")


PAPER = "vDNN (Rhu et al., MICRO 2016)"
VDNN_ALL = Policy("vdnn_all", PAPER, every, lambda judge: (rung(judge.net, None, "lean", "all (m)"),))
VDNN_CONV = Policy("vdnn_conv", PAPER, convolutions, lambda judge: (rung(judge.net, CONVOLUTIONS, "lean", "conv (m)"),))
VDNN_DYN = Policy(
    "vdnn_dyn", PAPER, ladder,
    lambda judge: (
        rung(judge.net, None, "lean", "all (m)"), rung(judge.net, CONVOLUTIONS, "lean", "conv (m)"),
        Proposal("none (m)", kernels="lean"),
    ),
)  # fmt: skip
