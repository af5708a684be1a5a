"""Pictures, volumes and masks as they come from cameras and scanners: integers, read and written as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import formulas as f
import numpy as np
import pytest
from emulated_device import on, read, results_beside_foreign_arrays, theirs  # noqa: F401
from emulated_driver import Foreign, emulated
from function_cases import CASES, agrees, expected

import ooc
from ooc import Activation, Conv, DtypeError, Pool, ShapeError

TYPES = (np.uint8, np.uint16, np.int16, np.int32, np.bool_)
BUDGETS = ("2 KiB", "16 KiB", "256 KiB", None)
SIZES = {"2 KiB": 2 << 10, "16 KiB": 16 << 10, "256 KiB": 256 << 10}
X = (2, 3, 20, 23)


def pictures(dtype: Any, shape: tuple[int, ...] = X, seed: int = 0) -> Any:
    """Numbers of the whole range as far as sums of them are exact in float32."""
    lo, hi = (0, 1) if dtype is np.bool_ else (max(np.iinfo(dtype).min, -4000), min(np.iinfo(dtype).max, 4000))
    return np.random.default_rng(seed).integers(lo, hi + 1, shape).astype(dtype)


def small(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(9).integers(-2, 3, shape).astype(dtype)


def as_file(folder: Path, array: Any, name: str = "x") -> Any:
    made = np.memmap(folder / name, array.dtype, "w+", shape=array.shape)
    made[...] = array
    made.flush()
    return made


def last(array: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def first(array: Any) -> Any:
    return np.moveaxis(array, -1, 1)


def under(budget: str | None, call: Callable[[], Any]) -> Any:
    """A call under a budget, to which it keeps."""
    with ooc.device("cpu", budget):
        made = call()
    report = ooc.last_report()
    assert report is not None and (budget is None or report.peak_bytes <= SIZES[budget])
    return made


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("dtype", TYPES)
def test_convolutions_are_exact(dtype: Any, budget: str | None, tmp_path: Path) -> None:
    """From memory and from a file, channels first and last, with numbers and with values per channel; padding is 0 after
    the offset."""
    x, w = pictures(dtype), small((4, 3, 3, 3))
    file, file_last = as_file(tmp_path, x), as_file(tmp_path, last(x), "last")
    plain = f.conv(x.astype(np.float64), w.astype(np.float64), padding=1)
    each = {"scale": [1.0, 2, -0.5], "offset": np.array([3, 0, -1], np.float32)}
    moved = f.conv(x * f.channels(np.array([1, 2, -0.5]), 4) + f.channels(np.array([3.0, 0, -1]), 4), w.astype(float), padding=1)
    once = f.conv(x * 0.5 - 7.0, w.astype(np.float64), padding=1)
    for given in (x, file):
        for numbers, wanted in (({}, plain), (each, moved), ({"scale": 0.5, "offset": -7}, once)):
            got = under(budget, lambda given=given, numbers=numbers: ooc.conv(given, w, padding=1, **numbers))
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, wanted)
    got = under(budget, lambda: ooc.conv(file_last, w, padding=1, layout="channels_last", **each))
    np.testing.assert_array_equal(first(got), moved)
    np.testing.assert_array_equal(np.asarray(file), x)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("dtype", (np.uint8, np.int32))
def test_other_functions_are_exact(dtype: Any, budget: str | None) -> None:
    x = pictures(dtype)
    wide, w = x * 2.0 + 1, small((4, 3, 3, 3))
    how = {"scale": 2, "offset": 1}
    dy, filters = small((2, 4, 20, 23)), w.astype(np.float64)
    y = f.conv(wide, filters, padding=1)
    calls = {
        "max_pool": (lambda: ooc.max_pool(x, 3, 2, 1, **how), f.pool("max", wide, 3, stride=2, padding=1)),
        "avg_pool": (lambda: ooc.avg_pool(x, 2, **how), f.pool("average", wide, 2)),
        "activation": (lambda: ooc.activation(x, "relu", scale=2, offset=[1, 1, 1]), np.maximum(wide, 0)),
        "add": (lambda: ooc.add(x, x, scale=(2, -1)), x * 1.0),
        "scale": (lambda: ooc.scale(x, 0.5), x * 0.5),
        "concat": (lambda: ooc.concat([x, x], 2), np.concatenate([x, x], 2).astype(float)),
        "upsample": (lambda: ooc.upsample(x, (40, 46), **how), wide.repeat(2, 2).repeat(2, 3)),
        "chain": (
            lambda: ooc.chain(x, Conv(w, padding=1), Activation("relu"), Pool("max", 2), **how),
            f.pool("max", np.maximum(y, 0), 2),
        ),
        "residual": (lambda: ooc.conv(x, w, residual=x[:, :1].repeat(4, 1), padding=1, **how), y + x[:, :1]),
        "alpha, beta": (lambda: ooc.conv(x, w, padding=1, alpha=2, beta=3, out=dy.copy(), **how), 2 * y + 3 * dy),
        "bias_backward": (lambda: ooc.bias_backward(x), x.sum((0, 2, 3), dtype=float)),
        "linear": (
            lambda: ooc.linear(x, small((5, 23)), small((5,)).astype(np.int16), **how),
            wide @ small((5, 23)).T + small((5,)),
        ),
        "conv_transpose": (
            lambda: ooc.conv_transpose(x, small((3, 2, 3, 3)), stride=2, **how),
            f.conv_transpose(wide, small((3, 2, 3, 3)).astype(float), stride=2),
        ),
    }  # fmt: skip
    for name, (call, wanted) in calls.items():
        got = under(budget, call)
        assert got.dtype == np.float32, name
        np.testing.assert_array_equal(got, wanted.astype(np.float32), name)
    gradients = under(budget, lambda: ooc.conv_backward(x, w, dy, padding=1, **how))
    same = ooc.conv_backward(wide, filters, dy.astype(np.float64), padding=1)
    for own, other in zip(gradients, same, strict=True):
        np.testing.assert_array_equal(own, other.astype(np.float32))


@pytest.mark.parametrize("budget", BUDGETS)
def test_what_reads_twice_is_as_near_as_of_floats(budget: str | None) -> None:
    """Softmax, normalisation and the backward pass of a chain read x in several stages, and may be cut between them."""
    x, wide = pictures(np.uint8), pictures(np.uint8) / 64 - 1.0
    how = {"scale": 1 / 64, "offset": -1}
    near = {"rtol": 0, "atol": 2e-5}
    np.testing.assert_allclose(under(budget, lambda: ooc.softmax(x, **how)), f.softmax(wide), **near)
    np.testing.assert_allclose(
        under(budget, lambda: ooc.lrn(x, 3, before=1, **how)), f.lrn(wide, 3, 1e-4, 0.75, 2.0, before=1), **near
    )
    made = under(budget, lambda: ooc.batch_norm(x, training=True))
    floats = ooc.batch_norm(x.astype(np.float64), training=True)
    for own, other in zip(made, floats, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
    labels = np.zeros((2, 20, 23), np.uint8)
    assert abs(under(budget, lambda: ooc.cross_entropy(x, labels)) - ooc.cross_entropy(x.astype(float), labels)) < 1e-3


@pytest.mark.parametrize("budget", BUDGETS)
def test_gradients_of_a_chain(budget: str | None) -> None:
    x, layers = pictures(np.uint8, (1, 2, 12, 14)), (Conv(small((3, 2, 3, 3)), padding=1, activation="relu"), Pool("max", 2))
    dy = small((1, 3, 6, 7))
    dx, own = under(budget, lambda: ooc.chain_backward(x, dy, *layers, scale=[2, 1], offset=-3))
    wide = (x * np.array([2, 1.0]).reshape(1, 2, 1, 1) - 3).astype(np.float32)
    wanted, other = ooc.chain_backward(wide, dy, *layers)
    np.testing.assert_array_equal(dx, wanted)
    np.testing.assert_array_equal(own[0].dw, other[0].dw)
    np.testing.assert_array_equal(own[0].db, other[0].db)


@pytest.mark.parametrize("budget", ("16 KiB", "256 KiB", None))
@pytest.mark.parametrize("dtype", (np.float64, np.float16))
def test_the_floating_dtype_beside_integers_wins(dtype: Any, budget: str | None) -> None:
    x, w = pictures(np.uint8) // 16, small((4, 3, 3, 3), dtype)
    got = under(budget, lambda: ooc.conv(x, w, padding=1))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, f.conv(x.astype(np.float64), w.astype(np.float64), padding=1))
    z = under(budget, lambda: ooc.add(x, x.astype(dtype)))
    assert z.dtype == dtype and ooc.add(x, x.astype(np.int32)).dtype == np.float32
    np.testing.assert_array_equal(z, 2.0 * x)
    backward = ooc.conv_backward(x, w, small((2, 4, 20, 23), dtype), padding=1)
    assert backward.dw is not None and backward.dw.dtype == dtype
    filters = ooc.conv(x.astype(dtype), w.astype(np.int16), padding=1)  # filters of integers beside a floating x
    np.testing.assert_array_equal(filters, got)


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith(("activation_backward", "batch_norm_backward"))])
def test_every_function_takes_integers(name: str, tmp_path: Path) -> None:
    """In place of any of its arrays, from memory and from a file; two of the cases make floating arrays of theirs first."""
    case, rng = CASES[name], np.random.default_rng(len(name))
    types = rng.permutation(np.array([np.uint8, np.int16, np.int32, np.uint16, np.bool_]))
    arrays = {n: rng.integers(n in case.positive, 3, shape).astype(t) for (n, shape), t in zip(case.shapes.items(), types)}
    files = {n: as_file(tmp_path, a, n) if rng.random() < 0.5 else a for n, a in arrays.items()}
    wanted = expected(case, arrays)
    agrees(under("16 KiB", lambda: case.call(**files)), wanted, np.float32)
    one = next(iter(files))
    agrees(case.call(**{n: a if n == one else a.astype(np.float64) for n, a in files.items()}), wanted, np.float32)


@pytest.mark.parametrize("budget", ("16 KiB", None))
def test_arrays_on_a_device(budget: str | None) -> None:
    """Integers of the host and of the device, also where values per channel are."""
    backend, x, w = emulated(3, cudnn=True), pictures(np.uint8), small((4, 3, 3, 3))
    b, scale = np.array([1, 2, 3, 4], np.int16), np.array([0.5, 1, 2], np.float32)
    wanted = f.conv(x * f.channels(scale, 4) - 1.0, w.astype(np.float64), b, padding=1)
    there = theirs(backend, x)
    with on(backend, budget):
        for given, numbers in ((x, scale), (there, theirs(backend, scale))):
            made = ooc.conv(given, w, b if given is x else theirs(backend, b), padding=1, scale=numbers, offset=-1)
            assert isinstance(made, Foreign) == (given is there)
            np.testing.assert_array_equal(read(made), wanted)
        out = theirs(backend, np.full(wanted.shape, 9, np.uint8))
        assert ooc.conv(there, w, b, padding=1, scale=scale, offset=-1, beta=0.5, out=out) is out
        np.testing.assert_array_equal(read(out), np.clip(np.rint(wanted + 4.5), 0, 255))
        ooc.scale(x, 1.0)
        assert ooc.last_report().lane_bytes["h2d"] == x.nbytes
        db = theirs(backend, np.zeros(3, np.int32))
        ooc.bias_backward(there, out=db)
        np.testing.assert_array_equal(read(db), x.sum((0, 2, 3)))


def test_the_same_bits_at_any_budget() -> None:
    x, w = pictures(np.uint16), np.random.default_rng(3).standard_normal((4, 3, 3, 3)).astype(np.float32)
    made = [under(b, lambda: ooc.conv(x, w, padding=1, scale=0.1, offset=-0.3, deterministic=True)) for b in BUDGETS[1:]]
    for other in made[1:]:
        np.testing.assert_array_equal(made[0], other)


@pytest.mark.parametrize("budget", ("4 KiB", "16 KiB", "256 KiB"))
def test_deep_channels_are_split_behind_the_conversion(budget: str, tmp_path: Path) -> None:
    """The sum over channels may be split as that of floats: no floating copy of x is made, nothing is cut."""
    x, w = as_file(tmp_path, pictures(np.uint8, (1, 256, 20, 20)) // 64), small((8, 256, 3, 3))
    y, out = f.pool("max", f.conv(x.astype(float), w.astype(float), padding=1), 2), np.ones((1, 8, 10, 10), np.int16)
    with ooc.device("cpu", budget):
        ooc.conv(x, w, padding=1, pool=2, alpha=0.5, beta=2, out=out)
    report = ooc.last_report()
    assert report is not None and len(report.parts) == 1 and "write" not in {n for n, b in report.lane_bytes.items() if b}
    np.testing.assert_array_equal(out, np.rint(0.5 * y + 2))


def test_large_integers_lose_nothing_in_float64() -> None:
    x = np.array([[[2**31 - 1, -(2**31), 123456789]]], np.int32)
    np.testing.assert_array_equal(ooc.conv(x, np.ones((1, 1, 1))), x.astype(np.float64))
    np.testing.assert_array_equal(ooc.scale(x, 1.0), x.astype(np.float32))
    out = np.empty(x.shape, np.int32)
    ooc.conv(x, np.ones((1, 1, 1)), out=out)
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("dtype", TYPES)
def test_outputs_round_and_saturate(dtype: Any, budget: str | None, tmp_path: Path) -> None:
    lo, hi = (0, 1) if dtype is np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -1, 300, 1e30, -1e30, np.inf, -np.inf, np.nan, 3.49, 7], np.float32)
    x = np.tile(values, (2, 3, 40, 1))
    wanted = np.clip(np.rint(np.nan_to_num(x.astype(np.float64), nan=0)), lo, hi).astype(dtype)
    if dtype is np.uint8:
        assert wanted[0, 0, 0, :8].tolist() == [0, 2, 2, 0, 0, 0, 255 if hi < 300 else 300, 255]
    out = np.ones(x.shape, dtype)
    assert under(budget, lambda: ooc.scale(x, 1.0, out=out)) is out
    np.testing.assert_array_equal(out, wanted)
    file = as_file(tmp_path, np.ones((2, 40, 14, 3), dtype))
    under(budget, lambda: ooc.max_pool(last(x), 1, layout="channels_last", out=file))
    np.testing.assert_array_equal(first(np.asarray(file)), wanted)


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_picture_becomes_a_picture(budget: str | None, tmp_path: Path) -> None:
    """A blurred picture beside its own: blended in floating point with the old integers, rounded once."""
    x, w = as_file(tmp_path, pictures(np.uint8, (2, 3, 40, 41))), small((3, 3, 3, 3))
    before = pictures(np.uint8, (2, 3, 40, 41), seed=1)
    y = f.conv(x / 8 - 1.0, w.astype(np.float64), padding=1)
    out = as_file(tmp_path, before, "out")
    under(budget, lambda: ooc.conv(x, w, padding=1, scale=1 / 8, offset=-1, alpha=0.5, beta=0.25, out=out))
    np.testing.assert_array_equal(out, np.clip(np.rint(0.5 * y + 0.25 * before), 0, 255))
    under(budget, lambda: ooc.conv(x, w, padding=1, scale=1 / 8, offset=-1, out=out))
    np.testing.assert_array_equal(out, np.clip(np.rint(y), 0, 255))
    under(budget, lambda: ooc.scale(out, 0.5, out=out))  # in place
    np.testing.assert_array_equal(out, np.rint(np.clip(np.rint(y), 0, 255) / 2))


def test_several_results_of_integers() -> None:
    x, w = pictures(np.uint8), small((4, 3, 3, 3)) / np.float32(64)
    y = f.conv(x.astype(float), w.astype(float), padding=1)
    outs = np.empty((2, 4, 20, 23), np.int16), np.empty((2, 4, 10, 11), np.uint8)
    ooc.conv(x, w, padding=1, pool=2, with_unpooled=True, out=outs)
    np.testing.assert_array_equal(outs[0], np.rint(y))
    np.testing.assert_array_equal(outs[1], np.clip(np.rint(f.pool("max", y, 2)), 0, 255))
    db = np.empty(3, np.int32)
    ooc.bias_backward(x / np.float32(2), out=db)
    np.testing.assert_array_equal(db, np.rint(x.sum((0, 2, 3)) / 2))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_integers_are_what_moves(dtype: Any, tmp_path: Path) -> None:
    x = as_file(tmp_path, pictures(dtype, (4, 8, 60, 64)))
    out = as_file(tmp_path, np.zeros(x.shape, dtype), "out")
    with ooc.device("cpu", "256 KiB"):
        ooc.activation(x, "relu", scale=1, offset=0, out=out)
        report = ooc.last_report()
    assert report is not None and report.peak_bytes <= 256 << 10 and report.tiles > 1
    assert report.lane_bytes["read"] == x.nbytes and report.lane_bytes["write"] == out.nbytes
    np.testing.assert_array_equal(out, np.maximum(np.asarray(x).astype(np.int64), 0))


def test_descriptors_are_read_back() -> None:
    text = "x>x@0 convert.in n=2 k=3 h=20 w=23 store=u8 scale=0.5 dtype=f32 | x@0,w>y conv.fprop n=2 c=3 h=20 w=23 k=4 r=3 s=3 "
    text += "pad=1 dtype=f32 | y>z! convert.out n=2 k=4 h=20 w=23 store=u16 dtype=f32"
    plan = ooc.plan(text, "16 KiB")
    assert str(plan.op) == text and ooc.plan(str(plan.op), "16 KiB").op == plan.op
    for wrong in ("convert.in n=2 k=3 h=20 w=23", "convert.out n=2 k=3 h=20 w=23 store=f32"):
        with pytest.raises(ShapeError, match="store= expected"):
            ooc.plan(wrong)


def test_what_does_not_fit_is_refused() -> None:
    x, w = pictures(np.uint8), small((4, 3, 3, 3))
    for given in (x.astype(np.float32), x.astype(np.float64)):
        with pytest.raises(ShapeError, match=r"scale, offset: .*float(32|64).*ooc\.scale"):
            ooc.conv(given, w.astype(given.dtype), scale=2)
        with pytest.raises(ShapeError, match=r"scale, offset: "):
            ooc.conv_backward(given, w.astype(given.dtype), small((2, 4, 18, 21), given.dtype), want="dx", offset=[1, 2, 3])
    for scale in ([1, 2], np.ones((3, 1)), "two", 1j, object()):
        with pytest.raises(ShapeError, match=r"^scale: expected a number or"):
            ooc.conv(x, w, scale=scale)
    for function in (ooc.dropout, lambda a, **o: ooc.add(a, a, **o)):
        with pytest.raises(TypeError):
            function(x, offset=1)
    for dtype in (np.int8, np.int64, np.uint32, np.uint64, np.complex64, object, "U3", "M8[s]", ">u2"):
        other = np.zeros(X, dtype)
        calls = (
            lambda a=other: ooc.conv(a, w),
            lambda a=other: ooc.max_pool(x, 2, out=a[:, :, ::2, 1::2]),
            lambda a=other: ooc.add(x, a),
        )
        for call in calls:
            with pytest.raises(DtypeError) as caught:
                call()
            message = str(caught.value)
            assert (
                "\n" not in message and len(message) < 300 and "uint16" in message and message.split(":")[0] in ("x", "z", "out")
            )
    running = np.zeros(3, np.int32)
    with pytest.raises(DtypeError, match=r"^mean: "):
        ooc.batch_norm(x, mean=running, var=np.ones(3), training=True)


def test_integers_that_half_types_have_not_are_not_blended_in_them() -> None:
    x, out = np.zeros((1, 1, 2, 2), "f2"), np.full((1, 1, 2, 2), 40001, "u2")
    with pytest.raises(ooc.DtypeError, match="out: beta adds its integers in f16"):
        ooc.activation(x, "relu", out=out, beta=0.5)
    assert (ooc.activation(x.astype("f"), "relu", out=out, beta=0.5) == 20000).all()
