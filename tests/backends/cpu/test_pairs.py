"""Convolution of bf16 by dot products of pairs: the sums of the plain loops, whatever the tile, the layout and the numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ooc
from ooc import native
from ooc.backends.conv_call import HalfConv
from ooc.backends.cpu.backend import CpuBackend
from ooc.ir.op import Block, Op, aligned, numpy_dtype
from ooc.ir.region import Span
from ooc.ops.descriptor import parse
from ooc.runtime.engine import execute
from tests.helpers.cpu_kernels import aligned_room, in_one_tile, in_tiles

pytestmark = pytest.mark.skipif(
    native.kernels is None or not native.kernels.has_paired_conv(), reason="no dot products of bf16 here"
)
SHAPES = (
    "n=2 c=16 h=9 w=21 k=12 r=3 s=3 pad=1",
    "n=1 c=9 h=14 w=14 k=17 r=1 s=1 bias=1 act=relu",
    "n=2 c=22 h=12 w=13 k=26 r=3 s=2 groups=2 pad=1x0 bias=1 act=leaky_relu coef=0.5",
    "n=1 c=33 h=10 w=11 k=19 r=3 s=3 pad=2 dilation=2 layout=channels_last bias=1",
    "n=1 c=24 h=10 w=11 k=16 r=3 s=3 pad=1 layout=channels_last",
    "n=1 c=10 d=5 h=6 w=7 k=18 t=2 r=3 s=3 pad=1",
    "n=3 c=15 w=40 k=15 s=7 pad=3",
    "n=70 c=64 h=1 w=1 k=40 r=1 s=1",
)
STRIDED = ("n=2 c=13 h=15 w=16 k=9 r=3 s=3 pad=1 stride=2", "n=1 c=16 h=9 w=9 k=32 r=1 s=1 stride=2")
CASES = [f"conv.{which} {shape}" for which in ("fprop", "dgrad") for shape in SHAPES] + [
    f"conv.fprop {shape}" for shape in STRIDED
]


def integers(op: Op, seed: int = 0) -> dict[str, Any]:
    """Small enough that every sum is exact."""
    rng = np.random.default_rng(seed)
    return {o.name: rng.integers(-3, 4, o.shape).astype(np.float32).astype(numpy_dtype(o.dtype)) for o in op.inputs}


def wide(array: Any) -> Any:
    return array.astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_one_tile(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = parse(f"{case} dtype=bf16")
    arrays = integers(op)
    expected = in_one_tile(op, "plain", arrays)
    monkeypatch.setattr(HalfConv, "__call__", None)  # nothing is left to operands in f32
    np.testing.assert_array_equal(wide(in_one_tile(op, "native_bf16", arrays)), wide(expected))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_tiles_are_parts_of_the_whole(case: str, seed: int) -> None:
    """Cut along any dimension, channels into odd numbers of them, with sums that are continued and filters that stay."""
    op, rng = parse(f"{case} dtype=bf16"), np.random.default_rng(seed)
    sizes = op.legal({d: int(rng.integers(math.ceil(e / 3), e + 1)) for d, e in op.dims.items()})
    arrays = integers(op, seed)
    result = in_tiles(op, "native_bf16", sizes, arrays, threads=int(rng.integers(1, 4)))
    np.testing.assert_array_equal(wide(result), wide(in_one_tile(op, "plain", arrays)))


@pytest.mark.parametrize("which", ["fprop", "dgrad"])
@pytest.mark.parametrize(
    "shape", ["n=70 c=64 h=2 w=3 k=40 r=1 s=1", "n=70 c=63 h=4 w=3 k=40 r=2 s=2", "n=40 c=16 d=2 h=3 w=2 k=40 t=1 r=1 s=1"]
)
def test_tiles_of_one_position(shape: str, which: str) -> None:
    """Of which the batch is the next longer axis: parts of a larger tensor, whose channels lie apart."""
    op = parse(f"conv.{which} {shape} dtype=bf16")
    sizes = op.dims | {d: 1 for d in op.dims if d in ("o", "p", "q", "d", "h", "w")}
    result = in_tiles(op, "native_bf16", sizes, integers(op))
    np.testing.assert_array_equal(wide(result), wide(in_one_tile(op, "plain", integers(op))))


def test_views_of_one_tap() -> None:
    x, w = (np.random.default_rng(0).integers(-3, 4, (n, 64, 3, 3)).astype("f4").astype(numpy_dtype("bf16")) for n in (70, 40))
    views = x[:, :, :1, :1], w[:, :, 1:2, 1:2]
    exact = wide(views[0])[..., 0, 0] @ wide(views[1])[..., 0, 0].T
    np.testing.assert_array_equal(wide(ooc.conv(*views))[..., 0, 0], wide(exact.astype(numpy_dtype("bf16"))))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -0.0])
@pytest.mark.parametrize("case", CASES[::3])
def test_special_numbers_reach_what_they_meet_alone(case: str, value: float) -> None:
    """As the plain loops have them: padding meets none of them, and an odd channel's partner is no number."""
    op = parse(f"{case} dtype=bf16")
    for name in [o.name for o in op.inputs[:2]]:
        arrays = integers(op, 3)
        arrays[name][tuple(e - 1 for e in arrays[name].shape)] = value
        expected = wide(in_one_tile(op, "plain", arrays))
        np.testing.assert_allclose(wide(in_one_tile(op, "native_bf16", arrays)), expected, rtol=1e-2)
        assert value in (3e38, 0) or not np.isfinite(expected).all() or not np.isfinite(wide(arrays[name])).all()


