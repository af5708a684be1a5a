"""Training of graphs with sums over the batch, by several workers: the step of one process that has the whole batch."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_device import on
from emulated_driver import emulated
from networks import cpu, random_graph
from sweeps import crossed, swept

import ooc
from ooc.networks import SGD, Adam, Graph
from ooc.networks.scene import counted
from ooc.networks.tensors import Mode
from ooc.networks.writer import network
from ooc.workers.level_worker import LevelPlans, written
from ooc.workers.sums import check_joined

LONG = pytest.mark.slow
BATCH = 8


def residual(drop: float = 0.0) -> Graph:
    """Blocks of two convolutions, a way around them with a norm of its own, a stride."""
    g = Graph("residual")
    h = g.batch_norm(g.conv(g.input("x", (3, 12, 12)), 8, 3, padding=1), activation="relu")
    for k, stride in ((8, 1), (12, 2)):
        a = g.batch_norm(g.conv(h, k, 3, stride=stride, padding=1), activation="relu", momentum=0.3)
        a = g.batch_norm(g.conv(a, k, 3, padding=1))
        around = h if stride == 1 else g.batch_norm(g.conv(h, k, 1, stride=stride))
        h = g.add(a, around, activation="relu")
    h = g.dropout(h, drop) if drop else h
    logits = g.linear(g.flatten(g.global_pool(h)), 5, bias=True)
    g.output(logits)
    g.loss("cross_entropy", logits)
    return g


def volumes(batch: bool = True) -> Graph:
    """A 3-D U-Net; a Dice loss whose sums are those of the batch."""
    g = Graph("volumes")

    def block(x: str, k: int) -> str:
        return g.batch_norm(g.conv(x, k, 3, padding=1), activation="leaky_relu")

    top = block(g.input("x", (1, 8, 8, 8)), 4)
    low = block(g.pool(top, 2), 6)
    h = g.concat(top, g.conv_transpose(low, 4, 2, stride=2))
    logits = g.conv(block(h, 4), 3, 1, bias=True)
    g.output(logits)
    g.loss("cross_entropy", logits, weights=[1, 2, 3])
    g.loss("dice", logits, weight=0.5, batch=batch, background=False, name="dice")
    return g


GRAPHS = {"residual": residual, "volumes": volumes}


def plan_of(graph: Graph, optimizer: Any = None, budget: int | None = None, device: Any = None) -> ooc.NetworkPlan:
    where = device or cpu()
    return graph.plan(batch=BATCH, optimizer=optimizer or SGD(0.1, 0.9), device=where, deterministic=True, budget=budget)


def data_of(graph: Any, step: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(step)
    shape, volume = graph.inputs["x"], len(graph.inputs["x"]) == 4
    labels = rng.integers(-1, 3, (BATCH, *shape[1:])) if volume else rng.integers(-1, 5, BATCH)
    return rng.standard_normal((BATCH, *shape)).astype(np.float32), labels


def steps(training: Any, count: int) -> list[float]:
    return [training.step(*data_of(training.plan.graph, training.steps)) for _ in range(count)]


def held(training: Any) -> dict[str, Any]:
    return training.parameters() | training.statistics()


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(values, two[name]) for name, values in one.items())


def close(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(np.allclose(values, two[name], 1e-4, 1e-5) for name, values in one.items())


@pytest.mark.parametrize(("name", "parts"), crossed(list(GRAPHS), [1, 2, 4], every=2))
def test_it_is_the_step_of_one_process(name: str, parts: int, tmp_path: Path) -> None:
    with plan_of(GRAPHS[name]()).session(seed=3) as session:
        losses, whole = steps(session, 4), session.parameters() | session.statistics()
    with ooc.Training(plan_of(GRAPHS[name]()), tmp_path / "t", parts=parts, seed=3) as training:
        assert np.allclose(steps(training, 4), losses, 1e-5)
        assert close(held(training), whole)
        assert any("mean" in n and np.abs(values).max() > 0 for n, values in training.statistics().items())
    assert not list((tmp_path / "t" / "gradients").iterdir())


@pytest.mark.parametrize("seed", swept(range(24), suite=8))
def test_any_graph(seed: int, tmp_path: Path) -> None:
    """Of random layers and branches."""
    graph = random_graph(seed)
    if any(node.layer.kind == "dropout" for node in graph.nodes):
        pytest.skip("parts draw by themselves")
    rng = np.random.default_rng(seed)
    batches = [(rng.standard_normal((BATCH, *graph.inputs["x"])).astype(np.float32), rng.integers(0, 4, BATCH)) for _ in range(2)]
    with plan_of(graph).session(seed=3) as session:
        losses, whole = [session.step(*batch) for batch in batches], session.parameters() | session.statistics()
    with ooc.Training(plan_of(graph), tmp_path / "t", parts=4, seed=3) as training:
        assert np.allclose([training.step(*batch) for batch in batches], losses, 1e-5)
        assert close(held(training), whole)


@pytest.mark.parametrize(
    ("name", "count"), [("residual", 2), *(pytest.param(*case, marks=LONG) for case in (("volumes", 2), ("residual", 1)))]
)
def test_any_number_of_workers_gives_the_same_bits(name: str, count: int, tmp_path: Path) -> None:
    graph = residual(drop=0.3) if name == "residual" else volumes()
    with ooc.Training(plan_of(graph), tmp_path / "here", parts=4, seed=1, threads=2) as training:
        losses, here = steps(training, 3), held(training)
    with (
        ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool,
        ooc.Training(plan_of(graph), tmp_path / "there", parts=4, seed=1, executor=pool, threads=1) as training,
    ):
        assert steps(training, 3) == losses
        assert same(held(training), here)


def test_statistics_that_no_loss_depends_on(tmp_path: Path) -> None:
    """They run all the same, in a step of one level."""
    graph = Graph("aside")
    h = graph.conv(graph.input("x", (3, 12, 12)), 4, 3)
    graph.output(graph.batch_norm(h))
    graph.loss("cross_entropy", graph.linear(graph.flatten(h), 5))
    with plan_of(graph).session(seed=3) as session:
        losses, whole = steps(session, 2), session.parameters() | session.statistics()
    with ooc.Training(plan_of(graph), tmp_path / "t", parts=4, seed=3) as training:
        assert np.allclose(steps(training, 2), losses, 1e-5) and close(held(training), whole)
        assert np.abs(training.statistics()["batch_norm1.mean"]).min() > 0


class Stops(Executor):
    """Runs so many tasks here, the last ones first; those after them fail."""

    def __init__(self, count: int) -> None:
        self.left, self.computed = count, list[str]()

    def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.left < 1:
            future.set_exception(ooc.OocError("stopped"))
            return future
        self.left -= 1
        if fn(*args, **options)["computed"]:
            self.computed.append(fn.path.name)
        future.set_result({})
        return future


@pytest.mark.parametrize("count", swept((1, 22, 7, 13, 30), suite=2, quick=1))
def test_a_step_that_stopped_goes_on(count: int, tmp_path: Path) -> None:
    """With the same bits, and what is done is not done anew; another batch, or another training, believes none of it."""
    graph = residual()
    with ooc.Training(plan_of(graph), tmp_path / "whole", parts=4, seed=2) as training:
        losses, whole = steps(training, 2), held(training)
    before, after = Stops(count), Stops(1 << 20)
    with ooc.Training(plan_of(graph), tmp_path / "t", parts=4, seed=2, executor=before) as training:
        with pytest.raises(ooc.OocError, match="stopped"):
            steps(training, 1)
        assert training.steps == 0
    with ooc.Training(plan_of(graph), tmp_path / "t", parts=4, seed=2, executor=after, resume=True) as training:
        assert steps(training, 1) == losses[:1]
        assert len(before.computed) == count and not set(before.computed) & set(after.computed)
        assert steps(training, 1) == losses[1:] and same(held(training), whole)


@pytest.mark.parametrize("how", ("batch", "training", "machine"))
def test_what_a_step_left_is_not_believed_by_another(how: str, tmp_path: Path) -> None:
    graph, other = residual(), data_of(residual(), 7)
    with ooc.Training(plan_of(graph), tmp_path / "whole", parts=4, seed=2) as training:
        loss = training.step(*(other if how == "batch" else data_of(graph, 0)))
    with (
        ooc.Training(plan_of(graph), tmp_path / "t", parts=4, seed=2, executor=Stops(13)) as training,
        pytest.raises(ooc.OocError, match="stopped"),
    ):
        steps(training, 1)
    if how == "machine":  # it went down: what was on its way to the disk may be anything
        about = json.loads((tmp_path / "t" / "training.json").read_text())
        about["since"]["boot"] = "earlier"
        (tmp_path / "t" / "training.json").write_text(json.dumps(about))
    every = Stops(1 << 20)
    resume = how != "training"
    with ooc.Training(plan_of(graph), tmp_path / "t", parts=4, seed=2, executor=every, resume=resume) as training:
        assert training.step(*(other if how == "batch" else data_of(graph, 0))) == loss
    assert len(every.computed) == 4 * len(LevelPlans(network(graph, 2, Mode.STEP), cpu(), None, True).levels)
    assert not list((tmp_path / "t" / "gradients").iterdir())


def test_a_worker_that_is_late(tmp_path: Path) -> None:
    """What it writes of a step that is over is nobody's, also where the next step has the same batch."""
    graph, batch = residual(), data_of(residual(), 0)
    level = LevelPlans(network(graph, 4, Mode.STEP), cpu(), None, True).levels[0].net
    submitted: list[Any] = []

    class Late(Stops):
        def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
            submitted.append(fn)
            if fn.step and fn.level:
                for name in level.outputs:
                    with written(submitted[0], level.tensors[name]) as values:
                        values[...] = np.nan
            return super().submit(fn, *args, **options)

    with ooc.Training(plan_of(graph), tmp_path / "whole", parts=2) as training:
        losses = [training.step(*batch) for _ in range(2)]
    with ooc.Training(plan_of(graph), tmp_path / "t", parts=2, executor=Late(1 << 20)) as training:
        assert [training.step(*batch) for _ in range(2)] == losses
    assert not list((tmp_path / "t" / "gradients").iterdir())


