"""An inference as tasks: the bits of one session, whoever computes which task in what order, into any kind of file."""

from __future__ import annotations

import multiprocessing
import pickle
import random
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import cpu, random_graph, seeds
from sweeps import crossed
from tasks import SHAPE, normed, plan_of, session, stored, wanted, written

import ooc
from ooc.ir.region import elements
from ooc.networks import Graph
from ooc.workers import cut


@pytest.mark.usefixtures("finer")
@pytest.mark.parametrize("budget", [None, 2 << 20, 300 << 10])
@pytest.mark.parametrize("batch", [1, 2, 17])
def test_the_bits_are_those_of_a_session(batch: int, budget: int | None, tmp_path: Path) -> None:
    graph, shape = Graph("plain"), (batch, *SHAPE[1:])
    h = graph.conv(graph.input("x", shape[1:]), 8, 5, padding=2, bias=True, activation="relu")
    skip = graph.pool(h, 3, stride=2, padding=1)
    graph.output(graph.add(graph.conv(skip, 8, 3, padding=1), skip, activation="relu"))
    x = written(tmp_path / "x.npy", shape)
    plan = graph.plan(batch=batch, train=False, budget=budget, device=cpu(), deterministic=True)
    tasks = ooc.tasks(plan, tmp_path / "x.npy", tmp_path / "y.npy")
    assert len(tasks) >= 7 or batch > 16
    ooc.run_tasks(tasks)
    assert np.array_equal(np.load(tmp_path / "y.npy"), session(plan, x))
    assert sorted(p.name for p in (tmp_path / "y.npy.work").iterdir()) == ["done", "made", "work.json"]


@pytest.mark.usefixtures("finer")
@pytest.mark.parametrize("seed", seeds(60, 2))
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    graph = random_graph(12000 + seed)
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        graph.outputs = graph.outputs[:1]
    (name,) = graph.inputs
    rng, batch = random.Random(seed), random.Random(seed).choice((1, 1, 2, 3))
    x = written(tmp_path / "x.npy", (batch, *graph.shapes[name]), seed)
    x = x.astype({"f32": np.float32, "f64": np.float64, "f16": np.float16}.get(graph.dtypes[name], np.float32))
    np.save(tmp_path / "x.npy", x)
    plan = graph.plan(batch=batch, train=False, device=cpu(), deterministic=True)
    wanted = session(plan, x)
    for budget in (None, 64 << 10, 16 << 10):
        try:
            plan = graph.plan(batch=batch, train=False, budget=budget, device=cpu(), deterministic=True)
        except ooc.BudgetError:
            continue
        tasks = ooc.tasks(plan, tmp_path / "x.npy", tmp_path / f"y{budget}.npy")
        for level in range(tasks[-1].level + 1):
            own = [task for task in tasks if task.level == level]
            rng.shuffle(own)
            for task in own:
                assert task()["computed"]
        found = np.load(tmp_path / f"y{budget}.npy")
        merged = any(level.kind is cut.Kind.MERGE for level in tasks[0].work.levels())
        assert np.allclose(found, wanted, 1e-5, 1e-6) if merged else np.array_equal(found, wanted), plan.why


@pytest.mark.usefixtures("finer")
def test_statistics_are_merged_in_one_order(tmp_path: Path) -> None:
    whole = wanted(tmp_path)
    plan = plan_of(1 << 20)
    found = []
    for i in range(4):
        tasks = ooc.tasks(plan, tmp_path / "x.npy", tmp_path / f"y{i}.npy")
        if i < 2:
            ooc.run_tasks(tasks if not i else tasks[::-1], threads=1 + i)
        elif i == 2:
            with ThreadPoolExecutor(3) as threads:
                ooc.run_tasks(tasks, threads, threads=1)
        else:
            with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
                ooc.run_tasks(tasks, processes, threads=1)
        found.append(np.load(tmp_path / f"y{i}.npy"))
    kinds = {level.kind for level in tasks[0].work.levels()}
    assert {cut.Kind.CHAIN, cut.Kind.MOMENTS, cut.Kind.MERGE} <= kinds
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert np.allclose(found[0], whole, 1e-5, 1e-6)


SINKS = ["y.npy", "y.zarr", "y.zarr/inner", "y.tif", "y.h5:/y"]


@pytest.mark.usefixtures("finer")
@pytest.mark.parametrize(("name", "there"), crossed(SINKS, [True, False], every=2))
def test_kinds_of_files(name: str, there: bool, tmp_path: Path) -> None:
    whole = wanted(tmp_path)
    plan = plan_of(1 << 20)
    if there:
        more: dict[str, Any] = {"chunks": (1, 2, 16, 16), "shards": (1, 2, 32, 32)} if ".zarr" in name else {}
        ooc.create(tmp_path / name, (1, 4, *SHAPE[2:]), np.float32, "ncyx", **more).close()
    ooc.run_tasks(ooc.tasks(plan, tmp_path / "x.npy", tmp_path / name))
    assert np.allclose(stored(tmp_path / name), whole, 1e-5, 1e-6)


