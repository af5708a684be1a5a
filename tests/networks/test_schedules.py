"""Schedules of networks: every wait, life, fence and place is needed, and what is wrong in one of them shows."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from networks import STREAMING, Hostile, Results, data, differing, planned, random_graph, run, seeds, smallest
from races import races
from sweeps import crossed

import ooc
from ooc.backends.cpu.backend import CpuBackend
from ooc.networks import POLICIES, Graph
from ooc.networks.items import Instance, Item
from ooc.networks.lower import Lowering
from ooc.networks.program import Program, program
from ooc.networks.stage_items import ELEMENTWISE
from ooc.networks.tensors import Role
from ooc.runtime import executor
from ooc.schedule.arena import Buffer, Layout
from ooc.schedule.link import link
from ooc.schedule.steps import Step

BATCH = 4
LEAST_STREAMED = 16 << 10
WHOLE = [p for p in POLICIES if p not in STREAMING]  # policies whose plans are programs


@functools.cache
def staged() -> ooc.Device:
    """A ring of pinned memory and a lane for each hop, as on a GPU."""
    return replace(ooc.device("cpu", threads=2), backend=CpuBackend(2, staged=True))


@functools.cache
def gpu() -> ooc.Device:
    return ooc.device("null", calibration="p100")


def small(statistics: bool = True) -> Graph:
    g = Graph("small")
    h = g.conv(g.input("x", (3, 12, 12)), 8, 3, padding=1, bias=True, activation="relu", name="one")
    h = g.batch_norm(h, activation="relu") if statistics else g.activation(h, "tanh")
    left = g.conv(g.pool(h, 2), 8, 3, padding=1, activation="relu", name="two")
    h = g.add(left, g.conv(left, 8, 1, name="three"), activation="relu")
    logits = g.linear(g.flatten(g.dropout(h, 0.25)), 4, bias=True)
    g.output(logits)
    g.loss("cross_entropy", logits)
    return g


def plans(graph: Graph, policy: str, device: ooc.Device) -> Iterator[ooc.NetworkPlan]:
    """At no limit and a tight budget, of homes in every space."""
    for home in ("disk", "pinned", "host"):
        for budget in (None, tight(graph, policy, device, home)):
            yield planned(graph, policy, budget, device, BATCH, home=home)


@functools.cache
def small_plans(policy: str, device: ooc.Device) -> list[ooc.NetworkPlan]:
    """Those of the small network, for all tests that look at them."""
    return [*plans(small(policy != "modnn"), policy, device)]


@functools.cache
def small_results(policy: str) -> list[Results]:
    """What staged steps of these plans give."""
    return [run(plan, *data(plan.graph, BATCH)) for plan in small_plans(policy, staged())]


def tight(graph: Graph, policy: str, device: ooc.Device, home: str) -> int:
    """The smallest budget of a policy, as far as tiles do not get too many."""
    least = smallest(graph, policy, device, BATCH, home=home)
    if policy == "auto":
        return max(least, smallest(graph, "keep", device, BATCH, home=home) // 3)
    return max(least, LEAST_STREAMED) if policy in STREAMING else least


def told(plan: ooc.NetworkPlan) -> str:
    return f"{plan.graph.name} {plan.policy} {plan.budget} {plan.scene.home}: {plan.why}"


# ---- waits


@pytest.mark.parametrize("policy", crossed([*POLICIES, "auto"], every=2))
def test_no_wait_is_too_many(policy: str) -> None:
    """Without any one of its waits a schedule has a race."""
    rng, dropped = random.Random(0), 0
    for plan in small_plans(policy, staged()):
        steps = plan.steps()
        assert races(steps, plan.schedule.layout) == []
        waits = [(i, j) for i, step in enumerate(steps) for j in step.after]
        for i, j in rng.sample(waits, min(3 if policy in (*STREAMING, "auto") else 12, len(waits))):
            mutant = [*steps]
            mutant[i] = steps[i]._replace(after=tuple(k for k in steps[i].after if k != j))
            assert races(mutant, plan.schedule.layout), f"{told(plan)}: {i} need not wait for {j}"
            dropped += 1
    assert dropped


@pytest.mark.parametrize("policy", (*POLICIES, "auto"))
def test_waits_are_for_steps_before_of_other_lanes(policy: str) -> None:
    for plan in small_plans(policy, staged()):
        steps = plan.steps()
        for i, step in enumerate(steps):
            assert all(j < i and steps[j].lane != step.lane for j in step.after)


# ---- lives and places


def lives_of(steps: Sequence[tuple[int, Step]]) -> dict[Buffer, tuple[int, int]]:
    """From which to which item steps touch each buffer."""
    found: dict[Buffer, tuple[int, int]] = {}
    for item, step in steps:
        for ref in (*step.reads, *step.writes):
            if ref.buffer is not None:
                found[ref.buffer] = (found.get(ref.buffer, (item, item))[0], item)
    return found


def overlapping(lives: dict[Buffer, tuple[int, int]], layout: Layout) -> list[tuple[Buffer, Buffer]]:
    """Buffers in use at the same time that share bytes."""
    found = []
    listed = [b for b in lives if b.nbytes]
    for i, a in enumerate(listed):
        for b in listed[:i]:
            bytes_shared = a.space == b.space and layout.offsets[a] < layout.end(b) and layout.offsets[b] < layout.end(a)
            if bytes_shared and lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]:
                found.append((a, b))
    return found


def foreign_reads(steps: Sequence[Step], layout: Layout, lasting: Sequence[Buffer]) -> list[tuple[int, Buffer]]:
    """Steps that read bytes which were last written for another buffer, in the order of issue."""
    owner = {cell: b for b in lasting for cell in layout.cells[b]}
    found = []
    for i, step in enumerate(steps):
        for ref in step.reads:
            if ref.buffer is not None and any(owner.get(cell) != ref.buffer for cell in layout.cells[ref.buffer]):
                found.append((i, ref.buffer))
        for ref in step.writes:
            if ref.buffer is not None:
                owner.update(dict.fromkeys(layout.cells[ref.buffer], ref.buffer))
    return found


def lowered(plan: ooc.NetworkPlan, made: Program | None = None) -> Lowering:
    return Lowering(plan.network, plan.proposal, made or program(plan.network, plan.proposal), plan.scene)


def assert_laid_out(plan: ooc.NetworkPlan) -> None:
    layout, resident = plan.schedule.layout, list(plan.schedule.resident.values())
    for buffer in layout.offsets:
        assert layout.offsets[buffer] >= 0 and layout.end(buffer) <= layout.peaks[buffer.space], told(plan)
    assert foreign_reads(plan.steps(), layout, resident) == [], told(plan)
    if plan.policy in STREAMING:
        return
    steps = lowered(plan).unlinked
    assert [s.what for _, s in steps] == [s.what for s in plan.steps()]
    last = steps[-1][0]
    lives = lives_of(steps) | dict.fromkeys(resident, (0, last))
    assert overlapping({b: life for b, life in lives.items() if b.space != "staging"}, layout) == [], told(plan)


@pytest.mark.parametrize("seed", seeds(24, 1))
def test_what_shares_bytes_is_never_in_use_at_once(seed: int) -> None:
    for policy in POLICIES:
        try:
            for plan in plans(random_graph(3000 + seed, seed % 3 != 0), policy, staged() if seed % 2 else gpu()):
                assert_laid_out(plan)
        except ooc.UnsupportedError:
            assert policy == "modnn"


@pytest.mark.parametrize("seed", seeds(60, 2))
def test_what_is_written_in_place_is_read_by_nobody_later(seed: int) -> None:
    taken = 0
    for policy in WHOLE:
        try:
            plan = planned(random_graph(4000 + seed, seed % 3 != 0), policy, None, gpu(), BATCH)
        except ooc.UnsupportedError:
            assert policy == "modnn"
            continue
        net, made = plan.network, program(plan.network, plan.proposal)
        assert len(set(made.storage.values())) == len(made.storage), "two take the same bytes"
        for new, old in made.storage.items():
            first = next(i for i, item in enumerate(made.items) if new in item.makes)
            item = made.items[first]
            tensor, made_tensor = net.tensors[old.tensor], net.tensors[new.tensor]
            assert tensor.nbytes == made_tensor.nbytes and old.part == new.part
            assert not tensor.role.lasting and tensor.role is not Role.INPUT
            assert not any(old in (*later.reads, *later.makes, *later.sums) for later in made.items[first + 1 :]), told(plan)
            assert not any(old in later.reads for later in made.items if later.what == "store"), told(plan)
            assert old not in item.reads or net.calls[item.call].op.kind in ELEMENTWISE or item.over
            taken += 1
    assert taken


@pytest.mark.parametrize(("policy", "hostile"), crossed(list(WHOLE), [True, False], every=2))
def test_two_buffers_in_one_place_give_other_numbers(policy: str, hostile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout that is wrong is seen by the checks above, and by who compares results."""
    plan = planned(small(policy != "modnn"), policy, None, staged(), BATCH)
    x, labels = data(plan.graph, BATCH)
    wanted = run(plan, x, labels)
    if hostile:
        monkeypatch.setattr(executor, "walk", Hostile(random.Random(0)))
        assert differing(run(plan, x, labels), wanted) == []
    lowering = lowered(plan)
    layout, lives = plan.schedule.layout, lives_of(lowering.unlinked)
    pairs = list(crossing(plan, lowering))
    assert pairs
    for a, b in random.Random(1).sample(pairs, min(4, len(pairs))):
        wrong = Layout({**layout.offsets, b: layout.offsets[a]}, layout.peaks)
        assert overlapping(lives, wrong) and foreign_reads(
            [s for _, s in lowering.unlinked], wrong, [*lowering.resident.values()]
        )
        schedule = lowered(plan).schedule(wrong)
        assert races(schedule.steps, wrong) == [], "waits are right wherever buffers lie"
        with np.errstate(over="ignore"):
            assert differing(run(replace(plan, schedule=schedule), x, labels), wanted), f"{a} {b}"


