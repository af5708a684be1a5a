"""Chains: an inference whose tiles pass several calls gives the bits of one that keeps everything, whatever the tiles."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from emulated_driver import emulated
from networks import Hostile, cpu, forward, inference, random_graph, seeds
from races import races
from sweeps import crossed

import ooc
from ooc.ir.region import Span, Tile, elements
from ooc.model.calibration import DEVICES, load_device
from ooc.networks import Graph
from ooc.networks.calls import Network
from ooc.networks.chains import Grid, chainable, parts, share, tile_of
from ooc.networks.fusing import fused
from ooc.networks.plan import NetworkPlan
from ooc.networks.proposal import Fate, Proposal
from ooc.runtime import executor
from ooc.runtime.device import Device
from ooc.schedule.place import CALLER
from perfmodel.bench.gpu.volume import faultseg3d

BATCH = 3


def convolutions(side: int, k: int = 16, count: int = 10) -> Graph:
    graph = Graph("convolutions")
    h = graph.input("x", (k, side, side))
    for i in range(count):
        h = graph.conv(h, k, 3, padding=1, bias=True, activation="relu", name=f"conv{i}")
    graph.output(h)
    return graph


def random_chains(net: Network, rng: random.Random) -> Proposal:
    """Chains that begin and are cut anywhere; what crosses them lives anywhere."""
    grids: list[tuple[int, Grid]] = []
    last = False
    for call in net.calls:
        chained = chainable(net, call)
        if not chained or not last or rng.random() < 0.35:
            rank = len(net.tensors[call.makes[0]].shape) - 2
            grid = (rng.randint(1, net.batch), *(rng.randint(1, 4) for _ in range(rank)))
            grids.append((call.index, grid if chained else ()))
        last = chained
    fates = {t.name: rng.choice((Fate.KEEP, Fate.OFFLOAD, Fate.STREAM)) for t in net.tensors.values() if t.per_sample}
    return Proposal("chains", fates, grids=tuple(grids), window=rng.choice(("demand", "runs")), ahead=rng.randint(0, 4))


def assert_same(graph: Graph, device: ooc.Device, home: str, seed: int, count: int) -> None:
    judge, rng = inference(graph, device, home), random.Random(seed)
    x = np.random.default_rng(seed).standard_normal((BATCH, *graph.shapes["x"])).astype(np.float32)
    wanted = forward(NetworkPlan.of(judge, "keep", {}, Proposal("keep"), 0), x)
    for _ in range(count):
        proposal = random_chains(judge.net, rng)
        plan = NetworkPlan.of(judge, "auto", {}, proposal, 0)
        assert races(plan.steps(), plan.schedule.layout) == [], proposal
        assert np.array_equal(forward(plan, x), wanted), proposal


@pytest.mark.parametrize("seed", seeds(80, 10))
@pytest.mark.parametrize("home", ["disk", "host"])
def test_random_chains_give_the_bits_of_keep(seed: int, home: str) -> None:
    assert_same(random_graph(9000 + seed), cpu(), home, seed, 3)


@pytest.mark.parametrize("seed", seeds(40, 4))
@pytest.mark.parametrize("home", ["disk", "pinned", "host"])
def test_hostile_orders_change_nothing(seed: int, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "walk", Hostile(random.Random(seed)))
    assert_same(random_graph(9100 + seed), cpu(staged=True), home, seed, 2)


@pytest.mark.parametrize("seed", seeds(12, 1))
@pytest.mark.parametrize("home", ["disk", "pinned", "host"])
def test_streams_that_overtake_each_other_change_nothing(seed: int, home: str) -> None:
    where = Device(emulated(11, cudnn=seed % 2 == 1), load_device("p100"), deterministic=True)
    assert_same(random_graph(9200 + seed), where, home, seed, 2)


@pytest.mark.parametrize(("seed", "policy_share"), crossed(range(20), [2, 5, 12, 30], every=22))
def test_auto_on_large_pictures(seed: int, policy_share: int) -> None:
    rng = random.Random(seed)
    graph = Graph("large")
    h = graph.input("x", (3, 61, 83))
    for _ in range(rng.randint(3, 7)):
        h = graph.conv(h, 8, rng.choice((1, 3, 5)), padding=rng.choice((1, 2)), stride=rng.choice((1, 1, 2)), activation="relu")
        h = rng.choice((h, graph.batch_norm(h), graph.instance_norm(h), graph.lrn(h, 3), graph.pool(h, 3, stride=2, padding=1)))
    skip = graph.conv(h, 8, 1)
    h = graph.add(graph.conv(h, 8, 3, padding=1), skip, activation="relu")
    graph.output(graph.upsample(h, factor=2, how=rng.choice(("nearest", "linear"))))
    keep = inference(graph, cpu(), "disk", 2)
    x = np.random.default_rng(seed).standard_normal((2, 3, 61, 83)).astype(np.float32)
    wanted = forward(NetworkPlan.of(keep, "keep", {}, Proposal("keep"), 0), x)
    budget = keep.needs(Proposal("keep")) // policy_share
    plan = graph.plan(batch=2, train=False, budget=budget, device=cpu(), deterministic=True, home="disk")
    assert plan.peaks["device"] <= budget and races(plan.steps(), plan.schedule.layout) == []
    assert np.array_equal(forward(plan, x), wanted), plan.why


def behind_a_disk(folder: Path) -> Device:
    """The processor behind a disk of 1 GB/s, without a page cache, out of which moving more than once costs little."""
    calibration = json.loads((DEVICES / "cpu.json").read_text())
    for way in ("cached", "again"):
        del calibration["copies"][way]
        del calibration["fit_error"][way]
    for lane in ("read", "write"):
        calibration["copies"][lane]["bytes_per_second"] = 1e9
    path = folder / "disk.json"
    path.write_text(json.dumps(calibration))
    return ooc.device("cpu", threads=2, calibration=str(path))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "sizes"), crossed(["p100", "h200", "cpu"], [(512, 1, 1.25), (1024, 1, 1.15), (256, 8, 1.15)], every=2)
)
def test_ten_convolutions_move_little_more_than_once(name: str, sizes: tuple[int, int, float], tmp_path: Path) -> None:
    side, batch, parts = sizes
    device = behind_a_disk(tmp_path) if name == "cpu" else ooc.device("null", calibration=name)
    graph = convolutions(side)
    keep = graph.plan(batch=batch, train=False, policy="keep", device=device)
    tensors = keep.network.tensors.values()
    activations = sum(t.nbytes for t in tensors if t.per_sample)
    compulsory = sum(keep.network.tensors[t].nbytes for t in ("x", *keep.network.outputs))
    plan = graph.plan(batch=batch, train=False, budget=activations // 50, device=device)
    assert plan.peaks["device"] <= activations // 50
    moved = sum(plan.lane_bytes[lane] for lane in (("read", "write") if name == "cpu" else ("h2d", "d2h")))
    assert moved <= parts * compulsory, plan.why


def test_pictures_come_from_files_and_go_to_files(tmp_path: Path) -> None:
    graph, shape = convolutions(160, 4, 4), (2, 4, 160, 160)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, shape)
    x[...] = np.random.default_rng(0).standard_normal(shape)
    x.flush()
    given = np.load(tmp_path / "x.npy", mmap_mode="r")
    keep = graph.plan(batch=2, train=False, policy="keep", device=cpu(), deterministic=True)
    wanted = forward(keep, np.array(x))
    plan = graph.plan(batch=2, train=False, budget=keep.peaks["device"] // 20, device=cpu(), deterministic=True)
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, shape)
    with plan.session(seed=3) as session:
        assert session.forward(given, out=out) is out
        for wrong in (out[:1], out.astype(np.float64), np.load(tmp_path / "y.npy", mmap_mode="r"), x, [1.0], {"y": out}):
            with pytest.raises((ooc.ShapeError, ooc.DtypeError)):
                session.forward(given, out=wrong)
    assert np.array_equal(np.load(tmp_path / "y.npy"), wanted)


@pytest.mark.parametrize("home", ["disk", "pinned", "host"])
def test_no_wait_of_a_chain_is_too_many(home: str) -> None:
    """Without any one of its waits the schedule of a chain has a race."""
    judge, rng = inference(convolutions(24, 4, 4), cpu(staged=True), home, 2), random.Random(0)
    fates = {"conv1": Fate.OFFLOAD}
    for window in ("demand", "runs"):
        chains = Proposal("chains", fates, grids=((0, (1, 3, 2)), (2, (2, 2, 1))), window=window, ahead=3)
        plan = NetworkPlan.of(judge, "auto", {}, chains, 0)
        steps, layout = plan.steps(), plan.schedule.layout
        assert races(steps, layout) == []
        waits = [(i, j) for i, step in enumerate(steps) for j in step.after]
        for i, j in rng.sample(waits, min(30, len(waits))):
            mutant = [*steps]
            mutant[i] = steps[i]._replace(after=tuple(k for k in steps[i].after if k != j))
            assert races(mutant, layout), f"{window}: {i} need not wait for {j}"


@pytest.mark.parametrize("budget", [2 << 10, 16 << 10, 256 << 10, None])
@pytest.mark.parametrize("deterministic", [False, True])
def test_integers_are_exact_at_any_budget(budget: int | None, deterministic: bool) -> None:
    graph, draw = convolutions(20, 4, 4), np.random.default_rng(0)
    shapes = {name: weights.shape for name, weights in graph.parameters.items()}
    given = {name: draw.integers(-1, 2, shape).astype(np.float32) for name, shape in shapes.items()}
    x = draw.integers(-3, 4, (2, 4, 20, 20)).astype(np.float32)
    wanted = x.astype(np.float64)
    for i in range(4):
        w, b = given[f"conv{i}.w"].astype(np.float64), given[f"conv{i}.b"]
        padded = np.pad(wanted, ((0, 0), (0, 0), (1, 1), (1, 1)))
        rows = [(r, c, w[:, :, r, c]) for r in range(3) for c in range(3)]
        sums = sum(np.einsum("nchw,kc->nkhw", padded[:, :, r : r + 20, c : c + 20], tap) for r, c, tap in rows)
        wanted = np.maximum(sums + b[:, None, None], 0)
    assert wanted.max() < 1 << 24
    plan = graph.plan(batch=2, train=False, budget=budget, device=cpu(), deterministic=deterministic, home="disk")
    with plan.session(given) as session:
        assert np.array_equal(session.forward(x), wanted), plan.why
        held = session._main.machine.memory  # type: ignore[union-attr]
        assert sum(int(m.nbytes) for m in held.values()) == plan.peaks["device"]
    assert budget is None or plan.peaks["device"] <= budget


@pytest.mark.parametrize("seed", range(12))
def test_outputs_that_are_read_again_wait_until_they_are_written(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("outputs")
    a = graph.conv(graph.input("x", (3, 24, 24)), 8, 3, padding=1, name="a")
    b = graph.conv(a, 8, 3, padding=1, name="b")
    graph.output(a)
    graph.output(b)
    graph.output(graph.conv(graph.instance_norm(b), 4, 1, name="c"))
    judge = inference(graph, cpu(staged=True), "disk")
    x = np.random.default_rng(seed).standard_normal((BATCH, 3, 24, 24)).astype(np.float32)
    wanted = forward(NetworkPlan.of(judge, "keep", {}, Proposal("keep"), 0), x)
    monkeypatch.setattr(executor, "walk", Hostile(random.Random(seed)))
    chains = Proposal("chains", grids=((0, (1, 3, 2)), (1, (1, 2, 3)), (2, ())))
    for budget, proposal in ((None, chains), (40_000, Proposal("stream", others=Fate.STREAM))):
        plan = NetworkPlan.of(judge.within(budget), "auto", {}, proposal, 0)
        assert any(ref.buffer is not None and ref.buffer.space == CALLER for step in plan.steps() for ref in step.writes)
        found = forward(plan, x)
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.quick
@pytest.mark.parametrize("grid", [(1, 1), (3, 1), (1, 5), (2, 7), (4, 9)])
def test_shares_are_all_of_a_tensor_once(grid: Grid) -> None:
    shape = (4, 3, 7)
    count = np.zeros(shape, int)
    for at in itertools.product(*map(range, grid)):
        count[tuple(slice(*span) for span in share(shape, grid, at))] += 1
    assert (count == 1).all()


@pytest.mark.quick
def test_a_part_has_the_halo_that_its_calls_need() -> None:
    judge = inference(convolutions(32, 4, 3), cpu(), "disk", 2)
    net = judge.net
    every = list(parts(net, net.calls, (1, 2, 2), set(net.outputs)))
    assert len(every) == 4
    first = every[0].regions
    assert [str(s) for s in first["conv2"]] == ["0:2", "0:4", "0:16", "0:16"]
    assert [str(s) for s in first["conv0"]] == ["0:2", "0:4", "0:18", "0:18"]
    assert [str(s) for s in first["x"]] == ["0:2", "0:4", "0:19", "0:19"]
    assert [str(s) for s in every[3].regions["x"]] == ["0:2", "0:4", "13:32", "13:32"]
    assert sum(elements(p.regions["conv2"]) for p in every) == elements(net.calls[2].op.outputs[0].whole)


@pytest.mark.quick
def test_what_sums_over_space_is_in_no_chain() -> None:
    graph = Graph("normed")
    h = graph.instance_norm(graph.conv(graph.input("x", (3, 16, 16)), 4, 3, padding=1))
    graph.output(graph.linear(graph.global_pool(graph.conv(h, 4, 3)), 2))
    net = inference(graph, cpu(), "disk").net
    chained = {call.op.kind: chainable(net, call) for call in net.calls if call.kind != "linear"}
    assert chained["conv.fprop"] and not chained["bn.moments"]
    assert not any(chainable(net, call) for call in net.calls if call.kind == "linear")


@pytest.mark.parametrize("seed", seeds(200, 40))
def test_parts_read_what_tiles_of_fused_ops_read(seed: int) -> None:
    """Parts find their regions from numbers, fused ops from maps: both are the same walk."""
    rng = random.Random(seed)
    graph = Graph("chain")
    h = graph.input("x", (4, rng.randint(9, 40), rng.randint(9, 40)))
    for _ in range(rng.randint(2, 6)):
        taps, stride = rng.choice((1, 2, 3, 5)), rng.choice((1, 1, 1, 2, 3))
        if rng.random() < 0.3:
            h = graph.pool(h, max(2, taps), stride=stride, padding=rng.randint(0, max(2, taps) // 2))
        else:
            h = graph.conv(h, 4, taps, stride=stride, padding=rng.randint(0, taps // 2), dilation=rng.choice((1, 1, 2)))
        if min(graph.shapes[h][1:]) < 10:
            break
    beside = graph.conv(h, 4, 3, padding=1) if rng.random() < 0.5 else h
    graph.output(graph.add(graph.conv(h, 4, 1), beside))
    net = inference(graph, cpu(), "disk", 2).net
    (y,), (call,) = net.outputs, fused(net, [(0, len(net.calls))]).calls
    grid = (rng.randint(1, 2), rng.randint(1, 5), rng.randint(1, 5))
    everything: Tile = {dim: Span(0, extent) for dim, extent in call.op.dims.items()}
    for at, part in zip(itertools.product(*map(range, grid)), parts(net, net.calls, grid, [y]), strict=True):
        tile = everything | tile_of(net.calls[-1].op.outputs[0], net.tensors[y].shape, share(net.tensors[y].shape, grid, at))
        (region,) = (operand.region(tile) for operand, name in zip(call.op.inputs, call.reads, strict=True) if name == "x")
        if len(part.tiles) == len(net.calls):
            assert region == part.regions["x"], (at, grid)
        else:  # some call reads padding alone: a part leaves out those before it
            assert all(a.lo <= b.lo and b.hi <= a.hi for a, b in zip(region, part.regions.get("x", region), strict=True))


@pytest.mark.filterwarnings("error::RuntimeWarning")  # sums of workspaces that cuDNN refuses are no negative ones
def test_a_volume_whose_homes_do_not_fit_is_one_chain() -> None:
    """Of the ways to cut a network of 1024^3 voxels one leaves nothing at home but what comes in and goes out. Its halos are
    computed again, those of 16 channels by kernels without transforms, which take most of the time."""
    graph, device = faultseg3d(1024), ooc.device("null", calibration="h200")
    plan = graph.plan(batch=1, train=False, budget="16 GiB", pinned="8 GiB", device=device)
    assert plan.peaks["pinned"] + plan.peaks["staging"] <= 8 << 30 and plan.peaks["device"] <= 16 << 30
    assert plan.predicted_seconds < 2.25 * plan.bound_seconds and plan.smallest_bytes > 0
