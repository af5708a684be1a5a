"""Training by several workers: the bits do not depend on them, nor on when somebody is killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import cpu
from sweeps import crossed, swept

import ooc
from ooc.networks import SGD, Adam, Graph

BATCH = 8


def graph(drop: float = 0.0) -> Graph:
    g = Graph("shared")
    h = g.conv(g.input("x", (3, 12, 12)), 8, 3, padding=1, bias=True, name="first")
    h = g.group_norm(h, groups=4)
    h = g.pool(g.activation(h, "relu"), 2)
    if drop:
        h = g.dropout(h, drop)
    logits = g.linear(g.flatten(h), 5, bias=True)
    g.output(logits)
    g.loss("cross_entropy", logits)
    return g


def plan(optimizer: Any = None, budget: int | None = None, **more: Any) -> ooc.NetworkPlan:
    return graph(**more).plan(batch=BATCH, optimizer=optimizer or SGD(0.1, 0.9), device=cpu(), deterministic=True, budget=budget)


def data(step: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(step)
    return rng.standard_normal((BATCH, 3, 12, 12)).astype(np.float32), rng.integers(-1, 5, BATCH)


def steps(training: Any, count: int) -> list[float]:
    return [training.step(*data(training.steps)) for _ in range(count)]


@pytest.mark.parametrize(
    ("optimizer", "budget"),
    crossed([SGD(0.1), SGD(0.1, 0.9, 0.01, nesterov=True), Adam(0.01)], [40 << 10, None], every=2),
)
def test_it_is_the_step_of_one_session(optimizer: Any, budget: int | None, tmp_path: Path) -> None:
    with plan(optimizer).session(seed=3) as session:
        wanted = steps(session, 4)
        parameters = session.parameters()
    with ooc.Training(plan(optimizer, budget), tmp_path / "t", parts=4, seed=3) as training:
        assert np.allclose(steps(training, 4), wanted, 1e-5)
        found = training.parameters()
    assert found.keys() == parameters.keys()
    assert all(np.allclose(found[name], values, 1e-4, 1e-5) for name, values in parameters.items())


@pytest.mark.parametrize("count", swept((1, 3, 2, 4), suite=2))
def test_any_number_of_workers_gives_the_same_bits(count: int, tmp_path: Path) -> None:
    with ooc.Training(plan(drop=0.3), tmp_path / "here", parts=4, seed=1, threads=2) as training:
        losses, wanted = steps(training, 3), training.parameters()
    with (
        ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool,
        ooc.Training(plan(drop=0.3), tmp_path / "there", parts=4, seed=1, executor=pool, threads=1) as training,
    ):
        assert steps(training, 3) == losses
        assert all(np.array_equal(values, wanted[name]) for name, values in training.parameters().items())


@pytest.mark.parametrize("count", swept((1, 3, 2, 4), suite=2))
def test_workers_of_a_cluster(count: int, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    dask = pytest.importorskip("ooc.dask")
    with ooc.Training(plan(), tmp_path / "here", parts=4) as training:
        losses = steps(training, 2)
    np.save(tmp_path / "x.npy", data(0)[0])
    with dask.local(count) as client:
        executor = client.get_executor(pure=False)
        with ooc.Training(plan(), tmp_path / "there", parts=4, executor=executor, threads=1) as training:
            first = training.step(tmp_path / "x.npy", data(0)[1])
            assert [first, *steps(training, 1)] == losses


def segmented() -> Graph:
    """Losses of labels and of values."""
    g = Graph("segmented")
    h = g.conv(g.input("x", (3, 12, 12)), 6, 3, padding=1, bias=True, activation="tanh")
    logits = g.conv(h, 4, 1)
    g.loss("cross_entropy", logits, weights=[1, 0.5, 2, 3], smoothing=0.1)
    g.loss("dice", logits, weight=0.5, name="dice")
    g.loss("mse", g.conv(h, 2, 1), weight=2.0, name="picture")
    return g


def test_losses_of_a_part_are_shares_of_those_of_the_batch(tmp_path: Path) -> None:
    """Divided by the weights, samples and elements of all of it; targets in memory and in a file."""
    rng = np.random.default_rng(0)
    x, labels = data(0)[0], rng.integers(-1, 4, (BATCH, 12, 12))
    targets = {"loss": labels, "dice": labels, "picture": rng.random((BATCH, 2, 12, 12)).astype(np.float32)}
    np.save(tmp_path / "picture.npy", targets["picture"])
    there = {**targets, "picture": np.load(tmp_path / "picture.npy", mmap_mode="r")}
    plans = [segmented().plan(batch=BATCH, optimizer=SGD(0.1), device=cpu(), deterministic=True) for _ in range(2)]
    with plans[0].session(seed=3) as session:
        losses, parameters = [session.step(x, targets) for _ in range(2)], session.parameters()
    with ooc.Training(plans[1], tmp_path / "t", parts=4, seed=3) as training:
        assert np.allclose([training.step(x, targets), training.step(x, there)], losses, 1e-6)
        assert all(np.allclose(values, parameters[name], 1e-4, 1e-6) for name, values in training.parameters().items())
        with pytest.raises(ooc.ArgumentError, match="by the name of the loss"):
            training.step(x, labels)
        assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["gradients", "state.ooc", "training.json"]


def test_it_goes_on_in_one_process_too(tmp_path: Path) -> None:
    with ooc.Training(plan(Adam(0.01)), tmp_path / "t", parts=2, seed=5) as training:
        steps(training, 2)
        training.save(tmp_path / "saved")
        more = steps(training, 2)
    with ooc.Training(plan(Adam(0.01)), tmp_path / "t", parts=2, seed=5, resume=True) as training:
        assert training.steps == 4
    restored = plan(Adam(0.01))
    with graph().restore(tmp_path / "saved", restored) as session:
        assert np.allclose(steps(session, 2), more, 1e-4)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ooc.UnsupportedError, match="optimizer"):
        ooc.Training(graph().plan(batch=BATCH, device=cpu()), tmp_path / "t", parts=2)
    for parts in (0, 3, 16):
        with pytest.raises(ooc.ShapeError, match="divides"):
            ooc.Training(plan(), tmp_path / "t", parts=parts)
    assert not (tmp_path / "t").exists()
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine").write_text("precious")
    with pytest.raises(ooc.ShapeError, match="no folder"):
        ooc.Training(plan(), tmp_path / "t", parts=2)
    with ooc.Training(plan(), tmp_path / "u", parts=2) as training:
        x, labels = data(0)
        for wrong in ((x[:4], labels), (x.astype(np.float64), labels), (x, labels + 0.5), (x, labels + 9), ("no.npy", labels)):
            with pytest.raises(ooc.OocError):
                training.step(*wrong)
        assert training.steps == 0
    for changed, name in ((plan(Adam()), "optimizer"), (plan(drop=0.5), "graph"), (plan(budget=1 << 20), "budget")):
        with pytest.raises(ooc.ShapeError, match=name):
            ooc.Training(changed, tmp_path / "u", parts=2, resume=True)
    with pytest.raises(ooc.ShapeError, match="samples"):
        ooc.Training(plan(), tmp_path / "u", parts=4, resume=True)


def test_killed_before_the_folder_says_what_it_is_of(tmp_path: Path) -> None:
    (tmp_path / "t" / "gradients").mkdir(parents=True)
    (tmp_path / "t" / "state.ooc").write_text("x")
    (tmp_path / "t" / "training.json.part0123abcd").write_text("{")
    with ooc.Training(plan(), tmp_path / "t", parts=2, resume=True) as training:
        steps(training, 1)
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["gradients", "state.ooc", "training.json"]
    for others in ("own.part0123abcd", "state.ooc.particles"):
        folder = tmp_path / others
        folder.mkdir()
        (folder / others).write_text("precious")
        with pytest.raises(ooc.ShapeError, match="no folder of a training"):
            ooc.Training(plan(), folder, parts=2, resume=True)
        assert (folder / others).read_text() == "precious"


KILLED = """
import sys, ooc
sys.path.insert(0, sys.argv[2])
from test_training import data, plan
from tests.helpers.sweeps import crossed
from telling import tell_parts
tell_parts(lambda path, about: f"{about.steps}-{about.batch}")
with ooc.Training(plan(), sys.argv[1], parts=4, seed=2, resume=True) as training:
    while training.steps < 12:
        training.step(*data(training.steps))
    training.save(sys.argv[1] + "/end")