def crossing(folder: Path) -> list[Path]:
    """Files of what goes from level to level."""
    return [path for path in (folder / "gradients").iterdir() if len(path.name) > 16]


def test_files_between_levels_that_are_damaged(tmp_path: Path) -> None:
    graph = residual()
    with (
        ooc.Training(plan_of(graph), tmp_path / "t", parts=4, executor=Stops(13)) as training,
        pytest.raises(ooc.OocError, match="stopped"),
    ):
        steps(training, 1)
    files = crossing(tmp_path / "t")
    assert len(files) > 8
    for path in files:
        path.write_bytes(path.read_bytes()[:100])
    with ooc.Training(plan_of(graph), tmp_path / "t", parts=4, resume=True) as training:
        with pytest.raises(ooc.StoreError, match="not as an earlier level wrote it"):
            steps(training, 1)
        for path in files:
            path.unlink(missing_ok=True)
        with pytest.raises(ooc.StoreError, match="No such file"):
            steps(training, 1)


def test_files_go_when_no_level_reads_them(tmp_path: Path) -> None:
    """At the end of the forward pass there are most."""
    graph, sizes = residual(), list[int]()

    class Watching(Stops):
        def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
            sizes.append(sum(path.stat().st_size for path in crossing(tmp_path / "t")))
            return super().submit(fn, *args, **options)

    with ooc.Training(plan_of(graph), tmp_path / "t", parts=2, executor=Watching(1 << 20)) as training:
        steps(training, 1)
    assert sizes[0] == 0 and sizes[-2] < max(sizes) / 3


