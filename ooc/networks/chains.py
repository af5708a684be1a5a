"""Chains: calls that tiles of the batch and of space pass one after the other. Each tile takes with it the halo that the calls
behind it need, which its neighbours compute again; what is summed over all positions takes the share of each tile once.

Source: halo recomputed instead of moved, as in Alwani, Chen, Ferdman, Milder, "Fused-layer CNN accelerators", MICRO 2016.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ooc.ir.op import Operand
from ooc.ir.region import Along, Region, Span, Tile, elements, whole
from ooc.networks.calls import UPDATE, Call, Network

Grid = tuple[int, ...]  # parts along the batch, and along every spatial axis
MANY = 1 << 13  # parts of a chain


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
    outputs = [_axes(net, o, t) for o, t in zip(op.outputs, call.makes, strict=True)]
    runs = [axis for axes in outputs for axis in axes]
    if not all(isinstance(axis, Along) for axis in runs) or len(set(outputs)) > 1:
        return False
    cut = {dim for axis in runs for dim in axis.dims}
    return not any(cut & {*fold.reduce, *fold.idle} for fold in op.folds)


def summing(net: Network, call: Call) -> str:
    """What a call sums over space, and the batch unless samples have sums of their own, if it makes nothing else: a tensor that
    it reads, each value of which is met in one position of its loops. "": it does not."""
    if call.phase == UPDATE or any(net.tensors[t].per_sample for t in call.makes) or not _alike(net, call):
        return ""
    reduced = [set(fold.reduce) for fold in call.op.folds]
    for operand, name in zip(call.op.inputs, call.reads, strict=True):
        if not net.tensors[name].per_sample:
            continue
        axes = _axes(net, operand, name)
        if len(axes) > 1 and all(isinstance(axis, Along) for axis in axes):
            of_space = axes[1:] if sees_as_channels(operand, net.tensors[name].shape) else axes
            dims = {dim for axis in of_space for dim in axis.dims}
            return name if reduced and all(dims <= some for some in reduced) else ""
    return ""


def passable(net: Network, call: Call) -> bool:
    """Whether tiles of the batch and of space can pass a call."""
    return chainable(net, call) or bool(summing(net, call))


def _alike(net: Network, call: Call) -> bool:
    """Whether a call sees all tensors of the batch with their own axes, or all samples' channels as those of one."""
    pairs = [
        (o, net.tensors[t].shape)
        for o, t in zip(call.op.operands, (*call.reads, *call.makes), strict=True)
        if net.tensors[t].per_sample
    ]
    return all(o.shape == shape for o, shape in pairs) or all(sees_as_channels(o, shape) for o, shape in pairs)


def sees_as_channels(operand: Operand, shape: Sequence[int]) -> bool:
    """Whether an operand is a tensor of the batch whose samples are seen as channels of one: each has statistics of its own."""
    return len(shape) > 2 and operand.shape != shape and operand.shape == (1, shape[0] * shape[1], *shape[2:])


def operand_region(operand: Operand, shape: Sequence[int], region: Region) -> Region:
    """A region of a tensor, of all channels, as an operand has it."""
    if not sees_as_channels(operand, shape):
        return region
    return (Span(0, 1), Span(region[0].lo * shape[1], region[0].hi * shape[1]), *region[2:])


