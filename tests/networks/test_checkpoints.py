"""Training that survives: what is saved and restored, killed while it trains or writes, refused where it does not belong."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc.networks import SGD, Adam, Graph

BATCH = 4
ROOT = Path(__file__).parent.parent.parent


def graph(classes: int = 3) -> Graph:
    g = Graph("saved")
    h = g.conv(g.input("x", (3, 10, 10)), 6, 3, padding=1, bias=True, name="first")
    h = g.dropout(g.batch_norm(h, activation="relu"), 0.3)
    logits = g.linear(g.flatten(g.pool(h, 2)), classes, bias=True)
    g.output(logits)
    g.loss("cross_entropy", logits)
    return g


def plan(policy: str = "keep", optimizer: Any = None, classes: int = 3, batch: int = BATCH, **more: Any) -> ooc.NetworkPlan:
    device = ooc.device("cpu", threads=2)
    return graph(classes).plan(
        batch=batch, policy=policy, optimizer=optimizer or Adam(0.01), device=device, deterministic=True, **more
    )


def data(step: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(step)
    return rng.standard_normal((BATCH, 3, 10, 10)).astype(np.float32), rng.integers(0, 3, BATCH)


def steps(session: Any, count: int) -> list[float]:
    return [session.step(*data(session.steps)) for _ in range(count)]


OPTIMIZERS = [SGD(0.1), SGD(0.1, 0.9, 0.01, nesterov=True), Adam(lambda step: 0.01 / (1 + step)), Adam(weight_decay=0.1)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("before", "after"), [("keep", "keep"), ("keep", "stream"), ("stream", "keep")])
def test_a_restored_session_goes_on(before: str, after: str, optimizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "half.ooc"
    with plan(before, optimizer).session(seed=7) as session:
        steps(session, 3)
        session.save(path)
        wanted = steps(session, 3)
        parameters, statistics = session.parameters(), session.statistics()
    with graph().restore(path, plan(after, optimizer)) as again:
        assert (again.steps, again.seed) == (3, 7)
        with pytest.raises(ooc.ShapeError, match="no step"):
            again.gradients()
        assert steps(again, 3) == wanted
        for have, want in ((again.parameters(), parameters), (again.statistics(), statistics)):
            assert all(np.array_equal(have[name], values) for name, values in want.items())
    assert [p.name for p in tmp_path.iterdir()] == ["half.ooc"]


def test_a_checkpoint_is_read_without_ooc(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with plan().session() as session:
        steps(session, 1)
        session.save(path)
        parameters = session.parameters()
    with np.load(path, allow_pickle=False) as archive:
        for name, values in parameters.items():
            assert np.array_equal(archive[name].reshape(values.shape), values)
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("about.json"))["steps"] == 1


def test_what_does_not_belong_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with plan().session(seed=5) as session:
        session.save(path)
    for what, other, own in (
        ("another graph", plan(classes=4), graph(4)),
        ("another batch: it has 4, the plan 5", plan(batch=5), graph()),
        ("another optimizer: it has 'adam', the plan 'sgd'", plan(optimizer=SGD(0.1)), graph()),
    ):
        with pytest.raises(ooc.ShapeError, match=what):
            own.restore(path, other)
    with pytest.raises(ooc.ShapeError, match="another seed: it has 5, the plan 6"):
        graph().restore(path, plan(), seed=6)
    with pytest.raises(ooc.ShapeError, match="the plan is of another graph"):
        graph(4).restore(path, plan())
    with pytest.raises(ooc.StoreError, match="No such file"):
        graph().restore(tmp_path / "none", plan())
    graph().restore(path, plan(), seed=5).close()


def test_momentum_that_was_not_kept_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with plan(optimizer=SGD(0.1)).session() as session:
        session.save(path)
    with pytest.raises(ooc.ShapeError, match="of other tensors: batch_norm"):
        graph().restore(path, plan(optimizer=SGD(0.1, 0.9)))


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_one_line(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "c"
    with plan().session() as session:
        session.save(path)
    rng, whole = random.Random(seed), bytearray(path.read_bytes())
    if seed % 3 == 0:
        del whole[rng.randrange(len(whole)) :]
    else:
        for _ in range(1 if seed % 3 == 1 else 30):
            whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    path.write_bytes(whole)
    try:
        graph().restore(path, plan()).close()
    except ooc.OocError as error:
        assert "\n" not in str(error) and isinstance(error, (ooc.ShapeError, ooc.StoreError))


CHILD = """
import sys, resource, signal
sys.path.insert(0, sys.argv[1])
from test_checkpoints import *
path, count, limit = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
session = graph().restore(path, plan()) if path.exists() else plan().session(seed=3)
while session.steps < count:
    loss = steps(session, 1)[0]
    session.save(path)
    print(session.steps, float.hex(loss), flush=True)
