"""Where steps run in turn, neighbouring reads and writes of files are done at once: never those that touch the same bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc
from ooc import native
from ooc.errors import StoreError
from ooc.ir.region import Region
from ooc.networks import SGD, Graph
from ooc.ops.descriptor import parse
from ooc.runtime.engine import execute
from ooc.runtime.executor import run
from ooc.runtime.machine import Machine
from ooc.runtime.moves import Moves
from ooc.runtime.store import open_store
from ooc.schedule import readahead
from ooc.schedule.arena import Layout
from ooc.schedule.lowering import lower
from ooc.schedule.steps import Step

needs_kernels = pytest.mark.skipif(native.kernels is None, reason="moves at once are the extension's")

CONV = "n=2 c=12 h=40 w=36 k=8 r=3 s=3 pad=1"
GRADIENTS = f"dy>db! reduce.bias n=2 k=8 h=40 w=36 | x,dy>dw! conv.wgrad {CONV} | dy,w>dx! conv.dgrad {CONV}"
OPS = (f"conv.fprop {CONV}", f"conv.wgrad {CONV}", f"conv.dgrad {CONV}", GRADIENTS)


def mapped(path: Path, values: np.ndarray[Any, Any]) -> Any:
    array = np.memmap(path, values.dtype, "w+", shape=values.shape)
    array[...] = values
    array.flush()
    return array


def arrays(op: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Whole numbers in memory, the same in files, and files for what is made of them."""
    rng = np.random.default_rng(0)
    given = {o.name: rng.integers(-2, 3, o.shape).astype(np.float32) for o in op.inputs}
    files = {name: mapped(folder / name, a) for name, a in given.items()}
    return given, files, {o.name: mapped(folder / o.name, np.full(o.shape, np.nan, np.float32)) for o in op.outputs}


def clashes(steps: Sequence[Step], gathered: Sequence[int], layout: Layout) -> list[tuple[int, int]]:
    """Steps done at once of which one writes bytes that another one touches. Each thread has a part of the bounce buffers."""
    found = []
    for n, i in enumerate(gathered):
        for j in gathered[:n]:
            for a, b in ((i, j), (j, i)):
                written = {c for r in steps[a].writes if r.buffer and r.operand != "bounce" for c in layout.cells[r.buffer]}
                touched = (*steps[b].reads, *steps[b].writes)
                if written & {c for r in touched if r.buffer and r.operand != "bounce" for c in layout.cells[r.buffer]}:
                    found.append((j, i))
    return found


@needs_kernels
@pytest.mark.parametrize("text", OPS)
@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_moves_at_once_are_apart_and_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, budget: str, threads: int
) -> None:
    seen: list[int] = []
    done = Machine.done_at_once

    def looked_at(machine: Machine, gathered: Sequence[int], begin: float, spent: Sequence[float]) -> None:
        assert not clashes(machine.steps, gathered, machine.layout)
        seen.append(len(gathered))
        done(machine, gathered, begin, spent)

    op = parse(text)
    given, files, outs = arrays(op, tmp_path)
    expected = {o.name: np.empty(o.shape, np.float32) for o in op.outputs}
    with ooc.device("cpu"):
        execute(op, given, expected)
    monkeypatch.setattr(Machine, "done_at_once", looked_at)
    try:
        with ooc.device("cpu", budget, threads=threads):
            execute(op, files, outs)
    except ooc.BudgetError:
        pytest.skip("no plan in so little")
    for name, values in expected.items():
        np.testing.assert_array_equal(outs[name], values)
    assert (max(seen) > 1) if threads > 1 else not seen
    _check_report()


def _check_report() -> None:
    """Steps in turn are told one after the other, and take no longer than the call."""
    report = ooc.last_report()
    assert report is not None
    for part in report.parts:
        times = part.measured
        assert all(hi <= lo + 1e-6 for hi, lo in zip(times.ends, times.starts[1:], strict=False))
        assert all(lo <= hi for lo, hi in zip(times.starts, times.ends, strict=True))
    assert sum(report.lane_seconds.values()) <= report.seconds


