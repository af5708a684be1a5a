"""When loads are issued: the windows of a proposal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

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


def earlier(items: Sequence[Item], ahead: int, begins: Sequence[int] | None = None) -> list[Item]:
    """Every load so many parts before the one that it was issued for, but after what makes or stores its tensor. begins: runs
    before each part; default: each run is one."""
    begins = range(sum(item.what == "run" for item in items)) if begins is None else begins
    fixed: list[Item] = []
    floor: dict[str, list[tuple[Span | None, int]]] = {}  # where loads of samples of a tensor may come first
    runs: list[int] = []  # places of runs; loads are put in before one
    before: dict[int, list[Item]] = {}
    for item in items:
        if item.what == "load":
            (instance,) = item.makes
            first = _first(floor.get(instance.tensor, ()), instance)
            part = bisect_right(begins, len(runs)) - 1 - ahead
            run = begins[part] if 0 <= part < len(begins) else 0 if part < 0 else len(runs)
            at = max(runs[run] if run < len(runs) else len(fixed), first)
            before.setdefault(at, []).append(item)
            continue
        if item.what == "run":
            runs.append(len(fixed))
        fixed.append(item)
        for instance in item.reads if item.what == "store" else item.makes:  # a run may write at home, too
            samples = instance.part[0] if instance.part is not None else None
            before_it = [] if samples is None else [one for one in floor.get(instance.tensor, ()) if one[0] != samples]
            floor[instance.tensor] = [*before_it, (samples, len(fixed))]
    listed = []
    for i, item in enumerate(fixed):
        listed += [*before.pop(i, ()), item]
    return [*listed, *(item for some in before.values() for item in some)]


def _first(floor: Sequence[tuple[Span | None, int]], instance: Instance) -> int:
    """Where what an instance is made of is there."""
    if instance.part is None:
        return max((at for _, at in floor), default=0)
    mine = instance.part[0]
    return max((at for samples, at in floor if samples is None or (samples.lo < mine.hi and mine.lo < samples.hi)), default=0)
