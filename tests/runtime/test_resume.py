"""Calls that are interrupted: the same bits when they go on, nothing computed twice, nothing mixed up."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import crossed, swept

import ooc
from ooc.ir.region import whole
from ooc.runtime import journal

BUDGETS = [2 << 10, 16 << 10, 256 << 10, None]
SHAPE = (3, 8, 24, 20)


def arrays(folder: Path, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, shape)
    x[...] = rng.integers(-3, 4, shape)
    x.flush()
    return np.load(folder / "x.npy", mmap_mode="r"), rng.integers(-2, 3, (6, shape[1], 3, 3)).astype(np.float32)


def empty(path: Path, shape: tuple[int, ...] = (3, 6, 24, 20)) -> Any:
    return np.lib.format.open_memmap(path, "w+", np.float32, shape)


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_rest_is_computed_and_nothing_else(budget: int | None, tmp_path: Path) -> None:
    x, w = arrays(tmp_path)
    wanted = ooc.conv(np.array(x), w, padding=1, activation="relu")
    out, done = empty(tmp_path / "y.npy"), tmp_path / "run" / "done"
    with ooc.device("cpu", budget=budget):
        ooc.conv(x, w, padding=1, activation="relu", out=out, resume=tmp_path / "run")
        assert np.array_equal(out, wanted)
        units = sorted(done.iterdir(), key=lambda p: int(p.name))
        assert len(units) >= (3 if budget is not None and budget < 1 << 17 else 1)
        before, gone = {u.name: u.stat().st_mtime_ns for u in units}, units[1::2]
        for unit in gone:
            unit.unlink()
        ooc.conv(x, w, padding=1, activation="relu", out=out, resume=str(tmp_path / "run"))
        after = {u.name: u.stat().st_mtime_ns for u in done.iterdir()}
        assert {name for name in after if after[name] != before[name]} == {u.name for u in gone}
        assert np.array_equal(out, wanted)
        ooc.conv(x, w, padding=1, activation="relu", out=out, resume=tmp_path / "run")
        assert {u.name: u.stat().st_mtime_ns for u in done.iterdir()} == after


@pytest.mark.parametrize("budget", BUDGETS[1:])
def test_other_functions(budget: int | None, tmp_path: Path) -> None:
    x, w = arrays(tmp_path)
    dy = np.random.default_rng(2).integers(-2, 3, (3, 6, 24, 20)).astype(np.float32)
    calls = {
        "pool": (lambda **o: ooc.max_pool(x, 2, **o), (3, 8, 12, 10)),
        "chain": (lambda **o: ooc.chain(x, ooc.Conv(w, padding=1, activation="relu", pool=2), **o), (3, 6, 12, 10)),
        "softmax": (lambda **o: ooc.softmax(x, **o), SHAPE),
    }
    with ooc.device("cpu", budget=budget, deterministic=True):
        for name, (call, shape) in calls.items():
            out = empty(tmp_path / f"{name}.npy", shape)
            call(out=out, resume=tmp_path / name)
            assert np.array_equal(out, call()), name
            units = {u.name: u.stat().st_mtime_ns for u in (tmp_path / name / "done").iterdir()}
            call(out=out, resume=tmp_path / name)  # is finished
            assert {u.name: u.stat().st_mtime_ns for u in (tmp_path / name / "done").iterdir()} == units
        dw = empty(tmp_path / "dw.npy", w.shape)
        found = ooc.conv_backward(x, w, dy, padding=1)
        assert dw.shape == found.dw.shape


@pytest.mark.parametrize(
    ("budget", "name", "how"),
    crossed(
        list(BUDGETS), ["conv", "pool", "chain", "softmax", "cut", "conv_backward"], ["made anew", "one bit", "longer"], every=2
    ),
)
def test_results_that_are_not_as_they_were_written(budget: int | None, name: str, how: str, tmp_path: Path) -> None:
    """A file that was made anew keeps its inode, and our own writes move its times: what it holds tells, of each unit."""
    x, w = arrays(tmp_path)
    dy = np.random.default_rng(2).integers(-2, 3, (3, 6, 24, 20)).astype(np.float32)
    wide = np.ones((6, 6, 5, 5), np.float32)
    calls: dict[str, Any] = {
        "conv": lambda **o: ooc.conv(x, w, padding=1, **o),
        "pool": lambda **o: ooc.max_pool(x, 2, **o),
        "chain": lambda **o: ooc.chain(x, ooc.Conv(w, padding=1, activation="relu", pool=2), **o),
        "softmax": lambda **o: ooc.softmax(x, **o),
        "cut": lambda **o: ooc.chain(x, ooc.Conv(w, padding=1), *[ooc.Conv(wide, padding=2)] * 3, **o),
        "conv_backward": lambda **o: ooc.conv_backward(
            x, w, dy, padding=1, want="dx", **({"dx": o.pop("out")} if o else {}), **o
        ),
    }
    call = calls[name]
    with ooc.device("cpu", budget=budget, deterministic=True):
        wanted = call().dx if name == "conv_backward" else call()
        path, run = tmp_path / "y.npy", tmp_path / "run"
        call(out=empty(path, wanted.shape), resume=run)
        if how == "made anew":
            out = empty(path, wanted.shape)
        elif how == "one bit":
            out = np.load(path, mmap_mode="r+")
            out.reshape(-1).view(np.uint8)[out.nbytes // 3] ^= 1
        else:
            with open(path, "ab") as file:
                file.write(b"more")
            out = np.load(path, mmap_mode="r+")
        call(out=out, resume=run)
    assert np.array_equal(np.load(path), wanted)


@pytest.mark.parametrize("budget", [2 << 10, 16 << 10, 256 << 10, None])
def test_checksums_are_read_within_the_budget(budget: int | None) -> None:
    """In pieces; whole units of what the file stores alone are larger than a small budget."""
    held = np.arange(6 * 500 * 400, dtype=np.float32).reshape(6, 500, 400)
    largest = 0

    def read(region: Any, out: Any) -> None:
        nonlocal largest
        largest = max(largest, out.nbytes)
        out[...] = held[tuple(slice(span.lo, span.hi) for span in region)]

    for unit in ((1, 1, 1), (1, 10, 20)):
        largest = 0
        first = journal.checksum(read, [whole(held.shape)], held.dtype, unit, budget)
        assert 0 < largest <= max(budget or journal.SUMMED, 4 * math.prod(unit))
        held[3, 70, 7] += 1
        assert journal.checksum(read, [whole(held.shape)], held.dtype, unit, budget) != first


def test_what_changed_is_named(tmp_path: Path) -> None:
    x, w = arrays(tmp_path)
    out, run = empty(tmp_path / "y.npy"), tmp_path / "run"
    ooc.conv(x, w, padding=1, out=out, resume=run)
    kept = np.array(out)
    with pytest.raises(ooc.ShapeError, match="another w;"):
        ooc.conv(x, w + 1, padding=1, out=out, resume=run)
    with pytest.raises(ooc.ShapeError, match="another plan"):
        ooc.conv(x, w, padding=1, activation="relu", out=out, resume=run)
    with pytest.raises(ooc.ShapeError, match="another y;"):
        ooc.conv(x, w, padding=1, out=empty(tmp_path / "other.npy"), resume=run)
    os.utime(tmp_path / "x.npy", ns=(1, 1))
    with pytest.raises(ooc.ShapeError, match="another x;"):
        ooc.conv(x, w, padding=1, out=out, resume=run)
    assert np.array_equal(out, kept)


def test_what_cannot_be_resumed_is_refused(tmp_path: Path) -> None:
    x, w = arrays(tmp_path)
    out = empty(tmp_path / "y.npy")
    out[...] = 5
    with pytest.raises(ooc.ShapeError, match="memory map"):
        ooc.conv(x, w, padding=1, resume=tmp_path / "run")
    with pytest.raises(ooc.OptionError, match="alpha or beta"):
        ooc.conv(x, w, padding=1, out=out, beta=1.0, resume=tmp_path / "run")
    with pytest.raises(ooc.OptionError, match="replaces"):
        ooc.activation(out, "relu", out=out, resume=tmp_path / "run")
    for wrong, error in ((3, ooc.OptionError), (tmp_path / "no" / "run", ooc.StoreError), (tmp_path / "x.npy", ooc.StoreError)):
        with pytest.raises(error, match="resume"):
            ooc.conv(x, w, padding=1, out=out, resume=wrong)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    with pytest.raises(ooc.ShapeError, match="not empty"):
        ooc.conv(x, w, padding=1, out=out, resume=tmp_path / "full")
    assert (out == 5).all()


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100000, '{"version": 1e999}', "\0" * 50, "x" * 3000])
def test_damaged_journals_are_one_error(text: str, tmp_path: Path) -> None:
    x, w = arrays(tmp_path)
    out = empty(tmp_path / "y.npy")
    ooc.conv(x, w, padding=1, out=out, resume=tmp_path / "run")
    unit, about = next((tmp_path / "run" / "done").iterdir()), tmp_path / "run" / "call.json"
    kept = about.read_text()
    about.write_text(text)
    with pytest.raises(ooc.ShapeError, match="resume"):
        ooc.conv(x, w, padding=1, out=out, resume=tmp_path / "run")
    about.write_text(kept)
    unit.write_text(text)
    with pytest.raises(ooc.ShapeError, match="damaged"):
        ooc.conv(x, w, padding=1, out=out, resume=tmp_path / "run")


def test_what_was_not_on_the_disk_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = journal.Journal(tmp_path / "done")
    found.begin()
    found.finish("a", True, {"seconds": 1.0})
    found.finish("b", False, {"seconds": 1.0})
    found.doubt()
    assert found.finished() == {"a", "b"}
    monkeypatch.setattr(journal, "boot", lambda: "another start of this machine")
    found.doubt()
    assert found.finished() == {"a"}
    (tmp_path / "done" / "c.part00000077").write_text("half")
    found.begin()
    assert found.finished() == {"a"} and len(list((tmp_path / "done").iterdir())) == 1


def test_killed_before_the_journal_says_what_it_is_of(tmp_path: Path) -> None:
    """The folder is there, with what is made first, complete or not: the call begins."""
    x, w = arrays(tmp_path)
    for i, left in enumerate(("", "done", "call.json.part0123abcd")):
        out, run = empty(tmp_path / f"y{i}.npy"), tmp_path / f"run{i}"
        run.mkdir()
        if left:
            (run / left).mkdir() if left == "done" else (run / left).write_text("{")
        ooc.conv(x, w, padding=1, out=out, resume=run)
        assert np.array_equal(out, ooc.conv(np.array(x), w, padding=1))
        assert sorted(path.name for path in run.iterdir()) == ["call.json", "done"]
    (tmp_path / "run" / "done").mkdir(parents=True)
    (tmp_path / "run" / "done" / "0").write_text("precious")
    with pytest.raises(ooc.ShapeError, match="not empty"):
        ooc.conv(x, w, padding=1, out=out, resume=tmp_path / "run")


KILLED = """
import sys, numpy as np, ooc
from ooc.runtime.resume import Resumed
folder = sys.argv[1]
x, w = np.load(folder + "/x.npy", mmap_mode="r"), np.load(folder + "/w.npy")
out = np.load(folder + "/y.npy", mmap_mode="r+")
finish = Resumed.finish
def told(self, unit, *more):
    finish(self, unit, *more)
    print(unit, flush=True)
