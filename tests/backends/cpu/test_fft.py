"""Convolution by transforms: as near as direct sums are, whatever the tile, the layout, the room and the numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ooc
from ooc import native
from ooc.backends.cpu.backend import CpuBackend
from ooc.backends.cpu.fft import FLAT, folded
from ooc.ir.fused import fuse
from ooc.ir.op import Block, aligned
from ooc.ir.region import Span
from ooc.ops.descriptor import parse
from ooc.ops.transforms import segments
from ooc.planner.question import PAYS, paying, usable_offers
from ooc.runtime.engine import execute
from tests.helpers.cpu_kernels import aligned_room, in_one_tile, in_tiles
from tests.helpers.many_taps import LONG, PASSES, SHAPES, apart, numbers, op_of, widened

pytestmark = pytest.mark.skipif(native.kernels is None, reason=native.reason or "")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", PASSES)
def test_error_against_double_precision(which: str, shape: str) -> None:
    """At most four times the direct sum's, and f64 as near as f64 is."""
    single, double = (op_of(which, shape, dtype) for dtype in ("f32", "f64"))
    arrays = numbers(single)
    exact = in_one_tile(double, "plain", widened(arrays))
    direct = "plain" if CpuBackend.families["native"].why_not(single) else "native"
    assert apart(in_one_tile(single, "fft", arrays), exact) <= 4 * apart(in_one_tile(single, direct, arrays), exact) + 2e-7
    assert apart(in_one_tile(double, "fft", widened(arrays)), exact) < 1e-13


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("seed", range(3))
def test_tiles_are_parts_of_the_whole(which: str, shape: str, seed: int) -> None:
    """Cut along any dimension, in all orders of channels, with sums that are continued."""
    op, rng = op_of(which, shape, "f64"), np.random.default_rng(seed)
    sizes = op.legal({d: int(rng.integers(math.ceil(e / 3), e + 1)) for d, e in op.dims.items()})
    arrays = numbers(op, seed)
    exact = in_one_tile(op, "plain", arrays)
    assert apart(in_tiles(op, "fft", sizes, arrays, threads=int(rng.integers(1, 4))), exact) < 1e-13


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("which", PASSES)
def test_half_types_are_rounded_once(which: str, dtype: str) -> None:
    op = op_of(which, SHAPES[0], dtype)
    arrays = numbers(op)
    exact = in_one_tile(op_of(which, SHAPES[0], "f64"), "plain", widened(arrays))
    assert apart(in_one_tile(op, "fft", arrays), exact) < (1e-3 if dtype == "f16" else 8e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("which", PASSES)
def test_numbers_that_spoil_a_segment_reach_what_they_meet_alone(which: str, value: float) -> None:
    """As the plain loops have them."""
    op = op_of(which, SHAPES[0], "f32")
    for name in [o.name for o in op.inputs]:
        arrays = numbers(op)
        arrays[name][tuple(e // 2 for e in arrays[name].shape)] = value
        expected = in_one_tile(op, "plain", arrays)
        result = in_one_tile(op, "fft", arrays)
        np.testing.assert_array_equal(np.isfinite(result), np.isfinite(expected))
        near = np.isfinite(expected) & (np.abs(expected) < 1e6)
        assert apart(result[near], expected[near]) < 1e-6
        assert name == "b" or not near.all()


def test_padding_meets_no_infinite_tap() -> None:
    op = parse("conv.fprop n=1 c=1 h=20 w=20 k=1 r=13 s=13 pad=6 dtype=f32")
    arrays = {"x": np.ones((1, 1, 20, 20), np.float32), "w": np.ones((1, 1, 13, 13), np.float32)}
    arrays["w"][..., 0, 0] = np.inf
    np.testing.assert_array_equal(in_one_tile(op, "fft", arrays), in_one_tile(op, "plain", arrays))


@pytest.mark.parametrize("which", PASSES)
def test_without_room_nothing_is_written(which: str) -> None:
    assert native.kernels is not None
    x, w, y = (
        np.ones((1, 2, 1, 30, 30), np.float32),
        np.ones((3, 2, 1, 12, 12), np.float32),
        np.ones((1, 3, 1, 19, 19), np.float32),
    )
    arrays = [(native.address(a), a.shape, tuple(s // 4 for s in a.strides)) for a in (x, w, y)]
    room = aligned_room(1 << 20)
    family, op = CpuBackend.families["fft"], parse(f"conv.{which} n=1 c=2 h=30 w=30 k=3 r=12 s=12 dtype=f32")
    lengths = (1, *(int(n) for n in segments(op, op.dims).lengths))
    nbytes = int(family.workspace(op, op.dims, 1))
    tables = native.kernels.FftTables(native.DTYPE_CODES["f32"], lengths)
    rest = ((1, 1, 1), (1, 1, 1), (0, 0, 0), 1, 0, 0, 0.0, False, native.address(room))  # stride, dilation, padding, ...
    for bytes_given, served in ((0, False), (64, False), (nbytes // 8, False), (nbytes, True)):
        flat = [v for a in arrays for v in a]
        done = native.kernels.fft_conv(which, native.DTYPE_CODES["f32"], *flat, *rest, bytes_given, False, 1, tables)
        assert done is served
        assert all((a == 1).all() for a in (x, w, y)) is not served


def test_room_is_not_left() -> None:
    """Nothing is written beyond what a family asks for."""
    for which in PASSES:
        for shape in SHAPES:
            op, family = op_of(which, shape, "f32"), CpuBackend.families["fft"]
            nbytes = int(aligned(family.workspace(op, op.dims, 3)))
            memory = aligned_room(nbytes + 4096)
            memory[nbytes:] = 0xA5
            kernel = family.prepare(op, op.dims, memory[:nbytes], 3)
            arrays = numbers(op) | {o.name: np.zeros(o.shape, np.float32) for o in op.outputs}
            blocks = {o.name: Block(arrays[o.name], tuple(Span(0, e) for e in o.shape)) for o in op.operands}
            kernel({d: Span(0, e) for d, e in op.dims.items()}, blocks, True, True)
            assert (memory[nbytes:] == 0xA5).all(), (which, shape)


def test_many_sizes_at_once_are_each_of_them() -> None:
    """Workspace and operations of arrays of sizes, as the planner asks."""
    for which in PASSES:
        for shape in SHAPES:
            op, family = op_of(which, shape, "f32"), CpuBackend.families["fft"]
            each = [op.legal({d: max(1, e // part) for d, e in op.dims.items()}) for part in (1, 2, 3, 7)]
            together = {d: np.array([sizes[d] for sizes in each]) for d in op.dims}
            np.testing.assert_array_equal(family.workspace(op, together, 2), [int(family.workspace(op, s, 2)) for s in each])
            np.testing.assert_allclose(op.effort(together, "fft"), [float(op.effort(s, "fft")) for s in each])


@pytest.mark.parametrize("share", [0.79, 0.81])
@pytest.mark.parametrize("convert", [False, True])
def test_taken_where_it_pays(share: float, convert: bool) -> None:
    """Below 0.8 of the others' time, never for integers, and never for sums in order."""
    conv = parse("conv.fprop n=1 c=1 h=90 w=90 k=1 r=31 s=31 dtype=f32")
    op = fuse(parse("convert.in n=1 k=1 h=90 w=90 store=u8 dtype=f32"), conv) if convert else conv
    backend = CpuBackend(2)
    names = {o.name for o in paying(op, backend.offers(op), lambda offer: share if offer.rounds else 1.0)}
    assert ("fft" in names) is (share < PAYS and not convert) and {"native", "plain"} <= names
    assert "fft" not in {o.name for o in usable_offers(op, backend, deterministic=True)}


@pytest.mark.parametrize(
    ("kib", "alone"), [(None, True), (512, True), (256, True), (None, False), (256, False), (16, False), (2, False)]
)
@pytest.mark.parametrize("shape", ["n=1 c=1 h=400 w=400 k=1 r=13 s=13 pad=6", "n=2 c=3 w=20000 k=2 s=129 pad=64"])
@pytest.mark.parametrize("which", PASSES)
def test_no_budget_is_exceeded(which: str, shape: str, kib: int | None, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results as near as direct sums, and a peak that was predicted. alone: no other kernel is there."""
    op, budget = op_of(which, shape, "f32"), None if kib is None else kib << 10
    arrays, output = numbers(op), op.outputs[0]
    exact = in_one_tile(op_of(which, shape, "f64"), "plain", widened(arrays))
    if alone:
        monkeypatch.setattr(CpuBackend, "families", {"fft": CpuBackend.families["fft"]})
    result = np.full(output.shape, np.nan, np.float32)
    with ooc.device("cpu", budget=budget):
        execute(op, arrays, {output.name: result})
    report = ooc.last_report()
    assert report is not None
    (plan,) = report.plans
    assert apart(result, exact) < 1e-5
    assert report.peak_bytes <= plan.peak_bytes and (budget is None or plan.peak_bytes <= budget)
    assert (plan.kernel == "fft" or not alone) and (plan.tiles > 1 or budget is None)


@pytest.mark.parametrize("kib", [None, 512, 256, 16])
@pytest.mark.parametrize("which", PASSES)
def test_long_lines_keep_to_their_budget(which: str, kib: int | None) -> None:
    op, budget = op_of(which, "n=1 c=1 w=60000 k=1 s=2001 pad=1000", "f32"), None if kib is None else kib << 10
    arrays, output = numbers(op), op.outputs[0]
    exact = in_one_tile(op_of(which, "n=1 c=1 w=60000 k=1 s=2001 pad=1000", "f64"), "plain", widened(arrays))
    result = np.full(output.shape, np.nan, np.float32)
    with ooc.device("cpu", budget=budget):
        execute(op, arrays, {output.name: result})
    report = ooc.last_report()
    assert report is not None
    assert apart(result, exact) < 1e-5
    assert report.peak_bytes <= report.plans[0].peak_bytes and (budget is None or report.plans[0].peak_bytes <= budget)


def test_integers_are_summed_directly() -> None:
    """Arrays of them: every result is exact."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 255, (1, 1, 300, 300), np.uint8), rng.integers(-2, 3, (1, 1, 41, 41)).astype(np.float32)
    exact = ooc.conv(x.astype(np.float64), w.astype(np.float64), deterministic=True)
    np.testing.assert_array_equal(ooc.conv(x, w), exact)
    report = ooc.last_report()
    assert report is not None and all("fft" not in plan.kernels for plan in report.plans)


@pytest.mark.parametrize("shape", LONG)
def test_long_lines_are_folded(shape: str) -> None:
    """So that what a thread works in is small beside a line, and so that no result but theirs takes room of one."""
    op = op_of("fprop", shape, "f32")
    lengths = [int(n) for n in segments(op, op.dims).lengths]
    lines = int(folded(lengths))
    assert lines >= 16 and max(lengths) % lines == 0 and max(lengths) >= FLAT * lines**2
    assert int(folded([1, max(lengths) + 1])) == 1 and int(folded([2, *lengths])) == 1
    assert int(CpuBackend.families["fft"].workspace(op, op.dims, 2)) < 16 * 4 * max(lengths) * max(1, op.dims["c"] * op.dims["k"])


def test_no_segment_folds_into_parts_of_vectors() -> None:
    assert native.kernels is not None
    for lengths, lines in (((1, 1, 4096), 24), ((1, 1, 4096), 8), ((1, 2, 4096), 16), ((1, 1, 4096), 0), ((1, 1, 4096), -16)):
        with pytest.raises(ValueError, match=r"fold|lines are folded"):
            native.kernels.FftTables(native.DTYPE_CODES["f32"], lengths, lines)


def test_what_it_serves() -> None:
    why_not = CpuBackend.families["fft"].why_not
    assert why_not(parse("conv.fprop n=1 c=1 h=90 w=90 k=1 r=31 s=31 dtype=f32")) is None
    assert why_not(parse("conv.wgrad n=1 c=4 d=30 h=30 w=30 k=4 t=6 r=6 s=6 groups=4 dtype=bf16")) is None
    for line, reason in (
        ("pool.max n=1 k=1 h=4 w=4", "not pool.max"),
        ("conv.fprop n=1 c=1 h=90 w=90 k=1 r=11 s=11", "taps"),
        ("conv.fprop n=1 c=1 h=90 w=90 k=1 r=31 s=31 stride=2", "stride 1"),
    ):
        assert reason in (why_not(parse(line)) or ""), line
