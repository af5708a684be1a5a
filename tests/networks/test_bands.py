"""Training in bands: tiles of the batch and of space pass all calls between two sums, and give the bits of keeping everything."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from networks import Hostile, cpu, data, differing, random_graph, run, seeds
from races import races
from sweeps import crossed

import ooc
from ooc.networks import SGD, Graph, models, sharing
from ooc.networks.auto.banded import banded, between_sums, slices
from ooc.networks.auto.bands import KEEP, Bands
from ooc.networks.auto.early import in_time
from ooc.networks.auto.prices import Prices
from ooc.networks.calls import Network
from ooc.networks.chains import Grid
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge
from ooc.networks.plan import NetworkPlan
from ooc.networks.proposal import CLOSE, Fate, Proposal
from ooc.networks.scene import Scene
from ooc.networks.stages import stages
from ooc.networks.tensors import Mode
from ooc.networks.where import space_of
from ooc.networks.writer import network
from ooc.runtime import executor

BATCH = 4


def training(
    graph: Graph, device: ooc.Device, home: str, budget: int | None = None, batch: int = BATCH, exact: bool = True
) -> Judge:  # fmt: skip
    net = network(graph, batch, Mode.STEP, SGD(0.1, 0.5), exact)
    return Judge(net, Scene(CallCosts(device, exact), space_of(home, device)), budget)


def random_bands(judge: Judge, rng: random.Random) -> Proposal:
    """Bands cut anyhow; anything that may become of what crosses them."""
    grids: list[tuple[int, Grid]] = []
    for calls in between_sums(judge.net):
        for call in (calls[0], *(c for c in calls[1:] if rng.random() < 0.15)):
            tensors = map(judge.net.tensors.__getitem__, (*call.reads, *call.makes))
            _, _, *extent = next(t for t in tensors if t.per_sample).shape
            samples = rng.choice((1, 2, 3, BATCH, BATCH))
            cut = (
                samples == BATCH and len(extent) > 1 and rng.random() < 0.6
            )  # sums along the last axis have an order of their own
            planes = rng.randint(1, extent[0]) if cut else 1
            grids.append((call.index, (samples, planes, *(1 for _ in extent[1:]))))
    bands = Bands(Prices(judge), tuple(grids), {})
    for name in bands.ways:
        bands.change(name, rng.choice(bands.able(name)))
    proposal = bands.proposal("bands")
    window = rng.choice(("demand", "runs", "parts", "listed"))
    return Proposal(
        "bands", proposal.fates, grids=proposal.grids, staying=proposal.staying, window=window, ahead=rng.randint(1, 3),
        early=tuple(rng.choice((0, 1, 3, 30)) for _ in range(rng.choice((0, 10, 1000)))),
        space=rng.choice(("colour", CLOSE)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("made", "batch", "share", "most"),
    [pytest.param(*case, marks=pytest.mark.slow) for case in (("unet3d", 2, 1 / 4, 1.25), ("resnet", 64, 1 / 8, 2.0))],
)
def test_little_memory_takes_little_time(made: str, batch: int, share: float, most: float) -> None:
    """Batch norms, and activations that outweigh the budget many times: as predicted for a P100, over keeping everything."""
    graph = models.resnet(18) if made == "resnet" else models.unet3d(side=128)
    device = ooc.device("null", calibration="p100")
    keep = graph.plan(batch=batch, device=device)
    plan = graph.plan(batch=batch, device=device, budget=int(keep.peaks["device"] * share))
    assert plan.predicted_seconds < most * keep.predicted_seconds and plan.proposal.grids


@pytest.mark.parametrize("seed", seeds(30, 4))
def test_what_is_settled_fits_and_gives_the_bits_of_keep(seed: int) -> None:
    """Under budgets that hold a part of what crosses bands."""
    graph, x_seed = random_graph(12800 + seed), seed
    free = training(graph, cpu(), "disk")
    x, labels = data(graph, BATCH, x_seed)
    expected = run(NetworkPlan.of(free, "keep", {}, Proposal("keep"), 0), x, labels)
    for share in (0.8, 0.5, 0.3):
        budget = int(free.needs(Proposal("keep")) * share)
        judge = training(graph, cpu(), "disk", budget)
        for proposal in (p for one in banded(Prices(judge)) for p in itertools.islice(filter(judge.fits, one.proposals), 1)):
            plan = NetworkPlan.of(judge, "auto", {}, proposal, 0)
            assert plan.peaks["device"] <= budget and races(plan.steps(), plan.schedule.layout) == []
            assert not differing(run(plan, x, labels), expected), proposal


def test_the_running_sum_of_residual_blocks_has_one_place() -> None:
    """Their gradient is updated slice by slice."""
    graph = models.resnet(50, side=32, width=1 / 16)
    judge = training(graph, cpu(), "disk")
    grids = slices(judge.net, 1 << 16)
    kept = Bands(Prices(judge), grids, {})
    for name in kept.ways:
        kept.change(name, KEEP)
    storage = judge.trial(kept.proposal("all stays")).program.storage
    gradients = {m.tensor: r.tensor for m, r in storage.items() if m.part is None}
    assert gradients["d.layer1.1/act"] == "d.layer1.2/act"


def narrow() -> Graph:
    """Integers stay integers in it; its activations outweigh its parameters."""
    g = Graph("narrow")
    h = g.input("x", (2, 8, 8))
    for i in range(6):
        h = g.conv(h, 2, 3, padding=1, bias=True, activation="relu", name=f"conv{i}")
    h = g.conv(h, 2, 3, stride=4, padding=1, activation="relu", name="small")
    logits = g.linear(g.flatten(h), 2, name="fc")
    g.output(logits)
    g.loss("mse", logits)
    return g


def one_by_one(net: Network, planes: int) -> tuple[tuple[int, Grid], ...]:
    """Each call in a band of its own, a sample and so many planes at a time."""
    able = [(call.index, net.tensors[call.reads[0]].shape) for calls in between_sums(net) for call in calls]
    return tuple((i, (BATCH, planes, *(1 for _ in shape[3:]))) for i, shape in able)


@pytest.mark.parametrize(("budget", "planes"), [(2 << 10, 8), (16 << 10, 2), (256 << 10, 1), (None, 4)])
@pytest.mark.parametrize("staged", [False, True])
def test_integers_are_exact_and_memory_is_as_predicted(budget: int | None, planes: int, staged: bool) -> None:
    """In any order of sums, loads a part ahead and in time; memory held <= predicted <= budget."""
    graph, rng = narrow(), np.random.default_rng(3)
    values = {name: rng.integers(-1, 2, w.shape).astype("f4") for name, w in graph.parameters.items()}
    x, target = rng.integers(-2, 3, (BATCH, 2, 8, 8)).astype("f4"), rng.integers(-3, 4, (BATCH, 2)).astype("f4")
    lasting = dict.fromkeys((*values, *(f"d.{name}" for name in values)), Fate.OFFLOAD)

    def stepped(budget: int | None, grids: tuple[tuple[int, Grid], ...], window: str = "parts") -> list[Any]:
        device = ooc.device("cpu", threads=2) if not staged else cpu(staged=True)
        judge = Judge(network(graph, BATCH, Mode.STEP), Scene(CallCosts(device, False), space_of("disk", device)), budget)
        bands = Bands(Prices(judge), grids, lasting if grids else {})
        bands.settle(np.full(len(bands.stages), (budget or 1 << 20) / 4))
        proposal = replace(bands.proposal("bands"), kernels="lean", window="parts", space=CLOSE)
        proposal = (
            proposal if judge.fits(proposal) else replace(Bands(bands.prices, grids, lasting).proposal("least"), kernels="lean")
        )
        if window == "listed":
            proposal = next(p for p in in_time(bands.prices, proposal) if judge.fits(p))
        plan = NetworkPlan.of(judge, "auto", {}, proposal if grids else Proposal("keep"), 0)
        assert races(plan.steps(), plan.schedule.layout) == []
        with plan.session(values) as session:
            loss, gradients = session.step(x, target), session.gradients()
            held = sum(int(m.nbytes) for m in session._main.machine.memory.values())  # type: ignore[union-attr]
        predicted = sum(plan.peaks[space] for space in ("device", "staging", "pinned"))
        assert held <= predicted and plan.peaks["device"] <= (budget or predicted)
        return [np.float64(loss), *gradients.values()]

    expected = stepped(None, ())
    for window in ("parts", "listed"):
        have = stepped(budget, one_by_one(network(graph, BATCH, Mode.STEP), planes), window)
        assert all(map(np.array_equal, have, expected)), window


def test_every_wait_is_needed() -> None:
    """Of plans in samples and in planes, with homes that pieces of are moved to: without a wait there is a race."""
    tried = 0
    for seed in range(4):
        judge, rng = training(random_graph(12900 + seed), cpu(staged=True), "pinned"), random.Random(seed)
        plan = NetworkPlan.of(judge, "auto", {}, random_bands(judge, rng), 0)
        steps, layout = plan.steps(), plan.schedule.layout
        waits = [(i, j) for i, step in enumerate(steps) for j in step.after]
        for i, j in rng.sample(waits, min(20, len(waits))):
            mutant = [*steps]
            mutant[i] = steps[i]._replace(after=tuple(k for k in steps[i].after if k != j))
            assert races(mutant, layout), f"{seed}: {i} need not wait for {j}"
            tried += 1
    assert tried > 40


@pytest.mark.parametrize("grid", [(BATCH, 1, 1), (BATCH, 3, 1)])
def test_a_sum_takes_the_place_of_what_nobody_reads_later(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a block's sum, over that behind it: not where tiles are planes, whose neighbours read it for their halo."""
    g = Graph("block")
    h = g.conv(g.input("x", (2, 12, 12)), 4, 3, padding=1, activation="relu", name="before")
    y = g.conv(g.conv(h, 4, 3, padding=1, activation="relu", name="conv1"), 4, 3, padding=1, name="conv2")
    out = g.add(y, h, activation="relu", name="sum")
    logits = g.linear(g.global_pool(g.conv(out, 4, 3, padding=1, name="behind")), 4)
    g.output(logits)
    g.loss("cross_entropy", logits)
    judge = training(g, cpu(), "disk")
    backward = {call.layer: call.index for call in reversed(judge.net.backward)}
    bands = Bands(Prices(judge), tuple((i, grid) for i in (0, backward["conv2"], backward["before"])), {})
    for name in bands.ways:
        bands.change(name, KEEP)
    proposal, (x, labels) = bands.proposal("block"), data(g, BATCH)
    storage = {m.tensor: r.tensor for m, r in judge.trial(proposal).program.storage.items() if m.part is None}
    assert (storage.get("d.before") == "d.sum/act") == (grid[1] == 1), storage
    expected = run(NetworkPlan.of(judge, "keep", {}, Proposal("keep"), 0), x, labels)
    assert not differing(run(NetworkPlan.of(judge, "auto", {}, proposal, 0), x, labels), expected)
    monkeypatch.setattr(sharing, "_meet", lambda one, other: False)
    mutant = NetworkPlan.of(training(g, cpu(), "disk"), "auto", {}, proposal, 0)
    assert bool(differing(run(mutant, x, labels), expected)) == (grid[1] > 1)


