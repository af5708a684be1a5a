"""Stages of a step: which calls parts of the batch pass together, what is put off, when loads are issued."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import random_graph
from papers import convolutions, judge_of

from ooc.ir.region import Span
from ooc.networks.auto.forms import forms
from ooc.networks.auto.sketches import PRICES, ProposalSearch
from ooc.networks.calls import UPDATE
from ooc.networks.items import Instance, Item
from ooc.networks.loads import earlier
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.stages import Stage, stages

pytestmark = pytest.mark.quick

BATCH = 8


def layers(stage: Stage) -> list[str]:
    return list(dict.fromkeys(c.layer for c in stage.calls))


def test_all_at_once_is_one_stage() -> None:
    (stage,) = stages(judge_of(convolutions(norm=True), BATCH).net, Proposal("keep"))
    assert stage.chunk == 0 and stage.parts(BATCH) == [None] and len(stage.visits()) == 2


def test_parts_pass_forward_and_backward_together() -> None:
    (stage,) = stages(judge_of(convolutions(), BATCH).net, Proposal("parts", bands=((0, 3),)))
    assert stage.parts(BATCH) == [Span(0, 3), Span(3, 6), Span(6, 8)]
    assert layers(stage) == ["a", "b", "global_pool1", "fc", "loss"] and len(stage.visits()) == 2


def test_sums_over_the_batch_part_stages() -> None:
    """Moments before they are applied, and in the backward pass the sums that the gradient of the norm needs."""
    net = judge_of(convolutions(norm=True), BATCH).net
    found = stages(net, Proposal("parts", bands=((0, 4),)))
    assert len(found) >= 3 and all(s.chunk == 4 for s in found if all(c.along for c in s.calls))
    for stage in found:
        sums = {t for c in stage.calls for t in c.makes if not net.tensors[t].per_sample}
        assert not stage.chunk or not any(sums.intersection(c.reads) for c in stage.calls)
    assert [c.index for s in found for c in s.calls] == [c.index for c in net.calls]


def test_the_last_layers_may_pass_at_once() -> None:
    net = judge_of(convolutions(), BATCH).net
    tail = next(c.index for c in net.forward if c.layer == "fc")
    front, last, back = stages(net, Proposal("parts", bands=((0, 2), (tail, 0))))
    assert (front.chunk, last.chunk, back.chunk) == (2, 0, 2)
    assert "fc" in layers(last) and {"a", "b"} <= {*layers(front)} and {"a", "b"} <= {*layers(back)}


def test_what_is_put_off_comes_last_and_at_once() -> None:
    net = judge_of(convolutions(), BATCH).net
    late = frozenset(c.index for c in net.backward if "d.fc.w" in c.makes)
    *_, last = stages(net, Proposal("parts", bands=((0, 2),), late=late))
    assert late and {c.index for c in last.calls if c.phase != UPDATE} == late and last.chunk == 0


def test_who_touches_what_is_streamed_passes_at_once() -> None:
    net = judge_of(convolutions(), BATCH).net
    found = stages(net, Proposal("parts", {"fc.w": Fate.STREAM}, bands=((0, 2),)))
    assert all(s.chunk == 0 for s in found if any("fc.w" in c.tensors for c in s.calls))


def test_loads_are_earlier_but_not_before_their_store() -> None:
    a, b, c, d = (Item("run", i) for i in range(4))
    stored, load = Item("store", reads=(Instance("t"),)), Item("load", makes=(Instance("t", 1),))
    listed = [a, stored, b, c, load, d]

    def by(window: str, ahead: int = 1, early: tuple[int, ...] = ()) -> list[Item]:
        return earlier(listed, Proposal("runs", window=window, ahead=ahead, early=early), range(4))

    assert by("runs", 0) == by("listed") == by("listed", early=(0, 7)) == listed
    assert by("runs", 1) == by("listed", early=(1,)) == by("parts", 1) == [a, stored, b, load, c, d]
    assert by("runs", 2) == by("runs", 9) == by("listed", early=(1 << 60,)) == [a, stored, load, b, c, d]


@pytest.mark.parametrize("seed", range(6))
def test_a_few_parts_tell_what_many_need(seed: int) -> None:
    graph = random_graph(8000 + seed, seed % 2 == 0)
    judge = judge_of(graph, 24)
    judge.budget = judge.needs(Proposal("keep")) // 4
    search = ProposalSearch(judge)
    for form in forms(judge):
        search.look_until(form, PRICES)
    assert search.sketches
    for sketch in search.sketches:
        for proposal in (sketch.proposal, replace(sketch.proposal, window="runs", ahead=2)):
            assert judge.trial(proposal, True).least == judge.trial(proposal).least, proposal
