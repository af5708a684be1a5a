"""Many mixed calls by several threads in one process: its memory, files and threads must stay as they are.

    python tests/hostile/soak.py --calls 20000 --threads 4 --rows soak.jsonl --plot soak.png

What a call is follows from the seed and its number, whichever thread makes it. After each quarter of the calls all threads wait
for each other: what is open then belongs to nobody. Where something grows, `--only` finds the kind of call that it comes from.
"""

from __future__ import annotations

import argparse
import ast
import gc
import itertools
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "helpers"))

import formulas as f
from function_cases import CASES, agrees, expected, inputs_of

import ooc
from ooc.ir.region import Span, whole
from perfmodel.calibrate.entries import processor

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
QUARTERS = 4
CHECKED = 50  # one in so many calls is compared with its reference
TOLD = 5  # unexpected errors that are kept with their traceback
GROWTH, MARGIN_MIB = 1.10, 20.0  # what memory may gain between the second quarter and the last
BUDGETS = (None, None, "64 KiB", "16 KiB", "4 KiB")
LEFT = ("ooc", ".ooc")  # how names of what the library leaves lying begin
OWN = "own"  # how names of what a call itself makes begin


class UnexpectedError(Exception):
    """A call gave something that it must not."""


class HostError(Exception):
    """What a callback of the host program raises."""


@dataclass(frozen=True)
class Call:
    """A call that may be made many times.

    run: makes it, with an empty folder for its files and numbers drawn for this time; what it returns goes to check.
    check: compares that with a reference; raises AssertionError.
    """

    run: Callable[[Path, random.Random], Any]
    check: Callable[[Any], None] = lambda found: None


Maker = Callable[[random.Random, Path], Call]


# ---- functions of one result, in all their forms


@dataclass(frozen=True)
class Form:
    """How a case is called: its arrays' type, layout and place, and the device."""

    dtype: Any
    last: bool
    files: bool
    out: str
    device: dict[str, Any]

    @classmethod
    def drawn(cls, rng: random.Random, spatial: bool) -> Form:
        """A form at random."""
        limits: dict[str, Any] = {"budget": rng.choice(BUDGETS), "threads": rng.choice((None, 1, 2))}
        if limits["budget"] == "64 KiB" and rng.random() < 0.3:
            limits["pinned"] = "64 KiB"
        return cls(
            rng.choice((np.float32, np.float32, np.float64, np.float16)), spatial and rng.random() < 0.3, rng.random() < 0.4,
            rng.choice(("new", "memory", "file")), {**limits, "deterministic": rng.random() < 0.4},
        )  # fmt: skip


@lru_cache(maxsize=1024)
def problem(name: str, dtype: Any) -> tuple[dict[str, Any], Any]:
    """The inputs of a case, and what the textbook makes of them."""
    arrays = inputs_of(CASES[name], dtype)
    return arrays, expected(CASES[name], arrays)


def function_call(name: str, form: Form, folder: Path) -> Call:
    """A case of a public function."""
    case, (plain, wanted) = CASES[name], problem(name, form.dtype)
    arrays = {k: last(a) if form.last and k in case.spatial else a for k, a in plain.items()}
    words = {"layout": "channels_last"} if form.last else {}
    shape = (last(wanted) if form.last and wanted.ndim > 2 else wanted).shape
    paths = kept(folder, arrays, f"{name}-{np.dtype(form.dtype).name}-{form.last}") if form.files else None
    exact = case.call(**arrays, **words, deterministic=True) if form.device["deterministic"] else None

    def run(room: Path, rng: random.Random) -> Any:
        given = arrays if paths is None else {k: np.load(path, mmap_mode="r") for k, path in paths.items()}
        target = {} if form.out == "new" else {case.out: room_for(room, form.out == "file", shape, form.dtype)}
        with ooc.device("cpu", **form.device):
            return case.call(**given, **words, **target)

    def check(found: Any) -> None:
        agrees(np.moveaxis(found, -1, 1) if form.last and wanted.ndim > 2 else found, wanted, form.dtype)
        assert exact is None or np.array_equal(found, exact), "other bits than without a budget"

    return Call(run, check)


