"""Kernels that pack filters piece by piece: the same results in a workspace that never holds all of them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cases import data
from running import assert_right, execute

from ooc import native
from ooc.backends.cpu import conv
from ooc.backends.cpu.backend import CpuBackend
from ooc.ops.descriptor import parse
from ooc.schedule.place import Place
from ooc.schedule.plan import Plan

BACKWARD = "dy>db! reduce.bias {dy} | x,dy>dw! conv.wgrad {conv} | dy,w>dx! conv.dgrad {conv}"
CONV = "n=3 c=24 h=9 w=8 k=40 r=3 s=3 pad=1 dtype={}"
LARGE = (
    "conv.fprop n=3 c=256 h=6 w=7 k=256 r=3 s=3 pad=1 bias=1 act=relu ; n=1",
    "conv.fprop n=2 c=256 h=6 w=6 k=250 r=3 s=3 pad=1 dtype=f64 ; n=1 k=128 c=64",
    "conv.fprop n=2 c=256 h=13 w=13 k=512 r=3 s=3 stride=2 pad=1 groups=2 ; n=1 g=1",
    "conv.fprop n=1 c=64 d=4 h=5 w=6 k=520 t=3 r=3 s=3 pad=1 ; o=2",
    "conv.dgrad n=3 c=256 h=6 w=7 k=256 r=3 s=3 pad=1 ; n=1",
    "conv.dgrad n=2 c=250 h=9 w=8 k=256 r=3 s=3 stride=2 dilation=1x2 pad=1:2x2 ; n=1 k=128",
    "conv.wgrad n=3 c=256 h=6 w=7 k=256 r=3 s=3 pad=1 ; n=1",
)
SMALL = (
    "conv.fprop n=3 c=40 h=9 w=11 k=27 r=3 s=3 pad=1 dtype=f16 ; n=1 k=16",
    "conv.dgrad n=2 c=20 h=9 w=9 k=40 r=3 s=3 stride=2 pad=1 dtype=bf16 ; n=1",
    "conv.fprop n=2 c=6 h=9 w=8 k=24 r=3 s=3 pad=1 act=relu | conv.fprop n=2 c=24 h=9 w=8 k=5 r=3 s=3 pad=1 ; n=1 p=4",
    *(BACKWARD.format(dy=f"n=3 k=40 h=9 w=8 dtype={t}", conv=CONV.format(t)) + " ; n=1" for t in ("f32", "f16")),
)


def check(line: str) -> None:
    """Its results in tiles, each in a workspace of its own making, in an adversarial order of steps."""
    text, _, how = line.partition(" ; ")
    op, backend = parse(text), CpuBackend(threads=2)
    sizes = op.legal(op.dims | {d: int(v) for d, v in (pair.split("=") for pair in how.split())})
    offers = {o.name: o for o in backend.offers(op)}
    workspace = int(offers["native_lean"].workspace(sizes))
    assert 0 < workspace <= int(offers["native"].workspace(sizes))
    places = tuple((o.name, Place.HOST) for o in op.operands)
    for seed in range(2):
        rng = random.Random(seed)
        arrays = data(rng, op)
        plan = Plan(op, tuple(sizes.items()), tuple(op.dims), 2, places, False, True, "native_lean", workspace)
        assert_right(op, execute(plan, arrays, backend, rng), arrays, backend, "native_lean", line)


@pytest.mark.parametrize("line", LARGE)
def test_large_filters(line: str) -> None:
    check(line)


@pytest.mark.parametrize("line", SMALL)
def test_workspace_that_stages_share(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken for what an earlier tile left there: packed weights, widened ones."""
    monkeypatch.setattr(conv, "LEAST_PACKED", 0)
    check(line)


