"""Which instances lie in the bytes of others, that nobody touches later."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ooc.ir.region import Region, Span
from ooc.networks.calls import Network
from ooc.networks.items import Instance, Item
from ooc.networks.tensors import Role


def shared(net: Network, items: Iterable[Item], views: Mapping[Instance, Instance]) -> dict[Instance, Instance]:
    """Which instances take over the bytes of one that nobody touches later."""
    last: dict[Instance, int] = {}
    moved: set[Instance] = set()
    listed = list(items)
    for i, item in enumerate(listed):
        for instance in (*item.reads, *item.makes):
            last[instance] = i
        if item.what == "store":
            moved |= set(item.reads)
    storage = _in_slices(net, listed, views, {views.get(i, i) for i in moved})
    taken = set(storage.values())
    for i, item in enumerate(listed):
        for read, output in item.over:
            tensor = net.tensors[read.tensor]
            free = last.get(read, i + 1) <= i and read not in moved and not tensor.role.lasting and tensor.role is not Role.INPUT
            free = free and read.part == output.part and read not in views and output not in views
            if free and read not in taken and output not in storage and tensor.nbytes == net.tensors[output.tensor].nbytes:
                storage[output] = read
                taken.add(read)
    return storage


def _in_slices(
    net: Network, items: Sequence[Item], views: Mapping[Instance, Instance], moved: Collection[Instance]
) -> dict[Instance, Instance]:  # fmt: skip
    """Which instances that a chain makes slice by slice take over the bytes of one that it reads so, by way of parts: a slice of
    it is made when nobody reads that of the other one any more."""
    if not any(item.tile for item in items):
        return {}
    before: dict[str, list[str]] = {}
    for call in net.calls:
        for read, made in call.over:
            before.setdefault(made, []).append(read)
    reads: dict[Instance, list[int]] = {}
    writes: dict[Instance, list[int]] = {}
    for i, item in enumerate(items):
        for uses, instances in ((reads, item.reads), (writes, item.makes)):
            for whole in (views.get(instance, instance) for instance in instances):
                if whole.part is None and whole.tensor in net.tensors and net.tensors[whole.tensor].per_sample:
                    uses.setdefault(whole, []).append(i)
    storage: dict[Instance, Instance] = {}
    taken: set[Instance] = set()
    for whole in (m for m, at in writes.items() if len(at) > 1 and items[at[0]].tile):
        names = _ancestors(before, whole.tensor)
        able = (r for t in names for r in reads if r.tensor == t and r not in taken and r not in moved)
        older = next((r for r in able if _follows(net, items, whole, writes[whole], r, reads[r], writes.get(r, ()))), None)
        if older is not None:
            storage[whole] = older
            taken.add(older)
    return storage


def _ancestors(before: Mapping[str, Sequence[str]], name: str) -> list[str]:
    """Tensors whose place one may take, one after the other, the nearest first."""
    names = [name]
    for t in names:
        names += [r for r in before.get(t, ()) if r not in names]
    return names[1:]


def _follows(
    net: Network, items: Sequence[Item], made: Instance, writes: Sequence[int], read: Instance, reads: Sequence[int],
    before: Sequence[int],
) -> bool:  # fmt: skip
    """Whether every slice of an instance is made when the same slice of another one, of its size, is not read any more."""
    one, other = net.tensors[made.tensor], net.tensors[read.tensor]
    fit = one.shape == other.shape and one.dtype == other.dtype and not other.role.lasting and other.role is not Role.INPUT
    if not fit or max(before, default=len(items)) >= writes[0] or any(not items[i].tile for i in reads if i > writes[0]):
        return False
    later = [(i, _region(net, items[i], read)) for i in reads if i >= writes[0]]
    for i in writes:
        region = _region(net, items[i], made)
        later = [(j, other) for j, other in later if j >= i]
        direct = (read.tensor, made.tensor) in net.calls[items[i].call].over
        if any(_meet(region, other) for j, other in later if j > i or not direct):
            return False
    return True


def _region(net: Network, item: Item, instance: Instance) -> Region:
    """The region of an instance that the run of a chain's part touches."""
    call = net.calls[item.call]
    instances = zip((*call.op.inputs, *call.op.outputs), (*item.reads, *item.makes), strict=True)
    operand = next(o for o, i in instances if i.tensor == instance.tensor)
    return operand.region({d: Span(0, e) for d, e in call.op.dims.items()} | dict(item.tile))


def _meet(one: Region, other: Region) -> bool:
    return all(a.lo < b.hi and b.lo < a.hi for a, b in zip(one, other, strict=True))
