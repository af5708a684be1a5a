"""Convolutions of many taps by cuFFT, of which NumPy stands in: right wherever a tile is cut, in the room that is planned."""

from __future__ import annotations

import ctypes
import math
import random
import warnings
from typing import Any

import numpy as np
import pytest
from cuda_running import Held
from emulated_device import execute, on, plan_of
from emulated_driver import EmulatedCuda, emulated
from many_taps import PASSES, SHAPES, apart, numbers, op_of, widened
from stand_in_fft import StandInFft

from ooc.backends import gpu_workspace
from ooc.backends.base import algorithms_of
from ooc.backends.cuda import fft
from ooc.backends.device_array import at
from ooc.backends.null import GPU_KERNELS, NullBackend
from ooc.errors import BudgetError
from ooc.ir.op import Block, Op
from ooc.ir.region import Span
from ooc.model.calibration import load_device
from ooc.ops.descriptor import parse
from ooc.runtime.device import Device
from ooc.schedule.place import Place
from tests.helpers.cpu_kernels import in_one_tile

GUARD = bytes(range(256)) * 16


def by_cufft(op: Op, arrays: dict[str, Any], seed: int, cut: float = 1.0, backend: EmulatedCuda | None = None) -> Any:
    """The result, of tiles that are cut along some dimensions."""
    rng, backend = random.Random(seed), backend or emulated(seed, cudnn=True)
    sizes = op.legal({d: rng.randint(math.ceil(e * cut), e) for d, e in op.dims.items()})
    plan = plan_of(op, backend, sizes, "cufft", rng.choice((Place.DEVICE, Place.HOST)))
    return execute(plan, arrays, backend, rng)[op.outputs[0].name]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("seed", range(2))