def crossing(plan: ooc.NetworkPlan, lowering: Lowering) -> Iterator[tuple[Buffer, Buffer]]:
    """Activations and what is made, where it fits into their place, between their making and the last use of all their bytes."""
    steps = lowering.unlinked
    lives = lives_of(steps)
    read_last: dict[Buffer, int] = {}
    written: dict[Buffer, list[int]] = {}
    for item, step in steps:
        for ref in step.reads:
            if ref.buffer is not None and step.lane == "compute":
                read_last[ref.buffer] = item
        for ref in step.writes:
            if ref.buffer is not None:
                written.setdefault(ref.buffer, []).append(item)
    tensors = {b: b.name.partition("'")[0].partition("[")[0] for b in lives if b.space == "device"}
    passing = [b for b, name in tensors.items() if name in plan.network.tensors and b not in lowering.resident.values()]
    for a in (b for b in passing if tensors[b] in plan.network.kept):
        for b in passing:
            between = any(max(written[a]) < i < read_last.get(a, -1) for i in written.get(b, ()))
            if a != b and between and b.nbytes <= a.nbytes <= 2 * b.nbytes:
                yield a, b


# ---- generations and fences


def at_once(lives: dict[Buffer, tuple[int, int]]) -> int:
    """The most bytes of the device that are in use at a time: no layout takes less."""
    change: dict[int, int] = {}
    for buffer, (first, last) in lives.items():
        if buffer.space == "device":
            change[first] = change.get(first, 0) + buffer.nbytes
            change[last + 1] = change.get(last + 1, 0) - buffer.nbytes
    most = now = 0
    for moment in sorted(change):
        now += change[moment]
        most = max(most, now)
    return most


