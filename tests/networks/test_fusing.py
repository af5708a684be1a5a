"""Runs of calls as fused ops: an inference gives the bits of one that keeps everything, wherever it is cut, and auto takes such
runs where they are predicted faster."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_driver import emulated
from networks import Hostile, cpu, forward, inference, random_graph, seeds
from races import races

import ooc
from ooc.ir.fused import Fused
from ooc.model.calibration import load_device
from ooc.networks import Graph
from ooc.networks.auto import choice
from ooc.networks.auto.fusing import in_tiles
from ooc.networks.calls import Network
from ooc.networks.chains import chainable
from ooc.networks.fusing import FusedRun, fused
from ooc.networks.plan import NetworkPlan
from ooc.networks.planning import NetworkRequest, judge_of
from ooc.networks.policies import POLICIES
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.tensors import Mode
from ooc.runtime import executor
from ooc.runtime.device import Device
from ooc.schedule.budget import parse_bytes


def random_runs(net: Network, rng: random.Random) -> tuple[FusedRun, ...]:
    """Runs of calls that can be chained, cut anywhere."""
    runs, begin = list[FusedRun](), 0
    for end in range(len(net.calls) + 1):
        if end == len(net.calls) or not chainable(net, net.calls[end]) or rng.random() < 0.25:
            if end - begin > 1:
                runs.append((begin, end - begin))
            begin = end + (end < len(net.calls) and not chainable(net, net.calls[end]))
    return tuple(runs)


def proposals(net: Network, rng: random.Random, count: int) -> list[Proposal]:
    """Fused runs in tiles; what is beside them lives anywhere."""
    found = []
    for _ in range(count):
        runs = random_runs(net, rng)
        after = fused(net, runs)
        fates = {t.name: rng.choice((Fate.KEEP, Fate.STREAM)) for t in after.tensors.values()}
        fates |= {t: Fate.STREAM for call in after.calls if isinstance(call.op, Fused) for t in call.makes}
        found.append(Proposal("fused", fates, fused=runs))
    return found


def assert_same(graph: Graph, device: ooc.Device, home: str, seed: int, count: int) -> int:
    """How many runs were fused."""
    judge, rng, met = inference(graph, device, home), random.Random(seed), 0
    x = np.random.default_rng(seed).standard_normal((3, *graph.shapes["x"])).astype(np.float32)
    wanted = forward(NetworkPlan.of(judge, "keep", {}, Proposal("keep"), 0), x)
    for proposal in proposals(judge.net, rng, count):
        tight = judge.within(judge.needs(proposal) * 5 // 4)
        plan = NetworkPlan.of(tight, "auto", {}, proposal, 0)
        assert races(plan.steps(), plan.schedule.layout) == [], proposal
        assert np.array_equal(forward(plan, x), wanted), proposal
        met += len(proposal.fused)
    return met


@pytest.mark.quick
@pytest.mark.parametrize("seed", seeds(60, 6))
def test_random_runs_give_the_bits_of_keep(seed: int) -> None:
    assert assert_same(random_graph(9300 + seed), cpu(), ("disk", "host")[seed % 2], seed, 3)


@pytest.mark.parametrize("seed", seeds(30, 3))
def test_hostile_orders_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "walk", Hostile(random.Random(seed), whole=False))
    assert assert_same(random_graph(9400 + seed), cpu(staged=True), ("disk", "pinned", "host")[seed % 3], seed, 2)


@pytest.mark.parametrize("seed", seeds(12, 2))
def test_streams_that_overtake_each_other_change_nothing(seed: int) -> None:
    where = Device(emulated(11, cudnn=seed % 2 == 1), load_device("p100"), deterministic=True)
    assert assert_same(random_graph(9500 + seed), where, ("disk", "pinned", "host")[seed % 3], seed, 2)


def blocks(side: int = 64) -> Graph:
    """Two blocks as VGG has them, whose filters are the same from the second layer on."""
    graph = Graph("blocks")
    h = graph.input("x", (8, side, side))
    for _ in range(2):
        for _ in range(2):
            h = graph.conv(h, 8, 3, padding=1, bias=True, activation="relu")
        h = graph.pool(h, 2)
    graph.output(h)
    return graph


def test_equal_runs_are_equal_ops() -> None:
    """Named as a chain's operands are, so that they share plans with each other and with `ooc.chain`."""
    graph = Graph("same")
    h = graph.input("x", (8, 32, 32))
    for _ in range(6):
        h = graph.conv(h, 8, 3, padding=1, bias=True, activation="relu")
    graph.output(h)
    net = fused(inference(graph, cpu(), "disk").net, ((0, 3), (3, 3)))
    first, second = net.calls
    assert first.op == second.op and first.makes == second.reads[:1] and [o.name for o in first.op.inputs][:2] == ["x", "w"]
    assert "conv2" not in net.tensors and first.makes[0] in net.tensors


