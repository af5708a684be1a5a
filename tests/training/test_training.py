"""Training on files: losses fall, a run goes on bit for bit, from whatever moment it was killed at."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_files import small, spheres, tables, written
from waiting import HANGS

import ooc
from ooc.training.job import TrainingJob

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]


def told(folder: Path) -> list[Any]:
    """The log without what depends on the clock."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in log(folder)]


def test_a_unet_learns_spheres(folder: Path) -> None:
    """From Zarr, of volumes that are larger than its patches."""
    pytest.importorskip("zarr")
    written(folder, 4, (12, 12, 10), kind="zarr")
    trained = ooc.train(
        tables(
            model={"name": "unet3d", "side": 8, "classes": 2, "width": 1 / 16}, data__images="x*.zarr", data__labels="y*.zarr",
            data__foreground=0.5, data__flips="zyx", data__rotations="yx", optimizer__schedule={"kind": "cosine", "warmup": 3},
            validation={"share": 0.25, "every": 10, "metric": "dice"}, run__steps=30, run__every=10, run__keep=2,
        )
    )  # fmt: skip
    assert len(trained.losses) == 30 and sum(trained.losses[-5:]) < 0.7 * sum(trained.losses[:5])
    first, *_, last = trained.validations
    assert [row.step for row in trained.validations] == [10, 20, 30]
    assert trained.best is not None and trained.best.mean_dice == max(row.mean_dice or 0 for row in trained.validations)
    assert (last.mean_dice or 0) > (first.mean_dice or 0) and trained.best.mean_dice > 0.6
    assert sorted(p.name for p in trained.folder.iterdir()) == [
        "best.ooc", "graph.json", "last.ooc", "log.jsonl", "run.json", "step00000020.ooc", "step00000030.ooc",
    ]  # fmt: skip


def test_what_was_trained_is_used(folder: Path) -> None:
    written(folder, 2)
    ooc.train(tables(validation={"images": "x1.npy", "labels": "y1.npy", "every": 4}), graph=small())
    graph = ooc.Graph.from_json(Path("run/graph.json"))
    with np.load("run/best.ooc") as best:
        graph.begin_with({name: best[name].reshape(w.shape) for name, w in graph.parameters.items()})
    with graph.plan(batch=1, train=False, device="cpu").session() as session:
        assert session.forward(spheres(5, (6, 6, 6))[0][None, None]).shape == (1, 2, 6, 6, 6)


@pytest.fixture
def whole(folder: Path) -> tuple[Path, list[Any]]:
    """A run that nothing interrupted, and its log."""
    written(folder, 3)
    ooc.train(resumed(), graph=small())
    rows = told(folder)
    (folder / "run").rename(folder / "whole")
    return folder, rows


def resumed(**more: Any) -> dict[str, Any]:
    random = {"data__flips": "zx", "data__rotations": "zy", "data__foreground": 0.5}
    return tables(validation={"share": 0.3, "every": 3}, **random, **more)


def same_checkpoints(folder: Path, *names: str) -> None:
    """Those of the two runs."""
    for name in names:
        with np.load(folder / "run" / name) as have, np.load(folder / "whole" / name) as want:
            assert have.files == want.files and all(np.array_equal(have[key], want[key]) for key in want.files)