@pytest.mark.usefixtures("finer")
def test_sources_and_memory_maps(tmp_path: Path) -> None:
    x = written(tmp_path / "x.npy", SHAPE)
    plan = normed().plan(batch=1, train=False, device=cpu(), deterministic=True)
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, (1, 4, *SHAPE[2:]))
    ooc.run_tasks(ooc.tasks(plan, np.load(tmp_path / "x.npy", mmap_mode="r"), out, folder=tmp_path / "run"))
    with ooc.create(tmp_path / "z.npy", out.shape, np.float32) as sink, ooc.open(tmp_path / "x.npy") as source:
        ooc.run_tasks(ooc.tasks(plan, source, sink))
    assert np.array_equal(out, np.load(tmp_path / "z.npy")) and np.allclose(out, session(plan, x), 1e-5, 1e-6)


@pytest.mark.usefixtures("finer")
def test_tasks_are_small_and_know_their_region(tmp_path: Path) -> None:
    written(tmp_path / "x.npy", SHAPE)
    plan = plan_of(1 << 20)
    tasks = ooc.tasks(plan, tmp_path / "x.npy", tmp_path / "y.npy")
    assert all(len(pickle.dumps(task)) < 2000 and pickle.loads(pickle.dumps(task)) == task for task in tasks)
    last = [task for task in tasks if task.level == tasks[-1].level]
    assert sum(elements(task.region) for task in last) >= 4 * SHAPE[2] * SHAPE[3]
    with pytest.raises(ooc.OocError, match="not finished"):
        tasks[-1]()
    assert ooc.run_tasks(tasks)[0]["computed"] and not any(told["computed"] for told in ooc.run_tasks(tasks))
    assert all(task.done for task in tasks)


def test_what_makes_no_sense_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    x, graph = written(tmp_path / "x.npy", SHAPE), normed()
    plan = graph.plan(batch=1, train=False, device=cpu())
    np.save(tmp_path / "small.npy", x[:, :, 1:])
    np.save(tmp_path / "wide.npy", x.astype(np.float64))
    before = sorted(tmp_path.iterdir())
    for source, sink in (
        (x, "y.npy"), ("x.npy", np.empty((1, 4, 61, 83), np.float32)), ("small.npy", "y.npy"), ("wide.npy", "y.npy"),
        ("no.npy", "y.npy"), ("x.npy", "x.npy"), ("x.npy", "no/y.npy"), (3, "y.npy"), ("x.npy", "y.what"),
    ):  # fmt: skip
        given = [tmp_path / one if isinstance(one, str) else one for one in (source, sink)]
        with pytest.raises(ooc.OocError):
            ooc.tasks(plan, *given)
        assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(ooc.UnsupportedError, match="train=False"):
        ooc.tasks(graph.plan(batch=1, train="forward", device=cpu()), tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(ooc.ShapeError, match="plan"):
        ooc.tasks(graph, tmp_path / "x.npy", tmp_path / "y.npy")  # type: ignore[arg-type]
    (tmp_path / "y.npy.work").mkdir()
    (tmp_path / "y.npy.work" / "mine").write_text("precious")
    with pytest.raises(ooc.ShapeError, match="no folder of a run"):
        ooc.tasks(plan, tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(ooc.ShapeError, match="tasks"):
        ooc.run_tasks(["what"])  # type: ignore[list-item]


@pytest.mark.parametrize("samples", [1, 2, 17])
def test_a_result_without_space(samples: int, tmp_path: Path) -> None:
    """Of one sample a fully connected layer has another shape, and pieces of a batch may be of one sample."""
    graph = ooc.Graph("dense")
    graph.output(graph.linear(graph.flatten(graph.conv(graph.input("x", (2, 12, 12)), 4, 3, stride=2)), 10))
    plan = graph.plan(batch=samples, train=False, budget="64 KiB")
    x = np.random.default_rng(0).standard_normal((samples, 2, 12, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ooc.run_tasks(ooc.tasks(plan, tmp_path / "x.npy", tmp_path / "y.npy"))
    with plan.session() as session:
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), session.forward(x), 1e-5, 1e-5)


@pytest.mark.usefixtures("finer")
def test_a_sum_over_more_than_the_budget_is_a_level_of_its_own(tmp_path: Path) -> None:
    graph = random_graph(12053)
    plan = graph.plan(batch=1, train=False, budget="16 KiB", device=cpu(), deterministic=True)
    x = np.random.default_rng(0).standard_normal((1, *graph.shapes[next(iter(graph.inputs))])).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ooc.run_tasks(ooc.tasks(plan, tmp_path / "x.npy", tmp_path / "y.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), session(plan, x))
