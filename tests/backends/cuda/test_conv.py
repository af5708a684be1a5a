"""What cuDNN is told of tiles that are used in place, and what happens where it refuses or fails."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
from cases import data, integers, random_plan
from cases_ops import KINDS, random_common
from emulated_device import assert_runs, execute, on, plan_of
from emulated_driver import emulated
from running import Arrays
from stand_in_cudnn import StandInConv, StandInLibrary

import ooc
from ooc.backends.conv_call import ConvCall
from ooc.backends.cuda.conv import usual
from ooc.backends.cuda.geometry import Shape, canonical
from ooc.backends.device_array import device_array
from ooc.backends.gpu_workspace import beside_bytes
from ooc.backends.views import dense_strides
from ooc.errors import UnsupportedError
from ooc.ir.op import Op
from ooc.ops.descriptor import parse

WIDE = "conv.fprop n=1 c=64 h=6144 w=6144 k=64 r=3 s=3 pad=1 dtype=f32"
NCHW, NHWC = (0, 1, 2, 3), (0, 2, 3, 1)


def view(shape: tuple[int, ...], strides: tuple[int, ...], address: int = 0) -> Any:
    return device_array(address, shape, np.dtype(np.float32), tuple(4 * s for s in strides))


def test_axes_of_extent_one_have_the_strides_of_a_dense_array() -> None:
    x = view((1, 5, 1, 1, 800), (7, 800, 100, 0, 1))
    assert canonical(x, (0, 1, 2, 3, 4)) == (4000, 800, 800, 800, 1)
    x = view((4, 1, 1, 3, 6), (90, 1234, 0, 30, 5))
    assert canonical(x, (0, 2, 3, 4, 1)) == (90, 1, 18, 30, 5)


@pytest.mark.parametrize("channels", [32, 64])
def test_strides_of_one_image_stay_within_32_bits(channels: int) -> None:
    """144 rows of channels of 8192 x 8192: the whole has 2^31 elements and more, the tile does not."""
    y = view((1, 32, 144, 8192), (channels << 26, 1 << 26, 8192, 1))
    assert canonical(y, NCHW) == (32 * 144 * 8192, 1 << 26, 8192, 1)
    op = parse(f"conv.fprop n=1 c=3 h=16384 w=16384 k={channels} r=7 s=7 stride=2 pad=3 dtype=f32")
    x, w = view((1, 3, 293, 16384), (3 << 28, 1 << 28, 16384, 1)), view((32, 3, 7, 7), (147, 49, 7, 1))
    shape = Shape(ConvCall(op), "fma", [x, w, y], (16, 16, 16), (0, 0, 3), 1)
    assert not [room for room in shape.rooms if room.role == 2] and max(shape.geometry.y_strides) < 2**31


def test_a_signal_is_told_with_canonical_strides() -> None:
    op = parse("conv.fprop n=2 c=8 w=100 k=8 s=3 pad=1 dtype=f32")
    told = usual(op, {**op.dims, "n": 1}, "fma")
    assert told.x == (1, 8, 1, 100) and told.x_strides == (800, 100, 100, 1)
    assert told.y_strides == (800, 100, 100, 1)


def shape_of(x: Any, y: Any, bases: tuple[int, ...] = (16, 16, 16), wishes: bool = True) -> Shape:
    op = parse(WIDE)
    w = view((64, 64, 3, 3), dense_strides((64, 64, 3, 3), 1, NCHW))
    return Shape(ConvCall(op), "fma", [x, w, y], bases, (0, 0, 1), 1, wishes)


def test_tiles_that_span_two_thousand_million_elements_are_copied() -> None:
    """A tile of rows of a resident 64 x 6144 x 6144 picture: few elements, but far apart."""
    far = (64 * 6144 * 6144, 6144 * 6144, 6144, 1)
    x, y = view((1, 64, 14, 6144), far), view((1, 64, 12, 6144), far)
    found = shape_of(x, y)
    assert [room.role for room in found.rooms] == [0, 2] and not any(room.wished for room in found.rooms)
    assert found.geometry.x == (1, 64, 14, 6144) and found.geometry.x_strides == (64 * 14 * 6144, 14 * 6144, 6144, 1)
    assert found.geometry.y_strides == (64 * 12 * 6144, 12 * 6144, 6144, 1)
    near = (0, 30 * 6144, 6144, 1)
    assert not shape_of(view((1, 64, 14, 6144), near), view((1, 64, 12, 6144), near)).rooms


def test_addresses_that_are_no_multiples_of_16_are_copied_where_there_is_room() -> None:
    near = (0, 30 * 6144, 6144, 1)
    arrays = view((1, 64, 14, 6144), near), view((1, 64, 12, 6144), near)
    found = shape_of(*arrays, bases=(4, 16, 8))
    assert [(room.role, room.wished) for room in found.rooms] == [(0, True), (2, True)] and found.geometry.aligned == 16
    found = shape_of(*arrays, bases=(4, 16, 8), wishes=False)
    assert not found.rooms and found.geometry.aligned == 4


def test_arrays_that_run_backwards_are_copied() -> None:
    near = (0, 30 * 6144, 6144, 1)
    found = shape_of(view((1, 64, 14, 6144), (0, 30 * 6144, 6144, -1)), view((1, 64, 12, 6144), near))
    assert [room.role for room in found.rooms] == [0]


@pytest.mark.parametrize(
    ("text", "sizes", "wanted"),
    [
        (WIDE, {"p": 12}, ("x", "y")),  # far apart
        ("conv.fprop n=4 c=8 h=63 w=63 k=8 r=3 s=3 pad=1 dtype=f32", {"p": 8, "q": 9}, ()),  # wherever they begin
        ("conv.fprop n=4 c=8 h=64 w=64 k=8 r=3 s=3 pad=1 dtype=f32", {"c": 4}, ("w",)),  # filters with gaps
        ("conv.fprop n=4 c=8 h=64 w=64 k=8 r=3 s=3 pad=1 dtype=f32", {"k": 4}, ()),
    ],
)
def test_room_for_copies_of_what_is_in_place(text: str, sizes: dict[str, int], wanted: tuple[str, ...]) -> None:
    op = parse(text)
    tiles = {**op.dims, **sizes}
    room = {o.name: -(-int(o.block_bytes(tiles)) // 64) * 64 for o in op.operands}
    assert int(beside_bytes(op, tiles, frozenset("xwy"))) == sum(room[name] for name in wanted)
    assert int(beside_bytes(op, tiles, frozenset())) == 0
    many = {d: np.array([n, n]) for d, n in tiles.items()}
    assert beside_bytes(op, many, frozenset("xwy")).tolist() == [sum(room[name] for name in wanted)] * 2


def failing(*_: Any) -> None:
    raise UnsupportedError("cuDNN: CUDNN_STATUS_NOT_SUPPORTED")


@pytest.mark.parametrize("how", ["conv", "run"])
@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_our_own_kernels_where_cudnn_fails(kind: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report counts such tiles, and one warning tells of them."""
    op = parse(f"conv.{kind} n=2 c=4 h=9 w=9 k=4 r=3 s=3 pad=1 dtype=f32")
    backend, arrays = emulated(3, cudnn=True), integers(random.Random(5), op)
    plan = plan_of(op, backend, {"n": 1})
    wanted = execute(plan, arrays, emulated(3, cudnn=True), None)
    monkeypatch.setattr(StandInLibrary if how == "conv" else StandInConv, how, failing)
    with pytest.warns(RuntimeWarning, match="many times slower than cuDNN.*CUDNN_STATUS_NOT_SUPPORTED|no algorithm") as told:
        made = execute(plan, arrays, backend, None)
    assert len([w for w in told if "slower than cuDNN" in str(w.message)]) == 1
    assert all(np.array_equal(made[name], wanted[name]) for name in made)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        execute(plan, arrays, backend, None)  # it was told once