@pytest.mark.parametrize("which", ["fprop", "dgrad"])
def test_error_against_double_precision(which: str) -> None:
    """That of the rounding at the end, as with operands in f32."""
    shape = f"conv.{which} n=2 c=64 h=28 w=28 k=64 r=3 s=3 pad=1"
    half, double = parse(f"{shape} dtype=bf16"), parse(f"{shape} dtype=f64")
    rng = np.random.default_rng(5)
    arrays = {o.name: rng.standard_normal(o.shape).astype(np.float32).astype(numpy_dtype("bf16")) for o in half.inputs}
    exact = in_one_tile(double, "plain", {name: wide(a).astype(np.float64) for name, a in arrays.items()})
    apart = np.abs(wide(in_one_tile(half, "native_bf16", arrays)) - exact)
    assert (apart <= np.abs(exact) * 2**-8 + np.abs(exact).max() * 1e-6).all()


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB", None])
@pytest.mark.parametrize("which", ["fprop", "dgrad"])
def test_exact_at_any_budget(which: str, budget: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no faster family there, memory measured within what the plan says."""
    kept = {name: f for name, f in CpuBackend.families.items() if name in ("native_bf16", "plain")}
    monkeypatch.setattr(CpuBackend, "families", kept)
    op = parse(f"conv.{which} n=3 c=21 h=40 w=44 k=24 r=3 s=3 pad=1 dtype=bf16")
    arrays, output = integers(op, 7), np.zeros(op.outputs[0].shape, numpy_dtype("bf16"))
    with ooc.device("cpu", budget=budget) as where:
        execute(op, arrays, {op.outputs[0].name: output})
    np.testing.assert_array_equal(wide(output), wide(in_one_tile(op, "plain", arrays)))
    report = ooc.last_report()
    assert report is not None and report.peak_bytes <= report.plans[0].peak_bytes
    assert where.device_bytes is None or report.plans[0].peak_bytes <= where.device_bytes
    assert budget is not None or report.plans[0].kernel == "native_bf16"


@pytest.mark.parametrize("case", CASES)
def test_room_is_not_left(case: str) -> None:
    """Nothing is written beyond what the family asks for."""
    op, family = parse(f"{case} dtype=bf16"), CpuBackend.families["native_bf16"]
    nbytes = int(aligned(family.workspace(op, op.dims, 3)))
    memory = aligned_room(nbytes + 4096)
    memory[nbytes:] = 0xA5
    kernel = family.prepare(op, op.dims, memory[:nbytes], 3)
    arrays = integers(op) | {o.name: np.zeros(o.shape, numpy_dtype(o.dtype)) for o in op.outputs}
    blocks = {o.name: Block(arrays[o.name], tuple(Span(0, e) for e in o.shape)) for o in op.operands}
    kernel({d: Span(0, e) for d, e in op.dims.items()}, blocks, True, True)
    assert (memory[nbytes:] == 0xA5).all()


@pytest.mark.parametrize("nbytes", [0, 64, 4096])
def test_without_room_nothing_is_written(nbytes: int) -> None:
    assert native.kernels is not None
    x, w = np.ones((1, 15, 1, 20, 20), numpy_dtype("bf16")), np.ones((9, 15, 1, 3, 3), numpy_dtype("bf16"))
    y, room = np.full((1, 9, 1, 18, 18), 7, np.float32), aligned_room(1 << 20)
    flat = [v for a in (x, w, y) for v in (native.address(a), a.shape, tuple(s // a.itemsize for s in a.strides))]
    rest = ((1, 1, 1), (1, 1, 1), (0, 0, 0), 1, 0, 0, 0.0, False, native.address(room))
    served = native.kernels.paired_conv("fprop", native.DTYPE_CODES["bf16"], *flat, *rest, nbytes, False, 2, False)
    assert served == (False, False) and (y == 7).all()
    assert native.kernels.paired_conv("fprop", native.DTYPE_CODES["bf16"], *flat, *rest, room.nbytes, False, 2, False)[0]
    assert (y == 135).all()
    for wrong in ("wgrad", "f32"):
        which, code = ("wgrad", "bf16") if wrong == "wgrad" else ("fprop", "f32")
        with pytest.raises(ValueError, match="pairs"):
            native.kernels.paired_conv(which, native.DTYPE_CODES[code], *flat, *rest, room.nbytes, False, 2, False)


def test_what_it_serves() -> None:
    why_not = CpuBackend.families["native_bf16"].why_not
    for line, reason in (
        ("pool.max n=1 k=1 h=4 w=4", "not pool.max"),
        ("conv.fprop n=1 c=16 h=9 w=9 k=16 r=3 s=3 dtype=f32", "f32"),
        ("conv.wgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 dtype=bf16", "channels"),
        ("conv.dgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 stride=2 dtype=bf16", "stride 1"),
        ("conv.fprop n=1 c=16 h=9 w=9 k=16 r=3 s=3 groups=16 dtype=bf16", "8 channels"),
    ):
        assert reason in (why_not(parse(line)) or ""), line