def test_tiles_are_parts_of_the_whole(which: str, shape: str, seed: int) -> None:
    """Cut along any dimension, with sums that are continued; no kernel falls back to another."""
    op = op_of(which, shape, "f64")
    arrays = numbers(op, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = by_cufft(op, arrays, seed, 1 / 3)
    assert apart(result, in_one_tile(op, "plain", arrays)) < 1e-13


@pytest.mark.parametrize("which", PASSES)
def test_single_precision(which: str) -> None:
    op, double = (op_of(which, SHAPES[0], dtype) for dtype in ("f32", "f64"))
    arrays = numbers(op)
    assert apart(by_cufft(op, arrays, 1), in_one_tile(double, "plain", widened(arrays))) < 1e-6


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("shape", SHAPES[2:7])
def test_few_blocks_and_matrices_at_once(which: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as memory holds, the last ones fewer."""
    monkeypatch.setattr(gpu_workspace, "FFT_AT_ONCE", 1000)
    monkeypatch.setattr(fft, "MOST_MATRICES", 7)
    op = op_of(which, shape, "f64")
    arrays = numbers(op, 5)
    assert apart(by_cufft(op, arrays, 5), in_one_tile(op, "plain", arrays)) < 1e-13


def test_filters_are_transformed_once() -> None:
    op = parse("conv.fprop n=6 c=2 h=30 w=30 k=3 r=13 s=13 dtype=f32")
    backend, arrays = emulated(0, cudnn=True), numbers(op)
    plan = plan_of(op, backend, {**op.dims, "n": 1}, "cufft", Place.HOST)
    execute(plan, arrays, backend, random.Random(0))
    library = backend.fft
    assert len(library.prepared) == 3, "of inputs, of filters, and back"
    assert sum(call.note == "fft" for call in backend.driver.log) == 1 + 2 * 6


def test_images_are_copied_together() -> None:
    """As many copies as there are places of blocks in an image, not for each image; what is launched is what is priced."""
    op = parse("conv.fprop n=50 c=1 h=30 w=30 k=1 r=13 s=13 dtype=f32")
    backend, arrays = emulated(0, cudnn=True), numbers(op)
    plan = plan_of(op, backend, dict(op.dims), "cufft")
    execute(plan, arrays, backend, random.Random(0))
    assert sum(call.what in ("copy", "launch") and call.note != "fft" for call in backend.driver.log) < 12


@pytest.mark.parametrize("which", PASSES)
def test_where_cufft_wants_more_room_our_kernel_computes(which: str) -> None:
    """And a warning tells."""
    op, backend = op_of(which, SHAPES[0], "f64"), emulated(0, cudnn=True)
    backend._libraries["fft"] = StandInFft(backend.driver, backend.streams["compute"], share=40.0)
    arrays = numbers(op)
    with pytest.warns(RuntimeWarning, match="many times slower than cuFFT, for some tiles: cuFFT: needs"):
        result = by_cufft(op, arrays, 0, backend=backend)
    assert apart(result, in_one_tile(op, "plain", arrays)) < 1e-13


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_written_beside_the_room_that_is_planned(which: str, shape: str) -> None:
    op, backend = op_of(which, shape, "f32"), emulated(0, cudnn=True)
    need = int(next(o for o in backend.offers(op) if o.name == "cufft").workspace(op.dims))
    arrays = numbers(op) | {o.name: np.zeros(o.shape, np.float32) for o in op.outputs}
    with backend.driver.current():
        memory = backend.allocate("device", need + len(GUARD))
        with backend.driver.opened():
            ctypes.memmove(at(memory) + need, GUARD, len(GUARD))
        placed = {name: backend.place_copy(a, "device") for name, a in arrays.items()}
    blocks = {o.name: Block(placed[o.name], tuple(Span(0, e) for e in o.shape)) for o in op.operands}
    kernel = backend.kernel(op, "cufft", op.dims, memory[:need])
    backend.begin()
    with backend.lane("compute"):
        kernel({d: Span(0, e) for d, e in op.dims.items()}, blocks, True, True)
    assert algorithms_of(kernel) == {"cufft": 1} and backend.peek(memory[need:]).tobytes() == GUARD


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB", "4 MiB", None])
@pytest.mark.parametrize("which", PASSES)
def test_device_memory_keeps_within_the_plan_and_the_budget(which: str, budget: str | None) -> None:
    """As planned among all kernels; where transforms have no room, others compute."""
    op, backend = op_of(which, "n=1 c=2 h=60 w=64 k=2 r=31 s=31 pad=15", "f64"), emulated(0, cudnn=True)
    where, held, arrays = on(backend, budget), Held(backend.driver), numbers(op)
    places = {o.name: Place.HOST for o in op.operands}
    try:
        plan = where.planner.plan(op, places)
    except BudgetError:
        assert budget == "2 KiB"
        return
    result = execute(plan, arrays, backend, random.Random(0))[op.outputs[0].name]
    assert held.peak_bytes <= plan.peak_bytes <= (where.device_bytes or plan.peak_bytes)
    assert apart(result, in_one_tile(op, "plain", arrays)) < 1e-13


def test_without_cufft_it_is_not_offered() -> None:
    op = op_of("fprop", SHAPES[0], "f32")
    assert "cufft" in emulated(0).why_not(op) and "cufft" not in emulated(0, cudnn=True).why_not(op)


def test_what_it_serves() -> None:
    for line, reason in (
        ("pool.max n=1 k=1 h=4 w=4 window=2", "not pool.max"),
        ("conv.fprop n=1 c=4 h=90 w=90 k=4 r=11 s=11", "128 taps"),
        ("conv.fprop n=1 c=4 h=90 w=90 k=4 r=31 s=31 stride=2", "stride 1"),
        ("conv.fprop n=1 c=4 h=90 w=90 k=4 r=31 s=31 dtype=f16", "not f16"),
    ):
        assert reason in (gpu_workspace.why_not_fft(parse(line)) or ""), line


def test_planned_where_it_is_predicted_to_pay() -> None:
    """For large filters; never where bits are promised."""
    card = Device(NullBackend(kernels=GPU_KERNELS), load_device("h200"), None)
    strict = Device(NullBackend(kernels=GPU_KERNELS), load_device("h200"), None, deterministic=True)
    for line, served in (("r=255 s=255 pad=127", True), ("r=3 s=3 pad=1", False)):
        op = parse(f"conv.fprop n=1 c=16 h=1024 w=1024 k=16 {line} dtype=f32")
        places = {o.name: Place.HOST for o in op.operands}
        assert ("cufft" in card.planner.plan(op, places).kernel) is served
        assert strict.planner.plan(op, places, deterministic=True).kernel != "cufft"
