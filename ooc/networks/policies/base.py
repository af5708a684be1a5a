"""What a policy is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ooc.networks.calls import Network
from ooc.networks.judge import Judge, fastest
from ooc.networks.proposal import Proposal
from ooc.networks.tensors import Role

KEPT = Proposal("keep", kernels="lean")


@dataclass(frozen=True)
class Policy:
    """A way to choose the fates of a network's tensors.

    Fields:
        name: as `Graph.plan` takes it.
        paper: where it is from.
        propose: what it proposes on a device under a budget, in its order of preference: f(judge, **options).
        frugal: what it proposes whatever the budget, f(judge, **options); the least of these is its smallest budget.
        first_fits: whether the first proposal that fits is taken; else the one that is predicted fastest.
        options: names of the options that it takes.
        whole: whether nothing ever leaves or is made again.
        streams: whether all that it proposes streams calls or keeps everything, so that what moves is known before tiles are
            planned.
        variants: options with which auto asks it, those that it has by default first.
    """

    name: str
    paper: str
    propose: Callable[..., Iterable[Proposal]]
    frugal: Callable[..., Iterable[Proposal]]
    first_fits: bool = True
    options: tuple[str, ...] = ()
    whole: bool = False
    streams: bool = False
    variants: tuple[Mapping[str, str], ...] = ({},)

    def hopeless(self, judge: Judge) -> bool:
        """Whether no proposal can fit, as far as it is known before any is made: what is in use at once is too much."""
        return self.whole and judge.budget is not None and judge.trial(KEPT).at_once > judge.budget

    def least(self, judge: Judge, **options: Any) -> Proposal:
        """What it proposes that takes the fewest bytes."""
        return min(self.frugal(judge, **options), key=judge.needs)

    def best(self, judge: Judge, **options: Any) -> Proposal:
        """What it takes under the judge's budget; where nothing fits, the least."""
        proposals = self.propose(judge, **options)
        proposal = next(filter(judge.fits, proposals), None) if self.first_fits else fastest(judge, proposals)
        return proposal if proposal is not None else self.least(judge, **options)


def offloadable(net: Network) -> list[str]:
    """Activations and inputs of the batch that the backward pass reads, in the order in which the forward pass meets them."""
    names: dict[str, None] = {}
    for call in net.forward:
        for name in call.tensors:
            tensor = net.tensors[name]
            if tensor.per_sample and name in net.backward_readers and tensor.role in (Role.ACTIVATION, Role.INPUT):
                names[name] = None
    return list(names)


def layer_inputs(net: Network, kinds: Any = None) -> list[str]:
    """Inputs of layers that the backward pass reads, in order; kinds: of the layers, default all."""
    names: dict[str, None] = {}
    for node in net.graph.nodes:
        if kinds is None or node.layer.kind in kinds:
            for name in map(net.resolve, node.reads):
                if name in net.backward_readers and net.tensors[name].per_sample:
                    names[name] = None
    return list(names)


def sizes(batch: int) -> list[int]:
    """Samples of parts of a batch, from the whole batch down: those that differ in their number of parts."""
    return sorted({-(-batch // parts) for parts in range(1, batch + 1)}, reverse=True)


def room_beside(judge: Judge, lean: Proposal, brief: bool = False) -> str:
    """The rule of kernels for workspace of what a proposal with the leanest ones leaves of the budget. brief: see
    `Judge.trial`."""
    if judge.budget is None:
        return "fastest"
    trial = judge.trial(lean, brief)
    taken = trial.lowering.needs(trial.within(judge.budget) or trial.layout)
    return f"fitting:{max(0, judge.budget - taken)}"
