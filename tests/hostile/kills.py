"""Runs that are killed at every kind of moment, and resumed: nothing is lost, nothing is wrong, nothing is stuck.

    python tests/hostile/kills.py --kills 200 --rows kills.jsonl

A run is traced first: each step that changes a folder (a file opened, made, renamed, linked, removed), and each load, run and
store of a tile, is a moment, and belongs to a phase by what it touches. Then the same run is made again and killed by SIGKILL at
a moment, so every phase is hit as often as the others, however short it is; `computing` is killed by the clock too. What is there
after a kill must be whole or absent, and what `--resume` makes of it must have the bits of a run that nobody disturbed, with
nothing left beside.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[1] / "helpers")]

import numpy as np  # noqa: E402

import ooc  # noqa: E402
from ooc.cli.main import main as command  # noqa: E402
from ooc.ir.region import whole  # noqa: E402
from ooc.runtime.machine import Machine  # noqa: E402
from ooc.workers import cut  # noqa: E402

STEP = "a step of a tile"
EVENTS = {STEP, "open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate"}
STUCK = 300  # seconds
FORMATS = {
    "npy": "y.npy", "zarr": "y.zarr", "tif": "y.tif", "nii": "y.nii", "h5": "y.h5:/deep/y", "beside": "there.h5:/deep/y",
}  # fmt: skip
CALLS = {"npy": "c.npy", "zarr": "c.zarr", "h5": "c.h5"}  # of single calls
WAYS = ("plain", "resume", "call")
FORKS = multiprocessing.get_context("forkserver")  # of a process that has read no file: libraries that have do not fork
FORKS.set_forkserver_preload(["numpy", "ooc.cli.main", "ooc.workers", "ooc.apply"])
PHASES = ("before the mark", "computing", "journal", "last task", "handing on", "rename", "tidying")


class Moment(NamedTuple):
    """A step of a traced run that changes a folder: its place in the trace, and what it is part of."""

    at: int
    phase: str


class Case(NamedTuple):
    """What is run, in a folder: a format, and whether it is a plain run, one that can be resumed, or a single call."""

    kind: str
    way: str

    def args(self, resumes: bool) -> list[str]:
        """Of the command line. resumes: the start after a kill."""
        one = ["--post", "channel 0"] if self.kind in ("nii", "tif") else []
        more = ["--resume"] if resumes or self.way == "resume" else []
        return ["apply", "v.onnx", "--input", "x.npy", "--output", FORMATS[self.kind], "--budget", "300KiB", *one, *more]

    def __str__(self) -> str:
        return f"{self.way} {self.kind}"


# ---- the process that is killed


def forked(
    folder: Path, case: Case, resumes: bool, kill_at: int | None = None, seconds: float | None = None
) -> tuple[int, list[str]]:
    """Run a case in a child, which dies at a moment; its exit code (negative: its signal), and what it touched."""
    trace = folder.parent / "trace"
    trace.unlink(missing_ok=True)
    child = FORKS.Process(target=_child, args=(folder, case, resumes, trace, kill_at, seconds))
    child.start()
    child.join(STUCK)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise TimeoutError(f"{case}: stuck")
    touched = trace.read_text().splitlines() if trace.exists() else []
    return child.exitcode, touched


def _child(folder: Path, case: Case, resumes: bool, trace: Path, kill_at: int | None, seconds: float | None) -> None:
    """Never returns."""
    code = 70
    cut.SECONDS, cut.PARTS, cut.DEARER = 1e-9, 13, 1e9  # tasks as small as those of large volumes are many
    try:
        os.chdir(folder)
        with open(folder.parent / "output", "ab") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        watch(trace if kill_at is None and seconds is None else None, kill_at)
        if seconds is not None:
            threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        code = call(case.kind) if case.way == "call" else command(case.args(resumes))
    finally:
        os._exit(code)


def watch(trace: Path | None, kill_at: int | None) -> None:
    """Count the moments; die at one of them, before what it would do."""
    seen, lock = 0, threading.Lock()
    file = None if trace is None else open(trace, "w", buffering=1)  # noqa: SIM115 - open until the process ends

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in EVENTS or (event == "open" and not _writes(given)):
            return
        with lock:
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            if file is not None:
                file.write(f"{event} {' '.join(str(one) for one in given[:2])}\n")

    sys.addaudithook(hook)
    perform = Machine.perform

    def counted(machine: Machine, step: Any) -> None:
        hook(STEP, ())
        perform(machine, step)

    Machine.perform = counted  # type: ignore[method-assign]


def _writes(given: tuple[Any, ...]) -> bool:
    flags = given[2] if len(given) > 2 and isinstance(given[2], int) else 0
    return isinstance(given[0], str | bytes | Path) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def call(kind: str) -> int:
    """A single function that can be resumed, which writes a file or an array of another library."""
    x, w = np.load("x.npy", mmap_mode="r")[:, 0], np.ones((3, 1, 3, 3), np.float32)
    with ooc.device("cpu", budget="8 KiB"):
        ooc.conv(x.transpose(1, 0, 2, 3), w, padding=1, out=_target(kind), resume="run")
    return 0


def _target(kind: str) -> Any:
    """Where the result goes, made where it is not there yet, whole at once."""
    name, shape, chunks = CALLS[kind], (24, 3, 22, 26), (2, 2, 5, 26)
    if kind == "npy":
        return np.load(name, mmap_mode="r+") if Path(name).exists() else np.lib.format.open_memmap(name, "w+", np.float32, shape)
    if kind == "zarr":
        import zarr

        if not Path(name, "zarr.json").exists():
            zarr.create_array(name, shape=shape, dtype=np.float32, chunks=chunks)
        return zarr.open_array(name, mode="r+")
    import h5py

    if not Path(name).exists():
        with h5py.File("new.h5", "w") as file:
            file.create_dataset("y", data=np.zeros(shape, np.float32), chunks=chunks)
        os.rename("new.h5", name)
    return h5py.File(name, "r+")["y"]


# ---- what a moment is part of


def moments(touched: Sequence[str], case: Case) -> list[Moment]:
    """The moments of a trace, by phase."""
    name = (CALLS if case.way == "call" else FORMATS)[case.kind].partition(":")[0]
    done = [i for i, line in enumerate(touched) if "/done/" in line and line.startswith("os.rename")]
    found = []
    for i, line in enumerate(touched):
        found.append(Moment(i, _phase(line, i, name, case, done, touched)))
    return found


def _phase(line: str, i: int, name: str, case: Case, done: list[int], touched: Sequence[str]) -> str:
    placed = next((j for j, one in enumerate(touched) if _places(one, name)), len(touched))
    first = next((j for j, one in enumerate(touched) if "work.json" in one or "call.json" in one or f"{name}.part" in one), 0)
    if i <= first:
        return "before the mark"
    if case.way != "call" and i == placed:
        return "rename"
    if i > placed and case.way != "call":
        return "journal" if "/done/" in line or "/made" in line else "tidying"
    if "/done/" in line or "/made" in line:
        return "journal"
    if case.way == "resume" and len(done) > 2 and i > done[-3]:
        return "last task"
    if "result." in line or f"{name}.part" in line:
        return "handing on"
    return "computing"


def _places(line: str, name: str) -> bool:
    """Whether a step puts the result at its place."""
    event, _, paths = line.partition(" ")
    return event in ("os.rename", "os.link") and paths.endswith(f"/{name}") and ".part" not in paths.split()[-1]


# ---- the trial


def prepared(folder: Path) -> Any:
    """The input and the network in a new folder."""
    import apply_files

    folder.mkdir()
    x = np.random.default_rng(3).standard_normal((1, 1, 24, 22, 26)).astype(np.float32)
    np.save(folder / "x.npy", x)
    apply_files.volume_network(folder / "v.onnx")
    with ooc.create(f"{folder}/there.h5:/deep/x", x.shape, x.dtype) as there:  # a file with another dataset
        there.write(whole(x.shape), x)


def stored(path: str) -> Any:
    """All of a tensor in a file."""
    with ooc.open(path) as source:
        found = np.empty(source.shape, source.dtype)
        source.read(whole(source.shape), found)
    return found


def result(folder: Path, case: Case) -> Any | None:
    """What is at the place of the result; None: nothing."""
    name = CALLS[case.kind] + ":y" * (case.kind == "h5") if case.way == "call" else FORMATS[case.kind]
    if case.kind == "beside":
        if not np.array_equal(stored(f"{folder}/there.h5:/deep/x"), np.load(folder / "x.npy")):
            return np.zeros(0)  # what was there is not any more
        with contextlib.suppress(ooc.OocError):
            return stored(f"{folder}/{name}")
        return None
    return stored(f"{folder}/{name}") if (folder / name.partition(":")[0]).exists() else None


def left(folder: Path, case: Case) -> list[str]:
    """What should not be there at the end."""
    name = FORMATS[case.kind].partition(":")[0]
    work = folder / f"{FORMATS[case.kind].replace(':', '').replace('/', '.')}.work"
    kept = {"x.npy", "v.onnx", name, work.name, *CALLS.values(), "new.h5", "run", "there.h5"}
    inside = {"done", "made", "work.json"}
    beside = [p.name for p in folder.iterdir() if p.name not in kept]
    return beside + [p.name for p in work.glob("*") if p.name not in inside] + [
        str(p) for p in folder.rglob("*.part*")
    ]  # fmt: skip


def trial(room: Path, case: Case, wanted: Sequence[Any], again: int, kill: Callable[[Path, bool], int]) -> str:
    """Kill a run and resume it until it ends; "": all is well. wanted: what its result may be. again: how often it is killed.
    kill: runs it, and dies."""
    folder = room / "killed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(room / "fresh", folder)
    for number in range(again):
        code = kill(folder, number > 0)
        if code == 0:
            break
        if code != -signal.SIGKILL:
            return f"stuck: exit code {code}: {(room / 'output').read_text()[-300:]}"
        with contextlib.suppress(Exception):
            found = result(folder, case)
            if case.way != "call" and found is not None:
                if not any(np.array_equal(found, one) for one in wanted):
                    return "wrong: what a killed run left looks whole, and is not"
                if case.way == "plain":
                    return ""  # it was whole, and is not replaced
    else:
        code = forked(folder, case, True)[0]
        if code:
            return f"stuck: exit code {code}: {(room / 'output').read_text()[-300:]}"
    found = result(folder, case)
    if found is None:
        return "lost: there is no result"
    if not any(np.array_equal(found, one) for one in wanted):
        return "wrong: other bits"
    beside = left(folder, case)
    return f"lost: left behind {beside}" if beside else ""


def cases(ways: Sequence[str], kinds: Sequence[str]) -> list[Case]:
    """What is tried."""
    return [Case(kind, way) for way in ways for kind in kinds if way != "call" or kind in CALLS]


def campaign(kills: int, seed: int, ways: Sequence[str], kinds: Sequence[str], tell: Callable[[dict[str, Any]], None]) -> int:
    """Kill so often, every phase of every case in turn; how many went wrong."""
    rng, bad, counted = random.Random(seed), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        prepared(room / "fresh")
        traced: dict[Case, tuple[list[Any], list[Moment], float]] = {}
        for case in cases(ways, kinds):
            folder = room / "traced"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(room / "fresh", folder)
            begin = time.monotonic()
            code, touched = forked(folder, case, False)
            if code:
                raise RuntimeError(f"{case}: {code}: {(room / 'output').read_text()[-600:]}")
            wanted, seconds = [result(folder, case)], time.monotonic() - begin
            if case.way == "plain":  # resumed, it is a run of tasks, whose sums over tiles are taken otherwise
                shutil.rmtree(folder)
                shutil.copytree(room / "fresh", folder)
                forked(folder, Case(case.kind, "resume"), True)
                wanted.append(result(folder, case))
            traced[case] = wanted, moments(touched, case), seconds
        found = {moment.phase for _, all_of, _ in traced.values() for moment in all_of} | {"computing"}
        phases = [phase for phase in PHASES if phase in found]  # single calls have no tasks, and nothing takes its place
        for number in range(kills):
            phase = phases[number % len(phases)]
            fitting = [c for c, (_, all_of, _) in traced.items() if phase == "computing" or any(m.phase == phase for m in all_of)]
            case = rng.choice(fitting)
            wanted, all_of, seconds = traced[case]
            some = [m.at for m in all_of if m.phase == phase]

            def kill(folder: Path, resumes: bool, case: Case = case, some: list[int] = some, seconds: float = seconds) -> int:
                if not some or (phase == "computing" and rng.random() < 0.7):  # noqa: B023 - it is called in this turn
                    return forked(folder, case, resumes, seconds=rng.random() * seconds)[0]
                at = rng.choice(some) if not resumes else rng.randrange(len(all_of))  # noqa: B023
                return forked(folder, case, resumes, kill_at=at)[0]

            try:
                wrong = trial(room, case, wanted, rng.choice((1, 1, 2, 3)), kill)
            except TimeoutError as error:
                wrong = f"stuck: {error}"
            bad, counted[phase] = bad + bool(wrong), counted[phase] + 1
            tell({"kill": number, "phase": phase, "case": str(case), "wrong": wrong})
    tell({"kills": kills, "phases": dict(counted), "wrong": bad, "version": ooc.__version__})
    return bad


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--kinds", default=",".join(FORMATS))
    parser.add_argument("--rows", type=Path, help="write a line of JSON for each kill here")
    args = parser.parse_args(argv)
    rows = args.rows.open("w") if args.rows else None

    def tell(row: dict[str, Any]) -> None:
        if rows:
            rows.write(json.dumps(row) + "\n")
            rows.flush()
        if row.get("wrong"):
            print(json.dumps(row), flush=True)

    bad = campaign(args.kills, args.seed, args.ways.split(","), args.kinds.split(","), tell)
    print(f"kills: {args.kills}, of which {bad} went wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