def test_the_same_bits_under_a_budget(tmp_path: Path) -> None:
    graph, budget = residual(), 24 << 10
    with ooc.Training(plan_of(graph), tmp_path / "whole", parts=2) as training:
        losses, whole = steps(training, 2), held(training)
    with ooc.Training(plan_of(graph, budget=budget), tmp_path / "t", parts=2) as training:
        assert steps(training, 2) == losses and same(held(training), whole)
    net = network(graph, BATCH // 2, Mode.STEP, None, True)
    free, tight = LevelPlans(net, cpu(), None, True), LevelPlans(net, cpu(), budget, True)
    peaks = [[counted(p.schedule(i).layout, p.scene) for i in range(len(p.levels))] for p in (free, tight)]
    assert max(peaks[0]) > 2 * budget and max(peaks[1]) <= budget
    with pytest.raises(ooc.BudgetError, match="residual") as told:
        LevelPlans(net, cpu(), 100, True).check()
    LevelPlans(net, cpu(), told.value.smallest_bytes, True).check()


@pytest.mark.parametrize(
    ("device", "budget"),
    [
        ("staged", 40 << 10),
        pytest.param("emulated", None, marks=LONG),
        pytest.param("emulated", 40 << 10, marks=LONG),
        pytest.param("staged", None, marks=LONG),
    ],
)
def test_devices_with_memory_of_their_own(device: str, budget: int | None, tmp_path: Path) -> None:
    """Behind a ring of pinned memory; with kernels that know single ops alone, where calls that are several are fused."""
    graph = volumes()
    with plan_of(graph).session(seed=3) as session:
        losses, whole = steps(session, 2), session.parameters() | session.statistics()
    with (
        cpu(staged=True) if device == "staged" else on(emulated(0), None) as there,
        ooc.Training(plan_of(graph, None, budget, there), tmp_path / "t", parts=2, seed=3) as training,
    ):
        assert np.allclose(steps(training, 2), losses, 1e-5) and close(held(training), whole)


def test_it_goes_on_in_one_process(tmp_path: Path) -> None:
    graph = residual()
    with ooc.Training(plan_of(graph, Adam(0.01)), tmp_path / "t", parts=2, seed=5) as training:
        steps(training, 2)
        training.save(tmp_path / "saved")
        more = steps(training, 2)
    with graph.restore(tmp_path / "saved", plan_of(graph, Adam(0.01))) as session:
        assert np.allclose(steps(session, 2), more, 1e-4)


def test_what_nobody_can_join_is_refused() -> None:
    with pytest.raises(ooc.UnsupportedError, match="a layer: takes sums over the batch"):
        check_joined(ooc.ops.Pointwise(1, 1, (1,)), "a layer")


KILLED = """
import sys, ooc
sys.path.insert(0, sys.argv[2])
from test_training_levels import plan_of, residual, steps
from telling import tell_parts
tell_parts(lambda path, about: f"{about.steps} {path.name}")
with ooc.Training(plan_of(residual()), sys.argv[1], parts=4, seed=2, resume=True) as training:
    steps(training, 3 - training.steps)
    training.save(sys.argv[1] + "/end")
"""


@pytest.mark.parametrize("seed", swept(range(6), 1))
def test_killed_at_random_moments(seed: int, tmp_path: Path) -> None:
    rng, told = random.Random(seed), list[str]()
    args = [sys.executable, "-c", KILLED, str(tmp_path / "t"), str(Path(__file__).parent)]
    env = os.environ | {
        "PYTHONPATH": str(Path(__file__).parent.parent / "helpers") + os.pathsep + os.environ.get("PYTHONPATH", "")
    }
    for kill in range(30):
        process = subprocess.Popen(args, stdout=subprocess.PIPE, text=True, env=env)
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        if kill < (5 if seed else 3):
            lines += [process.stdout.readline() for _ in range(rng.randint(0, 30))]
            time.sleep(rng.random() * 0.03)
            process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        told += [line.strip() for line in lines if "-" in line]
        if process.returncode == 0:
            break
    assert process.returncode == 0
    every = 3 * 4 * len(LevelPlans(network(residual(), 2, Mode.STEP), cpu(), None, True).levels)
    assert len(told) == len(set(told)) and every - 5 <= len(told) <= every  # one killed before it told of it is not listed
    assert not list(tmp_path.rglob("*.part*")) and not list((tmp_path / "t" / "gradients").iterdir())
    with ooc.Training(plan_of(residual()), tmp_path / "one", parts=4, seed=2) as training:
        steps(training, 3)
        training.save(tmp_path / "end")
    with np.load(tmp_path / "end") as have, np.load(tmp_path / "t" / "end") as end:
        names = [name for name in end.files if name != "about.json"]
        assert len(names) > 20 and all(np.array_equal(have[name], end[name]) for name in names)
