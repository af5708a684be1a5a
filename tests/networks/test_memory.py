"""What plans say of memory is what processes take, what fits is planned, and what fails in threads leaves nothing behind."""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import crossed
from waiting import HANGS

import ooc
from ooc.backends.cpu.backend import CpuBackend
from ooc.networks import POLICIES, SGD, Graph, models

ROOT = Path(__file__).parents[2]
HOMES = "disk", "host", "pinned"
LANES = "read", "h2d", "compute", "d2h", "write"
ERRORS = KeyboardInterrupt(), RuntimeError("broken"), OSError(5, "broken")
SLACK = 32 << 20  # beside the peak: what Python, the libraries and the steps themselves take

# One process: a small network first, so that libraries and threads are there, then the large one. What is resident is what the
# process has at most after that, less what it had before: `clear_refs` sets the kernel's mark back.
CHILD = """
import json, sys
import numpy as np
import ooc
from ooc.networks import SGD, Graph

def graph(side, statistics):
    g = Graph("large")
    h = g.input("x", (3, side, side))
    for i in range(6):
        h = g.conv(h, 16, 3, padding=1, bias=True, activation="relu", name=f"conv{i}")
        h = g.batch_norm(h, activation="relu") if statistics else g.activation(h, "tanh")
    logits = g.linear(g.global_pool(g.pool(h, 2)), 4, bias=True)
    g.loss("cross_entropy", logits)
    return g

def resident(what):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[what].split()[0]) << 10

policy, share = sys.argv[1], int(sys.argv[2])
device = ooc.device("cpu", threads=2)
def planned(side, batch, budget):
    return graph(side, policy != "modnn").plan(
        batch=batch, budget=budget, policy=policy, device=device, home="disk", optimizer=SGD(0.01, 0.9))
def stepped(session, x, labels):
    return [session.step(x, labels) for _ in range(2)]

rng = np.random.default_rng(0)
with planned(16, 2, None).session() as session:
    stepped(session, rng.standard_normal((2, 3, 16, 16)).astype(np.float32), [0, 1])
BATCH, SIDE = 16, 96
keep = graph(SIDE, policy != "modnn").plan(batch=BATCH, policy="keep", device=device)
activations = sum(keep.network.tensors[t].nbytes for t in keep.network.kept)
x = rng.standard_normal((BATCH, 3, SIDE, SIDE)).astype(np.float32)
labels = rng.integers(0, 4, BATCH)
budget = max(keep.smallest_bytes // share, 1)
try:
    plan = planned(SIDE, BATCH, budget)
except ooc.BudgetError as error:
    budget = error.smallest_bytes
    plan = planned(SIDE, BATCH, budget)
open("/proc/self/clear_refs", "w").write("5")
before = resident("VmRSS")
with plan.session() as session:
    losses = stepped(session, x, labels)
    arena = {space: int(m.nbytes) for space, m in session._main.machine.memory.items()}
    grown = resident("VmHWM") - before
print(json.dumps({"arena": arena, "peaks": plan.peaks, "budget": budget, "grown": grown, "losses": losses,
    "activations": activations, "keep": keep.smallest_bytes, "seconds": plan.predicted_seconds}))
"""


# The same for gradients of given ones, with parameters that are the caller's.
LENT = """
def passed(plan, x, own, dy):
    with plan.session() as session:
        found = session.backward({"x": x, **{n: own[n] for n in plan.network.borrowed}}, dy)
        arena = {space: int(m.nbytes) for space, m in session._main.machine.memory.items()}
    return arena, [float(np.abs(v).sum()) for _, v in sorted(found.items())]

def graph(side):
    g = Graph("lent")
    h = g.input("x", (3, side, side))
    for i in range(6):
        h = g.batch_norm(g.conv(h, 16, 3, padding=1, bias=True, name=f"conv{i}"), activation="relu")
    g.output(g.linear(g.global_pool(g.pool(h, 2)), 4, bias=True))
    return g

def case(side, batch, share):
    made, device, rng = graph(side), ooc.device("cpu", threads=2), np.random.default_rng(0)
    asked = {"batch": batch, "train": "backward", "lent": True, "device": device, "home": "disk"}
    asked["deterministic"] = "ordered" in sys.argv
    budget = made.plan(policy="keep", **asked).smallest_bytes // share
    with made.plan(batch=batch, train=False, device=device).session() as session:
        own = session.parameters() | session.statistics()
    x, dy = rng.standard_normal((batch, 3, side, side)).astype(np.float32), np.ones((batch, 4), np.float32)
    return made.plan(budget=budget, **asked), x, own, dy, budget

passed(*case(16, 2, 1)[:4])
plan, x, own, dy, budget = case(96, 16, int(sys.argv[1]))
open("/proc/self/clear_refs", "w").write("5")
before = resident("VmRSS")
arena, sums = passed(plan, x, own, dy)
grown = resident("VmHWM") - before
print(json.dumps({"arena": arena, "peaks": plan.peaks, "budget": budget, "grown": grown, "sums": sums, "dx": x.nbytes}))
"""