@pytest.mark.parametrize("seed", seeds(20, 3))
def test_plans_of_strangers_are_right_or_refused(seed: int) -> None:
    """Whatever their text says of bands: grids of other axes and sizes, tensors that are not there, fates that make no sense."""
    graph, rng = random_graph(13_000 + seed), random.Random(seed)
    judge, (x, labels) = training(graph, cpu(), "disk"), data(graph, BATCH, seed)
    expected = run(NetworkPlan.of(judge, "keep", {}, Proposal("keep"), 0), x, labels)
    text = NetworkPlan.of(judge, "auto", {}, random_bands(judge, rng), 0).to_json()
    assert not differing(run(NetworkPlan.from_json(text, cpu()), x, labels), expected)
    odd: tuple[Any, ...] = ([], [1], [-1, 2, 3], [0, 1, 1], [10**9, 1, 1], [10**9] * 2, [4, 1, 1, 1, 1], 5, -3, [2, 2, 2])
    words = {
        "window": "never", "space": "none", "codec": "gzip", "kernels": "fitting:-3", "bands": [[0, -3]], "micro": [[0, 0]],
        "ahead": -5, "late": [10**9], "cells": [[0, 0]], "over": [["x", "y"]], "fused": [[0, 100]], "chosen": [[0, "none"]],
        "issue": [["x", -1]], "early": [-1],
    }  # fmt: skip
    for _ in range(12):
        raw = json.loads(text)
        told, names = raw["proposal"], list(judge.net.tensors)
        what = rng.choice(("grids", "staying", "fates", "words"))
        if what == "grids":
            rng.choice(told["grids"])[rng.randint(0, 1)] = rng.choice(odd)
        elif what == "staying":
            told["staying"] = rng.choice((["nobody"], [3], rng.sample(names, 4)))
        elif what == "words":
            told |= [rng.choice(list(words.items()))]
        else:
            told["fates"][rng.choice(names)] = rng.choice(("keep", "offload", "recompute", "stream"))
        try:
            plan = NetworkPlan.from_json(json.dumps(raw), cpu())
        except ooc.OocError:
            continue
        assert not differing(run(plan, x, labels), expected), told


