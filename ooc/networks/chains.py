"""Chains: calls that tiles of the batch and of space pass one after the other. Each tile takes with it the halo that the calls
behind it need, which its neighbours compute again; what is summed over all positions takes the share of each tile once.

Source: halo recomputed instead of moved, as in Alwani, Chen, Ferdman, Milder, "Fused-layer CNN accelerators", MICRO 2016.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from ooc.ir.op import Operand
from ooc.ir.region import Along, Region, Span, Tile, elements, whole
from ooc.networks.calls import UPDATE, Call, Network

Grid = tuple[int, ...]  # parts along the batch, and along every spatial axis


class ChainPart(NamedTuple):
    """What a tile of a chain is.

    Fields:
        regions: of every tensor of the batch that it touches.
        tiles: the loop spans of every call that it computes, by the call's index.
    """

    regions: dict[str, Region]
    tiles: dict[int, dict[str, Span]]


def chainable(net: Network, call: Call) -> bool:
    """Whether a region of what a call makes needs a region of what it reads alone: no sum along the batch or space."""
    op, tensors = call.op, [net.tensors[t] for t in call.makes]
    if call.phase == UPDATE or call.along is None or any(len(t.shape) < 3 or not t.per_sample for t in tensors):
        return False
    if not _alike(net, call):
        return False
    outputs = [o.axes for o in op.outputs]
    runs = [axis for axes in outputs for i, axis in enumerate(axes) if i != 1]
    if not all(isinstance(axis, Along) for axis in runs) or len({axes[:1] + axes[2:] for axes in outputs}) > 1:
        return False
    cut = {dim for axis in runs for dim in axis.dims}
    return not any(cut & {*fold.reduce, *fold.idle} for fold in op.folds)


def summing(net: Network, call: Call) -> str:
    """What a call sums over the batch and space, if it makes nothing else: a tensor that it reads, each value of which is met in
    one position of its loops. "": it does not."""
    if call.phase == UPDATE or any(net.tensors[t].per_sample for t in call.makes) or not _alike(net, call):
        return ""
    reduced = [set(fold.reduce) for fold in call.op.folds]
    for operand, name in zip(call.op.inputs, call.reads, strict=True):
        axes = [axis for i, axis in enumerate(operand.axes) if i != 1]
        if net.tensors[name].per_sample and len(axes) > 1 and all(isinstance(axis, Along) for axis in axes):
            dims = {dim for axis in axes for dim in axis.dims}
            return name if reduced and all(dims <= some for some in reduced) else ""
    return ""


def passable(net: Network, call: Call) -> bool:
    """Whether tiles of the batch and of space can pass a call."""
    return chainable(net, call) or bool(summing(net, call))


def _alike(net: Network, call: Call) -> bool:
    """Whether a call sees all tensors of the batch with their own axes."""
    pairs = zip(call.op.operands, (*call.reads, *call.makes), strict=True)
    return all(net.tensors[name].shape == operand.shape for operand, name in pairs if net.tensors[name].per_sample)


def tile_of(operand: Operand, region: Region) -> dict[str, Span]:
    """The loop spans, of the batch and of space, that touch a region of an operand."""
    return {axis.dims[0]: span for i, (axis, span) in enumerate(zip(operand.axes, region, strict=True)) if i != 1}


def parts(
    net: Network, calls: Sequence[Call], grid: Grid, leaving: Collection[str], cells: Sequence[Grid] = ()
) -> Iterator[ChainPart]:  # fmt: skip
    """The parts of a chain, in order. leaving: tensors that it makes for others, each in shares that are all of it. cells: the
    places of those that are wanted; (): all."""
    sums = {call.index: call.op.inputs[call.reads.index(name)] for call in calls if (name := summing(net, call))}
    for at in cells or itertools.product(*map(range, grid)):
        yield _part(net, calls, grid, leaving, at, sums)


def _part(
    net: Network, calls: Sequence[Call], grid: Grid, leaving: Collection[str], at: Sequence[int], sums: Mapping[int, Operand]
) -> ChainPart:  # fmt: skip
    """One part of a chain: the regions that its shares of what leaves need, from the last call to the first. sums: what calls
    sum, by their index."""
    regions: dict[str, Region] = {}
    tiles: dict[int, dict[str, Span]] = {}
    behind = ChainPart(regions, tiles)
    for call in reversed(calls):
        if operand := sums.get(call.index):
            if elements(region := share(operand.shape, grid, at)):
                _reach(net, behind, call, tile_of(operand, region))
        else:
            lengthen(net, behind, call, {t: share(net.tensors[t].shape, grid, at) for t in call.makes if t in leaving})
    return behind


def lengthen(net: Network, behind: ChainPart, call: Call, leaves: Mapping[str, Region], in_tiles: bool = True) -> None:
    """Put a call in front of those that a part has: what they need of it, and what leaves it besides. in_tiles: it is chainable;
    otherwise all of it is computed."""
    regions = behind.regions
    for name, region in leaves.items():
        _add(regions, name, region)
    outputs = [regions[t] for t in call.makes if t in regions]
    if not outputs or not elements(outputs[0]):
        return
    if not in_tiles:
        _reach(net, behind, call, {})
        return
    cut = tile_of(call.op.outputs[0], outputs[0])
    for other in outputs[1:]:
        cut = {dim: hull(span, cut[dim]) for dim, span in tile_of(call.op.outputs[0], other).items()}
    _reach(net, behind, call, cut)


def _reach(net: Network, behind: ChainPart, call: Call, cut: dict[str, Span]) -> None:
    """Add what a call needs to compute some of its loops; {}: all of them."""
    regions = behind.regions
    tile: Tile = {dim: Span(0, extent) for dim, extent in call.op.dims.items()} | cut
    if cut:
        behind.tiles[call.index] = cut
    for operand, name in zip(call.op.operands, (*call.reads, *call.makes), strict=True):
        tensor = net.tensors[name]
        if tensor.per_sample:  # with other axes than the call sees it is read as a whole
            _add(regions, name, operand.region(tile) if operand.shape == tensor.shape else whole(tensor.shape))


def share(shape: Sequence[int], grid: Grid, at: Sequence[int]) -> Region:
    """One of the shares, as equal as may be, of a tensor that a grid cuts along the batch and space."""
    cut = [Span(e * i // parts, e * (i + 1) // parts) for e, i, parts in zip((shape[0], *shape[2:]), at, grid, strict=True)]
    return (cut[0], Span(0, shape[1]), *cut[1:])


def hull(a: Span, b: Span) -> Span:
    """The least span that holds both."""
    if not a.extent or not b.extent:
        return a if a.extent else b
    return Span(min(a.lo, b.lo), max(a.hi, b.hi))


def _add(regions: dict[str, Region], name: str, more: Region) -> None:
    known = regions.get(name)
    regions[name] = more if known is None else tuple(map(hull, known, more))
