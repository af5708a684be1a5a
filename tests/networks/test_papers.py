"""Every policy does something that keeping everything does not; what each does in full, see the tests of its own."""

from __future__ import annotations

import re

import pytest
from papers import chain, judge_of

import ooc
from ooc.networks import POLICIES
from ooc.networks.judge import Judge
from ooc.networks.policies.curve import Curve
from ooc.networks.proposal import Proposal

pytestmark = pytest.mark.quick

NAMES = (
    "keep", "stream", "ooc_cudnn", "vdnn_all", "vdnn_conv", "vdnn_dyn", "vdnn++", "smartpool", "autoswap", "layrub",
    "superneurons", "pooch", "modnn", "micro_cudnn",
)  # fmt: skip
BATCH = 8
INPUTS = {"x", "labels", "share"}


@pytest.fixture(scope="module")
def judge() -> Judge:
    return judge_of(chain(), BATCH)


@pytest.fixture(scope="module")
def tight(judge: Judge) -> int:
    """A byte less than keeping takes with the leanest kernels."""
    return judge.needs(Proposal("keep", kernels="lean")) - 1


def plan_of(policy: str, budget: int | None = None, **options: str) -> ooc.NetworkPlan:
    return chain().plan(batch=BATCH, budget=budget, policy=policy, device=ooc.device("null", calibration="titanx"), **options)


def moved(plan: ooc.NetworkPlan) -> tuple[list[str], list[str]]:
    """What is loaded and stored, in the order of issue."""
    kinds = ("load", "store")
    load, store = ([s.what for s in plan.steps() if s.kind == kind and s.lane in ("h2d", "d2h")] for kind in kinds)
    return load, [what.removeprefix("home of ") for what in store]


def test_names_and_their_order() -> None:
    assert tuple(POLICIES) == NAMES == tuple(p.name for p in POLICIES.values())
    with pytest.raises(ooc.ShapeError, match="expected one of keep, stream, ooc_cudnn, vdnn_all, "):
        plan_of("fastest")


@pytest.mark.parametrize("policy", NAMES)
def test_no_budget_is_too_large(policy: str) -> None:
    plan = plan_of(policy, 1 << 30)
    assert plan.policy == policy and plan.smallest_bytes <= 1 << 30
    with pytest.raises(ooc.BudgetError, match=f"by policy {re.escape(policy)} takes"):
        plan_of(policy, 1)


def test_keep_moves_the_inputs_once(tight: int) -> None:
    plan = plan_of("keep", tight + 1)
    assert moved(plan) == (["x", "labels", "share"], [])
    assert set(plan.fates.values()) == {"keep"} and not plan.proposal.barrier
    assert not any(s.kind == "fence" for s in plan.steps())
    with pytest.raises(ooc.BudgetError):
        plan_of("keep", tight)


def test_stream_has_everything_outside() -> None:
    plan = plan_of("stream", 64 << 10)
    assert set(plan.fates.values()) == {"offload"}
    assert {b.space for b in plan.schedule.resident.values()} == {"spill"}  # parameters too
    assert plan.peaks["device"] <= 64 << 10
    assert any(len([s for s in plan.steps() if s.job == job and s.lane == "compute"]) > 1 for job in range(len(NAMES)))


def test_vdnn_all_stores_inputs_of_layers() -> None:
    load, store = moved(plan_of("vdnn_all"))
    assert store == ["conv1", "pool1", "act1"]
    assert load == ["x", "labels", "share", "act1", "pool1", "conv1", "x"]


def test_vdnn_conv_stores_inputs_of_convolutions() -> None:
    load, store = moved(plan_of("vdnn_conv"))
    assert store == ["pool1"] and load == ["x", "labels", "share", "pool1", "x"]


def test_vdnn_dyn_waits_at_layers_once_something_has_to_leave(tight: int) -> None:
    assert not plan_of("vdnn_dyn").proposal.fates
    assert any(s.kind == "fence" for s in plan_of("vdnn_dyn", tight).steps())


def test_vdnnpp_does_not_wait_at_layers(tight: int) -> None:
    plan = plan_of("vdnn++", tight)
    assert moved(plan)[1] and not any(s.kind == "fence" for s in plan.steps())
    assert "no barrier" in plan.proposal.label and plan.proposal.space in ("ends", "colour")
    assert plan_of("vdnn++", tight, codec="zeros").proposal.codec == "zeros"


def test_smartpool_fits_where_bytes_in_sequence_do_not(judge: Judge, tight: int) -> None:
    plan = plan_of("smartpool", tight + 1)
    assert moved(plan)[1] == [] and plan.proposal.space in ("colour", "first")
    one = judge.trial(plan.proposal)
    in_sequence = one.lowering.apart().peaks["device"]
    assert Curve(one).bytes.max() <= plan.peaks["device"] < 0.75 * in_sequence


def test_autoswap_moves_as_few_as_must(tight: int) -> None:
    assert not plan_of("autoswap").proposal.fates
    plan = plan_of("autoswap", tight)
    assert 1 <= len(plan.proposal.fates) < len(plan.fates) and "candidates by aoa, no_overhead" in plan.proposal.label


def test_layrub_takes_blocks_in_turn_and_data_for_gradients() -> None:
    plan = plan_of("layrub")
    assert plan.proposal.space == "rotate" and plan.proposal.window == "layer"
    assert ("pool1", "d.pool1") in plan.proposal.over
    assert moved(plan)[1] == ["conv1", "pool1", "act1", "lrn1", "fc"]


def test_superneurons_makes_again_what_is_cheap() -> None:
    plan = plan_of("superneurons")
    # act1 stands for conv2, which nobody asks for: making it again would compute the convolution again.
    assert plan.fates == {
        "conv1": "keep", "pool1": "recompute", "act1": "keep", "lrn1": "recompute", "fc": "keep", "loss.sums": "keep",
    }  # fmt: skip
    runs = [s.what for s in plan.steps() if s.lane == "compute"]
    assert runs.count("pool1") == runs.count("lrn1") == 3 and runs.count("conv1") == 2  # forward, (again,) backward


def test_pooch_takes_the_fastest_mix(judge: Judge, tight: int) -> None:
    budget = tight * 9 // 10
    plan = plan_of("pooch", budget)
    assert set(plan.fates.values()) > {"keep"}
    own = Judge(judge.net, judge.scene, budget)
    assert plan.predicted_seconds == min(own.seconds(p) for p in POLICIES["pooch"].propose(own) if own.fits(p))


def test_modnn_computes_parts_of_the_batch(tight: int) -> None:
    assert plan_of("modnn").proposal.chunk == BATCH
    plan = plan_of("modnn", tight)
    assert 1 <= plan.proposal.chunk < BATCH and moved(plan)[1] == []
    assert moved(plan)[0].count("x") == -(-BATCH // plan.proposal.chunk)


def test_micro_cudnn_computes_parts_of_convolutions() -> None:
    graph = ooc.Graph("one convolution")
    h = graph.conv(graph.input("x", (64, 32, 32)), 64, 3, padding=1)
    graph.loss("cross_entropy", graph.linear(graph.global_pool(h), 5))
    device = ooc.device("null", calibration="p100")
    full = graph.plan(batch=32, policy="micro_cudnn", device=device)
    plan = graph.plan(batch=32, policy="micro_cudnn", device=device, budget=full.peaks["device"] - 1)
    assert full.proposal.micro == () != plan.proposal.micro and set(plan.fates.values()) == {"keep"}
