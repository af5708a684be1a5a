"""When loads are issued: the windows of a proposal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ooc.ir.region import Span
from ooc.networks.calls import Call, Network
from ooc.networks.items import Instance, Item
from ooc.networks.proposal import Proposal


def place_loads(
    net: Network, proposal: Proposal, calls: Sequence[Call], needs: Mapping[int, Sequence[str | Call]]
) -> dict[int, list[str]]:
    """Before which call each load is issued: not after the one that needs it."""
    demand = {what: index for index, missing in needs.items() for what in missing if isinstance(what, str)}
    start = {c.layer: c.index for c in reversed(calls)}
    layers = list(dict.fromkeys(c.layer for c in calls))  # in the order of the backward pass
    layer_of = {c.index: c.layer for c in calls}
    at: dict[str, int] = {}
    if proposal.window == "layer":
        place = {layer: i for i, layer in enumerate(layers)}
        for name, index in demand.items():
            position = place[layer_of[index]]
            at[name] = start[layers[max(0, position - proposal.ahead)]]
    elif proposal.window == "vdnn":
        at = vdnn_window(net, layers, start, demand, layer_of)
    elif proposal.window == "at":
        at = {name: index for name, index in proposal.issue if name in demand and index in layer_of}
    loads: dict[int, list[str]] = {}
    for name, index in demand.items():
        loads.setdefault(min(index, at.get(name, index)), []).append(name)
    return loads


def vdnn_window(
    net: Network, layers: Sequence[str], start: Mapping[str, int], demand: Mapping[str, int], layer_of: Mapping[int, str]
) -> dict[str, int]:
    """vDNN's search: at the start of each layer's backward pass the layers before it are looked at, the nearest first: one that
    waits for its input gets it, and a convolution that does not ends the search.

    Source: vDNN, findPrefetchLayer as vDNN++'s authors have it.
    """
    waiting: dict[str, list[str]] = {}
    for name, index in demand.items():
        waiting.setdefault(layer_of[index], []).append(name)
    kinds = {node.name: node.layer.kind for node in net.graph.nodes}
    issued: dict[str, int] = {}
    for i, layer in enumerate(layers):
        for before in layers[i + 1 :]:
            names = waiting.pop(before, None)
            if names:
                issued |= dict.fromkeys(names, start[layer])
                break
            if kinds.get(before) in ("conv", "conv_transpose"):
                break
    return issued


class PlacedLoad(NamedTuple):
    """A load of a program.

    Fields:
        item: it.
        run: runs that are issued before what it was issued for.
        floor: the place, among all items but loads, before which what it brings is not at home yet.
    """

    item: Item
    run: int
    floor: int


class Loads(NamedTuple):
    """The loads of a program, apart from all else.

    Fields:
        others: items that are no loads, in order.
        runs: places of runs among them.
        loads: in the order in which they are issued.
    """

    others: list[Item]
    runs: list[int]
    loads: list[PlacedLoad]

    def place(self, load: PlacedLoad, run: int) -> int:
        """The place of a load that is issued before a run, but after what makes or stores its tensor."""
        return max(self.runs[max(0, run)] if run < len(self.runs) else len(self.others), load.floor)


def apart(items: Sequence[Item]) -> Loads:
    """Loads, and all else."""
    others: list[Item] = []
    floor: dict[str, list[tuple[Span | None, int]]] = {}  # where loads of samples of a tensor may come first
    runs, loads = list[int](), list[PlacedLoad]()
    for item in items:
        if item.what == "load":
            (instance,) = item.makes
            loads.append(PlacedLoad(item, len(runs), _first(floor.get(instance.tensor, ()), instance)))
            continue
        if item.what == "run":
            runs.append(len(others))
        others.append(item)
        for instance in item.reads if item.what == "store" else item.makes:  # a run may write at home, too
            samples = instance.part[0] if instance.part is not None else None
            before_it = [] if samples is None else [one for one in floor.get(instance.tensor, ()) if one[0] != samples]
            floor[instance.tensor] = [*before_it, (samples, len(others))]
    return Loads(others, runs, loads)


def earlier(items: Sequence[Item], proposal: Proposal, begins: Sequence[int]) -> list[Item]:
    """Every load as many runs, or parts, before what it was issued for as a proposal says. begins: runs before each part."""
    program, before = apart(items), dict[int, list[Item]]()
    for load, run in zip(program.loads, _runs(program, proposal, begins), strict=True):
        before.setdefault(program.place(load, run), []).append(load.item)
    listed = []
    for i, item in enumerate(program.others):
        listed += [*before.pop(i, ()), item]
    return [*listed, *(item for some in before.values() for item in some)]


def _runs(program: Loads, proposal: Proposal, begins: Sequence[int]) -> Iterator[int]:
    """The run before which each load is issued."""
    for i, load in enumerate(program.loads):
        if proposal.window == "parts":
            part = bisect_right(begins, load.run) - 1 - proposal.ahead
            yield begins[part] if 0 <= part < len(begins) else 0 if part < 0 else len(program.runs)
        elif proposal.window == "runs":
            yield load.run - proposal.ahead
        else:
            yield load.run - (proposal.early[i] if i < len(proposal.early) else 0)


def _first(floor: Sequence[tuple[Span | None, int]], instance: Instance) -> int:
    """Where what an instance is made of is there."""
    if instance.part is None:
        return max((at for _, at in floor), default=0)
    mine = instance.part[0]
    return max((at for samples, at in floor if samples is None or (samples.lo < mine.hi and mine.lo < samples.hi)), default=0)