"""


@pytest.mark.parametrize("seed", swept(range(6), 1))
def test_killed_at_random_moments(seed: int, tmp_path: Path) -> None:
    rng, told = random.Random(seed), []  # type: random.Random, list[str]
    for kill in range(30):
        args = [sys.executable, "-c", KILLED, str(tmp_path / "t"), str(Path(__file__).parent)]
        helpers = str(Path(__file__).parent.parent / "helpers")
        process = subprocess.Popen(args, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": helpers})
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        if kill < (5 if seed else 3):
            lines += [process.stdout.readline() for _ in range(rng.randint(0, 10))]
            time.sleep(rng.random() * 0.03)
            process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        told += [line.strip() for line in lines if "-" in line]
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert len(told) == len(set(told)) and 48 - 5 <= len(told) <= 48  # one that was killed before it told of it is not listed
    assert not list(tmp_path.rglob("*.part*"))
    with ooc.Training(plan(), tmp_path / "one", parts=4, seed=2) as training:
        steps(training, 12)
        training.save(tmp_path / "end")
    with np.load(tmp_path / "end") as have, np.load(tmp_path / "t" / "end") as want:
        names = [name for name in want.files if name != "about.json"]
        assert len(names) > 5 and all(np.array_equal(have[name], want[name]) for name in names)


def test_a_training_begun_again_in_the_same_folder(tmp_path: Path) -> None:
    """A process keeps a worker from part to part; it is not the one of an older training, nor does that one's work count."""
    with plan().session(seed=4) as session:
        wanted = steps(session, 2)
    with ooc.Training(plan(drop=0.5), tmp_path / "t", parts=4, seed=3) as older:
        steps(older, 1)
        with ooc.Training(plan(), tmp_path / "t", parts=4, seed=4) as training:
            assert np.allclose(steps(training, 2), wanted, 1e-5)
            with pytest.raises(ooc.OocError, match="another training"):
                steps(older, 1)
            with ooc.Training(plan(), tmp_path / "t", parts=4, seed=4, resume=True) as resumed:
                assert resumed.steps == 2