Resumed.finish = told
print("begins", flush=True)
with ooc.device("cpu", budget="64 KiB"):
    ooc.conv(x, w, padding=1, activation="relu", out=out, resume=folder + "/run")
print("end", flush=True)
"""


@pytest.mark.parametrize("seed", swept(range(6), 1))
def test_killed_at_random_moments(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    x, w = arrays(tmp_path, seed, (4, 16, 160, 160))
    np.save(tmp_path / "w.npy", w)
    empty(tmp_path / "y.npy", (4, 6, 160, 160)).flush()
    units: list[str] = []
    for kill in range(60):
        running = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        running.stdout.readline()
        if kill < (5 if seed else 3):
            time.sleep(rng.random() * 0.15)
            running.send_signal(signal.SIGKILL)
        told = running.stdout.read().split()
        running.wait()
        units += [word for word in told if word != "end"]
        if "end" in told:
            break
    done = [p.name for p in (tmp_path / "run" / "done").iterdir()]
    assert len(set(units)) == len(units) <= len(done) and len(done) > 5
    assert not list(tmp_path.rglob("*.part*"))
    assert np.array_equal(np.load(tmp_path / "y.npy"), ooc.conv(np.array(x), w, padding=1, activation="relu"))


@pytest.mark.parametrize("kind", ["zarr", "h5py", "ooc"])
def test_results_in_chunks(kind: str, tmp_path: Path) -> None:
    """A file of chunks that no tile fills, stopped after each tile and gone on with; a result that was made anew is noticed."""
    library = pytest.importorskip("h5py" if kind == "h5py" else "zarr")
    x, w = arrays(tmp_path)
    wanted = ooc.conv(np.array(x), w, padding=1)
    name = tmp_path / {"zarr": "y.zarr", "h5py": "y.h5", "ooc": "y.zarr"}[kind]

    def opened(new: bool) -> Any:
        if kind == "ooc":
            return ooc.create(name, wanted.shape, "f4", chunks=(2, 4, 7, 20)) if new else ooc.open(name, "r+")
        if kind == "zarr":
            made = library.create_array(name, shape=wanted.shape, dtype="f4", chunks=(2, 4, 7, 20)) if new else None
            return library.open_array(name, mode="r+") if made is None else made
        file = library.File(name, "w" if new else "r+")
        return file.create_dataset("y", wanted.shape, "f4", chunks=(2, 4, 7, 20)) if new else file["y"]

    def closed(out: Any) -> None:
        if kind != "zarr":
            (out.file if kind == "h5py" else out).close()

    def stop(tile: int, tiles: int) -> None:
        if tile == 1 + stopped:
            raise KeyboardInterrupt

    stopped = 0
    for stopped in range(100):
        out = opened(stopped == 0)
        try:
            with ooc.device("cpu", budget=16 << 10):
                ooc.conv(x, w, padding=1, out=out, resume=tmp_path / "run", callbacks=[stop])
            break
        except KeyboardInterrupt:
            continue
        finally:
            closed(out)
    assert stopped > 2
    out = opened(False)
    assert np.array_equal(read(out), wanted)
    closed(out)
    (tmp_path / "y.h5").unlink() if kind == "h5py" else shutil.rmtree(name)
    out = opened(True)
    with ooc.device("cpu", budget=16 << 10):
        ooc.conv(x, w, padding=1, out=out, resume=tmp_path / "run")
    assert np.array_equal(read(out), wanted)
    closed(out)


def read(array: Any) -> Any:
    """All of a source, or of an array of another library."""
    if not isinstance(array, ooc.Source):
        return array[...]
    found = np.empty(array.shape, array.dtype)
    array.read(whole(array.shape), found)
    return found


@pytest.mark.parametrize("kind", ["h5py", "npy"])
def test_an_input_beside_the_result(kind: str, tmp_path: Path) -> None:
    """In the same file, whose time of change tells nothing: its contents do."""
    x = np.arange(2 * 4 * 24 * 24, dtype=np.float32).reshape(2, 4, 24, 24) % 7
    if kind == "h5py":
        file = pytest.importorskip("h5py").File(tmp_path / "both.h5", "w")
        held, out = file.create_dataset("x", data=x, chunks=(1, 4, 5, 24)), file.create_dataset("y", (2, 8, 24, 24), "f4")
    else:
        both = np.lib.format.open_memmap(tmp_path / "both.npy", "w+", np.float32, (3 * x.size,))
        held, out = both[: x.size].reshape(x.shape), both[x.size :].reshape(2, 8, 24, 24)
        held[...] = x
    w = np.ones((8, 4, 3, 3), np.float32)

    def stop(tile: int, tiles: int) -> None:
        if tile == 3:
            raise KeyboardInterrupt

    with ooc.device("cpu", budget=16 << 10):
        with pytest.raises(KeyboardInterrupt):
            ooc.conv(held, w, padding=1, out=out, resume=tmp_path / "run", callbacks=[stop])
        held[...] = x + 1
        with pytest.raises(ooc.ShapeError, match="another x"):
            ooc.conv(held, w, padding=1, out=out, resume=tmp_path / "run")
        held[...] = x
        ooc.conv(held, w, padding=1, out=out, resume=tmp_path / "run")
    assert np.array_equal(out[...], ooc.conv(x, w, padding=1))
