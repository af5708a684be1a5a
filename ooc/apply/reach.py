"""How far a result of a network sees."""

from __future__ import annotations

from ooc.ir.region import Region, Span
from ooc.networks.calls import Network
from ooc.networks.chains import ChainPart, chainable, lengthen
from ooc.networks.tensors import Role, Slot


def reach(net: Network) -> list[int | None]:
    """Positions of the input that one result in the middle of the first output is made of, by spatial axis; None: all, through an
    operation over the whole tensor."""
    name, *_ = net.outputs
    shape = net.tensors[name].shape
    middle = (Span(0, 1), *(Span(0, e) if i == 0 else Span(e // 2, e // 2 + 1) for i, e in enumerate(shape[1:])))
    region = seen(net, middle)
    x = _input(net)
    return [None if s.extent == e and e > 1 else s.extent for s, e in zip(region[2:], x.shape[2:], strict=True)] if x else []


def seen(net: Network, region: Region) -> Region:
    """The region of the input that one of the first output is made of; (): there is no input."""
    part = ChainPart({net.outputs[0]: region}, {})
    for call in reversed(net.calls):
        lengthen(net, part, call, {}, chainable(net, call))
    x = _input(net)
    return part.regions.get(x.name, ()) if x else ()


def _input(net: Network) -> Slot | None:
    return next((t for t in net.tensors.values() if t.role is Role.INPUT and t.per_sample), None)