"""


def child(path: Path, count: int, limit: int = 0) -> subprocess.Popen[str]:
    folders = [str(ROOT), str(ROOT / "tests" / "helpers"), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(path), str(count), str(limit)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )  # fmt: skip


@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s < 1 else pytest.mark.slow) for s in range(6)])
def test_killed_at_any_moment(seed: int, tmp_path: Path) -> None:
    """Five kills a run, three in the short suite, a moment after its first step: while it computes, and while it writes."""
    path, count, rng, kills = tmp_path / "run.ooc", 120, random.Random(seed), 5 if seed else 3
    with plan().session(seed=3) as session:
        wanted = {i + 1: float.hex(loss) for i, loss in enumerate(steps(session, count))}
    told: dict[int, str] = {}
    for kill in range(kills + 1):
        with child(path, count) as process:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            if kill < kills:
                time.sleep(rng.random() * 0.03)
                process.send_signal(signal.SIGKILL)
            for entry in [line, *process.stdout]:
                if len(entry.split()) == 2:
                    told[int(entry.split()[0])] = entry.split()[1]
            assert kill < kills or process.wait() == 0, process.stderr.read()
    assert told[count] == wanted[count] and all(wanted[i] == loss for i, loss in told.items())
    assert not list(tmp_path.glob("*.part*"))


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.ooc"
    with plan().session(seed=3) as session:
        steps(session, 2)
        session.save(path)
    before = path.read_bytes()
    with child(path, 9, limit=len(before) // 2) as process:
        assert process.stderr is not None
        assert "StoreError" in process.stderr.read() and process.wait() != 0
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["run.ooc"]
    graph().restore(path, plan()).close()


# ---- Adam itself


@pytest.mark.parametrize("given", [{"lr": -1}, {"betas": (0.9,)}, {"betas": (0.9, 1.0)}, {"eps": float("nan")}, {"lr": True}])
def test_numbers_that_make_no_sense(given: Any) -> None:
    with pytest.raises(ooc.ShapeError, match="Adam"):
        Adam(**given)


def test_a_plan_with_adam_returns_from_its_text() -> None:
    made = plan(optimizer=Adam(0.02, (0.8, 0.99)))
    again = ooc.NetworkPlan.from_json(made.to_json(), ooc.device("cpu", threads=2))
    assert again.network.optimizer == made.network.optimizer
    with pytest.raises(ooc.ShapeError, match="function"):
        plan(optimizer=Adam(lambda step: 0.1)).to_json()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_of_torch(optimizer: Any) -> None:
    torch = pytest.importorskip("torch")
    with plan(optimizer=optimizer).session() as session:
        before = session.parameters()
        tensors = {name: torch.nn.Parameter(torch.from_numpy(values.copy())) for name, values in before.items()}
        rate = optimizer.lr if callable(optimizer.lr) else lambda step: optimizer.lr
        if isinstance(optimizer, Adam):
            theirs: Any = torch.optim.Adam(
                tensors.values(), 1.0, optimizer.betas, optimizer.eps, weight_decay=optimizer.weight_decay
            )
        else:
            theirs = torch.optim.SGD(
                tensors.values(), 1.0, optimizer.momentum, weight_decay=optimizer.weight_decay, nesterov=optimizer.nesterov
            )
        for step in range(4):
            session.step(*data(step))
            theirs.param_groups[0]["lr"] = rate(step)
            for name, gradient in session.gradients().items():
                tensors[name].grad = torch.from_numpy(gradient.astype(before[name].dtype))
            theirs.step()
        for name, values in session.parameters().items():
            np.testing.assert_allclose(values, tensors[name].detach().numpy(), rtol=2e-5, atol=2e-6)