def child(*arguments: object, program: str = CHILD) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True, text=True, timeout=HANGS, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@functools.cache
def losses_of_keep(statistics: bool) -> tuple[float, ...]:
    return tuple(child("keep" if statistics else "modnn", 1)["losses"])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="what is resident is read from Linux's /proc")
@pytest.mark.parametrize(("policy", "share"), [
    pytest.param(p, s, marks=() if (p, s) in (("vdnn_all", 2), ("stream", 4), ("auto", 4)) else pytest.mark.slow)
    for p in (*POLICIES, "auto") for s in (2, 4)
])  # fmt: skip
def test_processes_take_what_plans_say(policy: str, share: int) -> None:
    found = child(policy, share)
    assert 64 << 20 <= found["activations"] <= 256 << 20
    peak = found["peaks"]["device"]
    assert found["arena"]["device"] == peak
    assert sum(found["peaks"][space] for space in ("device", "staging", "pinned")) <= found["budget"]
    assert found["grown"] <= 1.1 * peak + SLACK, f"{found['grown']} resident, {peak} planned"
    assert found["losses"] == pytest.approx(losses_of_keep(policy != "modnn"), rel=1e-4)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="what is resident is read from Linux's /proc")
def test_gradients_with_lent_parameters_take_what_plans_say() -> None:
    """But for the gradient of the input, which is a new array of the caller's."""
    head = CHILD[: CHILD.index("def graph")] + CHILD[CHILD.index("def resident") : CHILD.index("policy, share")]
    whole, tight = (child(share, program=head + LENT) for share in (1, 4))
    for found in (whole, tight):
        peak = found["peaks"]["device"]
        assert found["arena"]["device"] == peak <= found["budget"]
        assert found["grown"] <= 1.1 * peak + found["dx"] + SLACK, f"{found['grown']} resident, {peak} planned"
    assert tight["budget"] * 4 <= whole["budget"]


def test_gradients_with_lent_parameters_are_the_same_at_any_budget() -> None:
    """With sums in order, bit for bit. Otherwise units at the kink of a relu, one above another, fall to either side of it."""
    head = CHILD[: CHILD.index("def graph")] + CHILD[CHILD.index("def resident") : CHILD.index("policy, share")]
    whole, tight = (child(share, "ordered", program=head + LENT) for share in (1, 4))
    assert tight["budget"] * 4 <= whole["budget"] and tight["sums"] == whole["sums"]


# ---- VGG16 as it is, at a batch that takes 30 GiB


@functools.cache
def vgg() -> Graph:
    return models.vgg(16)


DEVICES: dict[str, Callable[[], ooc.Device]] = {
    "p100": lambda: ooc.device("null", calibration="p100"),
    "cpu": lambda: ooc.device("null", calibration="cpu"),
}


@pytest.mark.parametrize(
    ("name", "sizes"),
    crossed(list(DEVICES), [("stream", 2 << 30), ("stream", 256 << 20), ("modnn", 2 << 30)], every=2),
)
def test_vgg16_of_256_pictures_is_planned(name: str, sizes: tuple[str, int]) -> None:
    policy, budget = sizes
    device = DEVICES[name]()
    plan = vgg().plan(batch=256, budget=budget, policy=policy, device=device)
    assert plan.peaks["device"] <= budget and plan.smallest_bytes <= budget
    assert 0 < plan.bound_seconds <= plan.predicted_seconds


@pytest.mark.parametrize(("policy", "name"), crossed(list(POLICIES), list(DEVICES), every=4))
def test_one_byte_less_than_the_smallest_budget_is_too_little(policy: str, name: str) -> None:
    graph = models.vgg(16, side=32, width=1 / 8)
    device = DEVICES[name]()
    with pytest.raises(ooc.BudgetError) as caught:
        graph.plan(batch=32, budget=1, policy=policy, device=device)
    least = caught.value.smallest_bytes
    assert least is not None and str(least) in str(caught.value)
    with pytest.raises(ooc.BudgetError) as caught:
        graph.plan(batch=32, budget=least - 1, policy=policy, device=device)
    assert caught.value.smallest_bytes == least
    plan = graph.plan(batch=32, budget=least, policy=policy, device=device)
    assert plan.peaks["device"] <= least == plan.smallest_bytes