def test_the_report_tells_which_algorithms_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = np.ones((4, 32, 48, 48), np.float32), np.ones((32, 32, 3, 3), np.float32)
    backend = emulated(3, cudnn=True)
    with on(backend, "640 KiB"):
        ooc.conv(x, w, padding=1)
        report = ooc.last_report()
        assert report is not None and report.fallbacks == 0
        assert sum(report.algorithms.values()) == report.tiles > 3 and set(report.algorithms) <= {f"cudnn {i}" for i in range(8)}
        assert "cudnn" in str(report) and "refused" not in str(report)
        monkeypatch.setattr(StandInConv, "run", failing)
        with pytest.warns(RuntimeWarning, match="slower than cuDNN"):
            ooc.conv(x, w, padding=1)
        report = ooc.last_report()
        assert report is not None and report.fallbacks == report.tiles and report.algorithms == {"cuda": report.tiles}
        assert f"refused   {report.tiles} tiles by cuDNN" in str(report)


RESIDENT = (  # (op, sizes of tiles, kernel; "" for the first)
    ("conv.dgrad n=2 c=8 h=24 w=24 k=8 r=3 s=3 pad=1", {"h": 5}, ""),
    ("conv.dgrad n=1 c=8 h=24 w=24 k=8 r=3 s=3 pad=1 stride=2", {"h": 6}, ""),
    ("conv.wgrad n=2 c=8 h=24 w=24 k=8 r=3 s=3 pad=1", {"p": 7}, ""),
    ("conv.wgrad n=1 c=4 d=8 h=8 w=8 k=4 t=3 r=3 s=3 pad=1", {"o": 3}, ""),
    ("conv.dgrad n=1 c=4 d=8 h=8 w=8 k=4 t=3 r=3 s=3 pad=1", {"d": 3}, ""),
    ("conv.wgrad n=2 c=8 w=64 k=8 s=5 pad=2", {"q": 20}, ""),
    ("conv.dgrad n=2 c=8 h=24 w=24 k=8 r=3 s=3 pad=1 layout=channels_last", {"h": 5, "w": 9}, ""),
    ("conv.wgrad n=2 c=8 h=24 w=24 k=8 r=3 s=3 pad=1 dtype=f16", {"k": 4}, ""),
    ("conv.fprop n=16 c=32 h=24 w=24 k=32 r=3 s=3 pad=1", {"q": 7}, "cudnn_fft"),
    ("conv.fprop n=16 c=32 h=24 w=24 k=32 r=3 s=3 pad=1", {"q": 7, "p": 5}, "cudnn_winograd"),
    ("conv.wgrad n=2 c=8 h=24 w=24 k=8 r=3 s=3 pad=1", {"c": 5}, ""),
    ("conv.wgrad n=2 c=8 h=23 w=23 k=8 r=1 s=1 stride=2", {}, ""),
    ("conv.fprop n=1 c=8 h=24 w=24 k=8 r=3 s=3 pad=1", {"q": 7}, "cudnn_tf32"),
)


