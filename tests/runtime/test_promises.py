"""The promises of the engine on real files: the memory budget in a fresh process, overlap of lanes, exactness of file I/O."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import swept
from waiting import HANGS

import ooc
from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.op import Block
from ooc.ir.region import Region
from ooc.ops import ConvFprop
from ooc.runtime.executor import run
from ooc.runtime.store import ArrayStore, FileStore, Store, open_store
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

MIB = 1 << 20

# Runs in a process of its own: resident memory never shrinks back, and earlier tests would count.
GROWTH = """
import json, sys
import numpy as np
import ooc

def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024

def code():
    # Resident bytes of libraries: the kernel maps as many clean pages around a first call as it likes, up to megabytes.
    found, library = 0, False
    with open("/proc/self/smaps") as maps:
        for words in map(str.split, maps):
            if not words[0].endswith(":"):
                library = ".so" in words[-1]
            elif words[0] == "Rss:" and library:
                found += int(words[1]) * 1024
    return found

folder, budget = sys.argv[1], sys.argv[2]
x = np.load(folder + "/x.npy", mmap_mode="r")
y = np.lib.format.open_memmap(folder + "/y.npy", "w+", np.float32, (1, 4, *x.shape[2:]))
w = np.ones((4, 4, 3, 3), np.float32)
ooc.conv, ooc.device  # names are imported when they are first used
before = resident("VmRSS") - code()
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")
with ooc.device("cpu", budget=budget):
    ooc.conv(x, w, padding=1, out=y)
