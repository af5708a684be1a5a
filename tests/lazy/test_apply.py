"""`ooc.dask.apply`: a planned network on a dask array, block by block or through files, here and on a cluster."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc

da = pytest.importorskip("dask.array")
xarray = pytest.importorskip("xarray")
dask = pytest.importorskip("ooc.dask")

X = np.random.default_rng(3).standard_normal((2, 2, 40, 48)).astype(np.float32)


def pyramid() -> ooc.Graph:
    """Levels that meet again: results see their neighbourhood alone."""
    g = ooc.Graph("pyramid")
    fine = g.activation(g.conv(g.input("x", X.shape[1:]), 8, 3, padding=1), "relu")
    coarse = g.upsample(g.conv(g.pool(fine, 2), 8, 3, padding=1), (40, 48))
    g.output(g.conv(g.concat(coarse, fine), 3, 1))
    return g


def normed() -> ooc.Graph:
    """Statistics of all of the tensor."""
    g = ooc.Graph("normed")
    h = g.activation(g.instance_norm(g.conv(g.input("x", X.shape[1:]), 8, 3, padding=1)), "relu")
    g.output(g.conv(h, 3, 3, padding=1))
    return g


def dense() -> ooc.Graph:
    """A result without space."""
    g = ooc.Graph("dense")
    h = g.conv(g.input("x", X.shape[1:]), 8, 3, padding=1, stride=4)
    g.output(g.linear(g.flatten(h), 10))
    return g


def shrinking() -> ooc.Graph:
    """Results that do not need the last positions."""
    g = ooc.Graph("shrinking")
    g.output(g.pool(g.conv(g.input("x", X.shape[1:]), 4, 3, stride=2), 3, stride=2))
    return g


GRAPHS = (pyramid, normed, dense, shrinking)
Build = Callable[[], ooc.Graph]


def whole(plan: ooc.NetworkPlan, x: Any = X) -> Any:
    with plan.session() as session:
        return session.forward(x)


@pytest.mark.parametrize("chunks", [(1, 2, 16, 20), (2, 1, 40, 48)], ids=str)
@pytest.mark.parametrize("budget", ["64 KiB", None])
@pytest.mark.parametrize("build", GRAPHS)
def test_the_result_of_the_whole(build: Build, budget: str | None, chunks: tuple[int, ...], tmp_path: Path) -> None:
    plan = build().plan(batch=2, train=False, budget=budget)
    y = dask.apply(plan, da.from_array(X, chunks=chunks), folder=tmp_path)
    assert isinstance(y, da.Array) and not os.listdir(tmp_path)
    expected = whole(plan)
    assert y.shape == expected.shape and y.dtype == expected.dtype
    for _ in range(2):
        np.testing.assert_allclose((y + 1).compute(scheduler="threads"), expected + 1, 1e-5, 1e-5)
        assert not os.listdir(tmp_path), "files stay behind"


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB", None])
def test_integers_at_every_budget(budget: str | None, tmp_path: Path) -> None:
    x = np.random.default_rng(4).integers(-3, 4, X.shape).astype(np.float32)
    g = ooc.Graph("integers")
    h = g.activation(g.conv(g.input("x", X.shape[1:]), 8, 3, padding=1), "relu")
    g.output(g.conv(g.pool(h, 2), 3, 3, padding=1))
    weights = {name: np.random.default_rng(5).integers(-3, 4, w.shape).astype(np.float32) for name, w in g.parameters.items()}
    with g.plan(batch=2, train=False).session(parameters=weights) as session:
        expected = session.forward(x)
    plan = g.plan(batch=2, train=False, budget=budget)
    y = dask.apply(plan, da.from_array(x, chunks=(1, 2, 20, 24)), parameters=weights, folder=tmp_path)
    np.testing.assert_array_equal(y, expected)
    assert not os.listdir(tmp_path)


def test_parameters_and_labels() -> None:
    graph = pyramid()
    plan = graph.plan(batch=2, train=False)
    with plan.session(seed=5) as session:
        parameters, expected = session.parameters(), session.forward(X)
    coords = {"y": np.arange(40), "band": ["a", "b"]}
    x = xarray.DataArray(X, coords, ("t", "band", "y", "x"), attrs={"from": "here"}).chunk({"t": 1, "y": 20})
    for options in ({"seed": 5}, {"parameters": parameters}):
        y = dask.apply(plan, x, **options)
        assert isinstance(y, xarray.DataArray) and isinstance(y.data, da.Array)
        assert y.dims == x.dims and {*y.coords} == {"y"} and y.attrs == x.attrs
        np.testing.assert_allclose(y, expected, 1e-5, 1e-5)


def test_on_a_cluster() -> None:
    with dask.local(2):
        for build in GRAPHS:
            plan = build().plan(batch=2, train=False, budget="64 KiB")
            y = dask.apply(plan, da.from_array(X, chunks=(1, 2, 16, 20)))
            np.testing.assert_allclose(y.compute(), whole(plan), 1e-5, 1e-5)


def test_what_does_not_fit_is_refused() -> None:
    plan = pyramid().plan(batch=2, train=False)
    x = da.from_array(X, chunks=20)
    with pytest.raises(ooc.DtypeError, match="x: expected a dask array"):
        dask.apply(plan, X)
    with pytest.raises(ooc.ShapeError, match="x: expected"):
        dask.apply(plan, x[:1])
    with pytest.raises(ooc.ShapeError, match="x: expected"):
        dask.apply(plan, x.astype("f8"))
    with pytest.raises(ooc.ArgumentError, match="plan: expected"):
        dask.apply("plan", x)
    trained = pyramid()
    trained.loss("mse", trained.outputs[0])
    with pytest.raises(ooc.UnsupportedError, match="expected the plan of an inference"):
        dask.apply(trained.plan(batch=2, optimizer=ooc.SGD(0.1)), x)


@pytest.mark.parametrize("build", GRAPHS)
def test_in_other_processes(build: Build, tmp_path: Path) -> None:
    """The folder goes with the last of the processes that use it, and not before."""
    plan = build().plan(batch=2, train=False, budget="64 KiB")
    y = dask.apply(plan, da.from_array(X, chunks=(1, 2, 16, 20)), folder=tmp_path)
    np.testing.assert_allclose(y.compute(scheduler="processes", num_workers=2), whole(plan), 1e-5, 1e-5)


def test_a_folder_lives_as_long_as_anybody_uses_it(tmp_path: Path) -> None:
    apply = importlib.import_module("ooc.dask.apply")
    path = tempfile.mkdtemp(dir=tmp_path)
    one = apply.SharedFolder(path)
    on_its_way = pickle.dumps(one)
    del one
    gc.collect()
    assert os.path.isdir(path)
    two = pickle.loads(on_its_way)
    three = pickle.loads(pickle.dumps(two))
    del two
    gc.collect()
    assert os.path.isdir(path) and three.x.startswith(path)
    del three
    gc.collect()
    assert not os.path.exists(path)


def test_other_plans_have_other_names() -> None:
    x = da.from_array(X, chunks=(1, 2, 16, 20))
    for build in GRAPHS:
        plans = [build().plan(batch=2, train=False, budget=budget) for budget in (None, "64 KiB")]
        with ooc.device("cpu", deterministic=True):
            plans.append(build().plan(batch=2, train=False))
        assert len({dask.apply(plan, x).name for plan in plans}) == 3
        assert dask.apply(plans[0], x).name == dask.apply(plans[0], x).name
