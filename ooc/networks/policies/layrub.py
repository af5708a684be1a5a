"""Layrub: blocks of memory taken in turn, gradients over the data that they are of, all else moved a layer ahead.

Source: Jin, Liu, Jiang, Ma, Shi, He, Zhao, "Layer-Centric Memory Reuse and Data Migration for Extreme-Scale Deep Learning on
Many-Core Architectures", TACO 15(3), 2018, and its code: inter-layer reuse (a block whose references ended is taken again),
intra-layer reuse (a layer's bottom diff over its bottom data), migration (a layer's inputs leave when nobody reads them, and
come back while the layer behind runs, both streams waiting at every layer). What layers make takes the blocks; all else lies over
them by its lifetime, so that temporaries of a kind share bytes, as theirs do. Blocks are there all the time, as large as the
largest layers: where they would take more than keeping everything does, as with VGG16, bytes are coloured. A ReLU's mask needs no
buffer here: gradients of activations are taken from their outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ooc.networks.calls import Network
from ooc.networks.judge import Judge
from ooc.networks.layers import LOSSES
from ooc.networks.policies.base import KEPT, Policy, layer_inputs, room_beside
from ooc.networks.proposal import Fate, Proposal

# Kinds of layers whose bottom diff may lie over their bottom data, and of those that made that data.
OVER = frozenset(("linear", "pool", "global_pool", "conv", "concat", "add", *LOSSES))
PRODUCERS = frozenset(("linear", "pool", "global_pool", "conv", "concat", "add"))


def aliases(net: Network) -> tuple[tuple[str, str], ...]:
    """Pairs (data, its gradient) that may share bytes, by the kinds of the layer that reads the data and of the one that made
    it; honoured where nobody reads the data when the gradient is made: that of a convolution's filter is made before."""
    nodes = {node.name: node for node in net.graph.nodes}
    pairs = []
    for call in net.backward:
        for name in nodes[call.layer].reads if call.kind in OVER else ():
            data, gradient = net.resolve(name), f"d.{name}"
            if data in net.backward_readers and data in net.makers and net.makers[data].kind in PRODUCERS:
                pairs += [(data, t) for t in call.makes if t == gradient or t.startswith((f"{gradient}/", f"{gradient}'"))]
    return tuple(dict.fromkeys(pairs))


def proposals(judge: Judge, kernels: tuple[str, ...]) -> Iterable[Proposal]:
    """With blocks in turn, where these take no more than keeping everything, and with colours."""
    net = judge.net
    fates = dict.fromkeys(layer_inputs(net), Fate.OFFLOAD)
    for how in kernels:
        coloured = Proposal(
            f"migrate, colour, {how} kernels", fates, window="layer", ahead=1, barrier=True, kernels=how, over=aliases(net),
            patient=False,
        )  # fmt: skip
        rotating = replace(coloured, label=f"migrate, rotate, {how} kernels", space="rotate")
        if judge.needs(rotating) <= judge.needs(replace(KEPT, kernels=how)):
            yield rotating
        yield coloured


def propose(judge: Judge) -> Iterable[Proposal]:
    """The fastest kernels, then those whose workspace fits, then the leanest."""
    yield from proposals(judge, ("fastest",))
    least = min(proposals(judge, ("lean",)), key=judge.needs)
    yield replace(least, kernels=room_beside(judge, least))
    yield from proposals(judge, ("lean",))


LAYRUB = Policy("layrub", "Layrub (Jin et al., TACO 2018)", propose, lambda judge: proposals(judge, ("lean",)))
