"""The fates of all tensors in a form: by a price first, then what fits stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ooc.ir.op import aligned
from ooc.networks.auto.forms import Form, crossing
from ooc.networks.auto.prices import Price, Prices
from ooc.networks.items import Instance
from ooc.networks.judge import Judge, Trial
from ooc.networks.moves import nbytes_of
from ooc.networks.proposal import Fate, Proposal

EASED = 6  # times that more leaves instead of being made again, where memory is short
SMALL = 1 / 16  # of the budget: what crosses stages and is smaller stays


def priced(prices: Prices, form: Form, chunk: int, price: Price) -> dict[str, Fate]:
    """The fates of least memory: what can leave does, or is made again where that costs less than moving it, at a price."""
    net, budget = prices.net, prices.judge.budget or 0
    parted = form.parted and 0 < chunk < net.batch
    across = crossing(net, form, chunk) if parted else {}
    fates: dict[str, Fate] = dict(form.lasting)
    for tensor in net.tensors.values():
        name = tensor.name
        if not tensor.per_sample or name in net.outputs:
            continue
        if not parted and tensor.nbytes > form.above:
            fates[name] = Fate.STREAM
        elif name in across and tensor.nbytes <= budget * SMALL:
            continue
        elif name in net.backward_readers:
            fates[name] = Fate.OFFLOAD if name in across or not parted else Fate.KEEP
        elif name in across:
            fates[name] = Fate.OFFLOAD
    gone: set[str] = set()
    for name in net.kept:  # in the order in which they are made: what is made again of what is made again costs more
        if name in fates and remade(prices, fates, name, parted and name in across, price, gone):
            fates[name] = Fate.RECOMPUTE
            gone.add(name)
    return {t: how for t, how in fates.items() if how is not Fate.KEEP}


def remade(prices: Prices, fates: Mapping[str, Fate], name: str, across: bool, price: Price, gone: set[str]) -> bool:
    """Whether an activation is made again: by one call that is not cut, and that one reads alone where it crosses stages."""
    net, maker = prices.net, prices.net.makers[name]
    if any(fates.get(t) is Fate.STREAM for t in maker.tensors) or maker.along is None:
        return False
    if across and sum(name in call.reads for call in net.forward) > 1:
        return False
    return prices.making(name, gone, price.deep) < price.worth * prices.moving(name)


def eased(judge: Judge, proposal: Proposal) -> Proposal:
    """A proposal of which less is made again, as long as what that takes at the peak is too much: the largest leave, and come
    back."""
    for _ in range(EASED):
        trial = judge.trial(proposal, True)
        load = trial.lowering.load()
        over = int(load.max(initial=0)) - (judge.budget or 0)
        if judge.budget is None or over <= 0:
            break
        peak, fates = int(load.argmax()), dict(proposal.fates)
        there = {t for t, spans in lives_of(trial).items() if any(lo <= peak <= hi for lo, hi, _ in spans)}
        sizes = {t: trial.net.tensors[t].nbytes for t in there if fates.get(t) is Fate.RECOMPUTE}
        if sum(sizes.values()) < over:
            break
        for name in sorted(sizes, key=lambda t: (-sizes[t], t)):
            if over > 0:
                fates[name] = Fate.OFFLOAD
                over -= sizes[name]
        proposal = replace(proposal, fates=fates)
    return proposal


def kept(prices: Prices, trial: Trial, proposal: Proposal, share: float) -> Proposal:
    """A proposal, whose trial is known, with all that a count of bytes finds room for kept, what costs most for its bytes first;
    share: of the budget that the count may use, where layouts have gaps."""
    net, budget = trial.net, (prices.judge.budget or 0) * share
    load = trial.lowering.load().astype(np.int64)
    fates = dict(proposal.fates)
    lives = lives_of(trial)
    for name in ranked(prices, fates, lives):
        spans, nbytes = lives[name], int(aligned(net.tensors[name].nbytes))
        first, last = min(lo for lo, _, _ in spans), max(hi for _, hi, _ in spans)
        more = np.full(last + 1 - first, nbytes, np.int64)
        for lo, hi, there in spans:
            more[lo - first : hi + 1 - first] -= there
        if int((load[first : last + 1] + more).max()) <= budget:
            load[first : last + 1] += np.maximum(more, 0)
            del fates[name]
    return replace(proposal, fates=fates)


def ranked(prices: Prices, fates: Mapping[str, Fate], lives: Mapping[str, Any]) -> list[str]:
    """What may be kept instead: by seconds saved for each byte and item, those first for which it is the most."""
    net, worth = prices.net, {}
    for name, how in fates.items():
        tensor = net.tensors[name]
        if not tensor.per_sample or how is Fate.STREAM or name not in lives:
            continue
        seconds = prices.making(name) if how is Fate.RECOMPUTE else prices.moving(name)
        length = max(hi for _, hi, _ in lives[name]) - min(lo for lo, _, _ in lives[name]) + 1
        worth[name] = -seconds / max(1, tensor.nbytes) / length**0.5
    return sorted(worth, key=lambda t: (worth[t], t))


def lives_of(trial: Trial) -> dict[str, list[tuple[int, int, int]]]:
    """When instances of a tensor are there, and their bytes, by the tensor."""
    touched: dict[Instance, tuple[int, int]] = {}  # by its own name, though it may have taken another one's bytes
    for i, item in enumerate(trial.program.items):
        for instance in (*item.reads, *item.makes):
            touched[instance] = (touched[instance][0], i) if instance in touched else (i, i)
    lives: dict[str, list[tuple[int, int, int]]] = {}
    for instance, (first, last) in touched.items():
        nbytes = int(aligned(nbytes_of(trial.net, instance)))
        lives.setdefault(instance.tensor, []).append((first, last, nbytes))
    return lives