@needs_kernels
def test_what_waits_for_another_move_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read that follows a write is made to wait for it: the two are done one after the other."""
    groups: list[list[int]] = []
    done = Machine.done_at_once

    def noted(machine: Machine, gathered: Sequence[int], begin: float, spent: Sequence[float]) -> None:
        groups.append(list(gathered))
        done(machine, gathered, begin, spent)

    monkeypatch.setattr(Machine, "done_at_once", noted)
    op = parse(f"conv.fprop {CONV}")
    _, files, outs = arrays(op, tmp_path)
    device = ooc.device("cpu", "64 KiB", threads=2)
    [plan] = device.planner.plans(op, dict.fromkeys(("x", "w", "y"), ooc.Place.DISK))
    todo = lower(plan)
    lanes = [step.lane for step in todo.steps]
    pairs = {i for i in range(1, len(lanes)) if lanes[i - 1 : i + 1] == ["write", "read"]}
    stores = {name: open_store(array, writable=name in outs) for name, array in {**files, **outs}.items()}

    def both() -> int:
        return sum({i - 1, i} <= set(group) for group in groups for i in pairs)

    run(todo, stores, device.backend)
    assert todo.alone and both() == len(pairs) > 0
    groups.clear()
    steps = [step._replace(after=(*step.after, i - 1)) if i in pairs else step for i, step in enumerate(todo.steps)]
    run(replace(todo, steps=tuple(steps)), stores, device.backend)
    assert groups and not both()
    for store in stores.values():
        store.close()


class Told:
    """A store that is no plain file, over one that is: notes what the system was told of."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.shape = inner, inner.shape
        self.fetched: list[Region] = []
        self.reads: list[Region] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def fetch(self, regions: Sequence[Region], bounce_bytes: int) -> None:
        self.fetched += regions
        self.inner.fetch(regions, bounce_bytes)

    def read(self, region: Region, *rest: Any) -> None:
        assert region == self.fetched[len(self.reads)]  # it was told of before
        self.reads.append(region)
        self.inner.read(region, *rest)


@needs_kernels
def test_stores_of_other_kinds_are_told_of_reads_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """x in a plain file, dy in a store of its own: what either read is followed by reaches both."""
    monkeypatch.setattr(readahead, "AHEAD", 4096)  # reads of one tell of the other's
    op = parse(f"conv.wgrad {CONV}")
    given, files, outs = arrays(op, tmp_path)
    device = ooc.device("cpu", "16 KiB", threads=2)
    [plan] = device.planner.plans(op, dict.fromkeys(("x", "dy", "dw"), ooc.Place.DISK))
    stores: dict[str, Any] = {name: open_store(array, writable=name in outs) for name, array in {**files, **outs}.items()}
    told = stores["dy"] = Told(stores["dy"])
    run(lower(plan), stores, device.backend)
    for store in stores.values():
        store.close()
    assert len(told.reads) == len(told.fetched) > 2
    expected = {"dw": np.empty((8, 12, 3, 3), np.float32)}
    with ooc.device("cpu"):
        execute(op, given, expected)
    np.testing.assert_array_equal(outs["dw"], expected["dw"])


