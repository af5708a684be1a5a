"""Measuring this machine's processors: copies, files and kernels -> a calibration that `load_device` reads.

Everything is measured with the code that runs later: the stores, the backend's copies, the kernels on strided blocks.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import platform
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ooc import native
from ooc.backends.cpu import CpuBackend
from ooc.backends.cpu_kernels import FAMILIES
from ooc.descriptor import parse
from ooc.device import Device
from ooc.device import device as make_device
from ooc.errors import BudgetError
from ooc.op import Op
from ooc.plan import Place, Plan
from perfmodel.contention import measure_contention, measure_handoff
from perfmodel.learned import MOST, Sample
from perfmodel.measuring import MIB, SAME, Say, copies_entry, others, processor, tiles_entry
from perfmodel.model import Moved, Work
from perfmodel.reading import read_model
from perfmodel.rehearsal import along_batch, plan_of, rehearse
from perfmodel.trial import question

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
PRACTICE = {True: 2, False: 6}  # rounds of plans of a quick calibration, and of a full one
MOST_COPIES = 64  # measured copies that are kept of a lane
PROBLEMS, PROBLEM_BYTES, STEPS = 50, 48 << 20, 60  # planned at a time; of their tensors; of a plan that are run
FEWEST_BLOCKS, MOST_BLOCKS, MOVED = 4, 16, 32 << 20  # blocks side by side, and bytes of them all where there may be more
TILES = 120  # random shapes of tiles besides, as tight budgets cut them
SMALL_CONVS = (
    "n=1 c=4 h=8 w=8 k=8 r=3 s=3 pad=1",
    "n=1 c=8 h=16 w=16 k=16 r=3 s=3 pad=1",
    "n=1 c=2 h=4 w=4 k=4 r=3 s=3 pad=1",
    "n=1 c=16 h=12 w=12 k=16 r=3 s=3 pad=1",
)
PLANES = (
    "n=1 k=64 h=224 w=224", "n=1 k=64 h=56 w=56", "n=1 k=8 h=16 w=16", "n=4 k=16 h=14 w=28", "n=2 k=32 h=112 w=112",
    "n=8 k=128 h=14 w=14", "n=1 k=3 h=200 w=200", "n=1 k=7 h=56 w=56", "n=1 k=256 h=7 w=7", "n=16 k=32 h=7 w=7",
)  # fmt: skip
WINDOWS = (
    "n=1 k=64 h=112 w=112 window=2", "n=1 k=8 h=32 w=32 window=2", "n=1 k=64 h=56 w=56 window=3 stride=2 pad=1",
    "n=4 k=16 h=14 w=28 window=2", "n=4 k=64 h=112 w=112 window=2", "n=9 k=128 h=28 w=28 window=2",
    "n=1 k=7 h=112 w=112 window=2", "n=1 k=16 h=8 w=200 window=2", "n=2 k=256 h=14 w=14 window=2",
    "n=32 k=32 h=8 w=8 window=2", "n=1 k=32 h=28 w=28 window=2", "n=1 k=3 h=100 w=200 window=3 stride=2 pad=1",
)  # fmt: skip
OFTEN = ("pool.max", "pointwise")  # the other operations of most networks
OTHERS = others(PLANES, PLANES[1:4], WINDOWS)


def tiles(count: int) -> list[str]:
    """Random shapes, the same ones every time, that take from microseconds to milliseconds."""
    found: list[str] = []
    rng = random.Random(0)
    while len(found) < count:
        n, r = rng.choice((1, 1, 1, 2, round(2 ** rng.uniform(0, 5)))), rng.choice((1, 3, 3, 3, 5))
        c, k = _channels(rng), _channels(rng)
        h, w = round(2 ** rng.uniform(0.5, 7)), round(2 ** rng.uniform(1.5, 7.8))
        stride = rng.choice((1, 1, 2)) if r > 1 else 1
        flops, nbytes = 2 * n * c * k * r * r * h * w / stride**2, 4 * n * h * w * max(c, k)
        if 3e5 < flops < 1e9 and nbytes < 16 * MIB and min(h, w) >= r:
            found.append(f"n={n} c={c} h={h} w={w} k={k} r={r} s={r} pad={r // 2} stride={stride}")
    return found


def _channels(rng: random.Random) -> int:
    """As tilings have them: many are cut in whole blocks."""
    count = round(2 ** rng.uniform(1, 8))
    return count if count < 24 else 16 * round(count / 16) if count <= 96 else 64 * round(count / 64)


@dataclass
class Samples:
    """What was measured: tiles by entry, copies by lane."""

    tiles: dict[str, list[Sample]] = field(default_factory=dict)
    copies: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, timed: Mapping[Moved | Work, float], tiles: bool = True, copies: bool = True) -> None:
        """Keep what a rehearsal says of tiles, or of copies."""
        for did, seconds in timed.items():
            if isinstance(did, Work) and tiles:
                kind, _, _ = did.key.split("/")
                key = did.key if kind.startswith("conv.") else f"{kind}/*/*"
                self.tiles.setdefault(key, []).append(did.sample(seconds))
            elif isinstance(did, Moved) and copies:
                self.copies.setdefault(did.lane, []).append(did.sample(seconds))

    def entries(self) -> dict[str, Any]:
        """The parts of a calibration that they make, and how far each is off."""
        errors: dict[str, float] = {}
        copies, computes = {}, {}
        for lane, samples in self.copies.items():
            copies[lane], errors[lane] = copies_entry(_thinned(samples, MOST_COPIES))
        for key, samples in self.tiles.items():
            computes[key], errors[key] = tiles_entry(_thinned(samples, MOST))
        computes |= {k.replace("/f16/", "/bf16/"): e for k, e in computes.items()}
        computes |= {f"{kind}/*/*": computes[f"{like}/*/*"] for kind, like in SAME.items()}
        return {"fit_error": errors, "copies": copies, "computes": computes | {"*/*/*": computes["conv.fprop/f32/reference"]}}


def _thinned(samples: list[Sample], most: int) -> list[Sample]:
    """At most so many, of the chosen shapes and of all rounds of plans alike."""
    return samples[:: -(-len(samples) // most)]


def announced(quick: bool) -> int:
    """How often `calibrate_cpu` says what it does now."""
    return 4 + len(_families()) + PRACTICE[quick]


def _families() -> list[str]:
    """What can compute convolutions here."""
    return [family for family in FAMILIES if _measurable(family, parse(f"conv.fprop {LAYERS[0]}"))]


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
    samples = Samples()
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        say("copies and files")
        _measure_copies(device, folder, samples, quick)
        for family in _families():
            say(f"kernels: {family}")
            _measure_family(device, family, samples, 2 if quick else 1)
        say("kernels: other operations")
        for kind, shapes in OTHERS.items():
            ops = [parse(f"{kind} {shape}") for shape in (shapes[:: 1 if kind in OFTEN else 3] if quick else shapes)]
            _measure_ops(device, device.backend.offers(ops[0])[0].name, ops, samples)
        say("contention")
        contention = measure_contention(device.backend, Path(folder), 0.1 if quick else 0.4)
        say("threads")
        found: dict[str, Any] = {**about, "contention": contention}
        found["handoff_seconds"] = measure_handoff(device, read_model(found | samples.entries(), "calibration"))
        for turn in range(PRACTICE[quick]):
            say("plans")
            model = read_model(found | samples.entries(), "calibration")
            practise(replace(device, model=model), random.Random(turn), folder, samples)
    return found | samples.entries()


def _measure_copies(device: Device, folder: str, samples: Samples, quick: bool) -> None:
    """Copies of blocks of larger tensors, in memory and in files: whole, and in rows of some lengths."""
    every = 2 if quick else 1
    for place, nbytes, row in itertools.product((Place.HOST, Place.DISK), BLOCKS[::every], ROWS[::every]):
        rows = nbytes // row if row else 0
        if 2 <= rows <= MOST_PIECES or not row:
            samples.add(rehearse(device, _moving(device, nbytes, row, place), folder), tiles=False)


def _moving(device: Device, nbytes: int, row: int, place: Place) -> Plan:
    """A plan of a pass that does next to nothing, whose blocks have so many bytes, in rows of so many or in one piece."""
    blocks = max(FEWEST_BLOCKS, min(MOST_BLOCKS, MOVED // nbytes))
    if row:
        sizes, tile = f"n=1 k=1 h={nbytes // row} w={blocks * row // 4}", {"q": row // 4}
    else:
        sizes, tile = f"n={blocks} k=1 h=1 w={nbytes // 4}", {"n": 1}
    op = parse(f"pointwise {sizes} act=relu")
    return plan_of(device, op, tile, device.backend.offers(op)[0].name, place)


def _measure_family(device: Device, family: str, samples: Samples, every: int) -> None:
    """A family of convolution kernels, per pass and dtype. every: 2 for half the shapes; f32 has all of them."""
    for kind, dtype in itertools.product(("conv.fprop", "conv.dgrad", "conv.wgrad"), ("f32", "f64", "f16")):
        shapes = SMALL_CONVS if family == "reference" else [*LAYERS, *tiles(TILES)]
        step = 1 if family == "reference" else every * {"f32": 1, "f64": 4, "f16": 8}[dtype]
        ops = [parse(f"{kind} {text} dtype={dtype}") for text in shapes[::step]]
        _measure_ops(device, family, [op for op in ops if _measurable(family, op)], samples)


def _measurable(family: str, op: Op) -> bool:
    """Whether a family can compute an op; the reference always can, also where it is not offered."""
    return family == "reference" or not FAMILIES[family].why_not(op)


def _measure_ops(device: Device, family: str, ops: list[Op], samples: Samples) -> None:
    for op in ops:
        plan = plan_of(device, along_batch(op), {"n": op.dims["n"]}, family, Place.HOST)
        samples.add(rehearse(device, plan), copies=False)


def practise(device: Device, rng: random.Random, folder: str, samples: Samples) -> None:
    """Measure where plans land: the first tiles of what is planned for random problems by what is known so far.

    The search takes what looks best out of thousands of tilings, so it looks better than it is wherever the model knows
    little; a model that has seen what it tends to choose is rid of that.
    """
    for _ in range(PROBLEMS):
        asked = question(rng, PROBLEM_BYTES)
        own = replace(device, device_bytes=asked.budget)
        with contextlib.suppress(BudgetError):
            plan = replace(own.plan(asked.op, asked.places), in_turn=True)
            samples.add(rehearse(own, plan, folder, STEPS))
