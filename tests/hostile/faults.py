"""What befalls a run, all kinds by one command: kills, flipped bits, full disks, hostile arrays. Nothing may be lost or wrong.

    python tests/hostile/faults.py --kills 210 --flips 160 --disks 24 --arrays 400 --rows faults.jsonl

Kills are those of kills.py. Flips: files of a run that was stopped, or of a training, are damaged; who goes on has the right
bits, or is told in one line, and begun anew it is right. Disks: a small disk is full early or late; one line says so, nothing
that looks finished is there, and with room the run ends right. Arrays: views, strides, types and options that hurt; results are
those of plain copies, or a typed error says what is wrong, and inputs stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[1] / "helpers"), str(HERE.parent)]

import kills  # noqa: E402
import mutations  # noqa: E402
import numpy as np  # noqa: E402
import tasks as runs  # noqa: E402
from networks import cpu  # noqa: E402

import ooc  # noqa: E402
from ooc.networks import SGD, Graph  # noqa: E402
from ooc.workers import cut  # noqa: E402

Row = dict[str, Any]
KINDS = ("npy", "zarr", "tif", "nii", "h5:/y")
DISK = 6 << 20  # bytes of the small disk
BATCH = 8


def refused(call: Callable[[], Any]) -> str:
    """Why a typed error of one line was raised; "": none was."""
    try:
        call()
    except ooc.OocError as error:
        return str(error) or type(error).__name__
    return ""


# ---- flips


def damaged(rng: random.Random, folder: Path) -> str:
    """Damage a file of a folder; its name."""
    path = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size))
    content = path.read_bytes()
    while (changed := mutations.of_bytes(rng, content)) == content:
        pass
    path.write_bytes(changed)
    return path.relative_to(folder).as_posix()


def run_damaged(rng: random.Random, room: Path) -> Row:
    """A run of tasks that was stopped, one file of which was damaged."""
    kind = rng.choice(KINDS)
    sink, work = f"{room}/y.{kind}", room / f"y.{kind.replace(':/', '.')}.work"
    wanted = runs.wanted(room)
    mine = ooc.tasks(runs.plan_of(1 << 20), room / "x.npy", sink)
    for task in mine[: rng.randint(1, len(mine) - 1)]:
        task()
    row = {"case": f"tasks into {kind}", "file": damaged(rng, work)}
    return row | gone_on(
        lambda: ooc.run_tasks(ooc.tasks(runs.plan_of(1 << 20), room / "x.npy", sink, resume=True)),
        lambda: (shutil.rmtree(work), ooc.run_tasks(ooc.tasks(runs.plan_of(1 << 20), room / "x.npy", sink))),
        lambda: np.array_equal(runs.stored(sink), wanted),
    )


def trained(folder: Path, steps: int, resume: bool = False) -> Any:
    """The parameters after so many steps in all."""
    graph = Graph("trained")
    h = graph.pool(graph.conv(graph.input("x", (3, 12, 12)), 8, 3, padding=1, bias=True, activation="relu"), 2)
    graph.loss("cross_entropy", graph.linear(graph.flatten(h), 5, bias=True))
    plan = graph.plan(batch=BATCH, optimizer=SGD(0.1, 0.9), device=cpu(), deterministic=True)
    with ooc.Training(plan, folder, parts=4, seed=3, resume=resume) as training:
        while training.steps < steps:
            rng = np.random.default_rng(training.steps)
            training.step(rng.standard_normal((BATCH, 3, 12, 12)).astype(np.float32), rng.integers(0, 5, BATCH))
        return training.parameters()


def training_damaged(rng: random.Random, room: Path) -> Row:
    """A training that was stopped, one file of which was damaged."""
    wanted, found = trained(room / "whole", 3), {}
    trained(room / "t", 2)
    row = {"case": "training", "file": damaged(rng, room / "t")}
    return row | gone_on(
        lambda: found.update(trained(room / "t", 3, resume=True)),
        lambda: (shutil.rmtree(room / "t"), found.update(trained(room / "t", 3))),
        lambda: all(np.array_equal(found[name], value) for name, value in wanted.items()),
    )


def gone_on(resume: Callable[[], Any], anew: Callable[[], Any], right: Callable[[], bool]) -> Row:
    """What came of going on with damaged files."""
    told = refused(resume)
    if told:
        anew()
    wrong = "more than a line" if "\n" in told else "" if right() else "wrong bits"
    return {"came": "refused" if told else "right", "message": told, "wrong": wrong}


def flips(count: int, seed: int) -> Iterator[Row]:
    """Damaged files of runs and of trainings in turn."""
    cut.SECONDS, cut.PARTS, cut.DEARER = 1e-9, 7, 1e9  # small networks in as many tasks as large ones
    for number in range(count):
        rng = random.Random(f"flips {seed} {number}")
        with tempfile.TemporaryDirectory() as name:
            yield (training_damaged if number % 2 else run_damaged)(rng, Path(name))


# ---- full disks


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of its own, where that may be mounted."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def disk(rng: random.Random, room: Path, kind: str, way: str) -> Row:
    """A run on a disk that is full at some moment, and again once there is room."""
    case, fresh, full = kills.Case(kind, way), room / "fresh", room / "full"
    row: Row = {"case": str(case)}
    kills.prepared(fresh)
    shutil.copytree(fresh, room / "whole")
    assert kills.forked(room / "whole", case, False)[0] == 0
    wanted = [kills.result(room / "whole", case)]
    shutil.copytree(fresh, room / "resumed")
    kills.forked(room / "resumed", kills.Case(kind, "resume"), True)
    wanted.append(kills.result(room / "resumed", kills.Case(kind, "resume")))
    full.mkdir()
    with small_disk(full) as mounted:
        if not mounted:
            return row | {"came": "not tried: nothing may be mounted", "wrong": ""}
        shutil.copytree(fresh, full / "run")
        left = rng.choice((4 << 10, 40 << 10, 100 << 10, 160 << 10, 240 << 10))
        with (full / "filler").open("wb") as filler:
            filler.write(bytes(shutil.disk_usage(full).free - left))
        (room / "output").unlink(missing_ok=True)
        code, _ = kills.forked(full / "run", case, False)
        told = (room / "output").read_text() if (room / "output").exists() else ""
        errors = [line for line in told.splitlines() if "rror" in line or "space" in line]
        row |= {"left": left, "came": f"exit {code}", "message": errors[-1] if errors else ""}
        if code not in (0, 2) or "Traceback" in told:
            return row | {"wrong": f"exit {code}: {told[-300:]}"}
        found = kills.result(full / "run", case)
        if found is not None and not any(np.array_equal(found, one) for one in wanted):
            return row | {"wrong": "what is there looks whole, and is not"}
        (full / "filler").unlink()
        if found is None:
            code, _ = kills.forked(full / "run", kills.Case(kind, "resume"), True)
            if code:
                return row | {"wrong": f"with room: exit {code}: {(room / 'output').read_text()[-300:]}"}
            found = kills.result(full / "run", case)
        return row | {"wrong": "" if any(np.array_equal(found, one) for one in wanted) else "wrong bits"}


def disks(count: int, seed: int) -> Iterator[Row]:
    """Every format, plain and resumed, on small disks."""
    cut.SECONDS, cut.PARTS, cut.DEARER = 1e-9, 13, 1e9
    every = [(kind, way) for way in ("plain", "resume") for kind in kills.FORMATS]
    for number in range(count):
        rng = random.Random(f"disks {seed} {number}")
        with tempfile.TemporaryDirectory() as name:
            yield disk(rng, Path(name), *every[number % len(every)])


# ---- hostile arrays


def laid(rng: random.Random, shape: tuple[int, ...], dtype: str) -> Any:
    """An array that lies as nobody would lay it."""
    source = np.random.default_rng(rng.randrange(1 << 30))
    plain = (source.standard_normal(tuple(2 * e for e in shape)) * 4).astype(dtype)
    cuts = tuple(slice(None, e) for e in shape)
    kind = rng.choice(("plain", "steps", "backwards", "fortran", "overlapping", "repeated", "frozen", "swapped", "odd", "mapped"))
    if kind == "steps":
        return plain[tuple(slice(None, None, 2) for _ in shape)]
    if kind == "backwards":
        return plain[cuts][tuple(slice(None, None, rng.choice((1, -1))) for _ in shape)]
    if kind == "fortran":
        return np.asfortranarray(plain[cuts])
    if kind == "overlapping":
        strides = tuple(plain.itemsize * rng.choice((1, 2, 3)) for _ in shape)
        return np.lib.stride_tricks.as_strided(plain.reshape(-1), shape, strides, writeable=False)
    if kind == "repeated":
        return np.broadcast_to(plain[cuts][..., :1], shape)
    if kind == "swapped":
        return plain[cuts].astype(np.dtype(dtype).newbyteorder())
    if kind == "odd":  # at an address that no element has
        memory = np.zeros(plain[cuts].nbytes + 1, np.uint8)[1:]
        found = memory.view(dtype).reshape(shape)
        found[...] = plain[cuts]
        return found
    found = np.ascontiguousarray(plain[cuts])
    if kind == "frozen":
        found.flags.writeable = False
    return found


NAMES = ("conv", "conv_transpose", "max_pool", "avg_pool", "activation", "add", "softmax", "linear", "conv_backward")


def call_of(rng: random.Random) -> tuple[str, Callable[..., Any], list[Any], dict[str, Any]]:
    """A function, its arrays, its options: now and then such as make no sense."""
    n, c, k = rng.choice((1, 2)), rng.choice((1, 3, 4)), rng.choice((1, 2, 4))
    extent = tuple(rng.randint(1, 9) for _ in range(rng.choice((1, 2, 3))))
    dtype = rng.choice(("f4", "f4", "f8", "f2", "i4", "u1", "c8", "?"))
    x = laid(rng, (n, c, *extent), dtype)
    wild = (0, 1, 1, 2, 3, -1, 12, 1 << 58, 1.5, "same", None, (1,) * len(extent), [1, 2], np.int64(1), True)
    some = {name: rng.choice(wild) for name in ("stride", "padding", "dilation") if rng.random() < 0.4}
    if rng.random() < 0.3:
        x = rng.choice((x[:0], x[..., :0], x[0], x.ravel()[:1].reshape(()), x.tolist(), np.ma.masked_array(x), "x", None))
    name = rng.choice(
        ("conv", "conv_transpose", "max_pool", "avg_pool", "activation", "add", "softmax", "linear", "conv_backward")
    )
    window = tuple(rng.randint(1, 3) for _ in extent)
    if name in ("conv", "conv_transpose"):
        w = laid(rng, ((k, c) if name == "conv" else (c, k)) + window, dtype)
        return name, getattr(ooc, name), [x, w], some
    if name == "conv_backward":
        dy = laid(rng, (n, k, *(max(1, e - s + 1) for e, s in zip(extent, window, strict=True))), dtype)
        return name, ooc.conv_backward, [dy, x, laid(rng, (k, c, *window), dtype)], some
    if name.endswith("pool"):
        return name, getattr(ooc, name), [x, rng.choice((window, 2, 0, -3))], {"stride": some.get("stride", 1)}
    if name == "activation":
        return name, ooc.activation, [x, rng.choice(("relu", "tanh", "sigmoid", "nothing"))], {}
    if name == "linear":
        return name, ooc.linear, [laid(rng, (n, 6), dtype), laid(rng, (k, 6), dtype)], {}
    return name, getattr(ooc, name), [x, laid(rng, (n, c, *extent), dtype)] if name == "add" else [x], {}


def copied(value: Any) -> Any:
    """The same numbers as anybody lays them."""
    if type(value) is not np.ndarray:
        return value
    return np.array(value, value.dtype.newbyteorder("="), order="C", copy=True)


def outcome(call: Callable[..., Any], arrays: Sequence[Any], options: dict[str, Any], budget: Any) -> tuple[Any, str]:
    """Results as bytes, or the kind of the error; and what is wrong about that error."""
    try:
        with ooc.device("cpu", budget, deterministic=True), np.errstate(all="ignore"):
            found = call(*arrays, **options)
    except ooc.OocError as error:
        return type(error).__name__, "" if len(str(error).splitlines()) == 1 else "more than a line"
    except (MemoryError, OverflowError) as error:  # NumPy's own, of sizes that nothing has
        return type(error).__name__, ""
    except Exception as error:
        return type(error).__name__, f"untyped: {error!r}"
    parts = [p for p in (found if isinstance(found, tuple) else (found,)) if p is not None]
    return [(p.shape, p.dtype.str, np.ascontiguousarray(p).tobytes()) for p in parts], ""


def arrays(count: int, seed: int) -> Iterator[Row]:
    """Calls with arrays that hurt, beside the same with plain copies and without a budget."""
    for number in range(count):
        rng = random.Random(f"arrays {seed} {number}")
        name, call, given, options = call_of(rng)
        budget = rng.choice((None, "2 KiB", "16 KiB", "1 MiB"))
        before = [copied(value) for value in given]
        found, wrong = outcome(call, given, options, budget)
        wanted, _ = outcome(call, [copied(value) for value in given], options, None)
        swapped = any(isinstance(a, np.ndarray) and not a.dtype.isnative for a in given)
        other = isinstance(found, str) != isinstance(wanted, str) or not (isinstance(found, str) or found == wanted)
        if not wrong and other and "BudgetError" not in (found, wanted) and not (swapped and found == "DtypeError"):
            wrong = f"plain copies: {wanted if isinstance(wanted, str) else 'other bits'}"
        if any(type(a) is np.ndarray and copied(a).tobytes() != b.tobytes() for a, b in zip(given, before, strict=True)):
            wrong = "an input changed"
        shown = " ".join(f"{a.dtype.str}{a.shape}/{a.strides}" if isinstance(a, np.ndarray) else repr(a)[:40] for a in given)
        came = found if isinstance(found, str) else "right"
        yield {"case": name, "came": came, "message": f"{shown} {options} {budget}", "wrong": wrong}


# ---- the command


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for what, count in (("kills", 210), ("flips", 160), ("disks", 24), ("arrays", 400)):
        parser.add_argument(f"--{what}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, help="write a line of JSON for each trial here")
    args = parser.parse_args(argv)
    rows, bad, came = args.rows.open("w") if args.rows else None, 0, Counter[str]()

    def tell(row: Row) -> None:
        if rows:
            rows.write(json.dumps(row) + "\n")
            rows.flush()
        if row.get("wrong"):
            print(json.dumps(row), flush=True)

    if args.kills:
        bad += kills.campaign(args.kills, args.seed, kills.WAYS, list(kills.FORMATS), tell)
        came["kills"] = args.kills
    for what, trials in (("flips", flips), ("disks", disks), ("arrays", arrays)):
        for row in trials(getattr(args, what), args.seed):
            tell({"kind": what, **row})
            bad, came[f"{what}: {row['came']}"] = bad + bool(row["wrong"]), came[f"{what}: {row['came']}"] + 1
    for what, count in sorted(came.items()):
        print(f"{what:40} {count}")
    print(f"{bad} went wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