def last(array: Any) -> Any:
    """An array with its channels last."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def kept(folder: Path, arrays: dict[str, Any], name: str) -> dict[str, Path]:
    """Arrays in files, which stay to the end."""
    paths = {k: folder / f"{name.replace(' ', '_')}-{k}.npy" for k in arrays}
    for k, path in paths.items():
        if not path.exists():  # of another variant, which reads it now perhaps
            np.save(path, arrays[k])
    return paths


def room_for(room: Path, in_file: bool, shape: Sequence[int], dtype: Any, name: str = "y") -> Any:
    """An array to write to."""
    if in_file:
        return np.lib.format.open_memmap(room / f"{OWN}-{name}.npy", "w+", dtype, tuple(shape))
    return np.empty(tuple(shape), dtype)


def of_cases(names: Sequence[str]) -> Maker:
    """Calls of these cases in any form."""

    def make(rng: random.Random, folder: Path) -> Call:
        name = rng.choice(names)
        return function_call(name, Form.drawn(rng, bool(CASES[name].spatial)), folder)

    return make


def in_a_thread(rng: random.Random, folder: Path) -> Call:
    """A call in a thread that ends with it."""
    inner = of_cases(list(CASES))(rng, folder)

    def run(room: Path, rng: random.Random) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(inner.run(room, rng)))
        thread.start()
        thread.join()
        return found[0]

    return Call(run, inner.check)


def traced(rng: random.Random, folder: Path) -> Call:
    """A call that writes what it did, and says it."""
    inner = of_cases([n for n in CASES if n.startswith("conv")])(rng, folder)
    x, w = numbers(1, 2, 6, 17, 13), numbers(2, 4, 6, 3, 3)

    def run(room: Path, rng: random.Random) -> Any:
        with ooc.device("cpu", budget="16 KiB"):
            ooc.conv(x, w, padding=1, trace=room / f"{OWN}-trace.json")
        if "compute" not in f"{ooc.last_report()}" or not json.loads((room / f"{OWN}-trace.json").read_text())["traceEvents"]:
            raise UnexpectedError("no trace, or no report")
        return inner.run(room, rng)

    return Call(run, inner.check)


# ---- other functions


def numbers(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def small(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    """Small integers: sums in any order give the same bits."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def conv_backward(rng: random.Random, folder: Path) -> Call:
    """All gradients of a convolution, from files or memory."""
    dtype, groups, rank = rng.choice((np.float32, np.float64)), rng.choice((1, 2)), rng.choice((1, 2, 3))
    shape, taps = (2, 4, *((40,), (11, 9), (5, 6, 7))[rank - 1]), (3,) * rank
    arrays = {"x": small(1, *shape, dtype=dtype), "w": small(2, 6, 4 // groups, *taps, dtype=dtype)}
    how: dict[str, Any] = {"padding": 1, "groups": groups}
    budget = rng.choice(BUDGETS)
    arrays["dy"] = small(3, 2, 6, *shape[2:], dtype=dtype)
    paths = kept(folder, arrays, f"backward-{np.dtype(dtype).name}-{groups}-{rank}") if rng.random() < 0.5 else None
    wanted = (
        f.conv_dx(arrays["dy"], arrays["w"], shape, **how), f.conv_dw(arrays["x"], arrays["dy"], arrays["w"].shape, **how),
        arrays["dy"].sum((0, *range(2, 2 + rank))),
    )  # fmt: skip

    def run(room: Path, rng: random.Random) -> Any:
        given = arrays if paths is None else {k: np.load(path, mmap_mode="r") for k, path in paths.items()}
        dx = {} if paths is None else {"dx": room_for(room, True, shape, dtype)}
        with ooc.device("cpu", budget=budget):
            return ooc.conv_backward(**given, **dx, **how)

    def check(found: Any) -> None:
        for own, value in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(own, value)

    return Call(run, check)


def new_shapes(rng: random.Random, folder: Path) -> Call:
    """Convolutions of sizes that hardly come again: they are planned each time, and what is remembered of them must be forgotten.
    In a run of 20,000 calls there are so many that the tables are full after the first quarter."""

    def one(rng: random.Random) -> tuple[Any, Any, Any]:
        x = small(1, 1, rng.randint(1, 4), rng.randint(5, 24), rng.randint(5, 24))
        w = small(2, rng.randint(1, 4), x.shape[1], rng.randint(1, 3), rng.randint(1, 3))
        return x, w, ooc.conv(x, w, padding=1)

    def run(room: Path, rng: random.Random) -> Any:
        with ooc.device("cpu", budget="16 KiB"):
            return [one(rng) for _ in range(7)]

    def check(found: Any) -> None:
        for x, w, y in found:
            np.testing.assert_array_equal(y, f.conv(x, w, padding=1))

    return Call(run, check)


def cut_chain(rng: random.Random, folder: Path) -> Call:
    """Convolutions in files that are computed one after the other, with files in between."""
    x, _, layers = chained()
    path = kept(folder, {"x": x}, "chain")["x"]
    wanted = ooc.chain(x, *layers)
    budget = rng.choice(("6 KiB", "8 KiB"))

    def run(room: Path, rng: random.Random) -> Any:
        with ooc.device("cpu", budget=budget):
            return ooc.chain(np.load(path, mmap_mode="r"), *layers, out=room_for(room, True, wanted.shape, np.float32))

    return Call(run, lambda found: np.testing.assert_array_equal(found, wanted))


def chained() -> tuple[Any, list[Any], list[Any]]:
    """An array, filters, and the layers of a chain."""
    filters = [small(i, 8, 8, 3, 3) for i in range(2)]
    return small(5, 1, 8, 20, 20), filters, [ooc.Conv(w, padding=1, activation="relu") for w in filters]


DESCRIPTORS = (
    "conv.fprop n=2 c=8 h=30 w=31 k=8 r=3 s=3 pad=1", "conv.fprop n=1 c=4 d=9 h=10 w=11 k=4 t=3 r=3 s=3 dtype=f64",
    "conv.fprop n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1", "pool.max n=4 k=16 h=64 w=64 window=2 stride=2",
    "conv.fprop n=2 c=8 h=30 w=31 k=8 r=3 s=3 pad=1 | pool.max n=2 k=8 h=30 w=31 window=2",
)  # fmt: skip


def planned(rng: random.Random, folder: Path) -> Call:
    """A plan of a descriptor, as text."""
    text, budget, device = rng.choice(DESCRIPTORS), rng.choice(("64 KiB", "1 MiB", "40%")), rng.choice(("cpu", "null"))
    places = rng.choice(({}, {"x": "disk", "y": "disk"}))
    asked = partial(ooc.plan, text, budget, device=device, places=places)
    wanted = asked().to_json()

    def run(room: Path, rng: random.Random) -> Any:
        plan = asked()
        return plan.to_json(), str(plan)

    return Call(run, lambda found: equal(found[0], wanted))


def equal(found: Any, wanted: Any) -> None:
    assert found == wanted, (found, wanted)


# ---- networks


def graph() -> ooc.Graph:
    """A small network with a loss and an output."""
    g = ooc.Graph("small")
    h = g.conv(g.input("x", (3, 12, 12)), 8, 3, padding=1, bias=True, activation="relu")
    h = g.batch_norm(g.conv(g.pool(h), 8, 3, padding=1, bias=True))
    logits = g.linear(g.flatten(h), 5, bias=True)
    g.loss("cross_entropy", logits)
    g.output(logits)
    return g


POLICIES = (
    ("auto", None),
    ("auto", "60 KiB"),
    ("vdnn_all", "80 KiB"),
    ("stream", "40 KiB"),
    ("vdnn++", "80 KiB"),
    ("layrub", "80 KiB"),
)


def network(rng: random.Random, folder: Path) -> Call:
    """A network that is built, planned, trained for two steps and asked for its outputs."""
    policy, budget = rng.choice(POLICIES)
    x, labels = numbers(1, 4, 3, 12, 12), np.arange(4) % 5

    def run(room: Path, rng: random.Random) -> Any:
        plan = graph().plan(
            batch=4, budget=budget, device="cpu", policy=policy, optimizer=ooc.SGD(0.01, momentum=0.9), deterministic=True
        )  # fmt: skip
        with plan.session() as session:
            losses = [session.step(x, labels) for _ in range(2)]
            return losses, session.forward(x), session.parameters()

    wanted = run(folder, rng)

    def check(found: Any) -> None:
        equal(found[0], wanted[0])
        np.testing.assert_array_equal(found[1], wanted[1])
        assert all(np.array_equal(found[2][name], values) for name, values in wanted[2].items())

    return Call(run, check)


def onnx_network(rng: random.Random, folder: Path) -> Call:
    """A network of an ONNX file."""
    import onnx
    from onnx_files import model_of

    x, w = small(1, 2, 3, 16, 16), small(2, 4, 3, 3, 3)
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("MaxPool", ["b"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]  # fmt: skip
    path, budget = folder / "small.onnx", rng.choice((None, "16 KiB"))
    if not path.exists():
        onnx.save(model_of(nodes, {"x": ("n", 3, "h", "w")}, ["y"], {"w": w}), path)
    wanted = f.pool("max", np.maximum(f.conv(x, w, padding=1), 0), 2)

    def run(room: Path, rng: random.Random) -> Any:
        plan = ooc.onnx.load(path, x.shape).plan(batch=2, budget=budget, device="cpu", train=False)
        with plan.session() as session:
            return session.forward(x)

    return Call(run, lambda found: np.testing.assert_array_equal(found, wanted))


# ---- files


def in_files(suffix: str) -> Maker:
    """A part of a file convolved into a new file, which is read again."""

    def make(rng: random.Random, folder: Path) -> Call:
        x, w, path = small(1, 3, 4, 14, 15), small(2, 5, 2, 3, 3), folder / f"x.{suffix}"
        chunks = None if suffix == "npy" else (1, 2, 8, 8)
        if not path.exists():
            with ooc.create(path, x.shape, x.dtype, chunks=chunks) as made:
                made.write(whole(x.shape), x)
        wanted, budget = f.conv(x[1:, 1:3, :, 2:12], w, padding=1), rng.choice(BUDGETS)
        part, forgets = (Span(0, 1), *whole(wanted.shape)[1:]), rng.random() < 0.2

        def run(room: Path, rng: random.Random) -> Any:
            with ooc.create(room / f"{OWN}.{suffix}", wanted.shape, np.float32, chunks=chunks) as sink:
                source = ooc.open(f"{path}::1:,1:3,:,2:12")
                with ooc.device("cpu", budget=budget):
                    ooc.conv(source, w, padding=1, out=sink)
                if not forgets:
                    source.close()
            found = np.empty((1, *wanted.shape[1:]), np.float32)
            with ooc.open(room / f"{OWN}.{suffix}") as again:
                again.read(part, found)
            return found

        return Call(run, lambda found: np.testing.assert_array_equal(found, wanted[:1]))

    return make


def resumed(rng: random.Random, folder: Path) -> Call:
    """A call that writes down what is finished, is stopped by its host, and goes on."""
    x, w = small(1, 3, 4, 12, 12), small(2, 4, 4, 3, 3)
    path, wanted = kept(folder, {"x": x}, "resume")["x"], f.conv(x, w, padding=1)

    def run(room: Path, rng: random.Random) -> Any:
        out, until = room_for(room, True, wanted.shape, np.float32), rng.randint(1, 4)
        again = partial(ooc.conv, np.load(path, mmap_mode="r"), w, padding=1, out=out, resume=room / f"{OWN}-run")
        with ooc.device("cpu", budget="8 KiB"):
            stopped(lambda stop: again(callbacks=stop), until)
            return again()

    return Call(run, lambda found: np.testing.assert_array_equal(found, wanted))


# ---- calls that must fail


def stopped(call: Callable[[Callable[[int, int], None]], Any], until: int = 1) -> None:
    """A call whose callback raises after so many tiles, or the last: that very error must come out."""
    token = object()

    def stop(done: int, tiles: int) -> None:
        if done >= min(until, tiles):
            raise HostError(token)

    try:
        call(stop)
    except HostError as error:
        if error.args == (token,):
            return
    raise UnexpectedError("the callback's error did not come out")


def stopping(rng: random.Random, folder: Path) -> Call:
    """Calls that their callbacks end."""
    x, filters, layers = chained()
    path, until = kept(folder, {"x": x}, "stopped")["x"], rng.choice((1, 3, 8))
    chains, files = rng.random() < 0.5, rng.random() < 0.6

    def run(room: Path, rng: random.Random) -> None:
        given, out = np.load(path, mmap_mode="r") if files else x, room_for(room, files, x.shape, np.float32)
        with ooc.device("cpu", budget="6 KiB"):
            if chains:
                stopped(lambda stop: ooc.chain(given, *layers, out=out, callbacks=stop), until)
            else:
                stopped(lambda stop: ooc.conv(given, filters[0], padding=1, out=out, callbacks=[stop]), until)

    return Call(run)


Refusal = tuple[type[Exception], Callable[[Path], Any]]


def refusals(folder: Path) -> list[Refusal]:
    """Calls with what they must raise."""
    x, w = small(1, 2, 4, 12, 12), small(2, 4, 4, 3, 3)
    path = kept(folder, {"x": x}, "refused")["x"]
    (folder / "junk").write_bytes(b"junk" * 100)

    def limited(budget: str, call: Callable[[], Any]) -> Any:
        with ooc.device("cpu", budget=budget):
            return call()

    def shrunk(room: Path) -> Any:
        out = room_for(room, True, x.shape, np.float32)
        os.truncate(room / f"{OWN}-y.npy", 200)
        return ooc.conv(x, w, padding=1, out=out)

    def cut_off(room: Path) -> Any:
        (room / f"{OWN}.npy").write_bytes(path.read_bytes()[:300])
        return ooc.open(room / f"{OWN}.npy")

    def of_another_call(room: Path) -> Any:
        out = room_for(room, True, x.shape, np.float32)
        for filters in (w, w + 1):
            ooc.conv(x, filters, padding=1, out=out, resume=room / f"{OWN}-run")

    return [
        (ooc.ShapeError, lambda room: ooc.conv(x, w[:, :3])),
        (ooc.ShapeError, lambda room: ooc.conv(x, w, padding=1, out=room_for(room, True, (2, 4, 12, 11), np.float32))),
        (ooc.ShapeError, lambda room: ooc.conv(np.load(path, mmap_mode="r"), w, out=np.load(path, mmap_mode="r"), padding=1)),
        (ooc.DtypeError, lambda room: ooc.conv(x, w.astype(np.float64))),
        (ooc.OptionError, lambda room: ooc.max_pool(x, 2, colour="red")),
        (ooc.BudgetError, lambda room: limited("180 B", lambda: ooc.conv(x, w))),
        (
            ooc.BudgetError,
            lambda room: limited("180 B", lambda: ooc.chain(np.load(path, mmap_mode="r"), ooc.Conv(w), ooc.Conv(w))),
        ),
        (ooc.BudgetError, lambda room: graph().plan(batch=4, budget="1 KiB", device="cpu", policy="vdnn_all")),
        (ooc.StoreError, shrunk),
        (ooc.StoreError, cut_off),
        (ooc.StoreError, lambda room: ooc.open(folder / "missing.npy")),
        (ooc.StoreError, lambda room: ooc.open(folder / "missing.zarr")),
        (ooc.StoreError, lambda room: ooc.create(folder / "missing" / "y.npy", (3, 4), np.float32)),
        (ooc.ShapeError, lambda room: ooc.open(f"{path}::0:99")),
        (ooc.ShapeError, lambda room: ooc.create(path, (3, 4), np.float32)),
        (ooc.OocError, lambda room: ooc.onnx.load(folder / "junk", (1, 3, 8, 8))),
        (ooc.ShapeError, of_another_call),
        (ooc.ShapeError, lambda room: ooc.plan("conv.fprop n=1 c=4 h=0 w=9 k=4 r=3 s=3")),
    ]


def refused(rng: random.Random, folder: Path) -> Call:
    """A call that must fail, with this error."""
    error, call = rng.choice(refusals(folder))

    def run(room: Path, rng: random.Random) -> None:
        try:
            call(room)
        except error as raised:
            if isinstance(raised, ooc.OocError):
                return
        raise UnexpectedError(f"no {error.__name__}")

    return Call(run)


# ---- the mix


def cases(*begins: str) -> Maker:
    return of_cases([n for n in CASES if n.replace(",", " ").split()[0] in begins])


KINDS: dict[str, tuple[float, Maker]] = {  # by name: their share, and what makes one
    "conv": (16, cases("conv")), "conv_transpose": (5, cases("conv_transpose")), "conv_backward": (8, conv_backward),
    "chain": (5, cases("chain")), "cut_chain": (2, cut_chain), "activation": (3, cases("activation")),
    "pool": (7, cases("max_pool", "avg_pool", "global_avg_pool")), "norm": (5, cases("batch_norm")),
    "softmax": (5, cases("softmax", "log")), "linear": (4, cases("linear")), "add": (5, cases("add", "scale")),
    "concat": (3, cases("concat")), "lrn": (3, cases("lrn")), "upsample": (4, cases("upsample")),
    "backward": (5, of_cases([n for n in CASES if "backward" in n])), "new_shapes": (4, new_shapes), "plan": (4, planned),
    "npy": (4, in_files("npy")), "zarr": (1.5, in_files("zarr")), "refused": (5, refused), "stopped": (3, stopping),
    "thread": (2, in_a_thread), "trace": (0.5, traced), "resume": (0.7, resumed), "network": (1, network),
    "onnx": (0.7, onnx_network),
}  # fmt: skip
NEEDS = {"onnx": "onnx", "zarr": "zarr"}  # kinds by the package that they need


class Mix:
    """Which call is made when: some variants of every kind, each made ready when it is first needed."""

    def __init__(self, kinds: Sequence[str], seed: int, variants: int, folder: Path) -> None:
        self.kinds = [kind for kind in kinds if kind not in NEEDS or find_spec(NEEDS[kind])]
        self.seed, self.variants, self.folder = seed, variants, folder
        self._ready: dict[tuple[str, int], Call] = {}
        self._making = threading.Lock()

    def at(self, number: int) -> tuple[str, Call, random.Random]:
        """The call of a number: its kind, itself, and what it draws from."""
        rng = random.Random(f"{self.seed} {number}")
        kind = rng.choices(self.kinds, [KINDS[k][0] for k in self.kinds])[0]
        variant = rng.randrange(self.variants)
        with self._making:
            if (kind, variant) not in self._ready:
                self._ready[kind, variant] = KINDS[kind][1](random.Random(f"{self.seed} {kind} {variant}"), self.folder)
        return kind, self._ready[kind, variant], rng


# ---- the run


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MIB


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def os_threads() -> int:
    """Threads of the process, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


def left_in(folder: str | Path) -> list[str]:
    """What the library left lying in a folder."""
    return [name for name in os.listdir(folder) if name.startswith(LEFT)]


class Soak:
    """So many calls by so many threads; rows are noted while they run.

    rows: one per `every` calls. rests: one per quarter, when no call runs. errors: what must not have happened.
    """

    def __init__(self, mix: Mix, calls: int, threads: int, every: int, folder: Path, note: Callable[[Row], None]) -> None:
        self.mix, self.calls, self.threads, self.every, self.folder, self.note = mix, calls, threads, every, folder, note
        self.rows: list[Row] = []
        self.rests: list[Row] = []
        self.errors: list[str] = []
        self.failed = self.checked = 0
        self.made: Counter[str] = Counter()
        ends = [calls * i // QUARTERS for i in range(QUARTERS + 1)]
        self._numbers = [iter(range(lo, hi)) for lo, hi in itertools.pairwise(ends)]
        self._lock, self._begin = threading.Lock(), time.perf_counter()
        self._quarter = threading.Barrier(threads, self._rest)

    def run(self) -> None:
        """All calls."""
        workers = [threading.Thread(target=self._work, args=(self.folder / f"room{i}",)) for i in range(self.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def state(self) -> Row:
        """What the process holds now."""
        return {
            "calls": self.made.total(), "seconds": round(time.perf_counter() - self._begin, 3),
            "resident_MiB": round(resident_mib(), 3), "fds": open_files(), "threads": os_threads(),
            "files": len(left_in(tempfile.gettempdir())),
        }  # fmt: skip

    def _work(self, room: Path) -> None:
        try:
            for numbers in self._numbers:
                while (number := self._next(numbers)) is not None:
                    self._one(number, room)
                self._quarter.wait()
        except BaseException:  # of this program
            self._quarter.abort()
            self._fail("a worker ended")

    def _next(self, numbers: Iterator[int]) -> int | None:
        with self._lock:
            return next(numbers, None)

    def _one(self, number: int, room: Path) -> None:
        kind = "?"
        try:
            room.mkdir()
            kind, call, rng = self.mix.at(number)
            found = call.run(room, rng)
            if number % CHECKED == 0:
                call.check(found)
            odd = [name for name in os.listdir(room) if not name.startswith(OWN)]
            if odd:
                raise UnexpectedError(f"left behind: {odd}")
        except BaseException:
            self._fail(f"call {number}, {kind}")
        shutil.rmtree(room, ignore_errors=True)
        self._done(kind, number % CHECKED == 0)

    def _done(self, kind: str, checked: bool) -> None:
        with self._lock:
            self.made[kind] += 1
            self.checked += checked
            if self.made.total() % self.every == 0:
                self.rows.append(self.state())
                self.note(self.rows[-1])

    def _fail(self, what: str) -> None:
        with self._lock:
            self.failed += 1
            if self.failed <= TOLD:
                self.errors.append(f"{what}: {traceback.format_exc()}")

    def _rest(self) -> None:
        """A quarter is over, and nothing runs. Between first and last, Python collects as in any program: that is tested too."""
        if len(self.rests) in (0, QUARTERS - 1):
            gc.collect()
        self.rests.append({"quarter": len(self.rests) + 1, **self.state()})
        self.note(self.rests[-1])


# ---- what came of it


def quarter_of(rows: Sequence[Row], calls: int, quarter: int) -> list[float]:
    """Resident MiB of the rows of a quarter, counted from 1."""
    return [r["resident_MiB"] for r in rows if (quarter - 1) * calls < r["calls"] * QUARTERS <= quarter * calls]


def verdict(rows: Sequence[Row], rests: Sequence[Row], calls: int, errors: Sequence[str], left: Sequence[str]) -> str:
    """What is wrong, in a line; "" where nothing is."""
    if errors:
        told = errors[0].strip().splitlines()
        return f"{len(errors)} unexpected errors; the first: {told[0].partition(': ')[0]}: {told[-1]}"
    if len(rests) < QUARTERS:
        return f"the run ended after {len(rests)} of {QUARTERS} quarters"
    second, fourth = (median(quarter_of(rows, calls, quarter)) for quarter in (2, QUARTERS))
    if fourth > second * GROWTH + MARGIN_MIB:
        return f"resident memory grew from {second:.1f} MiB in the second quarter to {fourth:.1f} MiB in the last"
    for what, name in (("fds", "open files"), ("threads", "threads")):
        if rests[-1][what] > rests[0][what]:
            return f"{name} grew from {rests[0][what]} after the first quarter to {rests[-1][what]} at the end"
    return f"temporary files are left: {', '.join(sorted(left)[:5])}" if left else ""


def header(asked: argparse.Namespace) -> Row:
    """What was run, on what."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    return {
        "machine": f"{processor()}, {os.cpu_count()} processors, {platform.system()} {platform.release()}",
        "python": platform.python_version(), "numpy": np.__version__, "commit": head, "calls": asked.calls,
        "threads": asked.threads, "seed": asked.seed, "only": asked.only,
    }  # fmt: skip


def plot(rows: Sequence[Row], rests: Sequence[Row], path: str) -> None:
    """Resident memory over the calls, as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([r["calls"] for r in rows], [r["resident_MiB"] for r in rows], linewidth=1.2)
    for rest in rests[:-1]:
        axes.axvline(rest["calls"], color="0.8", linewidth=0.8, zorder=0)
    axes.set(xlabel="calls", ylabel="resident memory (MiB)", xlim=(0, rows[-1]["calls"]))
    axes.set_ylim(0, 1.1 * max(r["resident_MiB"] for r in rows))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def tell(soak: Soak) -> None:
    """The quarters, in lines."""
    for quarter, rest in enumerate(soak.rests, 1):
        held = quarter_of(soak.rows, soak.calls, quarter)
        span = f"{held[0]:.1f} to {held[-1]:.1f} MiB, at most {max(held):.1f}" if held else "no row"
        print(f"quarter {quarter}: {span}; {rest['fds']} open files, {rest['threads']} threads at rest, {rest['seconds']:.0f} s")
    print(f"{soak.made.total()} calls, {soak.checked} checked: {', '.join(f'{k} {n}' for k, n in soak.made.most_common())}")
    for error in soak.errors:
        print(error, file=sys.stderr)


def soaked(asked: argparse.Namespace, note: Callable[[Row], None], folder: Path) -> tuple[Soak, str]:
    """A run in a folder of its own, and what is wrong with it."""
    for name in ("temporary", "kept"):
        (folder / name).mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(folder / "temporary")
    try:
        mix = Mix(asked.only.split(",") if asked.only else list(KINDS), asked.seed, asked.variants, folder / "kept")
        soak = Soak(mix, asked.calls, asked.threads, asked.every, folder, note)
        soak.run()
        left = [*os.listdir(folder / "temporary"), *left_in(folder / "kept"), *left_in(folder)]
        return soak, verdict(soak.rows, soak.rests, asked.calls, soak.errors, left)
    finally:
        tempfile.tempdir = before


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=20000, help="how many in all; default 20000")
    parser.add_argument("--threads", type=int, default=4, help="that make them; default 4")
    parser.add_argument("--rows", help="a file of JSON lines to write: what was run, then a row per --every calls")
    parser.add_argument("--plot", help="a .png to write: resident memory over the calls")
    parser.add_argument("--only", default="", help=f"kinds of calls, with commas between: {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, default=0, help="of what is called; default 0")
    parser.add_argument("--variants", type=int, default=12, help="of each kind of call; default 12")
    parser.add_argument("--every", type=int, default=100, help="calls between two rows; default 100")
    found = parser.parse_args(argv)
    unknown = set(filter(None, found.only.split(","))) - set(KINDS)
    if unknown or found.calls < 2 * QUARTERS * found.every or found.threads < 1:
        parser.error(f"unknown kinds {unknown}" if unknown else f"expected a thread, and {2 * QUARTERS} rows of --every calls")
    return found


def one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that threads call in turn."""
    lock = threading.RLock()

    def taken(*given: Any) -> Any:
        with lock:
            return function(*given)

    return taken


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    file: TextIO | None = open(asked.rows, "w") if asked.rows else None  # noqa: SIM115

    def note(row: Row) -> None:
        if file is not None:
            print(json.dumps(row), file=file, flush=True)

    note(header(asked))
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        soak, wrong = soaked(asked, note, Path(folder))
    note({"checked": soak.checked, "kinds": dict(soak.made), "wrong": wrong})
    if file is not None:
        file.close()
    tell(soak)
    if asked.plot:
        plot(soak.rows, soak.rests, asked.plot)
    print(f"soak: {wrong}" if wrong else "soak: nothing grew")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.version_info < (3, 12):  # NumPy reads headers with it, and a garbage collection inside lets another thread spoil it:
        ast.literal_eval = one_at_a_time(ast.literal_eval)  # SystemError, github.com/python/cpython/issues/106905
    sys.exit(main())
