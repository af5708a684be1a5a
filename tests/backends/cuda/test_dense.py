"""Dense forms of our CUDA kernels: where they are taken, and that they give what the kernels by coordinates give."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from cases import data
from emulated import HostLauncher
from running import poisoned

from ooc.backends.cuda import kernels
from ooc.backends.cuda.arguments import ARGS, Arguments
from ooc.backends.cuda.dense import ACTIVATED, dense_form, dense_sums, one_by_one
from ooc.backends.cuda.divisor import divisor
from ooc.backends.cuda.kernels import GROUPED, own_kernel
from ooc.backends.cuda.recipes import RECIPES
from ooc.backends.gpu_workspace import shared_bytes
from ooc.ir.op import DTYPES, Block, Op
from ooc.ir.region import Span
from ooc.ops.descriptor import parse


class Told:
    """A launcher that remembers what it started."""

    def __init__(self, grid: int | None = None) -> None:
        self.launcher, self.names, self.indices = HostLauncher(grid), list[str](), set[int]()

    def launch(self, name: str, dtype: str, threads: int, args: Any, index: int) -> None:
        self.names.append(name)
        self.indices.add(index)
        self.launcher.launch(name, dtype, threads, args, index)


def whole(op: Op) -> dict[str, Span]:
    return {d: Span(0, e) for d, e in op.dims.items()}


def run(op: Op, arrays: dict[str, Any], launcher: Told, parts: int = 1) -> dict[str, Any]:
    """The results of an op in one tile."""
    made = {o.name: poisoned(o) for o in op.outputs}
    scratch = np.full(int(shared_bytes(op, op.dims, parts)) or 1, 0xFF, np.uint8)
    blocks = {o.name: Block((arrays | made)[o.name], o.region(whole(op))) for o in op.operands}
    own_kernel(op, launcher, parts, scratch)(whole(op), blocks, True, True)
    return made


FLAT = (
    "pointwise n=2 k=3 h=4 w=8 bias=1 act={}", "pointwise n=2 k=3 h=4 w=8 add=nkhw alpha=0.5 beta=2 act={}",
    "pointwise n=5 k=3 h=4 w=8 add=nkhw bias=1 act={}", "pointwise n=3 k=2 h=8 w=8 act={}",
    "multiply n=2 k=3 h=4 w=8 bias=1 act={}", "multiply n=11 k=3 h=4 w=8 bias=1 act={}",
    "activation_backward n=2 k=3 h=4 w=8 act={}",
    "bn.apply n=2 k=3 h=4 w=8 act={}", "bn.apply n=9 k=3 h=4 w=8 act={}", "bn.apply n=1 k=5 h=32 w=24 act={}",
)  # fmt: skip
OTHERS = (
    "bn.pull n=2 k=3 h=4 w=8", "bn.pull n=7 k=3 h=4 w=8", "bn.pull n=1 k=1 h=32 w=40",
    *(f"convert.in n={n} k=3 h=4 w=8 store={store} {how}"
      for store in ("u8", "u16", "i16", "i32", "b8") for n, how in ((2, ""), (6, "scale=0.5"), (1, "channelwise=1"))),
    *(f"convert.out n=3 k=3 h=4 w=16 store={store}" for store in ("u8", "u16", "i16", "i32")),
)  # fmt: skip


def same(op: Op, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    arrays, made = data(random.Random(str(op)), op), []
    for names in (kernels.ELEMENTWISE, {}):
        monkeypatch.setattr(kernels, "ELEMENTWISE", names)
        told = Told()
        made.append({key: value.tobytes() for key, value in run(op, arrays, told).items()})
        assert told.names == [name if names else RECIPES[type(op)].kernel]
        monkeypatch.undo()
    assert made[0] == made[1], str(op)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", FLAT)
def test_dense_forms_have_the_same_bits(text: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for act in ("identity", "relu", "clipped_relu", "elu", "leaky_relu", "sigmoid", "tanh"):
        op = parse(f"{text.format(act)} dtype={dtype}")
        kernel = RECIPES[type(op)].kernel
        assert kernel in ACTIVATED
        same(op, monkeypatch, f"{kernel}_dense_{act}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", OTHERS)
def test_so_have_those_without_activation(text: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = parse(f"{text} dtype={dtype}")
    same(op, monkeypatch, f"{RECIPES[type(op)].kernel}_dense")


@pytest.mark.parametrize("text", ["add=k", "add=1", "add=nk", "of=k", "n=1 h=1 w=1", "bias=1 h=3 w=3"])
def test_operands_that_are_repeated_go_by_coordinates(text: str) -> None:
    words = dict(word.split("=") for word in f"n=2 k=4 h=4 w=8 {text}".split())
    op = parse(f"pointwise {' '.join(f'{k}={v}' for k, v in words.items())} dtype=f32")
    told = Told()
    made = run(op, data(random.Random(3), op), told)
    assert told.names == ["pointwise" if text != "n=1 h=1 w=1" else "pointwise_dense_identity"]
    assert np.isfinite(made["y"]).all()


def test_what_is_not_dense_goes_by_coordinates() -> None:
    x = np.zeros((2, 3, 4, 8), np.float32)
    order = (0, 1, 2, 3)
    assert dense_form(order, (x, x), 4, True, 0) and dense_form(order, (x, x), 4, False, 0)
    wide = np.zeros((2, 3, 4, 9), np.float32)
    assert dense_form(order, (wide[..., :8], x), 4, False, 0) is None  # gaps
    assert dense_form(order, (x, x[:1]), 4, False, 0) is None
    assert dense_form(order, (x, x), 4, False, 8) is None  # an address
    assert dense_form(order, (np.zeros((1, 3, 3, 3), np.float32),), 4, True, 0) is None  # 9 to a channel
    last = np.zeros((2, 4, 8, 3), np.float32).transpose(0, 3, 1, 2)
    assert dense_form((0, 2, 3, 1), (last, last), 4, False, 0)
    assert dense_form((0, 2, 3, 1), (last, last), 4, True, 0) is None
    assert dense_sums(x, (3,), order, 0) and dense_sums(x, (2, 3), order, 0)
    assert dense_sums(x, (4,), order, 0) is None and dense_sums(wide[..., :8], (3,), order, 0) is None
    assert dense_sums(last, (3,), (0, 2, 3, 1), 0) is None and dense_sums(x, (3,), order, 4) is None


@pytest.mark.parametrize("text", ["bn.apply", "bn.pull", "bn.moments", "bn.sums"])
def test_statistics_of_each_position_go_by_coordinates(text: str) -> None:
    """Though one sample of what is normalised lies as they do."""
    for planes in ("n=1 k=3 h=4 w=8", "n=2 k=5 h=2 w=1"):
        op = parse(f"{text} {planes} per=activation dtype=f64")
        arrays, told = data(random.Random(5), op), Told()
        made = run(op, arrays, told, 2)
        assert not any("dense" in name for name in told.names)
        wanted = {o.name: np.zeros(o.shape) for o in op.outputs}
        blocks = {o.name: Block((arrays | wanted)[o.name], o.region(whole(op))) for o in op.operands}
        op.reference(whole(op), blocks, True, True)
        for name, values in wanted.items():
            np.testing.assert_allclose(made[name], values, rtol=1e-12, atol=1e-12)


def test_vectors_of_channels_with_gaps_go_by_coordinates() -> None:
    op = parse("pointwise n=2 k=4 h=4 w=8 bias=1 dtype=f32")
    arrays, told = data(random.Random(5), op), Told()
    gaps = np.zeros(8, np.float32)[::2]
    assert one_by_one(arrays["b"]) and not one_by_one(gaps) and one_by_one(gaps[:1])
    gaps[...] = arrays["b"]
    wanted = run(op, arrays, Told())["y"]
    np.testing.assert_array_equal(run(op, {**arrays, "b": gaps}, told)["y"], wanted)
    assert told.names == ["pointwise"]


@pytest.mark.parametrize("grid", [None, 5, 64])
@pytest.mark.parametrize("parts", [2, 7, GROUPED + 1, 4 * GROUPED + 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", ["reduce.bias {}", "reduce.positions {}", "bn.moments {}", "bn.sums {}"])
def test_dense_parts_of_sums(text: str, dtype: str, parts: int, grid: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding what the terms one after the other give, however many parts there are."""
    for planes in ("n=3 k=3 h=4 w=8", "n=1 k=2 h=40 w=8", "n=9 k=1 h=2 w=8"):
        op = parse(f"{text.format(planes)} dtype={dtype}")
        arrays = {name: a + (a.dtype.type(1000) if name == "x" else 0) for name, a in data(random.Random(str(op)), op).items()}
        kernel = RECIPES[type(op)].kernel
        plain, told, by_coordinates = run(op, arrays, Told()), Told(grid), Told(grid)
        dense = run(op, arrays, told, parts)
        groups = [f"{kernel}_groups"] * (parts > GROUPED)
        assert told.names == [f"{kernel}_dense_parts", *groups, kernel]
        monkeypatch.setattr(kernels, "SUMMING", {})
        other = run(op, arrays, by_coordinates, parts)
        monkeypatch.undo()
        assert by_coordinates.names == [f"{kernel}_parts", *groups, kernel]
        for o in op.outputs:
            close = 1e-12 if o.dtype == "f64" else 1e-6 if o.dtype == "f32" else 1e-2
            for found in (dense, other):
                have, wanted = (values[o.name].astype(np.float64) for values in (found, plain))
                scale = max(1.0, float(np.max(np.abs(wanted))))
                np.testing.assert_allclose(have, wanted, rtol=close, atol=close * scale, err_msg=str(op))