@pytest.mark.parametrize("name", ["fprop", "dgrad"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_any_workspace_gives_the_same_and_nothing_is_written_behind_it(name: str, dtype: str) -> None:
    assert native.kernels is not None
    code, rng = native.DTYPE_CODES[dtype], np.random.default_rng(3)
    for c, k, groups, taps, extent in ((96, 72, 1, 3, 9), (130, 31, 1, 3, 7), (64, 96, 2, 5, 8), (300, 40, 1, 1, 12)):
        shapes = ((2, c, 1, extent, extent), (k, c // groups, 1, taps, taps), (2, k, 1, extent, extent))
        x, w, y = (rng.integers(-2, 3, s).astype("f4" if dtype == "f32" else "f8") for s in shapes)
        made = {"fprop": y, "dgrad": x}[name]
        operands = [v for a in (x, w, y) for v in (a.ctypes.data, a.shape, tuple(s // a.itemsize for s in a.strides))]
        geometry = ((1, 1, 1), (1, 1, 1), (0, taps // 2, taps // 2), groups)
        packed, scratch, lean = native.kernels.direct_workspace(name, code, *shapes, *geometry[:2], groups, 2)
        results = []
        for nbytes in (packed + scratch, lean, packed - 64, packed // 2, packed // 8, 4096, 0):
            room = np.full(nbytes + 4096 + 64, 0xA5, np.uint8)
            room = room[-room.ctypes.data % 64 :]
            made[...] = -1
            at = room.ctypes.data if nbytes else 0
            native.kernels.direct_conv(name, code, *operands, *geometry, 0, 0, 0.0, False, at, nbytes, False, 2)
            assert (room[nbytes:] == 0xA5).all()
            results.append(made.copy())
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


def arrays_of(rng: random.Random, dtype: str) -> tuple[list[np.ndarray], tuple[object, ...]]:
    """x, w and y of a convolution at random, channels first or last, and its stride, dilation, padding and groups."""
    numbers, groups, last = np.random.default_rng(rng.randrange(1 << 30)), rng.choice((1, 1, 2)), rng.random() < 0.25
    n, c, k = rng.choice((1, 3)), rng.choice((1, 3, 16, 31, 40)), rng.choice((1, 5, 16, 33, 70))
    taps, stride, dilation, pad, x, y = [], [], [], [], [], []
    for extents in ((1, 1, 3), (1, 2, 9), (1, 7, 9, 16, 17, 31, 33, 65)):
        taps.append(rng.choice((1, 2, 3)))
        stride.append(rng.choice((1, 2, 3)))
        dilation.append(rng.choice((1, 2)))
        pad.append(rng.choice((0, taps[-1] // 2)))
        x.append(max(rng.choice(extents), (taps[-1] - 1) * dilation[-1] + 1))
        y.append((x[-1] + 2 * pad[-1] - (taps[-1] - 1) * dilation[-1] - 1) // stride[-1] + 1)
    shapes = ((n, c * groups, *x), (k * groups, c, *taps), (n, k * groups, *y))
    arrays = [numbers.integers(-2, 3, s).astype(dtype) for s in shapes]
    if last:
        arrays = [np.ascontiguousarray(a.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3) for a in arrays]
    return arrays, (tuple(stride), tuple(dilation), tuple(pad), groups)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["fprop", "dgrad", "wgrad"])
def test_any_shape_gives_what_loops_without_a_workspace_give(name: str, dtype: str) -> None:
    """Rows of any length and stride, any number of channels, sums that are added to what is there: exact, as all are integers."""
    assert native.kernels is not None
    rng, code, tried = random.Random(f"{name} {dtype}"), native.DTYPE_CODES[dtype], 0
    for _ in range(200):
        arrays, geometry = arrays_of(rng, dtype.replace("f32", "f4").replace("f64", "f8"))
        result = arrays[("dgrad", "wgrad", "fprop").index(name)]
        operands = [v for a in arrays for v in (a.ctypes.data, a.shape, tuple(s // a.itemsize for s in a.strides))]
        shapes = [a.shape for a in arrays]
        packed, scratch, lean = native.kernels.direct_workspace(name, code, *shapes, *geometry[:2], geometry[3], 2)
        add, old, expected = rng.random() < 0.5, result.copy(order="K"), None
        for nbytes in (0, packed + scratch, lean):
            room = np.empty(nbytes + 64, np.uint8)
            result[...] = old if add else -7
            at = room.ctypes.data + -room.ctypes.data % 64
            native.kernels.direct_conv(name, code, *operands, *geometry, 0, 0, 0.0, add, at if nbytes else 0, nbytes, False, 2)
            expected = result.copy() if expected is None else expected
            np.testing.assert_array_equal(result, expected, err_msg=f"{shapes} {geometry} add={add} in {nbytes} bytes")
        tried += packed + scratch > 0
    assert tried > 60


@pytest.mark.parametrize("kind", ["conv.fprop", "conv.dgrad", "conv.wgrad"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_depthwise_filters_are_not_packed(kind: str, dtype: str) -> None:
    """They are computed by the loops of `plain`, and are priced as these are; other groups and a single channel are packed."""
    packed = {"c=16 k=16 groups=16": False, "c=16 k=32 groups=16": True, "c=1 k=1": True, "c=16 k=16": True}
    for channels, packs in packed.items():
        op = parse(f"{kind} n=2 h=20 w=20 r=3 s=3 pad=1 {channels} dtype={dtype}")
        names = {offer.name for offer in CpuBackend(threads=2).offers(op)}
        assert ("native" in names) is packs and "plain" in names and (packs or "native_lean" not in names)


@pytest.mark.parametrize(("kind", "channels"), [("conv.fprop", "k"), ("conv.dgrad", "c")])
def test_few_channels_are_priced_with_what_gathers_them(kind: str, channels: str) -> None:
    """As long for the first channel as for the three that follow it, and in proportion where there are many."""
    rest, efforts = f"n=1 {'c' if channels == 'k' else 'k'}=32 h=128 w=128 r=3 s=3 pad=1 dtype=f32", {}
    for count in (1, 4, 64, 128):
        op = parse(f"{kind} {channels}={count} {rest}")
        efforts[count] = float(op.effort(op.dims, "native"))
    assert efforts[4] / efforts[1] == pytest.approx(7 / 4) and efforts[128] / efforts[64] == pytest.approx(2, rel=0.03)