@pytest.mark.parametrize(("text", "sizes", "kernel"), RESIDENT)
def test_tiles_of_resident_tensors_are_cudnns(text: str, sizes: dict[str, int], kernel: str) -> None:
    """Gradients want dy packed, transforms and TF32 planes without gaps: copies make them so, for which the plan has room."""
    op = parse(text if "dtype" in text else f"{text} dtype=f32")
    backend = emulated(5, cudnn=True, tf32=kernel == "cudnn_tf32")
    plan = plan_of(op, backend, sizes, kernel)
    arrays = integers(random.Random(5), op)
    assert_runs(plan, arrays, backend, random.Random(6))
    ran = set(backend.cudnn.library.ran)
    if kernel:  # those that want planes could run
        codes = {"cudnn_fft": {5, 7}, "cudnn_winograd": {7}, "cudnn_tf32": {1}}
        assert ran <= codes[kernel], ran
    assert len(ran) >= 1


def laid(op: Op, arrays: Arrays) -> Arrays:
    """Arrays whose axes lie in memory as the op's layout says."""
    orders = {o.name: o.memory_order for o in op.inputs}
    return {n: np.ascontiguousarray(a.transpose(orders[n])).transpose(np.argsort(orders[n])) for n, a in arrays.items()}


@pytest.mark.parametrize("form", ["conv.fprop", "conv.dgrad", "conv.wgrad"])
def test_no_tile_of_any_plan_is_refused(form: str) -> None:
    """Whatever is cut, padded, resident or streamed: the plan has room for what cuDNN wants to be copied."""
    rng, tiles = random.Random(form), 0
    for _ in range(40):
        op = KINDS[form](rng, random_common(rng))
        backend = emulated(rng.getrandbits(32), cudnn=True, tf32=rng.random() < 0.5)
        plan = random_plan(rng, op, backend)
        if not plan.kernel.startswith("cudnn"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            execute(plan, laid(op, data(rng, op)), backend, rng)
        tiles += plan.tiles
    assert tiles > 100


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(
    ("text", "tile"),
    [  # which want more than SCRATCH
        ("conv.fprop n=1 c=24 h=600 w=600 k=1", {"p": 301}),
        ("conv.dgrad n=1 c=1 h=1500 w=1500 k=1", {}),  # channels are filled up
        ("conv.wgrad n=1 c=24 h=400 w=400 k=1", {}),  # parts of w are summed in f32
        ("conv.wgrad n=1 c=1 d=16 h=250 w=250 k=1 t=1", {}),
    ],
)
def test_the_same_algorithm_in_every_call(text: str, tile: dict[str, int], tf32: bool) -> None:
    """Tensor cores want as much as the tile and a little more: whatever is measured meanwhile, they have it."""
    op = parse(f"{text} r=3 s=3 pad=1 dtype={'f32' if tf32 else 'f16'}")
    backend, arrays = emulated(1, cudnn=True, tf32=tf32), integers(random.Random(1), op)
    for _ in range(2):
        plan = plan_of(op, backend, tile)
        backend.cudnn.library.ran.clear()
        execute(plan, arrays, backend, None)
        assert set(backend.cudnn.library.ran) == {1}


def test_repeatable_runs_take_deterministic_algorithms_alone() -> None:
    """Whatever was measured before: the same plan, the same algorithms."""
    for kind in ("fprop", "dgrad", "wgrad"):
        op = parse(f"conv.{kind} n=6 c=4 h=12 w=12 k=4 r=3 s=3 pad=1 dtype=f32")
        backend, arrays = emulated(2, cudnn=True, repeatable=True), integers(random.Random(2), op)
        plan, ran = plan_of(op, backend, {"n": 1}), []
        for _ in range(3):
            execute(plan, arrays, backend, None)
            ran.append(tuple(backend.cudnn.library.ran))
            backend.cudnn.library.ran.clear()
        assert ran[0] == ran[1] == ran[2] and set(ran[0]) == {1}
