"""Runs of an inference's calls as fused ops in tiles, beside chains of one step a call: which is faster depends on the device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ooc.errors import ShapeError
from ooc.ir.fused import Fused
from ooc.networks.auto.forms import HUGE, LARGE
from ooc.networks.calls import Network
from ooc.networks.chains import chainable
from ooc.networks.fusing import FusedRun
from ooc.networks.judge import Judge
from ooc.networks.proposal import Fate, Proposal

MOST_STAGES = 12  # of a fused op: what its tiles compute twice grows with each


def in_tiles(judge: Judge, chains: Sequence[Proposal]) -> Iterator[Proposal]:
    """An inference whose chains, as some proposals cut it, are fused ops, then the same with a cut wherever less leaves a call
    than it reads; each once."""
    net, tried = judge.net, set[tuple[FusedRun, ...]]([()])
    smaller = [call.index + 1 for call in net.calls if _nbytes(net, call.makes) < _nbytes(net, call.reads)]
    for chain, more in itertools.product(chains, ((), smaller)):
        runs = tuple(_runs(net, sorted({*(begin for begin, _ in chain.grids), *more})))
        if runs in tried:
            continue
        tried.add(runs)
        lasting = {t: how for t, how in chain.fates.items() if net.tensors[t].role.lasting}
        words = chain.label.partition(" in tiles")[2]
        proposal = Proposal(f"{len(runs)} fused run{'s' * (len(runs) > 1)} in tiles{words}", fused=runs)
        with suppress(ShapeError):  # two calls see a tensor in other orders of its axes
            streamed = _streamed(judge.network(proposal), judge.budget or 0)
            yield replace(proposal, fates=lasting | dict.fromkeys(streamed, Fate.STREAM))


def _nbytes(net: Network, tensors: Sequence[str]) -> int:
    """Bytes of those that are of the batch."""
    return sum(net.tensors[t].nbytes for t in tensors if net.tensors[t].per_sample)


def _runs(net: Network, begins: Sequence[int]) -> Iterator[FusedRun]:
    """The chains that begin with some calls, as far as they are such, of several calls each."""
    for begin, end in itertools.pairwise((*begins, len(net.calls))):
        while begin < end and chainable(net, net.calls[begin]):
            count = 1
            while count < min(MOST_STAGES, end - begin) and chainable(net, net.calls[begin + count]):
                count += 1
            if count > 1:
                yield begin, count
            begin += count


def _streamed(net: Network, budget: int) -> Iterator[str]:
    """Tensors of the batch that never are on the device as a whole: those of fused ops, and what is large."""
    for call in net.calls:
        large = budget * (LARGE if isinstance(call.op, Fused) else HUGE)
        yield from (t for t in call.tensors if net.tensors[t].per_sample and net.tensors[t].nbytes > large)