@pytest.mark.parametrize(
    ("train", "sizes", "device"),
    crossed([True, False], [("vgg16", 64, {}), ("alexnet", 256, {}), ("unet3d", 2, {"side": 128})], list(DEVICES), every=4),
)
def test_the_smallest_budget_has_a_plan(device: str, sizes: tuple[str, int, dict[str, Any]], train: bool) -> None:
    """Of networks of full size, too: billions of tiles, of which the first are made, and no place for a partial sum."""
    name, batch, options = sizes
    graph = models.named(name, **options)
    with pytest.raises(ooc.BudgetError) as caught:
        graph.plan(batch=batch, budget=1, train=train, device=DEVICES[device]())
    least = caught.value.smallest_bytes
    assert least is not None
    plan = graph.plan(batch=batch, budget=least, train=train, device=DEVICES[device]())
    assert plan.peaks["device"] <= least == plan.smallest_bytes and plan.schedule.count > 1 << 24


# ---- what fails in threads


def normed() -> Graph:
    g = Graph("failing")
    h = g.batch_norm(g.conv(g.input("x", (3, 16, 16)), 8, 3, padding=1), activation="relu")
    h = g.conv(g.pool(h, 2), 8, 3, padding=1, activation="relu")
    logits = g.linear(g.flatten(h), 4)
    g.output(logits)
    g.loss("cross_entropy", logits)
    return g


class Failing:
    """Steps are performed on the threads of their lanes until one fails."""

    def __init__(self, machine: Any, error: BaseException, wanted: Callable[[int, Any], bool]) -> None:
        self.machine, self.error, self.wanted, self.perform = machine, error, wanted, machine.perform
        machine.perform = self

    def __call__(self, step: Any) -> None:
        if any(step is s and self.wanted(i, s) for i, s in enumerate(self.machine.steps)):
            raise self.error
        self.perform(step)

    def stop(self) -> None:
        self.machine.perform = self.perform


@pytest.mark.parametrize(("home", "lane", "error"), crossed(HOMES, LANES, ERRORS, every=9))
def test_a_lane_that_fails_stops_the_others_and_leaves_nothing(home: str, lane: str, error: BaseException) -> None:
    device = replace(ooc.device("cpu", threads=2), backend=CpuBackend(2, staged=True), deterministic=True)
    plan = normed().plan(batch=4, policy="vdnn_all", device=device, home=home, optimizer=SGD(0.1, 0.9))
    updates = {call.op for call in plan.network.calls if call.phase == "update"}
    steps, jobs = plan.steps(), plan.schedule.jobs
    begun = next(i for i, s in enumerate(steps) if s.kind == "run" and jobs[s.job].plan.op in updates)  # type: ignore[union-attr]
    at = [i for i, s in enumerate(steps) if s.lane == lane and i < begun and s.kind != "fence"]
    if not at:
        pytest.skip(f"nothing passes {lane}")
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((4, 3, 16, 16)).astype(np.float32), np.arange(4)
    gc.collect()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    with plan.session() as other:
        wanted = [other.step(x, labels), other.step(x[::-1], labels)], other.parameters()
    for i in {at[0], at[len(at) // 2], at[-1]}:
        with plan.session() as session:
            losses = [session.step(x, labels)]
            failing = Failing(session._main.machine, error, lambda j, _, i=i: j == i)  # type: ignore[union-attr,misc]
            with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ooc.OocError):
                session.step(x[:, :, ::-1], labels)
            failing.stop()
            assert threading.active_count() == threads
            losses.append(session.step(x[::-1], labels))
            assert losses == wanted[0]
            assert all(np.array_equal(a, wanted[1][n]) for n, a in session.parameters().items())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files and threading.active_count() == threads


def test_no_memory_for_the_arena_is_an_error_that_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = normed().plan(batch=4, policy="vdnn_all", device=ooc.device("cpu", threads=2), home="disk")
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))

    def none(self: Any, space: str, nbytes: int) -> Any:
        raise MemoryError(f"no {nbytes} bytes")

    monkeypatch.setattr(CpuBackend, "allocate", none)
    with pytest.raises(MemoryError):
        plan.session()
    monkeypatch.undo()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files
    with plan.session() as session:
        assert session.forward(np.zeros((4, 3, 16, 16), np.float32)).shape == (4, 4)