def test_a_run_goes_on_bit_for_bit(whole: tuple[Path, list[Any]]) -> None:
    folder, rows = whole
    ooc.train(resumed(run__steps=4), graph=small())
    with (folder / "run" / "log.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # as a kill leaves it
    rows_told: list[dict[str, Any]] = []
    trained = ooc.train(resumed(), graph=small(), resume=True, callback=rows_told.append)
    assert [row["step"] for row in rows_told if "loss" in row] == [5, 6, 7, 8]
    assert [row for row in told(folder) if row["step"] != 4 or "loss" in row] == rows  # step 4 was the last once
    assert trained.losses == tuple(row["loss"] for row in rows if "loss" in row)
    same_checkpoints(folder, "last.ooc")
    assert ooc.train(resumed(), graph=small(), resume=True, callback=rows_told.append) == trained  # nothing is left to do
    assert len(rows_told) == 6


KILLED = """
import os, signal, sys
import ooc
from ooc.networks.session import Session
from test_training import resumed, small

real, moments = Session.save, []

def moment(what):
    # The process ends when it comes to one for the last time.
    if what in moments:
        moments.remove(what)
        if not moments:
            os.kill(os.getpid(), signal.SIGKILL)

def save(session, path):
    moment(path.name)
    real(session, path)

Session.save = save
kills = ["loss"] * 2, ["validation"], ["last.ooc"], ["best.ooc"], ["loss"] * 3, ["last.ooc"] * 2
for number, moments in enumerate((*kills, ["never"])):
    child = os.fork()
    if not child:
        ooc.train(resumed(), graph=small(), resume=number > 0, callback=lambda row: moment([*row][1]))
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def test_a_run_that_is_killed_loses_little(whole: tuple[Path, list[Any]]) -> None:
    """Behind a step, behind a validation, before and between the files of a checkpoint."""
    folder, rows = whole
    paths = [str(p) for p in (ROOT, ROOT / "tests" / "helpers", Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=folder, capture_output=True, text=True, timeout=HANGS, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["9"] * 6 + ["0"]
    assert told(folder) == rows
    same_checkpoints(folder, "last.ooc", "best.ooc")
    assert sorted(p.name for p in (folder / "run").iterdir()) == sorted(p.name for p in (folder / "whole").iterdir())


def test_a_folder_with_a_run_is_left_alone(folder: Path) -> None:
    written(folder, 2)
    ooc.train(tables(run__steps=2), graph=small())
    before = {p.name: p.read_bytes() for p in (folder / "run").iterdir()}
    for error, config, graph, resume in (
        ("has a run in it; pass resume=True", tables(run__steps=2), small(), False),
        ("another run: optimizer.lr was 0.02, is 0.1; data.batch was 2, is 1", tables(data__batch=1, optimizer__lr=0.1), small(),
         True),
        ("of another run: optimizer.kind was .adam", tables(optimizer={"kind": "sgd", "lr": 0.02}), small(), True),
        ("of another run: network was", tables(), small(side=4), True),
        ("of another run: validation.images was null", tables(validation={"share": 0.5}), small(), True),
    ):  # fmt: skip
        with pytest.raises(ooc.ArgumentError, match=error):
            ooc.train(config, graph=graph, resume=resume)
    np.save("x2.npy", np.load("x1.npy"))
    np.save("y2.npy", np.load("y1.npy"))
    with pytest.raises(ooc.ArgumentError, match="of another run: samples was"):
        ooc.train(tables(), graph=small(), resume=True)
    assert {p.name: p.read_bytes() for p in (folder / "run").iterdir()} == before
    (folder / "other").mkdir()
    (folder / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(ooc.ArgumentError, match="no folder of a run"):
        ooc.train(tables(run__folder="other"), graph=small())
    assert [p.name for p in (folder / "other").iterdir()] == ["thesis.txt"]


def test_two_processes_do_not_share_a_folder(folder: Path) -> None:
    written(folder, 1)

    def meanwhile(row: dict[str, Any]) -> None:
        with pytest.raises(ooc.ArgumentError, match="another process trains there"):
            ooc.train(tables(run__steps=2), graph=small(), resume=True)

    ooc.train(tables(run__steps=2), graph=small(), callback=meanwhile)


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("log.jsonl", b"", "it has 0 steps of 4"),
        ("log.jsonl", b"{" * 100_000, "not the log of these steps"),
        ("log.jsonl", b'{"step": 2, "loss": 1.0, "lr": 1.0, "seconds": 1.0}\n', "step 2 follows step 0"),
        ("log.jsonl", b'{"step": 1, "loss": "low", "lr": 1.0, "seconds": 1.0}\n', "loss: expected"),
        ("log.jsonl", b"[1]\n" * 9, "expected an object"),
        ("run.json", b"[]", "not an object"),
        ("run.json", b"{}", "of another run: format"),
        ("last.ooc", b"PK", "not one that session.save wrote"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_one_line(folder: Path, file: str, content: bytes, error: str) -> None:
    written(folder, 1)
    ooc.train(tables(run__steps=4), graph=small())
    (folder / "run" / file).write_bytes(content)
    with pytest.raises(ooc.OocError, match=error) as raised:
        ooc.train(tables(), graph=small(), resume=True)
    assert "\n" not in str(raised.value)


def test_a_loss_that_is_no_number_ends_the_run(folder: Path) -> None:
    np.save("x0.npy", np.full((6, 6, 6), np.nan, "f4"))
    np.save("y0.npy", np.zeros((6, 6, 6), "u1"))
    with pytest.raises(ooc.ArgumentError, match="step 1: the loss is nan"):
        ooc.train(tables(), graph=small())
    assert log(folder) == [] and not (folder / "run" / "last.ooc").exists()


def test_a_curve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, 2)
    drawn = ooc.train(tables(run__curve=True, run__steps=4, validation={"share": 0.5}), graph=small())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plain = ooc.train(tables(run__curve=True, run__steps=1, run__folder="plain"), graph=small())
    assert plain.notes == ("curve.png is not drawn: the curve needs matplotlib; pip install matplotlib",)
    assert not (plain.folder / "curve.png").exists()
    if not drawn.notes:
        assert (drawn.folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_command(folder: Path) -> None:
    """From its TOML file to its end, in another folder."""
    written(folder, 3)
    (folder / "small.json").write_text(small().to_json())
    config = folder / "spheres.toml"
    config.write_text(
        '[model]\ngraph = "small.json"\n[[loss]]\nkind = "cross_entropy"\n[optimizer]\nkind = "sgd"\nlr = 0.1\nmomentum = 0.9\n'
        '[data]\nimages = ["x0.npy", "x1.npy"]\nlabels = "y[01].npy"\npre = "normalise"\n'
        '[validation]\nimages = "x2.npy"\nlabels = "y2.npy"\nevery = 5\n'
        '[run]\nfolder = "run"\nsteps = 10\ndevice = "cpu"\npolicy = "stream"\nbudget = "4 MiB"\ncurve = false\n'
    )

    def command(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ooc", "train", str(config), *more], cwd="/", capture_output=True, text=True, timeout=HANGS,
            check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    done = command()
    assert (done.returncode, done.stderr) == (0, "")
    words = [line.split()[0] for line in done.stdout.splitlines()]
    assert words[:3] == ["network", "data", "policy"] and words[-2:] == ["done", "written"]
    assert words.count("validated") == 2 and words.count("progress") == 10
    assert "2 samples to learn from, 1 to validate on; patches of 1x6x6x6, 1 in a step" in done.stdout
    assert [row["step"] for row in log(folder) if "loss" in row] == [*range(1, 11)]
    shutil.rmtree(folder / "run")
    assert command("--report", str(folder / "none" / "p.html")).returncode == 2 and not (folder / "run").exists()
    done = command("--quiet", "--report", str(folder / "p.html"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = (folder / "p.html").read_text()
    for part in ("<h2>Loss</h2>", "of a validation", "<h2>Validations</h2>", "measured: ", "predicted: ", "<h2>Kernels</h2>"):
        assert part in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_command_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ooc.cli.main import main

    written(folder, 1)
    (folder / "small.json").write_text(small().to_json())
    config = (
        '[model]\ngraph = "small.json"\n[optimizer]\nkind = "sgd"\nlr = 0.1\n[data]\nimages = "x0.npy"\nlabels = "y0.npy"\n'
        '[run]\nfolder = "run"\nsteps = 1\ndevice = "cpu"\ncurve = false\n'
    )
    Path("a.toml").write_text(config)
    before = sorted(p.name for p in folder.iterdir())
    assert main(["train", "a.toml", "--plan"]) == 0
    assert "smallest budget" in capsys.readouterr().out and sorted(p.name for p in folder.iterdir()) == before
    Path("b.toml").write_text(config.replace("steps", "step"))
    assert main(["train", "b.toml"]) == 2
    assert "[run] step: no such key" in capsys.readouterr().err
    assert main(["train", "a.toml"]) == 0 and main(["train", "a.toml"]) == 2
    assert "has a run in it; pass --resume to go on with it" in capsys.readouterr().err
    assert main(["train", "a.toml", "--resume"]) == 0


def test_nothing_is_written_by_what_is_planned(folder: Path) -> None:
    written(folder, 1)
    job = TrainingJob.of(tables(), small())
    assert job.plan.batch == 2 and not (folder / "run").exists()
    with pytest.raises(ooc.BudgetError, match="budget"):
        ooc.train(tables(run__budget=10), graph=small())
    assert not (folder / "run").exists()
