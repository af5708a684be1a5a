"""auto: every form of its own gives keep's bits, within the budget; never predicted slower than a policy; the same plan again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from emulated_driver import emulated
from networks import Hostile, cpu, data, differing, random_graph, run, seeds
from races import races
from sweeps import swept

import ooc
from ooc.model.calibration import load_device
from ooc.networks import POLICIES, SGD, Graph, models
from ooc.networks.auto.early import in_time
from ooc.networks.auto.forms import forms
from ooc.networks.auto.prices import Prices
from ooc.networks.auto.sketches import PRICES, ProposalSearch
from ooc.networks.costs import CallCosts
from ooc.networks.judge import Judge
from ooc.networks.plan import NetworkPlan
from ooc.networks.proposal import Fate, Proposal
from ooc.networks.scene import Scene, counted
from ooc.networks.tensors import Mode
from ooc.networks.where import space_of
from ooc.networks.writer import network
from ooc.runtime import executor
from ooc.runtime.device import Device

BATCH = 6


def heavy() -> Graph:
    """Parameters outweigh activations: what lasts has to leave, too."""
    g = Graph("heavy")
    h = g.conv(g.input("x", (3, 12, 12)), 8, 3, padding=1, activation="relu", bias=True)
    h = g.pool(g.conv(h, 8, 3, padding=1, activation="relu"), 2)
    h = g.linear(g.flatten(h), 96, bias=True, activation="relu")
    h = g.dropout(g.linear(h, 96, activation="relu"), 0.2)
    logits = g.linear(h, 5, bias=True)
    g.output(logits)
    g.loss("cross_entropy", logits)
    return g


def judge_of(graph: Graph, device: ooc.Device, budget: int | None, home: str | None = "disk") -> Judge:
    scene = Scene(CallCosts(device, True), space_of(home, device))
    return Judge(network(graph, BATCH, Mode.STEP, SGD(0.05, 0.9), True), scene, budget)


def sketches(judge: Judge) -> list[Proposal]:
    """What auto looks at, of all forms and prices."""
    search = ProposalSearch(judge)
    for form in forms(judge):
        for price in PRICES:
            search.look(form, price)
    return [p for s in search.ranking() for p in in_time(search.prices, s.proposal) if judge.fits(p)]


def assert_forms(
    graph: Graph, device: ooc.Device, shares: tuple[int, ...], most: int = 1 << 30, home: str = "disk"
) -> set[Fate]:  # fmt: skip
    """The fates that were met."""
    x, labels = data(graph, BATCH)
    free = judge_of(graph, device, None, home)
    wanted = run(NetworkPlan.of(free, "auto", {}, Proposal("keep"), 0), x, labels)
    whole, met = free.needs(Proposal("keep")), set()
    for share in shares:
        judge = judge_of(graph, device, whole // share, home)
        found = sketches(judge)
        for proposal in found[:: max(1, len(found) // most)]:
            plan = NetworkPlan.of(judge, "auto", {}, proposal, 0)
            note = f"{graph.name} {judge.budget}: {proposal}"
            assert races(plan.steps(), plan.schedule.layout) == [], note
            assert counted(plan.schedule.layout, judge.scene) <= whole // share, note
            assert differing(run(plan, x, labels), wanted) == [], note
            met |= {*proposal.fates.values(), *([Fate.KEEP] if proposal.bands else [])}
    return met


@pytest.mark.parametrize("seed", seeds(60, 1))
def test_every_form_gives_the_same_bits(seed: int) -> None:
    assert assert_forms(random_graph(5000 + seed, statistics=seed % 3 == 0), cpu(), (2, 4, 8), 12)


@pytest.mark.parametrize("seed", seeds(20, 1))
def test_hostile_orders_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "walk", Hostile(random.Random(seed)))
    assert assert_forms(random_graph(6000 + seed, statistics=seed % 2 == 0), cpu(staged=True), (3, 6), 8)


@pytest.mark.parametrize("staged", swept([True, False], suite=0))
def test_parameters_leave_too(staged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if staged:
        monkeypatch.setattr(executor, "walk", Hostile(random.Random(0)))
    met = assert_forms(heavy(), cpu(staged), (2, 3, 5))
    assert met >= {Fate.OFFLOAD, Fate.STREAM, Fate.KEEP}


@pytest.mark.parametrize("home", swept(["pinned", "host", "disk"], suite=1))
@pytest.mark.parametrize(("make", "cudnn"), [
    (heavy, False), pytest.param(heavy, True, marks=pytest.mark.slow),
    *(pytest.param(lambda s=s: random_graph(6500 + s, s % 2 == 0), s % 3 == 0, marks=pytest.mark.slow) for s in range(10)),
])  # fmt: skip
def test_streams_that_overtake_each_other_change_nothing(make: Any, cudnn: bool, home: str) -> None:
    where = Device(emulated(11, cudnn=cudnn), load_device("p100"), deterministic=True)
    assert assert_forms(make(), where, (3, 6), 5, home)


# ---- the choice

DEVICES = ("k40", "titanx", "p100", "v100", "a100", "h200", "cpu")


def device_of(name: str) -> ooc.Device:
    return ooc.device("cpu", threads=2) if name == "cpu" else ooc.device("null", calibration=name)


@pytest.mark.parametrize("seed", seeds(300, 1))
@pytest.mark.parametrize(("train", "home"), [(True, None), (False, None), (False, "disk")])
def test_never_predicted_slower_than_a_policy(seed: int, train: bool, home: str | None) -> None:
    graph, device, batch = random_graph(7000 + seed, seed % 2 == 0), device_of(DEVICES[seed % 7]), 32

    def planned(policy: str, budget: int | None) -> ooc.NetworkPlan:
        return graph.plan(batch=batch, budget=budget, policy=policy, device=device, train=train, home=home)

    keep = planned("keep", None).peaks["device"]
    for share in (2, 5, 12):
        auto = planned("auto", keep // share)
        assert auto.peaks["device"] <= keep // share
        for policy in POLICIES:
            try:
                other = planned(policy, keep // share).predicted_seconds
            except (ooc.BudgetError, ooc.UnsupportedError):
                continue
            assert auto.predicted_seconds <= other * (1 + 1e-9), f"{policy}: {auto.why}"


@pytest.mark.parametrize("home", [None, "disk"])
@pytest.mark.parametrize("seed", seeds(60, 2))
def test_what_rules_a_policy_out_is_never_above_its_seconds(seed: int, home: str | None) -> None:
    """Of an inference in parts of memory: what a program takes if nothing waits."""
    graph, device = random_graph(7400 + seed, seed % 2 == 0), device_of(DEVICES[-1 - seed % 7])
    net = network(graph, 8, Mode.INFER, None, False)
    judge = Judge(net, Scene(CallCosts(device, False), space_of(home, device)), None)
    keep = judge.needs(Proposal("keep"))
    for share in (2, 5, 12):
        under = judge.within(keep // share)
        for policy in POLICIES.values():
            for proposal in policy.propose(under):
                if under.fits(proposal):
                    floor = Prices(under).floor(under.trial(proposal))
                    assert floor <= under.seconds(proposal) * (1 + 1e-9), (policy.name, proposal.label)


def test_equal_inputs_give_equal_plans() -> None:
    texts = {
        random_graph(7100).plan(batch=32, budget="200 KiB", policy="auto", device=device_of("p100")).to_json() for _ in range(2)
    }
    assert len(texts) == 1


def test_a_plan_returns_from_its_text() -> None:
    plan = random_graph(7101).plan(batch=32, budget="300 KiB", policy="auto", device=device_of("p100"))
    again = ooc.NetworkPlan.from_json(plan.to_json(), device_of("p100"))
    assert (again.predicted_seconds, again.peaks, again.why) == (plan.predicted_seconds, plan.peaks, plan.why)


def test_what_fits_is_kept() -> None:
    plan = heavy().plan(batch=BATCH, device=device_of("p100"), policy="auto")
    assert set(plan.fates.values()) == {"keep"} and plan.why.startswith("all stays")


def test_inputs_come_part_by_part() -> None:
    """AlexNet on an H200, whose link takes a good part of the step to bring a batch: kernels begin with the first part of it."""
    graph, device = models.named("alexnet"), ooc.device("null", calibration="h200")
    keep = graph.plan(batch=256, policy="keep", device=device)
    plan = graph.plan(batch=256, budget=4 * keep.peaks["device"], device=device)
    assert "inputs as they come" in plan.why and plan.predicted_seconds < 0.95 * keep.predicted_seconds


def test_less_than_any_plan_takes_is_refused_with_the_number() -> None:
    with pytest.raises(ooc.BudgetError, match="policy auto") as caught:
        heavy().plan(batch=BATCH, budget=64, policy="auto", device=device_of("p100"))
    least = caught.value.smallest_bytes
    assert least and heavy().plan(batch=BATCH, budget=least, policy="auto", device=device_of("p100")).peaks["device"] <= least


def test_options_are_refused() -> None:
    with pytest.raises(ooc.OptionError, match="it takes none"):
        heavy().plan(batch=BATCH, policy="auto", score="doa")


def test_cutting_inside_layers_and_planning_across_them_joined() -> None:
    """The first layers do not fit as a whole, and where all tensors are outside, pinned memory does not hold them."""
    g = Graph("wide, then deep")
    h = g.conv(g.input("x", (4, 128, 128)), 16, 3, padding=1, bias=True, activation="relu", name="wide1")
    h = g.pool(g.conv(h, 16, 3, padding=1, activation="relu", name="wide2"), 8)
    for i in range(12):
        h = g.conv(h, 16, 3, padding=1, activation="relu", name=f"deep{i}")
    g.loss("cross_entropy", g.linear(g.global_pool(h), 4))
    limits: dict[str, Any] = {"batch": 1, "budget": "768 KiB", "pinned": "4352 KiB", "device": device_of("p100")}
    for policy in set(POLICIES) - {"ooc_cudnn"}:
        with pytest.raises(ooc.BudgetError):
            g.plan(policy=policy, **limits)
    plan = g.plan(policy="auto", **limits)
    assert plan.predicted_seconds < 0.5 * g.plan(policy="ooc_cudnn", **limits).predicted_seconds  # which plans call by call
    fates = {name: plan.proposal.fate(name) for name in plan.network.kept}
    assert fates["wide1"] is Fate.STREAM and fates["deep5"] is Fate.KEEP
    assert any(job.plan is not None and job.plan.tiles > 1 for job in plan.schedule.jobs)
    assert races(plan.steps(), plan.schedule.layout) == []


@pytest.mark.parametrize("seed", seeds(40, 2))
def test_inference(seed: int) -> None:
    def plan(policy: str, budget: int | None) -> ooc.NetworkPlan:
        graph = random_graph(7400 + seed)
        return graph.plan(batch=BATCH, budget=budget, policy=policy, train=False, device=cpu(), deterministic=True, home="disk")

    keep = plan("keep", None)
    x, _ = data(keep.graph, BATCH)
    with keep.session(seed=2) as session:
        wanted = session.forward(x)
    for share in (2, 4, 8, 16):
        auto = plan("auto", keep.peaks["device"] // share)
        assert auto.peaks["device"] <= keep.peaks["device"] // share
        assert races(auto.steps(), auto.schedule.layout) == []
        with auto.session(seed=2) as session:
            assert np.array_equal(session.forward(x), wanted), auto.why
