"""The forms that a step may have: in which parts the batch passes which layers, and where what lasts lives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ooc.networks.calls import Network
from ooc.networks.judge import Judge
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.stages import stages
from ooc.networks.tensors import Role
from ooc.schedule.budget import show_bytes

TAILS = (1 / 16, 1 / 4)  # of the budget: activations of the last layers, which all samples pass at once
STEP = 1.5  # from one size above which tensors are streamed to the next
CUTS = 5  # such sizes
LARGE = 1 / 64  # of the budget: what is smaller is never streamed
HUGE = 1 / 4  # of the budget: what lasts, does not stay and is larger is streamed
SHARES = (1 / 2, 1 / 6, 1 / 64)  # of the budget, that what lasts may take: even at last what is small, and asked for all the time


@dataclass(frozen=True)
class Form:
    """What is decided before the fates of activations.

    Fields:
        words: which layers pass in parts, what is cut or put off, and what lasts but does not stay.
        tail: the forward call from which on all samples pass at once; -1: none does.
        parted: whether the calls before pass in parts.
        lasting: fates of what lasts, but what stays.
        late: calls that are put off, see `Proposal`.
        above: bytes; what is larger, and passes at once, is streamed.
    """

    words: str
    tail: int
    parted: bool
    lasting: Mapping[str, Fate]
    late: frozenset[int] = frozenset()
    above: float = math.inf

    def label(self, chunk: int = 0) -> str:
        """It in words, with so many samples at a time where the batch is parted."""
        if not self.parted:
            return f"all samples at once{self.words}"
        return f"in parts of {chunk}{self.words}" if chunk else f"in parts{self.words}"

    def bands(self, chunk: int) -> tuple[tuple[int, int], ...]:
        """Its bands, with so many samples at a time where the batch is parted."""
        if not self.parted or not chunk:
            return ()
        return ((0, chunk), (self.tail, 0)) if self.tail >= 0 else ((0, chunk),)


def forms(judge: Judge) -> Iterator[Form]:
    """All forms that are worth a look under the judge's budget."""
    return itertools.chain.from_iterable(rows(judge))


def rows(judge: Judge) -> Iterator[list[Form]]:
    """Forms in rows of which the first that fits is the best: less and less
    is on the device as a whole."""
    net, budget = judge.net, judge.budget or 0
    homes = list(lasting_fates(net, budget))
    for words, lasting in homes:
        tiled = ((f", what is larger than {show_bytes(size)} in tiles{words}", size) for size in cuts(net))
        yield [Form(what, -1, False, lasting, above=size) for what, size in ((words, math.inf), *tiled)]
    yield from ([form] for form in parted(net, budget, homes))


def parted(net: Network, budget: int, homes: Sequence[tuple[str, dict[str, Fate]]]) -> Iterator[Form]:
    """Forms in which layers pass in parts of the batch."""
    starts = list(dict.fromkeys(tail_start(net, budget * share) for share in TAILS))
    for words, lasting in homes:
        for start in starts:
            if start > 0:
                yield Form(f" up to {layer_at(net, start)}{words}", start, True, lasting)
        yield Form(words, -1, True, lasting)
        late = deferred(net, lasting)
        if late:
            yield Form(f", {len(late)} sums put off{words}", -1, True, sums_alone(net, lasting), late)


def cuts(net: Network) -> list[int]:
    """Sizes of tensors of the batch above which others are streamed, the largest first, each so much smaller than the last."""
    sizes = sorted({t.nbytes for t in net.tensors.values() if t.per_sample}, reverse=True)
    some: list[int] = []
    for size in sizes[1:]:
        if len(some) < CUTS and size * STEP <= (some[-1] if some else sizes[0] * STEP):
            some.append(size)
    return some


def lasting_fates(net: Network, budget: int) -> Iterator[tuple[str, dict[str, Fate]]]:
    """What of parameters, gradients and states lives at home: nothing, then the largest ones until the rest takes a share."""
    sizes = {t.name: t.nbytes for t in net.lasting if t.role is not Role.LOSS}
    total, tried = sum(sizes.values()), set()  # type: int, set[frozenset[str]]
    for limit in (budget, *(budget * share for share in SHARES)):
        gone: dict[str, Fate] = {}
        left = total
        for name, nbytes in sorted(sizes.items(), key=lambda one: (-one[1], one[0])):
            if left <= limit:
                break
            gone[name] = Fate.STREAM if nbytes > budget * HUGE else Fate.OFFLOAD
            left -= nbytes
        if left < budget and frozenset(gone) not in tried:
            tried.add(frozenset(gone))
            yield f", {len(gone)} of {len(sizes)} parameters and sums at home" if gone else "", gone


def tail_start(net: Network, limit: float) -> int:
    """The first call of the last layers whose activations take no more bytes than a limit; -1: there is none."""
    start, total = -1, 0
    begins = {call.layer: call.index for call in reversed(net.forward)}
    kept = set(net.kept)
    for call in reversed(net.forward):
        total += sum(net.tensors[t].nbytes for t in call.makes if t in kept)
        if total > limit:
            break
        if begins[call.layer] == call.index:
            start = call.index
    return start


def layer_at(net: Network, index: int) -> str:
    """The layer of a forward call."""
    return next(call.layer for call in net.forward if call.index == index)


def deferred(net: Network, lasting: Mapping[str, Fate]) -> frozenset[int]:
    """Calls of the backward pass that make sums which live at home from activations that are few: one pass over all samples, at
    the end, where each part would go through all of the sum."""
    indices = set()
    for call in net.backward:
        sums = [t for t in call.makes if lasting.get(t, Fate.KEEP) is Fate.OFFLOAD]
        if call.along is None or not sums:
            continue
        beside = sum(net.tensors[t].nbytes for t in call.reads if net.tensors[t].per_sample)
        if beside < sum(net.tensors[t].nbytes for t in sums):
            indices.add(call.index)
    return frozenset(indices)


def sums_alone(net: Network, lasting: Mapping[str, Fate]) -> dict[str, Fate]:
    """Of what lives at home, the sums alone: parameters that every part reads stay."""
    return {t: how for t, how in lasting.items() if net.tensors[t].role is Role.GRADIENT_SUM}


def crossing(net: Network, form: Form, chunk: int) -> dict[str, list[int]]:
    """The stages that touch each tensor of the batch, of those that several do, by the tensor."""
    touched: dict[str, list[int]] = {}
    for n, stage in enumerate(stages(net, Proposal("", dict(form.lasting), bands=form.bands(chunk), late=form.late))):
        for call in stage.calls:
            for t in call.tensors:
                if net.tensors[t].per_sample:
                    touched.setdefault(t, []).append(n)
    return {t: indices for t, indices in touched.items() if indices[0] != indices[-1]}