@pytest.mark.parametrize("name", ["p100", "a100"])
def test_auto_takes_them_where_they_are_faster(name: str) -> None:
    """Where copies bind, what a chain of single calls loads waits for the part before it; a fused op has rings."""
    graph, device = Graph("deep"), ooc.device("null", calibration=name)
    h = graph.input("x", (8, 512, 512))
    for _ in range(6):
        h = graph.conv(h, 8, 3, padding=1, bias=True, activation="relu")
    graph.output(h)
    whole = graph.plan(batch=4, train=False, device=device, policy="keep")
    budget = whole.peaks["device"] * 3 // 4
    plan = graph.plan(batch=4, train=False, device=device, home="disk", budget=budget)
    assert plan.proposal.fused and "fused" in plan.why
    others = choice.choose(judge_of(graph, 4, budget, NetworkRequest(Mode.INFER), device, home="disk"), tuple(POLICIES.values()))
    assert plan.predicted_seconds < 0.9 * min(c.seconds for c in others if not c.proposal.fused)
    again = NetworkPlan.from_json(plan.to_json(), device)
    assert again.proposal == plan.proposal and again.steps() == plan.steps()


@pytest.mark.parametrize("runs", [[[0, 99]], [[-1, 2]], [[0, 3], [2, 2]], [[1, 0]], [["0", 2]], [[0]], [0], "ab"])
def test_runs_of_a_text_are_not_believed(runs: Any) -> None:
    device = ooc.device("null", calibration="p100")
    raw = json.loads(blocks().plan(batch=2, train=False, device=device, policy="stream").to_json())
    raw["proposal"]["fused"] = runs
    with pytest.raises(ooc.ShapeError):
        NetworkPlan.from_json(json.dumps(raw), device)


def test_fused_runs_take_what_plans_say() -> None:
    """Memory that was held, and bits, of the plan that a device with little memory gets."""
    graph = blocks()
    x = np.random.default_rng(0).standard_normal((3, 8, 64, 64)).astype(np.float32)
    judge = inference(graph, cpu(), "disk")
    fates = dict.fromkeys(("x", *judge.net.outputs), Fate.STREAM)
    proposal = Proposal("fused", fates, fused=((0, len(judge.net.calls)),))
    tight = judge.within(judge.needs(proposal) + (16 << 10))
    plan = NetworkPlan.of(tight, "auto", {}, proposal, 0)
    with plan.session(seed=3) as session:
        made = session.forward(x)
        held = sum(int(m.nbytes) for m in session._main.machine.memory.values())  # type: ignore[union-attr]
    assert held <= plan.peaks["device"] <= (tight.budget or 0)
    assert np.array_equal(made, forward(NetworkPlan.of(judge, "keep", {}, Proposal("keep"), 0), x))
    assert sum(step.kind == "run" for step in plan.steps()) > 3


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB", None])
@pytest.mark.parametrize("staged", [False, True])
def test_exact_integers_within_any_budget(budget: str | None, staged: bool, tmp_path: Path) -> None:
    """From file to file: memory held <= predicted <= budget, and the sums of NumPy."""
    rng, graph = np.random.default_rng(1), Graph("exact")
    h = graph.input("x", (2, 20, 20))
    for _ in range(2):
        h = graph.conv(h, 2, 3, padding=1, activation="relu")
    graph.output(h)
    limit = parse_bytes(budget, 1 << 30) if budget else None
    judge = judge_of(graph, 3, limit, NetworkRequest(Mode.INFER), cpu(staged), home="disk")
    plan = NetworkPlan.of(judge, "auto", {}, Proposal("fused", others=Fate.STREAM, fused=((0, 2),)), 0)
    values = {name: rng.integers(-2, 3, w.shape).astype(np.float32) for name, w in graph.parameters.items()}
    np.save(tmp_path / "x.npy", rng.integers(-3, 4, (3, 2, 20, 20)).astype(np.float32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    y = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, x.shape)
    with plan.session(values) as session:
        session.forward(x, out=y)
        held = sum(int(m.nbytes) for m in session._main.machine.memory.values())  # type: ignore[union-attr]
    predicted = sum(plan.peaks[space] for space in ("device", "staging", "pinned"))
    assert held <= predicted <= (limit or predicted)
    wanted = np.asarray(x)
    for name in graph.parameters:
        wanted = np.maximum(convolved(wanted, values[name]), 0)
    np.testing.assert_array_equal(y, wanted)


def convolved(x: Any, w: Any) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype("f8")
    return np.einsum("nchwrs,kcrs->nkhw", np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3)), w)