def tensor_region(operand: Operand, shape: tuple[int, ...], region: Region) -> Region:
    """A region of an operand as the tensor has it, which has other axes than the operand as a whole."""
    if operand.shape == shape:
        return region
    if not sees_as_channels(operand, shape):
        return whole(shape)
    return (Span(region[1].lo // shape[1], -(-region[1].hi // shape[1])), Span(0, shape[1]), *region[2:])


def _axes(net: Network, operand: Operand, name: str) -> tuple[Any, ...]:
    """The axes of an operand along which chains are cut: of the batch and of space."""
    as_channels = sees_as_channels(operand, net.tensors[name].shape)
    return operand.axes[1:] if as_channels else operand.axes[:1] + operand.axes[2:]


def tile_of(operand: Operand, shape: Sequence[int], region: Region) -> dict[str, Span]:
    """The loop spans, of the batch and of space, that touch a region of a tensor, by an operand that it is."""
    spans = zip(operand.axes, operand_region(operand, shape, region), strict=True)
    channels = 0 if sees_as_channels(operand, shape) else 1
    return {axis.dims[0]: span for i, (axis, span) in enumerate(spans) if i != channels}


def parts(
    net: Network, calls: Sequence[Call], grid: Grid, leaving: Collection[str], cells: Sequence[Grid] = ()
) -> Iterator[ChainPart]:  # fmt: skip
    """The parts of a chain, in order. leaving: tensors that it makes for others, each in shares that are all of it. cells: the
    places of those that are wanted; (): all."""
    sums = {call.index: name for call in calls if (name := summing(net, call))}
    for at in cells or itertools.product(*map(range, grid)):
        yield _part(net, calls, grid, leaving, at, sums)


def _part(
    net: Network, calls: Sequence[Call], grid: Grid, leaving: Collection[str], at: Sequence[int], sums: Mapping[int, str]
) -> ChainPart:  # fmt: skip
    """One part of a chain: the regions that its shares of what leaves need, from the last call to the first. sums: the tensors
    that calls sum, by their index."""
    regions: dict[str, Region] = {}
    tiles: dict[int, dict[str, Span]] = {}
    behind = ChainPart(regions, tiles)
    for call in reversed(calls):
        if name := sums.get(call.index):
            shape = net.tensors[name].shape
            if elements(region := share(shape, grid, at)):
                _reach(net, behind, call, tile_of(call.op.inputs[call.reads.index(name)], shape, region))
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
    shape = net.tensors[call.makes[0]].shape
    cut = tile_of(call.op.outputs[0], shape, outputs[0])
    for other in outputs[1:]:
        cut = {dim: hull(span, cut[dim]) for dim, span in tile_of(call.op.outputs[0], shape, other).items()}
    _reach(net, behind, call, cut)


def _reach(net: Network, behind: ChainPart, call: Call, cut: dict[str, Span]) -> None:
    """Add what a call needs to compute some of its loops; {}: all of them."""
    regions = behind.regions
    tile: Tile = {dim: Span(0, extent) for dim, extent in call.op.dims.items()} | cut
    if cut:
        behind.tiles[call.index] = cut
    for operand, name in zip(call.op.operands, (*call.reads, *call.makes), strict=True):
        tensor = net.tensors[name]
        if tensor.per_sample:
            _add(regions, name, tensor_region(operand, tensor.shape, operand.region(tile)))


def share(shape: Sequence[int], grid: Grid, at: Sequence[int]) -> Region:
    """One of the shares, as equal as may be, of a tensor that a grid cuts along the batch and space."""
    cut = [Span(e * i // parts, e * (i + 1) // parts) for e, i, parts in zip((shape[0], *shape[2:]), at, grid, strict=True)]
    return (cut[0], Span(0, shape[1]), *cut[1:])


def families(shape: Sequence[int]) -> Iterator[Iterator[Grid]]:
    """Grids over a tensor of n x k x extent, ever finer: samples, then blocks of a sample, blocks of whole rows, or slices."""
    axes = len(shape) - 2
    for cut in dict.fromkeys((axes, max(1, axes - 1), 1)):
        yield _finer(shape, cut)


def _finer(shape: Sequence[int], cut: int) -> Iterator[Grid]:
    """Of samples, then with so many axes of space cut."""
    batch, extent = shape[0], tuple(shape[2:])
    parts = 1
    while parts < batch:
        yield (parts, *(1 for _ in extent))
        parts *= 2
    grid = [1 for _ in extent]
    yield (batch, *grid)
    while batch * math.prod(grid) < MANY:
        axis = max(range(cut), key=lambda i: extent[i] / grid[i])
        if grid[axis] >= extent[axis]:
            return
        grid[axis] = min(extent[axis], max(grid[axis] + 1, grid[axis] * 5 // 4))
        yield (batch, *grid)


def hull(a: Span, b: Span) -> Span:
    """The least span that holds both."""
    if not a.extent or not b.extent:
        return a if a.extent else b
    return Span(min(a.lo, b.lo), max(a.hi, b.hi))


def _add(regions: dict[str, Region], name: str, more: Region) -> None:
    known = regions.get(name)
    regions[name] = more if known is None else tuple(map(hull, known, more))
