"""A proposal as a flat program: run, load, store, fence, on instances of tensors. Liveness only: no bytes, no times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooc.cache import cached_property
from ooc.networks.calls import Network
from ooc.networks.chain_items import ChainItems
from ooc.networks.items import Instance, Item
from ooc.networks.loads import earlier
from ooc.networks.proposal import Proposal
from ooc.networks.sharing import shared


@dataclass(frozen=True)
class Program:
    """The items of a step, in the order of issue.

    Fields:
        items: all of them.
        storage: the instance whose bytes another one takes over, by the other one.
        views: the instance of which another one is some samples, by the other one.
        cuts: between which samples tensors may be cut into pieces that all chains respect, by tensor; of others everywhere.
        runs: runs before each stage.
    """

    items: tuple[Item, ...]
    storage: Mapping[Instance, Instance]
    views: Mapping[Instance, Instance] = field(default_factory=dict)
    cuts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    runs: tuple[int, ...] = ()

    def holder(self, instance: Instance) -> Instance:
        """The first of those that share an instance's bytes, all of them."""
        instance = self.views.get(instance, instance)
        while instance in self.storage:
            instance = self.storage[instance]
        return instance

    @cached_property
    def stage_of(self) -> Any:
        """The number of every item's stage."""
        run = np.cumsum([item.what == "run" for item in self.items])
        return np.searchsorted(self.runs, np.maximum(run, 1), "left") - 1

    def most(self, load: Any) -> Any:
        """The most of what there is at every item, stage by stage."""
        most = np.zeros(len(self.runs), np.int64)
        np.maximum.at(most, self.stage_of, load)
        return most

    @cached_property
    def lives(self) -> dict[Instance, tuple[int, int]]:
        """The first and the last item that touch what holds an instance."""
        lives: dict[Instance, tuple[int, int]] = {}
        for i, item in enumerate(self.items):
            for instance in item.touches:
                holder = self.holder(instance)
                lives[holder] = (lives[holder][0], i) if holder in lives else (i, i)
        return lives


def program(net: Network, proposal: Proposal, brief: bool = False) -> Program:
    """The program of a proposal. brief: of few parts of the batch, see `Stage.parts`; as much is in use at once."""
    writing = ChainItems(net, proposal, brief)
    items = writing.step()
    if proposal.window in ("runs", "parts", "listed"):
        items = earlier(items, proposal, writing.begins)
    return Program(tuple(items), shared(net, items, writing.views), writing.views, writing.cuts, tuple(writing.runs))
