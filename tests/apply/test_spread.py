"""`ooc apply` by several workers, in shares without a scheduler, killed and resumed: one result, nothing computed twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import crossed, swept
from tasks import stored
from waiting import HANGS, until_files

from ooc.cli.main import main
from ooc.workers.parts import Share

apply_files = pytest.importorskip("apply_files")

FINE = "from ooc.workers import cut; cut.SECONDS, cut.PARTS, cut.DEARER = 1e-9, 13, 1e9; "
PRE, POST = "/ 255, mean 0.5 0.4 0.3", "scale 40, cast uint8"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, finer: None) -> None:
    rng = np.random.default_rng(3)
    np.save(tmp_path / "x.npy", rng.integers(0, 256, (61, 83, 3), np.uint8))
    np.save(tmp_path / "v.npy", rng.standard_normal((1, 1, 24, 22, 26)).astype(np.float32))
    apply_files.picture_network(tmp_path / "m.onnx")
    apply_files.volume_network(tmp_path / "v.onnx")


def command(folder: Path, output: str, *more: str, volume: bool = False) -> list[str]:
    if volume:
        given = [folder / "v.onnx", "--input", folder / "v.npy"]
    else:
        given = [folder / "m.onnx", "--input", folder / "x.npy", "--axes", "yxc", "--pre", PRE, "--post", POST]
    return ["apply", *map(str, given), "--output", f"{folder}/{output}", "--budget", "300KiB", *more]


def told(folder: Path, capsys: pytest.CaptureFixture[str], output: str, *more: str, volume: bool = False) -> dict[str, Any]:
    assert main([*command(folder, output, *more, volume=volume), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def start(folder: Path, output: str, *more: str, volume: bool = False) -> subprocess.Popen[str]:
    code = f"{FINE}from ooc.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    args = command(folder, output, *more, volume=volume)
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("output", "volume"), crossed(["y.npy", "y.zarr", "y.tif", "y.h5:/y"], [False, True], every=2))
def test_resumed_is_the_same_as_at_once(output: str, volume: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = told(tmp_path, capsys, f"plain_{output}", volume=volume)
    found = told(tmp_path, capsys, output, "--resume", "--verify", "2", volume=volume)
    assert found["computed"] == found["tasks"] > 5 and found["output"] == plain["output"]
    assert found["verified"]["windows"] == 2 and found["verified"]["difference"] <= (1e-4 if volume else 1)
    have, want = stored(f"{tmp_path}/{output}"), stored(f"{tmp_path}/plain_{output}")
    assert np.allclose(have, want, 1e-4, 1e-5) if volume else np.abs(have.astype(int) - want).max() <= 1
    again = told(tmp_path, capsys, output, "--resume", volume=volume)
    assert again["computed"] == 0 and again["finished"] == again["tasks"]


def test_a_picture_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, more in (("a.png", []), ("b.png", ["--resume"])):
        assert main([*command(tmp_path, name)[:-2], "--post", "channel 1, scale 40, cast uint8", *more]) == 0
    assert "done" in capsys.readouterr().out
    assert np.abs(stored(tmp_path / "a.png").astype(int) - stored(tmp_path / "b.png")).max() <= 1


def test_workers_of_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    told(tmp_path, capsys, "one.npy", "--resume", volume=True)
    found = told(tmp_path, capsys, "two.npy", "--workers", "2", volume=True)
    assert found["computed"] == found["tasks"]
    assert np.array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"))
    dask = pytest.importorskip("ooc.dask")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        told(tmp_path, capsys, "three.npy", "--dask", cluster.scheduler_address, volume=True)
    assert np.array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "three.npy"))
    monkeypatch.setattr(dask.connected, "__defaults__", (0.5,))  # seconds: nobody will answer
    assert main(command(tmp_path, "four.npy", "--dask", "tcp://127.0.0.1:1")) == 2
    assert "no scheduler" in capsys.readouterr().err
    with dask.local(1) as client:  # nobody else may use it
        assert main(command(tmp_path, "five.npy", "--dask", client.scheduler.address)) == 2
    assert "no scheduler" in capsys.readouterr().err


@pytest.mark.parametrize(("output", "volume"), [("y.zarr", True), pytest.param("y.npy", False, marks=pytest.mark.slow)])
def test_shares_of_processes_that_know_nothing_of_each_other(
    output: str, volume: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = [start(tmp_path, output, "--parts", f"{i}/3", volume=volume) for i in (1, 2, 3)]
    for process in running:
        out, err = process.communicate(timeout=HANGS)
        assert process.returncode == 0, out + err
    told(tmp_path, capsys, f"one_{output}", "--resume", volume=volume)
    assert np.array_equal(stored(f"{tmp_path}/{output}"), stored(f"{tmp_path}/one_{output}"))
    assert sorted(p.name for p in (tmp_path / f"{output}.work").iterdir()) == ["done", "made", "work.json"]


def test_a_share_whose_process_never_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(tmp_path, capsys, "one.npy", "--resume")
    found = told(tmp_path, capsys, "y.npy", "--parts", "2/3", "--patience", "0.1")
    assert found["computed"] == found["tasks"]
    assert np.array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "y.npy"))


def test_a_plain_run_removes_what_an_older_one_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(tmp_path, capsys, "y.npy", "--resume")
    assert (tmp_path / "y.npy.work").exists()
    assert main(command(tmp_path, "y.npy", "--overwrite")) == 0
    assert not (tmp_path / "y.npy.work").exists()


def test_what_changed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(tmp_path, capsys, "y.npy", "--resume")
    kept = np.load(tmp_path / "y.npy")
    changes = (
        (["--budget", "400KiB"], "budget"), (["--post", "scale 41, cast uint8"], "weights"), (["--pre", "bgr"], "network"),
    )  # fmt: skip
    for more, name in changes:
        assert main([*command(tmp_path, "y.npy", "--resume"), *more]) == 2
        assert f"of another {name}" in capsys.readouterr().err
    os.utime(tmp_path / "x.npy", ns=(1, 1))
    assert main(command(tmp_path, "y.npy", "--resume")) == 2
    assert "of another source" in capsys.readouterr().err
    assert np.array_equal(np.load(tmp_path / "y.npy"), kept)
    (tmp_path / "y.npy").unlink()
    np.save(tmp_path / "y.npy.moved", kept)


def test_arguments_that_make_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.iterdir())
    for more, words in (
        (["--parts", "4/3"], "--parts"), (["--parts", "x"], "--parts"), (["--parts", "1/2", "--workers", "2"], "one of them"),
        (["--parts", "1/2", "--overwrite"], "--overwrite"), (["--resume", "--semantics", "window=16"], "windows"),
        (["--resume", "--budget", "10"], "at least"),
    ):  # fmt: skip
        assert main(command(tmp_path, "y.npy", *more)) == 2
        assert words in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    assert [Share.of(text).first for text in ("1/2", "2/2", "0/2")] == [1, 0, 0]


@pytest.mark.parametrize("seed", swept(range(12), 1))
def test_killed_at_random_moments(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To zarr: 3 kills, or 5 in the long suite; finished tasks are not computed again, the bits are those of one run."""
    rng = random.Random(seed)
    volume = seed % 2 == 1
    done = tmp_path / "y.zarr.work" / "done"
    seen: dict[str, int] = {}
    for kill in range(40):
        process = start(tmp_path, "y.zarr", "--resume", volume=volume)
        if kill < (5 if seed else 3):
            if kill:
                until_files(process, done, more_than=len(seen) + rng.randint(0, 6))
            else:  # while the folders are made, before the first task
                until_files(process, tmp_path, "y.zarr*")
            time.sleep(rng.random() * 0.02)
            process.send_signal(rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))
        process.communicate(timeout=HANGS)
        times = {p.name: p.stat().st_mtime_ns for p in done.iterdir() if ".part" not in p.name} if done.is_dir() else {}
        assert all(times[name] == at for name, at in seen.items())  # none is written again
        seen = times
        if process.returncode == 0:
            break
    assert process.returncode == 0
    told(tmp_path, capsys, "one.npy", "--resume", volume=volume)
    assert np.array_equal(stored(tmp_path / "y.zarr"), np.load(tmp_path / "one.npy"))
    assert not list(tmp_path.rglob("*.part*"))