report = ooc.last_report()
grown = resident("VmHWM") - code() - before
print(json.dumps([grown, report.predicted_peak_bytes, report.peak_bytes]))
"""


@pytest.fixture(scope="module")
def gibibyte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 1 GiB input on disk."""
    folder = tmp_path_factory.mktemp("gibibyte")
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (1, 4, 8192, 8192))
    rows = np.random.default_rng(0).integers(-3, 4, (64, 8192)).astype(np.float32)
    for plane in x[0]:
        for lo in range(0, 8192, 64):
            plane[lo : lo + 64] = rows
    x.flush()
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory from /proc")
@pytest.mark.parametrize("budget", swept(("32 MiB", "128 MiB"), quick=1))
def test_resident_growth_stays_within_the_predicted_peak(gibibyte: Path, budget: str) -> None:
    command = [sys.executable, "-c", GROWTH, str(gibibyte), budget]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, predicted, held = json.loads(done.stdout)
    limit = int(budget.split()[0]) * MIB
    assert held <= predicted <= limit
    assert predicted / 2 < grown <= predicted + 5 * MIB
    x, y = (np.load(gibibyte / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    window = x[0, :, 4094:4099, :7].sum(axis=0)
    expected = sum(window[i : i + 3, j : j + 5] for i in range(3) for j in range(3))
    np.testing.assert_array_equal(y[0, 2, 4095:4098, 1:6], expected)


class Latch:
    """Opens when three lanes stand in it at the same time."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(3, timeout=HANGS)
        self.met = threading.Event()

    def meet(self) -> None:
        if not self.met.is_set():
            self.barrier.wait()
            self.met.set()


class LatchedStore(FileStore):
    """A file whose third block waits in the latch while it is moved."""

    def __init__(self, store: FileStore, latch: Latch, at: int) -> None:
        self.__dict__ |= store.__dict__
        self.latch, self.at, self.seen = latch, at, 0

    def _count(self) -> None:
        self.seen += 1
        if self.seen == self.at:
            self.latch.meet()

    def read(self, region: Region, target: Any, bounce: Any | None) -> None:
        self._count()
        super().read(region, target, bounce)

    def write(self, region: Region, source: Any, bounce: Any | None) -> None:
        self._count()
        super().write(region, source, bounce)


class LatchedBackend(CpuBackend):
    """A CPU whose second tile waits in the latch while it is computed."""

    def __init__(self, latch: Latch) -> None:
        super().__init__(threads=1)
        self.latch = latch

    def kernel(self, *args: Any) -> Any:
        inner, calls = super().kernel(*args), iter(range(1 << 30))

        def kernel(tile: Any, blocks: dict[str, Block], first: bool, last: bool) -> None:
            if next(calls) == 1:
                self.latch.meet()
            inner(tile, blocks, first, last)

        return kernel


def test_three_lanes_run_at_once(tmp_path: Path) -> None:
    """Deterministic: reading the third tile, computing the second and writing the first wait for each other."""
    op = ConvFprop(8, 2, (16, 16), 2, (3, 3), pad=((1, 1), (1, 1)))
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, op.inputs[0].shape)
    x[...] = np.arange(x.size, dtype=np.float32).reshape(x.shape) % 7
    y = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, op.outputs[0].shape)
    w = np.ones(op.inputs[1].shape, np.float32)
    latch = Latch()
    backend = LatchedBackend(latch)
    places = (("x", Place.DISK), ("w", Place.HOST), ("y", Place.DISK))
    sizes = {**op.dims, "n": 1}
    plan = Plan(op, tuple(sizes.items()), tuple(op.dims), 2, places, shared=True, kernel="plain")
    source, target = open_store(x), open_store(y, writable=True)
    assert isinstance(source, FileStore) and isinstance(target, FileStore)
    stores: dict[str, Store] = {
        "x": LatchedStore(source, latch, 3), "w": ArrayStore(w), "y": LatchedStore(target, latch, 1),
    }  # fmt: skip
    measured = run(lower(plan), stores, backend)
    assert latch.met.is_set()
    np.testing.assert_array_equal(y, ooc.conv(np.array(x), w, padding=1))
    assert at_once(plan, measured) >= 3


def at_once(plan: Plan, measured: Any) -> int:
    """Most lanes busy at one moment, as the trace shows it."""
    lanes = [s.lane for s in lower(plan).steps]
    changes = sorted(
        [(lo, 1, lane) for lo, lane in zip(measured.starts, lanes)] + [(hi, 0, lane) for hi, lane in zip(measured.ends, lanes)]
    )
    busy: set[str] = set()
    most = 0
    for _, starts, lane in changes:
        busy = busy | {lane} if starts else busy - {lane}
        most = max(most, len(busy))
    return most


@pytest.mark.parametrize("budget", ["24 MiB", "6 MiB", "700 KiB", "64 KiB"])
@pytest.mark.parametrize("offset", [0, 8, 4096])
def test_files_give_the_result_of_memory(tmp_path: Path, budget: str, offset: int) -> None:
    """Blocks large enough for direct I/O, at offsets that fall anywhere in a page."""
    numbers = np.random.default_rng(offset)
    data = numbers.integers(-3, 4, (3, 4, 250, 256)).astype(np.float32)
    w, b = numbers.integers(-2, 3, (5, 4, 3, 3)).astype(np.float32), np.arange(5, dtype=np.float32)
    with open(tmp_path / "x.bin", "wb") as file:
        file.write(bytes(offset) + data.tobytes())
    x = np.memmap(tmp_path / "x.bin", np.float32, "r", offset, data.shape)
    expected = ooc.conv(data, w, b, padding=1, activation="relu", pool=2)
    y = np.memmap(tmp_path / "y.bin", np.float32, "w+", offset, expected.shape)
    before = np.fromfile(tmp_path / "y.bin", np.uint8, offset)
    with ooc.device("cpu", budget):
        ooc.conv(x, w, b, padding=1, activation="relu", pool=2, out=y)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.bin", np.uint8, offset), before)
    report = ooc.last_report()
    assert report is not None and report.peak_bytes <= report.predicted_peak_bytes


def test_chains_cut_between_files_leave_nothing_behind(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    data = numbers.integers(-1, 2, (1, 8, 40, 40)).astype(np.float32)
    w = [numbers.integers(-1, 2, (8, 8, 3, 3)).astype(np.float32) for _ in range(3)]
    layers = [ooc.Conv(v, padding=1, activation="relu") for v in w]
    expected = ooc.chain(data, *layers)
    data.tofile(tmp_path / "x.bin")
    x = np.memmap(tmp_path / "x.bin", np.float32, "r", shape=data.shape)
    y = np.memmap(tmp_path / "y.bin", np.float32, "w+", shape=expected.shape)
    with ooc.device("cpu", "6 KiB"):
        ooc.chain(x, *layers, out=y)
    report = ooc.last_report()
    assert report is not None and len(report.plans) > 1
    np.testing.assert_array_equal(y, expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.bin", "y.bin"]


def test_threads_do_not_share_an_arena() -> None:
    """Calls of several threads on one device each have memory of their own."""
    numbers = np.random.default_rng(0)
    data = [numbers.integers(-3, 4, (4, 8, 40, 40)).astype(np.float32) for _ in range(4)]
    w = numbers.integers(-2, 3, (8, 8, 3, 3)).astype(np.float32)
    expected = [ooc.conv(x, w, padding=1) for x in data]
    shared, wrong = ooc.device("cpu", "96 KiB", threads=1), []

    def work(x: Any, y: Any) -> None:
        with shared:
            for _ in range(6):
                if not np.array_equal(ooc.conv(x, w, padding=1), y):
                    wrong.append(1)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(data, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
