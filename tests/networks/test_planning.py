"""Planning stays cheap: counted in what it looks at, since seconds are the machine's."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from networks import STREAMING
from sweeps import crossed

import ooc
from ooc.networks import POLICIES, judge, lower
from ooc.networks.models import resnet, vgg

GIB = 1 << 30
PROGRAMS, LINKS = 24, 16  # at most, of a policy


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


LARGE = {"vgg16": (lambda: vgg(16), 256, 12 * GIB, "titanx"), "resnet50": (lambda: resnet(50), 32, 1 * GIB, "v100")}


@pytest.mark.parametrize(("policy", "name"), crossed([p for p in POLICIES if p not in STREAMING], [*LARGE], every=4))
def test_a_policy_looks_at_few_programs(policy: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, budget, calibration = LARGE[name]
    programs, links = Counted(judge.program), Counted(lower.link)
    monkeypatch.setattr(judge, "program", programs)
    monkeypatch.setattr(lower, "link", links)
    device = ooc.device("null", calibration=calibration)
    with contextlib.suppress(ooc.BudgetError, ooc.UnsupportedError):  # what it finds is not asked here
        model().plan(batch=batch, budget=budget, policy=policy, device=device)
    assert programs.calls <= PROGRAMS
    assert links.calls <= LINKS


def test_equal_layers_are_planned_once() -> None:
    """ResNets of any depth have the same few operations."""
    device = ooc.device("null", calibration="v100")
    found = []
    for depth in (50, 152):
        plan = resnet(depth).plan(batch=4, device=device)
        found.append(len({id(job.plan) for job in plan.schedule.jobs if job.plan is not None}))
    assert found[1] <= found[0] + 24 < 200


def test_calls_that_are_planned_alike_share_their_steps() -> None:
    plan = resnet(50).plan(batch=4, policy="stream", budget="64 MiB", device=ooc.device("null", calibration="v100"))
    templates = {job.plan for job in plan.schedule.jobs}
    assert len(templates) < len(plan.schedule.jobs) / 2


@pytest.mark.slow
def test_a_thousand_layers_are_planned() -> None:
    plan = resnet(1517).plan(
        batch=32, budget=12 * GIB, policy="vdnn_all", device=ooc.device("null", calibration="titanx")
    )  # fmt: skip
    assert plan.peaks["device"] <= 12 * GIB
    assert len(plan.network.calls) > 12000


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["cpu", "p100"])
def test_inference_under_any_budget_has_a_plan_or_one_error(policy: str, name: str) -> None:
    device = ooc.device("cpu", threads=2) if name == "cpu" else ooc.device("null", calibration=name)
    keep = vgg(16, side=32, width=0.25).plan(batch=8, train=False, device=device)
    planned = 0
    for share in (1, 2, 8, 20):
        with contextlib.suppress(ooc.BudgetError):
            budget = keep.peaks["device"] // share
            plan = vgg(16, side=32, width=0.25).plan(batch=8, train=False, device=device, policy=policy, budget=budget)
            planned += plan.peaks["device"] <= budget
    assert planned
