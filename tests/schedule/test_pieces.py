"""What passes the staging ring does so in pieces: pinned memory stays small, and the first byte is soon on its way."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from cases import data, random_plan
from cases_ops import KINDS, random_common
from emulated import EmulatedBackend
from emulated_device import execute as execute_on_device
from emulated_driver import emulated
from races import races
from running import PoisonedBackend, assert_right, execute
from sweeps import crossed

import ooc
from ooc.ir.op import Operand
from ooc.ir.region import Along, Span, elements
from ooc.ops.descriptor import parse
from ooc.schedule import place
from ooc.schedule.budget import parse_bytes
from ooc.schedule.emit import emit, pieces
from ooc.schedule.lowering import lower
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

KIND = ("conv.fprop", "conv.dgrad", "conv.wgrad", "pool.max", "pool_backward.max", "pointwise", "concat", "permute")


@pytest.fixture(params=[64, 128, 320])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Pieces of a few bytes instead of some mebibytes."""
    monkeypatch.setattr(place, "STAGED", request.param)
    return int(request.param)


def streamed(tiles: int, k: int, extent: int) -> Plan:
    """A sample at a time, from pageable memory and back."""
    op = parse(f"pointwise n={tiles} k={k} h={extent} w={extent} act=relu dtype=f32")
    return Plan(op, tuple({**op.dims, "n": 1}.items()), tuple(op.dims), 2, (), True, False, kernel="cuda")


def test_regions_are_cut_in_the_order_of_memory() -> None:
    x = Operand("x", (4, 3, 8), "f32", tuple(Along(d) for d in "nkp"))
    region = (Span(1, 4), Span(0, 3), Span(2, 8))
    for most in (4, 8, 24, 40, 72, 144, 1000):
        found = list(pieces(x, region, most))
        assert all(elements(r) * 4 <= max(most, 4) for r in found) and sum(map(elements, found)) == elements(region)
        assert found == sorted(found)
        assert len(found) == 1 or most < 216
    assert [len(list(pieces(x, region, most))) for most in (24, 72, 144, 216)] == [9, 3, 2, 1]


def test_the_ring_is_small_whatever_the_tile() -> None:
    """Tiles of 256 MiB pass in sixteen pieces each way, through two buffers of 16 MiB for each operand."""
    large = streamed(3, 16, 2048)
    assert large.pinned_bytes == 4 * place.STAGED and int(large.slot_bytes(large.op.inputs[0])) == 16 * place.STAGED
    assert lower(large).layout.peaks["staging"] == large.pinned_bytes
    reads = [step for step in emit(large) if step.lane == "read"]
    assert len(reads) == 48 and {step.nbytes for step in reads} == {place.STAGED}
    one = streamed(1, 16, 2048)
    assert one.pinned_bytes == 4 * place.STAGED
    assert place.staged_bytes(1 << 40) == 1 << 30  # tiles as no card has them pass in 1024 pieces


@pytest.mark.parametrize("kind", crossed(list(KIND), every=2))
def test_the_same_results(kind: str, small: int) -> None:
    """In any order that the waits allow, without a race, and within the memory that was planned."""
    rng = random.Random(zlib.crc32(f"{kind} {small}".encode()))
    backends = [PoisonedBackend(threads=1, staged=True), EmulatedBackend(staged=True)]
    cut = 0
    for _ in range(10):
        op, backend = KINDS[kind](rng, random_common(rng)), rng.choice(backends)
        arrays, chosen = data(rng, op), random_plan(rng, op, backend)
        cut += any(chosen.slot_bytes(o) > small for o in op.operands)
        for order in (rng, None):
            assert_right(op, execute(chosen, arrays, backend, order), arrays, backend, chosen.kernel, str(chosen.to_json()))
    assert cut or small > 64  # tiles of some kinds are mostly smaller


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB", None])
def test_exact_at_every_budget(budget: str | None, small: int) -> None:
    """Through a ring of small pieces, as in memory; what is predicted is not exceeded."""
    rng = np.random.default_rng(small)
    shapes = (2, 3, 19, 23 + small), (5, 3, 3, 3)  # of its own for each size of pieces: plans are remembered
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
    wanted = ooc.conv(x, w, padding=1, activation="relu")
    with ooc.device("cpu", budget, pinned="4 KiB"):
        np.testing.assert_array_equal(ooc.conv(x, w, padding=1, activation="relu"), wanted)
    report = ooc.last_report()
    assert report is not None and report.peak_bytes <= report.predicted_peak_bytes
    for chosen in report.plans:
        assert type(chosen.pinned_bytes) is type(chosen.peak_bytes) is int and chosen.pinned_bytes <= 4096
        assert lower(chosen).layout.peaks.get("staging", 0) <= chosen.pinned_bytes
    assert budget is None or report.predicted_peak_bytes <= parse_bytes(budget, 1 << 30)


def test_every_wait_of_pieces_is_needed(small: int) -> None:
    """Without any one of them a race is found."""
    todo = lower(streamed(4, 6, 8))
    assert races(todo.steps, todo.layout) == [] and any(ref.home for step in todo.steps for ref in step.writes)
    waits = 0
    for i, step in enumerate(todo.steps):
        for j in step.after:
            mutant = list(todo.steps)
            mutant[i] = step._replace(after=tuple(k for k in step.after if k != j))
            waits += 1
            assert races(mutant, todo.layout), f"{step} need not wait for {todo.steps[j]}"
    assert waits > 20


def test_on_a_device_whose_streams_overtake_each_other(small: int) -> None:
    chosen, backend = streamed(5, 3, 7), emulated(2)
    arrays = data(random.Random(1), chosen.op)
    assert_right(chosen.op, execute_on_device(chosen, arrays, backend, None), arrays, backend, "cuda", str(chosen))
    assert any(chosen.place(o.name) is Place.HOST for o in chosen.op.operands)