def assert_same(graph: Graph, device: ooc.Device, home: str, seed: int, count: int) -> None:
    judge, rng = training(graph, device, home), random.Random(seed)
    x, labels = data(graph, BATCH, seed)
    expected = run(NetworkPlan.of(judge, "keep", {}, Proposal("keep"), 0), x, labels)
    for _ in range(count):
        proposal = random_bands(judge, rng)
        plan = NetworkPlan.of(judge, "auto", {}, proposal, 0)
        assert races(plan.steps(), plan.schedule.layout) == [], proposal
        assert not differing(run(plan, x, labels), expected), proposal


@pytest.mark.parametrize(("seed", "home"), crossed(range(120), ["disk", "host"], every=60))
def test_random_bands_give_the_bits_of_keep(seed: int, home: str) -> None:
    assert_same(random_graph(12000 + seed), cpu(), home, seed, 3)


@pytest.mark.parametrize("seed", seeds(60, 2))
@pytest.mark.parametrize("home", ["disk", "pinned", "host"])
def test_hostile_orders_change_nothing(seed: int, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "walk", Hostile(random.Random(seed)))
    assert_same(random_graph(12500 + seed), cpu(staged=True), home, seed, 2)


def test_seconds_are_the_same_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """For anything on the lanes, and any room beside it."""
    judge = training(models.resnet(18, side=32, width=1 / 4), ooc.device("null", calibration="p100"), "pinned")
    bands, rng = Bands(Prices(judge), slices(judge.net, 1 << 14), {}), np.random.default_rng(0)
    assert 0 < bands.turn < len(bands.load)
    for scale in (1e-3, 1.0, 1e3):
        bands.lanes[...] = rng.random(bands.lanes.shape) * (rng.random(bands.lanes.shape) < 0.6)
        bands.load[...], bands.room = (rng.random(len(bands.load)) * bands.rate * scale for _ in range(2))
        with_it = bands.seconds()
        with monkeypatch.context() as patch:
            patch.setattr(ooc.networks.auto.bands, "kernels", None)
            assert bands.seconds() == pytest.approx(with_it, rel=1e-12)
        assert with_it > bands.lanes[:, 0].sum()