@needs_kernels
@pytest.mark.parametrize(("policy", "budget"), [("vdnn_all", "340 KiB"), ("stream", "200 KiB")])
def test_moves_of_a_network_are_apart(monkeypatch: pytest.MonkeyPatch, policy: str, budget: str) -> None:
    """A training step whose activations leave for files and come back."""
    seen: list[int] = []
    done = Machine.done_at_once

    def looked_at(machine: Machine, gathered: Sequence[int], begin: float, spent: Sequence[float]) -> None:
        assert not clashes(machine.steps, gathered, machine.layout)
        seen.append(len(gathered))
        done(machine, gathered, begin, spent)

    monkeypatch.setattr(Machine, "done_at_once", looked_at)
    g = Graph("net")
    h = g.input("x", (3, 24, 24))
    for i in range(4):
        h = g.conv(h, 8, 3, padding=1, bias=True, activation="relu", name=f"conv{i}")
    g.loss("cross_entropy", g.linear(g.global_pool(g.pool(h, 2)), 4, bias=True))
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((4, 3, 24, 24), dtype=np.float32), rng.integers(0, 4, 4)

    def losses(threads: int) -> list[float]:
        device = ooc.device("cpu", threads=threads)
        plan = g.plan(batch=4, policy=policy, budget=budget, device=device, home="disk", optimizer=SGD(0.1), deterministic=True)
        with plan.session() as session:
            return [float(session.step(x, labels)) for _ in range(3)]

    assert losses(1) == losses(2)
    assert seen


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("bounce_bytes", [0, 4096, 64 << 10])
@pytest.mark.parametrize("region", [
    (slice(0, 6), slice(0, 50), slice(0, 40), slice(0, 64)),  # all of it
    (slice(1, 5), slice(0, 50), slice(3, 31), slice(0, 64)),  # rows
    (slice(0, 6), slice(7, 49), slice(1, 40), slice(5, 60)),  # parts of rows
    (slice(2, 3), slice(0, 50), slice(0, 40), slice(0, 64)),  # one long run
    (slice(0, 0), slice(0, 50), slice(0, 40), slice(0, 64)),  # nothing
])  # fmt: skip
def test_regions_are_cut_and_joined(tmp_path: Path, region: Any, bounce_bytes: int, threads: int) -> None:
    """A read and a write of two files at once, each by several threads, beside a fetch."""
    assert native.kernels is not None
    shape = (6, 50, 40, 64)
    source = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    x, y = mapped(tmp_path / "x", source), mapped(tmp_path / "y", np.zeros(shape, np.float32))
    got, sent = np.zeros_like(source[region]), source[region] + 1
    bounces = [np.frombuffer(bytearray(bounce_bytes + 4096), np.uint8) for _ in range(2)]
    bounces = [b[-native.address(b) % 4096 :][:bounce_bytes] for b in bounces]
    first = sum(s.start * st for s, st in zip(region, source.strides, strict=True))
    fds = [os.open(tmp_path / name, os.O_RDWR) for name in "xy"]
    moves = [
        (writes, (fd, -1, first, source.strides, memory.shape, 4, native.address(memory), memory.strides,
                  native.address(b), b.nbytes))
        for writes, fd, memory, b in ((False, fds[0], got, bounces[0]), (True, fds[1], sent, bounces[1]))
    ]  # fmt: skip
    fetch = (fds[0], -1, [first], source.strides, [got.shape], 4, bounce_bytes)
    spent = native.kernels.move_regions(moves, [fetch], threads)
    for fd in fds:
        os.close(fd)
    assert len(spent) == 2 and all(s > 0 for s in spent) == bool(got.size)
    np.testing.assert_array_equal(got, source[region])
    expected = np.zeros(shape, np.float32)
    expected[region] = sent
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(x, source)


@needs_kernels
@pytest.mark.parametrize(("name", "doing"), [("x", "reading"), ("y", "writing")])
def test_the_file_that_failed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, doing: str
) -> None:  # fmt: skip
    """One of several files shrinks while they are in use."""
    op = parse(f"conv.fprop {CONV}")
    _, files, outs = arrays(op, tmp_path)
    moving, calls = Moves.run, 0

    def shrinking(moves: Moves, threads: int) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == 3:
            os.truncate(tmp_path / name, 8192)
        return moving(moves, threads)

    monkeypatch.setattr(Moves, "run", shrinking)
    with ooc.device("cpu", "16 KiB", threads=2), pytest.raises(StoreError, match=f"{name}: {doing} failed"):
        execute(op, files, outs)
    del files, outs  # nobody may touch the mapping of a file that shrank
