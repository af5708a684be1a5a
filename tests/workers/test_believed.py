"""What a run that is resumed believes: results by their checksums, inputs by all their files, workers by their run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import crossed
from tasks import SHAPE, plan_of, result_of, stored, wanted, written

import ooc
from ooc.ir.region import Span
from ooc.workers.begin import at_work

pytestmark = pytest.mark.usefixtures("finer")
KINDS = ["npy", "zarr", "tif", "nii", "h5:/y"]


def plan() -> ooc.NetworkPlan:
    return plan_of(1 << 20)


def tasks(folder: Path, sink: str, **more: Any) -> list[ooc.Task]:
    return ooc.tasks(plan(), folder / "x.npy", f"{folder}/{sink}", **more)


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


@pytest.mark.parametrize(("kind", "part"), crossed(KINDS, range(8), every=8))
def test_one_bit_of_what_a_killed_run_left(kind: str, part: int, tmp_path: Path) -> None:
    """Of the result, of what passes between levels, of sums: wherever it is, and however far the run has come."""
    whole = wanted(tmp_path)
    mine = tasks(tmp_path, f"y.{kind}")
    for task in mine[: len(mine) * (part + 1) // 9]:
        task()
    work = tmp_path / f"y.{kind.replace(':/', '.')}.work"
    files = sorted(p for p in work.rglob("*") if p.is_file() and p.parent.name != "done" and p.stat().st_size > 900)
    files = [p for p in files if p.name not in ("work.json", "weights.zip", "zarr.json")]
    assert files
    for path in files[part % 2 :: 2]:
        flip(path)
    ooc.run_tasks(tasks(tmp_path, f"y.{kind}", resume=True))
    assert np.array_equal(stored(f"{tmp_path}/y.{kind}"), whole)


@pytest.mark.parametrize("kind", KINDS[:4])
def test_a_sink_that_was_made_anew(kind: str, tmp_path: Path) -> None:
    """One that was there before the run, in every format that workers write to: between two runs, and after the last."""
    whole = wanted(tmp_path)
    ooc.create(tmp_path / f"y.{kind}", whole.shape, np.float32).close()
    mine = tasks(tmp_path, f"y.{kind}")
    for task in mine[: -(len(mine) // 4)]:
        task()
    for _ in range(2):
        ooc.create(tmp_path / f"y.{kind}", whole.shape, np.float32, overwrite=True).close()
        ooc.run_tasks(tasks(tmp_path, f"y.{kind}", resume=True))
        assert np.array_equal(stored(tmp_path / f"y.{kind}"), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_result_that_changed_is_somebodys(kind: str, tmp_path: Path) -> None:
    wanted(tmp_path)
    ooc.run_tasks(tasks(tmp_path, f"y.{kind}"))
    assert not any(told["computed"] for told in ooc.run_tasks(tasks(tmp_path, f"y.{kind}", resume=True)))
    ooc.create(f"{tmp_path}/y.{kind}", (1, 4, *SHAPE[2:]), np.float32, overwrite=True).close()
    with pytest.raises(ooc.ShapeError, match="changed since it was finished"):
        tasks(tmp_path, f"y.{kind}", resume=True)
    assert not stored(f"{tmp_path}/y.{kind}").any()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_there_until_all_is(kind: str, tmp_path: Path) -> None:
    """And what comes there meanwhile is not replaced."""
    whole, name = wanted(tmp_path), f"y.{kind}".partition(":")[0]
    mine = tasks(tmp_path, f"y.{kind}")
    for task in mine[:-1]:
        task()
        assert not (tmp_path / name).exists()
    ooc.create(f"{tmp_path}/y.{kind}", whole.shape, np.float32).close()
    with pytest.raises(ooc.ShapeError, match="exists already"):
        mine[-1]()
    with pytest.raises(ooc.ShapeError, match="exists already"):
        tasks(tmp_path, f"y.{kind}", resume=True)
    assert not stored(f"{tmp_path}/y.{kind}").any()
    shutil.rmtree(tmp_path / name) if (tmp_path / name).is_dir() else (tmp_path / name).unlink()
    ooc.run_tasks(tasks(tmp_path, f"y.{kind}", resume=True))
    assert np.array_equal(stored(f"{tmp_path}/y.{kind}"), whole)
    work = tmp_path / f"y.{kind.replace(':/', '.')}.work"
    assert sorted(p.name for p in work.iterdir()) == ["done", "made", "work.json"]


@pytest.mark.parametrize("kind", ["npy", "zarr", "zarr/inner", "h5:/x", "tif"])
def test_an_input_that_changed(kind: str, tmp_path: Path) -> None:
    """All of its files are looked at: when a run is resumed, and whenever a task begins."""
    x, path = written(tmp_path / "first.npy", SHAPE), f"{tmp_path}/x.{kind}"
    region = tuple(Span(0, e) for e in SHAPE)
    with ooc.create(path, SHAPE, np.float32) as made:
        made.write(region, x)
    mine = ooc.tasks(plan(), path, tmp_path / "y.npy")
    for task in mine[:3]:
        task()
    with ooc.open(path, "r+") as source:
        source.write(region, x + 1)
    with pytest.raises(ooc.StoreError, match="changed since the run began"):
        mine[3]()
    with pytest.raises(ooc.ShapeError, match="of another source"):
        ooc.tasks(plan(), path, tmp_path / "y.npy", resume=True)
    ooc.run_tasks(ooc.tasks(plan(), path, tmp_path / "y.npy"))
    assert np.array_equal(np.load(tmp_path / "y.npy"), result_of((x + 1).tobytes()))


@pytest.mark.parametrize("sink", ["made", "there"])
def test_a_worker_that_wakes_up_in_another_run(sink: str, tmp_path: Path) -> None:
    """Its tasks are not those of the new run, whether they are begun or almost done, and the journal does not believe it."""
    whole = wanted(tmp_path)
    written(tmp_path / "other.npy", SHAPE, 7)
    if sink == "there":
        ooc.create(tmp_path / "y.npy", whole.shape, np.float32).close()
    old = ooc.tasks(plan(), tmp_path / "other.npy", tmp_path / "y.npy")
    old[0]()
    late = old[1].work
    new = tasks(tmp_path, "y.npy")
    for task in old:
        with pytest.raises(ooc.ShapeError, match="another run"):
            task()
    late.journal.finish(old[1].name, True, {"seconds": 0.0})  # it had looked just before the new run began
    assert not new[1].done
    ooc.run_tasks(new)
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole)


def test_the_same_run_begun_again_is_another(tmp_path: Path) -> None:
    wanted(tmp_path)
    old = tasks(tmp_path, "y.npy")
    old[0]()
    new = tasks(tmp_path, "y.npy")
    with pytest.raises(ooc.ShapeError, match="another run"):
        old[1]()
    assert not any(task.done for task in new)


def test_a_result_on_another_disk(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or os.stat(shared).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("one file system")
    whole, folder = wanted(tmp_path), shared / f"ooc-test-{os.getpid()}"
    try:
        for kind in ("npy", "zarr"):
            ooc.run_tasks(ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / f"y.{kind}", folder=folder))
            assert np.array_equal(stored(tmp_path / f"y.{kind}"), whole)
            again = ooc.tasks(plan(), tmp_path / "x.npy", tmp_path / f"y.{kind}", folder=folder, resume=True)
            assert not any(told["computed"] for told in ooc.run_tasks(again))
            assert not list(tmp_path.glob("*.part*"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("held", ["done/mine", "mine", "result.0123abcd/mine"])
def test_a_folder_that_is_somebodys_stays(held: str, tmp_path: Path) -> None:
    wanted(tmp_path)
    mine = tmp_path / "y.npy.work" / held
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    with pytest.raises(ooc.ShapeError, match="no folder of a run"):
        tasks(tmp_path, "y.npy")
    assert mine.read_text() == "precious"
    link = tmp_path / "z.npy.work"
    link.symlink_to(tmp_path / "y.npy.work", target_is_directory=True)
    with pytest.raises(ooc.ShapeError, match="no folder of a run"):
        tasks(tmp_path, "z.npy")
    assert mine.read_text() == "precious" and link.is_symlink()


def test_who_is_at_work_is_not_disturbed(tmp_path: Path) -> None:
    with at_work(tmp_path, shared=True):
        with at_work(tmp_path, shared=True):
            pass
        with pytest.raises(ooc.ShapeError, match="at work there"), at_work(tmp_path):
            pass
    with at_work(tmp_path), pytest.raises(ooc.ShapeError, match="at work there"), at_work(tmp_path, shared=True):
        pass


@pytest.mark.parametrize("kind", ["npy", "zarr", "zarr/inner", "h5:/x"])
@pytest.mark.parametrize("way", ["itself", "link", "slice", "inside"])
def test_a_sink_that_is_the_source(kind: str, way: str, tmp_path: Path) -> None:
    graph = ooc.Graph("in place")
    graph.output(graph.activation(graph.input("x", (1, 6, 6)), "relu"))
    inference, path = graph.plan(batch=2, train=False), f"{tmp_path}/x.{kind}"
    x, region = np.full((2, 1, 6, 6), -3.0, np.float32), tuple(Span(0, e) for e in (2, 1, 6, 6))
    with ooc.create(path, x.shape, np.float32) as made:
        made.write(region, x)
    source, sink = path, path
    if way == "link":
        name, tail = path[len(f"{tmp_path}/x") :].split("/", 1)[0].split(":")[0], path[len(f"{tmp_path}/x") :]
        (tmp_path / f"link{name}").symlink_to(tmp_path / f"x{name}")
        sink = f"{tmp_path}/link{tail}"
    elif way == "slice":
        source = f"{path}::0:2"
    elif way == "inside":
        if kind != "zarr":
            pytest.skip("of folders")
        sink = f"{path}/y.npy"
    with pytest.raises(ooc.OocError):
        ooc.tasks(inference, source, sink)
    with ooc.open(path) as found:
        seen = np.empty_like(x)
        found.read(region, seen)
    assert np.array_equal(seen, x)


def test_half_a_file_that_one_worker_writes(tmp_path: Path) -> None:
    """Killed while it was written: it is made anew."""
    pytest.importorskip("h5py")
    whole = wanted(tmp_path)
    mine = tasks(tmp_path, "y.h5:/y")
    for task in mine[:-2]:
        task()
    (made,) = (tmp_path / "y.h5.y.work").glob("result.*/y.h5")
    made.write_bytes(made.read_bytes()[:96])
    ooc.run_tasks(tasks(tmp_path, "y.h5:/y", resume=True))
    assert np.array_equal(stored(f"{tmp_path}/y.h5:/y"), whole)


def test_a_result_that_its_format_has_not_is_refused_at_once(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    wanted(tmp_path)
    with pytest.raises(ooc.OocError):
        tasks(tmp_path, "y.png")
    assert not list(tmp_path.glob("y.png*"))


def test_who_joins_believes_the_others(tmp_path: Path) -> None:
    """While somebody is at work, files come and go: nothing is forgotten then."""
    wanted(tmp_path)
    mine = tasks(tmp_path, "y.npy")
    for task in mine[:5]:
        task()
    finished = mine[0].work.journal.finished()
    for path in (tmp_path / "y.npy.work" / "between").iterdir():
        path.unlink()
    with at_work(tmp_path / "y.npy.work", shared=True):
        assert tasks(tmp_path, "y.npy", resume=True)[0].work.journal.finished() == finished
    assert tasks(tmp_path, "y.npy", resume=True)[0].work.journal.finished() < finished


def test_what_systems_leave_in_folders(tmp_path: Path) -> None:
    whole = wanted(tmp_path)
    mine = tasks(tmp_path, "y.npy")
    mine[0]()
    (tmp_path / "y.npy.work" / "done" / ".DS_Store").write_bytes(b"\0")
    ooc.run_tasks(tasks(tmp_path, "y.npy", resume=True))
    assert np.array_equal(np.load(tmp_path / "y.npy"), whole)