@pytest.mark.parametrize("norm", ["instance", "group"])
def test_statistics_of_samples_pass_in_bands(norm: str) -> None:
    """Each sample and channel has sums of its own over the tiles of space: bands end there, unless tiles are whole samples."""
    graph = Graph("samples")
    h = graph.input("x", (2, 12, 8))
    for i in range(2):
        h = graph.conv(h, 4, 3, padding=1, name=f"conv{i}")
        h = graph.instance_norm(h, activation="relu") if norm == "instance" else graph.group_norm(h, 4, activation="relu")
    graph.output(graph.linear(graph.global_pool(h), 4, name="logits"))
    graph.loss("cross_entropy", "logits")
    x, labels = data(graph, BATCH)
    judge = training(graph, cpu(staged=True), "disk")
    expected = run(NetworkPlan.of(judge, "keep", {}, Proposal("keep"), 0), x, labels)
    count = {}
    for grid in ((BATCH, 1, 1), (2, 1, 1), (BATCH, 3, 1), (BATCH, 12, 1)):
        for fates in ({}, dict.fromkeys(judge.net.kept, Fate.OFFLOAD), {"conv0": Fate.RECOMPUTE}):
            plan = NetworkPlan.of(judge, "auto", {}, Proposal("bands", fates, grids=((0, grid),)), 0)
            assert races(plan.steps(), plan.schedule.layout) == []
            assert not differing(run(plan, x, labels), expected), (grid, fates)
        count[grid] = sum(bool(stage.grid) for stage in stages(judge.net, Proposal("bands", grids=((0, grid),))))
    assert count[BATCH, 1, 1] == 2 and count[BATCH, 3, 1] > 4


def test_volumes_with_instance_norm_train_in_little_memory() -> None:
    """As predicted for a P100: bands as with batch norm, where whole tensors were moved for every call. In an eighth the link
    binds: planes of volumes are transformed as fast as images are."""
    graph, device = models.unet3d(side=64, norm="instance"), ooc.device("null", calibration="p100")
    keep = graph.plan(batch=2, device=device)
    plan = graph.plan(batch=2, device=device, budget=keep.peaks["device"] // 4)
    assert plan.proposal.grids and plan.predicted_seconds < 1.25 * keep.predicted_seconds