def test_moments_of_values_far_from_zero() -> None:
    """Squares are those of deviations, also where the mean is a million times as large, or the first value an outlier."""
    op = parse("bn.moments n=4 k=2 h=16 w=16 dtype=f32")
    x = np.random.default_rng(1).standard_normal((4, 2, 16, 16)).astype(np.float32)
    for far in (x, x + np.float32(1e6), np.where(np.arange(16) == 0, np.float32(1e6), x)):
        values = far.astype(np.float64)
        made = run(op, {"x": np.ascontiguousarray(far, np.float32)}, Told(), 128)
        np.testing.assert_allclose(made["mean"].ravel(), values.mean((0, 2, 3)), rtol=1e-13)
        np.testing.assert_allclose(made["var"].ravel(), values.var((0, 2, 3)), rtol=1e-11)


@pytest.mark.parametrize("of", [1, 2, 3, 5, 7, 8, 10, 641, 65535, 65536, 65537, 2**30 - 1, 2**30, 2**30 + 1, 2**31 - 1, 2**40])
def test_division_by_a_multiplication(of: int) -> None:
    by, shift = divisor(of)
    assert by < 2**32 and shift < 64
    numbers = np.random.default_rng(of).integers(0, 2**31, 10000).tolist()
    close = [n for m in (1, 2, 3, 1000, 2**31 // of) for n in (m * of - 1, m * of, m * of + 1)]
    for n in (0, 1, 2**31 - 1, *numbers, *close):
        if 0 <= n < 2**31:
            assert n * by >> shift == n // of


def test_coordinates_have_32_bits_where_that_is_enough() -> None:
    def index(shape: tuple[int, ...], lo: int, strides: tuple[int, ...] | None) -> int:
        args, region = Arguments(np.zeros((), ARGS).tobytes()), tuple(Span(lo, lo + 2) if e > 1 else Span(0, 1) for e in shape)
        array = None
        if strides is not None:
            array = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), tuple(s.extent for s in region), strides)
        args.fill(0, shape, region, array)
        return args.index

    assert index((2, 3, 4, 5), 0, (4, 4, 4, 4)) == 32
    assert index((2, 3, 4, 2**30), 9, (4, 4, 4, 4)) == 64  # coordinates
    assert index((2, 3, 4, 2**29), 9, (4, 4, 4, 4)) == 32
    assert index((2, 3, 4, 5), 0, (2**32, 4, 4, 4)) == 64  # a span
    assert index((2, 3, 4, 5), 0, None) == 32


def test_a_launch_of_far_coordinates_counts_in_64_bits() -> None:
    op = parse(f"pointwise n={2**40} k=2 h=3 w=4 act=relu dtype=f32")
    told, n = Told(), 2**39 + 7
    tile = {"n": Span(n, n + 2), "k": Span(0, 2), "p": Span(0, 3), "q": Span(0, 4)}
    tile = {d: tile.get(d, Span(0, op.dims[d])) for d in op.dims}
    region = op.outputs[0].region({d: Span(n, n + 2) if d == "n" else Span(0, e) for d, e in op.dims.items()})
    x = np.random.default_rng(1).standard_normal([s.extent for s in region]).astype(np.float32)[:, ::-1]
    y = np.zeros_like(x)
    own_kernel(op, told)(
        {d: Span(n, n + 2) if d == "n" else Span(0, e) for d, e in op.dims.items()},
        {"x": Block(x, region), "y": Block(y, region)}, True, True,
    )  # fmt: skip
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert told.indices == {64}
