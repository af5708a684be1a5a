"""Measuring this machine's processors: copies, files and kernels -> a calibration that `load_device` reads.

Everything is measured with the code that runs later: the stores, the backend's copies, the kernels on strided blocks.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.base import Backend
from ooc.backends.cpu.backend import CpuBackend
from ooc.backends.cpu.families import FAMILIES
from ooc.errors import BudgetError
from ooc.ir.op import Op
from ooc.model.calibration import read_model
from ooc.model.cost import AS_FAST
from ooc.ops.descriptor import parse
from ooc.runtime.context import device as make_device
from ooc.runtime.device import Device
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan
from ooc.schedule.work import Moved, Work
from perfmodel.calibrate.contention import measure_contention, measure_handoff
from perfmodel.calibrate.entries import (
    MIB,
    SAME,
    Say,
    copies_entry,
    others,
    processor,
    tiles_entry,
)
from perfmodel.calibrate.timed_runs import along_batch, plan_of, rehearse
from perfmodel.calibrate.trial import TrialQuestion, question

LAYERS = (  # whole layers, as a generous budget leaves them
    "n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1",
    "n=1 c=64 h=224 w=224 k=64 r=3 s=3 pad=1",
    "n=1 c=3 h=224 w=224 k=64 r=3 s=3 pad=1",
    "n=1 c=3 h=448 w=448 k=64 r=3 s=3 pad=1",
    "n=2 c=256 h=28 w=28 k=256 r=3 s=3 pad=1",
    "n=1 c=512 h=14 w=14 k=512 r=3 s=3 pad=1",
    "n=1 c=256 h=28 w=28 k=64 r=1 s=1",
    "n=1 c=16 d=24 h=24 w=24 k=16 t=3 r=3 s=3 pad=1",
    "n=8 c=1024 h=1 w=1 k=1024 r=1 s=1",
    "n=1 c=32 h=4 w=112 k=32 r=3 s=3 pad=1",
)
BLOCKS = tuple(1 << i for i in range(11, 25))  # bytes of copies
ROWS = (0, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10)  # bytes of a contiguous piece; 0: all in one
MOST_PIECES = 2048  # of a copy
MOMENTS = {True: 1, False: 2}  # how often everything is measured, a minute apart and more
PRACTICE = {True: 3, False: 6}  # rounds of plans of a quick calibration, and of a full one
PAIRED = {True: 5, False: 20}  # rounds of pairs of lanes
PROBLEMS = {True: 30, False: 50}  # planned in each, unless it gets late
LATE = {True: 53.0, False: 320.0}  # seconds after which no more is tried: slow machines are measured less, not longer
KERNELS = 0.8  # share of a round's time that kernels, copies and files take at most; the rest is for plans
ENOUGH = 10  # shapes of a kernel for its three costs
TELLING = 4  # tiles that say how far the fit of the others is off: with fewer, a line goes through the rest
PROBLEM_BYTES, STEPS = 48 << 20, 60  # of their tensors; of a plan that are run
FEWEST_BLOCKS, MOST_BLOCKS, MOVED = 4, 16, 32 << 20  # blocks side by side, and bytes of them all where there may be more
Rehearsal = tuple[Plan, tuple[type, ...]]  # and what is to be learned from it
TILES, PLANES_MORE = 120, 24  # random shapes of tiles besides, as tight budgets cut them
SOLID = 5  # one in so many of them in three dimensions
SMALL_CONVS = (
    "n=1 c=4 h=8 w=8 k=8 r=3 s=3 pad=1",
    "n=1 c=8 h=16 w=16 k=16 r=3 s=3 pad=1",
    "n=1 c=2 h=4 w=4 k=4 r=3 s=3 pad=1",
    "n=1 c=16 h=12 w=12 k=16 r=3 s=3 pad=1",
)
MANY_TAPS = (
    "n=1 c=1 h=1024 w=1024 k=1 r=31 s=31 pad=15",
    "n=1 c=1 h=256 w=256 k=1 r=15 s=15 pad=7",
    "n=1 c=8 h=128 w=128 k=8 r=31 s=31 pad=15",
    "n=1 c=64 h=64 w=64 k=64 r=31 s=31 pad=15 groups=64",
    "n=1 c=32 h=96 w=96 k=32 r=21 s=21 pad=10",
    "n=1 c=1 w=262144 k=1 s=1025 pad=512",
    "n=1 c=16 w=8192 k=16 s=257 pad=128",
    "n=1 c=1 d=48 h=48 w=48 k=1 t=9 r=9 s=9 pad=4",
    "n=1 c=1 h=64 w=64 k=1 r=13 s=13 pad=6",
    "n=4 c=4 h=40 w=40 k=4 r=13 s=13 pad=6",
    "n=1 c=2 h=512 w=512 k=2 r=127 s=127 pad=63",
    "n=2 c=128 h=32 w=32 k=128 r=13 s=13 pad=6 groups=128",
)
PLANES = (
    "n=1 k=64 h=224 w=224", "n=1 k=64 h=56 w=56", "n=1 k=8 h=16 w=16", "n=4 k=16 h=14 w=28", "n=2 k=32 h=112 w=112",
    "n=8 k=128 h=14 w=14", "n=1 k=3 h=200 w=200", "n=1 k=7 h=56 w=56", "n=1 k=256 h=7 w=7", "n=16 k=32 h=7 w=7",
    "n=16 k=64 h=56 w=56",
)  # fmt: skip
WINDOWS = (
    "n=1 k=64 h=112 w=112 window=2", "n=1 k=8 h=32 w=32 window=2", "n=1 k=64 h=56 w=56 window=3 stride=2 pad=1",
    "n=4 k=16 h=14 w=28 window=2", "n=4 k=64 h=112 w=112 window=2", "n=9 k=128 h=28 w=28 window=2",
    "n=1 k=7 h=112 w=112 window=2", "n=1 k=16 h=8 w=200 window=2", "n=2 k=256 h=14 w=14 window=2",
    "n=32 k=32 h=8 w=8 window=2", "n=1 k=32 h=28 w=28 window=2", "n=1 k=3 h=100 w=200 window=3 stride=2 pad=1",
    "n=8 k=128 h=14 w=14 window=3 stride=1 pad=1", "n=4 k=64 h=28 w=28 window=3 stride=1 pad=1",
    "n=8 k=96 h=28 w=28 window=3 stride=2 pad=1",
)  # fmt: skip
OFTEN = {"pool.max": "window=2", "pointwise": "act=relu"}  # the other operations of most networks
HEADS = (  # queries and keys; every third is measured in a hurry: much, more and little
    "n=1 k=12 h=197 w=197", "n=2 k=8 h=49 w=49", "n=1 k=6 h=784 w=196", "n=1 k=3 h=1024 w=1024", "n=4 k=3 h=64 w=64",
    "n=1 k=4 h=577 w=577", "n=8 k=2 h=32 w=32",
)  # fmt: skip
OTHERS = {
    **others(PLANES, (*PLANES[1:4], "n=1 k=4 h=8 w=8"), WINDOWS),  # the last one tells what a call takes
    "permute": tuple(f"{p} order=1x2x0" for p in PLANES),
    "function.gelu": PLANES,
    "matmul.nn": tuple(f"{p} c=64" for p in HEADS),
    **dict.fromkeys(("attention.forward", "attention_backward.q"), tuple(f"{p} c=64 depth=64" for p in HEADS)),
}


def tiles(count: int) -> list[str]:
    """Random shapes, the same ones every time, that take from microseconds to milliseconds."""
    shapes: list[str] = []
    rng = random.Random(0)
    while len(shapes) < count:
        n, r = rng.choice((1, 1, 1, 2, round(2 ** rng.uniform(0, 5)))), rng.choice((1, 3, 3, 3, 5))
        c, k = _channels(rng), _channels(rng)
        h, w = round(2 ** rng.uniform(0.5, 7)), round(2 ** rng.uniform(1.5, 7.8))
        stride = rng.choice((1, 1, 2)) if r > 1 else 1
        text, positions, taps = f"n={n} c={c} h={h} w={w} k={k} r={r} s={r} pad={r // 2} stride={stride}", h * w, r * r
        if len(shapes) % SOLID == 0:
            d, h, w = (round(2 ** rng.uniform(1.5, 5.2)) for _ in "dhw")
            r, stride = 3, 1
            text, positions, taps = f"n={n} c={c} d={d} h={h} w={w} k={k} t=3 r=3 s=3 pad=1", d * h * w, 27
        flops, nbytes = 2 * n * c * k * taps * positions / stride**2, 4 * n * positions * max(c, k)
        if 3e5 < flops < 1e9 and nbytes < 16 * MIB and min(h, w) >= r:
            shapes.append(text)
    return shapes


def planes(count: int) -> list[str]:
    """Random shapes of tiles of the other operations, the same ones every time: of 16 KiB to 8 MiB."""
    shapes: list[str] = []
    rng = random.Random(1)
    while len(shapes) < count:
        n, k, h, w = (round(2 ** rng.uniform(lo, hi)) for lo, hi in ((0, 5), (0, 8), (1, 7.8), (2, 7.8)))
        if 16 << 10 < 4 * n * k * h * w < 8 * MIB:
            shapes.append(f"n={n} k={k} h={h} w={w}")
    return shapes


def _channels(rng: random.Random) -> int:
    """As tilings have them: many are cut in whole blocks."""
    count = round(2 ** rng.uniform(1, 8))
    return count if count < 24 else 16 * round(count / 16) if count <= 96 else 64 * round(count / 64)


@dataclass
class Samples:
    """What was measured: tiles by entry, copies by lane; of each the seconds of every moment in which it was."""

    tiles: dict[str, dict[Work, list[float]]] = field(default_factory=dict)
    copies: dict[str, dict[Moved, list[float]]] = field(default_factory=dict)

    def add(self, timed: Mapping[Moved | Work, float], kept: tuple[type, ...] = (Moved, Work)) -> None:
        """Keep what a rehearsal says of tiles, of copies, or of both."""
        for did, seconds in timed.items():
            if not isinstance(did, kept):
                continue
            if isinstance(did, Work):
                kind, _, kernel = did.key.split("/")
                if kernel in AS_FAST:
                    continue
                key = did.key if kind.startswith("conv.") else f"{kind}/*/*"
                self.tiles.setdefault(key, {}).setdefault(did, []).append(seconds)
            else:
                self.copies.setdefault(did.lane, {}).setdefault(did, []).append(seconds)

    def entries(self) -> dict[str, Any]:
        """The parts of a calibration that they make; fit_error where there are enough of them to tell."""
        copies = {lane: copies_entry(_medians(timed)) for lane, timed in self.copies.items()}
        kernels = {key: tiles_entry(_medians(timed)) for key, timed in self.tiles.items()}
        computes = {key: entry for key, (entry, _) in kernels.items()}
        computes |= {k.replace("/f16/", "/bf16/"): e for k, e in computes.items()}
        computes |= {f"{kind}/*/*": computes[f"{like}/*/*"] for kind, like in SAME.items() if f"{like}/*/*" in computes}
        rest = computes.get("conv.fprop/f32/reference", next(iter(computes.values())))
        errors = {lane: error for lane, (_, error) in copies.items()}
        errors |= {key: error for key, (_, error) in kernels.items() if len(self.tiles[key]) >= TELLING}
        lanes = {lane: entry for lane, (entry, _) in copies.items()}
        computes |= {"*/*/*": rest}
        origins = {f"computes.{key}": "assumed" for key in computes if key not in kernels}  # those of something like them
        return {"origins": origins, "fit_error": errors, "copies": lanes, "computes": computes}


def _medians(timed: Mapping[Any, Sequence[float]]) -> dict[Any, float]:
    """Of each measurement the median over its moments."""
    return {did: statistics.median(seconds) for did, seconds in timed.items()}


def announced(quick: bool) -> int:
    """How often `calibrate_cpu` says what it does now."""
    return 2 + 2 * PRACTICE[quick]


def _families() -> list[str]:
    """What can compute convolutions here."""
    first = {
        family: parse(f"conv.fprop {_layers(family)[0]} dtype={_dtypes(family)[0]}")
        for family in FAMILIES
        if family not in AS_FAST
    }
    return [family for family, op in first.items() if _measurable(family, op)]


def _dtypes(family: str) -> tuple[str, ...]:
    """Types that a family is measured with: others of the same size take as long, unless it is there for one."""
    return ("bf16",) if family == "native_bf16" else ("f32", "f64", "f16")


def _layers(family: str) -> tuple[str, ...]:
    """Convolutions that a family is measured with."""
    return {"reference": SMALL_CONVS, "fft": MANY_TAPS}.get(family, (*LAYERS, *tiles(TILES)))


def calibrate_cpu(
    threads: int | None = None, directory: str | None = None, say: Say = print, quick: bool = False
) -> dict[str, Any]:
    """Measure this machine (quick: under a minute on two cores). directory: where to measure the disk. Returns the JSON
    object."""
    device = make_device("cpu", threads=threads)
    assert isinstance(device.backend, CpuBackend)
    about = {
        "name": f"{processor()}, {device.backend.threads} threads",
        "source": "measured",
        "date": datetime.date.today().isoformat(),
        "system": {"processor": processor(), "threads": device.backend.threads, "numpy": np.__version__,
                   "isa": native.kernels.isa() if native.kernels else "", "kernel": platform.release()},
    }  # fmt: skip
    begin, samples, turns, every = time.monotonic(), Samples(), PRACTICE[quick], 2 if quick else 1
    late = [begin + LATE[quick] * (turn + 1) / turns for turn in range(turns)]
    firsts, others = _mixed(_rehearsals(device, quick))
    rounds = _rounds(others, turns, MOMENTS[quick])
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        say("contention")
        calibration: dict[str, Any] = about | {"contention": measure_contention(device.backend, Path(folder), PAIRED[quick])}
        for turn, rehearsals in enumerate(rounds):
            say("kernels, copies and files")
            for plan, kept in firsts if not turn else ():  # however late it gets
                samples.add(rehearse(device, plan, folder), kept)
            for plan, kept in rehearsals:
                if time.monotonic() > late[turn] - (1 - KERNELS) * LATE[quick] / turns:
                    break
                samples.add(rehearse(device, plan, folder), kept)
            if not turn:
                say("threads")
                model = read_model(calibration | samples.entries(), "calibration")
                calibration["handoff_seconds"] = measure_handoff(device, model, folder, every)
            say("plans")
            model = read_model(calibration | samples.entries(), "calibration")
            questions = _questions(random.Random(turn), PROBLEMS[quick], late[turn])
            practise(replace(device, model=model), questions, folder, samples)
    return calibration | samples.entries()


def _rehearsals(device: Device, quick: bool) -> Iterator[Rehearsal]:
    """What to measure whatever plans look like: plans, and what is to be learned from each. Quick: half of the copies, and fewer
    of the operations that are rare."""
    every, blocks = (2, BLOCKS[:-2:2]) if quick else (1, BLOCKS)
    for place, nbytes, row in itertools.product((Place.HOST, Place.DISK), blocks, ROWS[::every]):
        if not row or 2 <= nbytes // row <= MOST_PIECES:
            yield _moving(device, nbytes, row, place), (Moved,)
    for op, family in kernels(device.backend, quick):
        yield plan_of(device, along_batch(op), {"n": op.dims["n"]}, family, Place.HOST), (Work,)


def _mixed(rehearsals: Iterable[Rehearsal]) -> tuple[list[Rehearsal], list[Rehearsal]]:
    """One of each kernel, and the others in turn, so that neighbours on a shared machine slow down a little of everything,
    and a little of everything is left out where it gets late."""
    alike: dict[Any, list[Rehearsal]] = {}
    for plan, kept in rehearsals:
        alike.setdefault((plan.op.kind, plan.op.inputs[0].dtype, plan.kernel, plan.places, kept), []).append((plan, kept))
    placed = []
    for some in alike.values():
        random.Random(0).shuffle(some)
        placed += [(i / len(some), one) for i, one in enumerate(some[1:], 1)]
    return [some[0] for some in alike.values()], [one for _, one in sorted(placed, key=lambda p: p[0])]


def _rounds(rehearsals: Sequence[Rehearsal], count: int, moments: int) -> list[Sequence[Rehearsal]]:
    """So many rounds, in which each has its turn so many times, as far apart as can be."""
    parts = count // moments
    return [rehearsals[i % parts :: parts] for i in range(count)]


def kernels(backend: Backend, quick: bool = False) -> Iterator[tuple[Op, str]]:
    """Tiles, each with the family of kernels that is to compute it; quick: fewer of the operations that are rare."""
    convolutions = ((f, kind, t) for f in _families() for kind in ("conv.fprop", "conv.dgrad", "conv.wgrad") for t in _dtypes(f))
    for family, kind, dtype in convolutions:
        shapes, step = _layers(family), {"f32": 1, "f64": 4}.get(dtype, 8)
        every = shapes[::step] if len(shapes) > step * ENOUGH else shapes
        ops = (parse(f"{kind} {text} dtype={dtype}") for text in every)
        yield from ((op, family) for op in ops if _measurable(family, op))
    for kind, all_shapes in OTHERS.items():
        shapes = all_shapes[:: 3 if quick else 1]
        if kind in OFTEN:
            shapes = (*all_shapes, *(f"{plane} {OFTEN[kind]}" for plane in planes(PLANES_MORE)))
        for shape in shapes:
            op = parse(f"{kind} {shape}")
            yield op, backend.offers(op)[0].name


def _moving(device: Device, nbytes: int, row: int, place: Place) -> Plan:
    """A plan of a pass that does next to nothing, whose blocks have so many bytes, in rows of so many or in one piece."""
    blocks = max(FEWEST_BLOCKS, min(MOST_BLOCKS, MOVED // nbytes))
    if row:
        sizes, tile = f"n=1 k=1 h={nbytes // row} w={blocks * row // 4}", {"q": row // 4}
    else:
        sizes, tile = f"n={blocks} k=1 h=1 w={nbytes // 4}", {"n": 1}
    op = parse(f"pointwise {sizes} act=relu")
    return plan_of(device, op, tile, device.backend.offers(op)[0].name, place)


def _measurable(family: str, op: Op) -> bool:
    """Whether a family can compute an op; the reference always can, also where it is not offered."""
    return family == "reference" or not FAMILIES[family].why_not(op)


def _questions(rng: random.Random, count: int, late: float) -> Iterator[TrialQuestion]:
    """So many random problems, fewer if it gets late."""
    for _ in range(count):
        if time.monotonic() > late:
            break
        yield question(rng, PROBLEM_BYTES)


def practise(device: Device, problems: Iterable[TrialQuestion], folder: str, samples: Samples) -> None:
    """Measure where plans land: the first tiles of what is planned for problems by what is known so far.

    The search takes what looks best out of thousands of tilings, so it looks better than it is wherever the model knows
    little; a model that has seen what it tends to choose is rid of that.
    """
    for problem in problems:
        limited = replace(device, device_bytes=problem.budget)
        with contextlib.suppress(BudgetError):
            plan = replace(limited.planner.plan(problem.op, problem.places), in_turn=True)
            samples.add(rehearse(limited, plan, folder, STEPS))
