"""How far a result of a network sees."""

from __future__ import annotations

from ooc.ir.region import Region, Span
from ooc.networks.calls import Call, Network
from ooc.networks.chains import chainable, hull, tile_of
from ooc.networks.tensors import Role, Slot


def reach(net: Network) -> list[int | None]:
    """Positions of the input that one result in the middle of the first output is made of, by spatial axis; None: all, through an
    operation over the whole tensor."""
    name, *_ = net.outputs
    shape = net.tensors[name].shape
    middle = (Span(0, 1), *(Span(0, e) if i == 0 else Span(e // 2, e // 2 + 1) for i, e in enumerate(shape[1:])))
    found = seen(net, middle)
    own = _input(net)
    return [None if s.extent == e and e > 1 else s.extent for s, e in zip(found[2:], own.shape[2:], strict=True)] if own else []


def seen(net: Network, wanted: Region) -> Region:
    """The region of the input that one of the first output is made of; (): there is no input."""
    regions: dict[str, Region] = {net.outputs[0]: wanted}
    for call in reversed(net.calls):
        made = [regions[t] for t in call.makes if t in regions]
        if made:
            _spread(net, call, made[0], regions)
    own = _input(net)
    return regions.get(own.name, ()) if own else ()


def _input(net: Network) -> Slot | None:
    return next((t for t in net.tensors.values() if t.role is Role.INPUT and t.per_sample), None)


def _spread(net: Network, call: Call, made: Region, regions: dict[str, Region]) -> None:
    """What a call reads for a region of what it makes."""
    tile = {dim: Span(0, extent) for dim, extent in call.op.dims.items()}
    if chainable(net, call):
        tile |= tile_of(call.op, made)
    for operand, name in zip(call.op.inputs, call.reads, strict=True):
        tensor = net.tensors[name]
        if not tensor.per_sample:
            continue
        own = operand.region(tile) if operand.shape == tensor.shape else tuple(Span(0, e) for e in tensor.shape)
        known = regions.get(name)
        regions[name] = own if known is None else tuple(map(hull, known, own))
