"""A training step cut at its sums over the batch: between two of them any part of the batch passes by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ooc.networks.calls import FORWARD, UPDATE, Call, Network
from ooc.networks.segments import bordered, crossing
from ooc.networks.tensors import Role, Slot


@dataclass(frozen=True)
class StepLevel:
    """Calls that a part of the batch passes when the sums of all levels before are known.

    Fields:
        net: the calls, as a network of their own. What comes from levels before is its input, what goes to later ones its output.
        totals: inputs that are sums over the batch, or follow from some.
        sums: what it makes of the whole part: gradients, losses, sums over the batch.
        summing: the calls whose sums later levels read, or running statistics move by.
    """

    net: Network
    totals: tuple[str, ...]
    sums: tuple[str, ...]
    summing: tuple[Call, ...]

    @property
    def losses(self) -> list[str]:
        """The losses among its sums."""
        return [t for t in self.sums if self.net.tensors[t].role is Role.LOSS]


def step_levels(net: Network) -> list[StepLevel]:
    """The levels of a step without its updates, in order: every call as early as what it reads is there."""
    net = _cut(net)
    numbers = _numbers(net)
    order = sorted(numbers, key=lambda index: (numbers[index], index))
    last = [call.index for call in net.calls if call.phase == UPDATE]  # running statistics
    ordered = replace(net, calls=tuple(replace(net.calls[old], index=new) for new, old in enumerate([*order, *last])))
    counts = [list(numbers.values()).count(level) for level in range(max(numbers.values(), default=0) + 1)]
    ends = [sum(counts[: level + 1]) for level in range(len(counts))]
    return [_level(ordered, begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _cut(net: Network) -> Network:
    """A network in which statistics of single samples are tensors of the batch, which cross levels as those do."""
    single = {t for call in net.calls if not call.over_batch for t in call.makes if not net.tensors[t].per_sample}
    sizes = {t: (net.batch, math.prod(net.tensors[t].shape) // net.batch) for t in single}
    cut = {t: replace(net.tensors[t], per_sample=True, shape=shape) for t, shape in sizes.items()}
    return replace(net, tensors={**net.tensors, **cut})


def independent(levels: Sequence[StepLevel]) -> bool:
    """Whether a part of the batch passes a step without sums over all of it."""
    return not any(level.summing for level in levels)


def over_the_batch(net: Network, call: Call) -> bool:
    """Whether a call sums over the batch: of samples it makes what is of none."""
    of_samples = call.over_batch and any(net.tensors[t].per_sample for t in call.reads)
    return of_samples and not any(net.tensors[t].per_sample for t in call.makes)


def _numbers(net: Network) -> dict[int, int]:
    """The level of every call but updates, by its index."""
    there: dict[str, int] = {}  # from which level on there is all of a tensor
    numbers: dict[int, int] = {}
    for call in net.calls:
        if call.phase != UPDATE:
            numbers[call.index] = level = max((there.get(t, 0) for t in call.reads), default=0)
            there |= dict.fromkeys(call.makes, level + over_the_batch(net, call))
    return numbers


def _level(net: Network, begin: int, end: int) -> StepLevel:
    """The calls from `begin` to before `end`, which pass as an inference does."""
    calls = tuple(replace(call, index=i, phase=FORWARD) for i, call in enumerate(net.calls[begin:end]))
    reads, leaving = crossing(net, begin, end)
    before = {t for call in net.calls[:begin] for t in call.makes}
    totals = tuple(dict.fromkeys(t for c in calls for t in c.reads if t in before and not net.tensors[t].per_sample))
    sums = tuple(t for c in calls for t in c.makes if _stays(net.tensors[t], leaving))
    tensors = _tensors(net, calls, {*reads, *totals}, {*sums})
    makes = tuple(t for t in leaving if net.tensors[t].per_sample)
    summing = tuple(c for c in calls if over_the_batch(net, c) and not {*leaving}.isdisjoint(c.makes))
    return StepLevel(bordered(net, f"{begin}:{end}", tensors, calls, reads, makes), totals, sums, summing)


def _stays(tensor: Slot, leaving: tuple[str, ...]) -> bool:
    """Whether what a level makes is there when a part has passed it, but is no tensor of the part."""
    return not tensor.per_sample and (tensor.role.lasting or tensor.name in leaving)


def _tensors(net: Network, calls: tuple[Call, ...], inputs: set[str], sums: set[str]) -> Mapping[str, Slot]:
    """The tensors of a level."""
    tensors = {t: net.tensors[t] for call in calls for t in call.tensors}
    roles = {t: Role.ACTIVATION for t, slot in tensors.items() if slot.role is Role.GRADIENT}
    roles |= {t: Role.GRADIENT_SUM for t in sums if tensors[t].role is not Role.LOSS} | dict.fromkeys(inputs, Role.INPUT)
    return {t: replace(slot, role=roles.get(t, slot.role)) for t, slot in tensors.items()}