@pytest.mark.parametrize("policy", WHOLE)
def test_what_comes_back_is_another_instance_only_to_take_less_memory(policy: str) -> None:
    """All generations in one buffer, from the first to the last use, give the same numbers in as much memory or more."""

    def first(instance: Instance) -> Instance:
        return instance._replace(generation=0)

    def merged(item: Item) -> Item:
        return item._replace(reads=tuple(map(first, item.reads)), makes=tuple(map(first, item.makes)), over=())

    for plan, wanted in zip(small_plans(policy, staged()), small_results(policy), strict=True):
        x, labels = data(plan.graph, BATCH)
        made = program(plan.network, plan.proposal)
        apart = lowered(plan, Program(made.items, {}))
        together = lowered(plan, Program(tuple(map(merged, made.items)), {}))
        assert at_once(together.lives) >= at_once(apart.lives), told(plan)
        assert together.layout().peaks["device"] >= at_once(apart.lives)
        schedule = together.schedule(together.layout())
        assert races(schedule.steps, schedule.layout) == []
        mutant = replace(plan, schedule=schedule)
        assert differing(run(mutant, x, labels), wanted) == [], told(plan)


@pytest.mark.parametrize("policy", crossed(list(WHOLE), every=2))
def test_fences_only_cost_time(policy: str) -> None:
    """Without the barriers of its paper a plan has no races, gives the same numbers and is not predicted to take longer."""
    for plan, wanted in zip(small_plans(policy, staged()), small_results(policy), strict=True):
        bare = without_fences(plan)
        assert races(bare.steps(), bare.schedule.layout) == []
        assert differing(run(bare, *data(plan.graph, BATCH)), wanted) == [], told(plan)
    for plan in small_plans(policy, gpu()):
        assert without_fences(plan).predicted_seconds <= plan.predicted_seconds * (1 + 1e-9), told(plan)


def without_fences(plan: ooc.NetworkPlan) -> ooc.NetworkPlan:
    """The same steps in the same layout, without those that only order others."""
    lowering, layout = lowered(plan), plan.schedule.layout
    steps = link((step for _, step in lowering.unlinked if step.kind != "fence"), layout)
    assert plan.proposal.barrier or len(steps) == len(plan.steps())
    return replace(plan, schedule=replace(lowering.schedule(layout), steps=steps))


def test_some_policies_have_fences() -> None:
    for policy in ("vdnn_all", "vdnn_conv"):
        plan = planned(small(), policy, None, gpu(), BATCH)
        assert any(step.kind == "fence" for step in plan.steps())