def test_a_wait_that_is_taken_out_is_missed() -> None:
    judge = inference(blocks(), cpu(staged=True), "disk")
    proposal = Proposal("fused", others=Fate.STREAM, fused=((0, len(judge.net.calls)),))
    plan = NetworkPlan.of(judge.within(judge.needs(proposal) + (16 << 10)), "auto", {}, proposal, 0)
    steps, layout, missed = plan.steps(), plan.schedule.layout, 0
    assert races(steps, layout) == []
    for i in range(0, len(steps), 3):
        for j in steps[i].after[:1]:
            mutant = steps[i]._replace(after=tuple(k for k in steps[i].after if k != j))
            missed += bool(races((*steps[:i], mutant, *steps[i + 1 :]), layout))
    assert missed > 5


def test_layers_of_every_kind() -> None:
    """Whatever a graph has, auto has a plan, and its bits: some layers see a tensor with other axes, or in another order."""
    graph = Graph("kinds")
    h = graph.convert(graph.input("x", (4, 16, 16), "u8"), scale=1 / 255)
    h = graph.conv(h, 8, 3, padding=1, groups=2, activation="relu")
    h = graph.lrn(graph.instance_norm(graph.group_norm(h, 2)), 3)
    h = graph.permute(h, (0, 2, 1))
    h = graph.depth_to_space(graph.conv(h, 8, 1), 2)
    h = graph.softmax(graph.multiply(h, graph.affine(graph.function(h, "erf"), "scale", np.full((2, 1, 1), 2, np.float32))))
    h = graph.upsample(graph.conv_transpose(graph.pad(graph.crop(h, 1), 2), 4, 3, stride=2), size=(33, 47))
    h = graph.concat(graph.dropout(h, 0.2), h)
    graph.output(graph.argmax(h), graph.round(h, "u8"))
    x = np.random.default_rng(0).integers(0, 256, (3, 4, 16, 16), np.uint8)
    keep = inference(graph, cpu(), "disk")
    wanted = forward(NetworkPlan.of(keep, "keep", {}, Proposal("keep"), 0), x)
    met = 0
    for share in (2, 4, 8):
        budget = keep.needs(Proposal("keep")) // share
        plan = graph.plan(batch=3, train=False, budget=budget, device=cpu(), deterministic=True, home="disk")
        made = forward(plan, x)
        assert plan.peaks["device"] <= budget and all(np.array_equal(made[name], wanted[name]) for name in wanted)
        judge = inference(graph, cpu(), "disk").within(budget)
        for proposal in in_tiles(judge, [Proposal("one chain", grids=((0, ()),))]):
            if judge.fits(proposal):
                made = forward(NetworkPlan.of(judge, "auto", {}, proposal, 0), x)
                assert all(np.array_equal(made[name], wanted[name]) for name in wanted), proposal
                met += len(proposal.fused)
    assert met
