"""When loads are issued: the windows of a proposal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ooc.networks.calls import Call, Network
from ooc.networks.items import Item
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


def earlier(items: Sequence[Item], ahead: int) -> list[Item]:
    """Every load so many runs before the one that it was issued for, but after what makes or stores its tensor."""
    fixed: list[Item] = []
    floor: dict[str, int] = {}  # where a load of a tensor may come first
    runs: list[int] = []  # places of runs; loads are put in before one
    before: dict[int, list[Item]] = {}
    for item in items:
        if item.what == "load":
            name = item.makes[0].tensor
            at = max(runs[-ahead] if 0 < ahead <= len(runs) else 0 if ahead else len(fixed), floor.get(name, 0))
            before.setdefault(at, []).append(item)
            continue
        if item.what == "run":
            runs.append(len(fixed))
        fixed.append(item)
        for instance in item.reads if item.what == "store" else item.makes:  # a run may write at home, too
            floor[instance.tensor] = len(fixed)
    listed = []
    for i, item in enumerate(fixed):
        listed += [*before.pop(i, ()), item]
    return [*listed, *(item for some in before.values() for item in some)]
