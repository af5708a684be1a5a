"""Winograd's way to 3 x 3 taps: the sums of the plain loops, whatever the room, the layout, the edges and the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ooc
from ooc import native
from ooc.backends.cpu.backend import CpuBackend
from ooc.ops import ACTIVATIONS
from ooc.ops.descriptor import parse
from ooc.runtime.engine import execute
from tests.helpers.cpu_kernels import in_one_tile

pytestmark = pytest.mark.skipif(native.kernels is None, reason=native.reason or "")
ROOM = 8 << 20
MARK = 0xA5  # of memory that nobody may write to


class Problem:
    """A random one of integers, small enough that every sum of the way is exact, and its results by either way."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.name = ("fprop", "dgrad", "wgrad")[seed % 3]
        self.groups = int(rng.choice((1, 1, 2)))
        c, k = (self.groups * int(rng.integers(9, 70)) for _ in range(2))
        taps = (int(rng.integers(1, 4)), 3, 3)
        self.dilation = (int(rng.integers(1, 3)), 1, 1)
        extent = (int(rng.integers(1, 5)), int(rng.integers(1, 20)), int(rng.integers(3, 40)))
        self.pad = (int(rng.integers(0, taps[0])), *(int(v) for v in rng.integers(-1, 4, 2)))
        after = (int(rng.integers(0, taps[0])), *(int(v) for v in rng.integers(0, 4, 2)))
        spatial = zip(extent, self.pad, after, taps, self.dilation, strict=True)
        made = [max(1, e + before + behind - (t - 1) * d) for e, before, behind, t, d in spatial]
        n = int(rng.integers(1, 4))
        self.x = self.integers((n, c, *extent))
        self.w = self.integers((k, c // self.groups, *taps))
        self.y = self.integers((n, k, *made))
        channels, plain = k if self.name == "fprop" else c, self.name == "wgrad"
        self.bias = self.integers((channels,)) if rng.integers(2) and not plain else None
        self.act = ACTIVATIONS.index("identity" if plain else rng.choice(("identity", "identity", "relu", "leaky_relu")))
        self.add = bool(rng.integers(2))

    def integers(self, shape: tuple[int, ...]) -> Any:
        found = self.rng.integers(-4, 5, shape).astype(np.float32)
        if len(shape) == 1 or self.rng.integers(2):
            return found
        return np.ascontiguousarray(np.moveaxis(found, 1, -1)).transpose(0, 4, 1, 2, 3)  # channels last

    def operands(self) -> list[Any]:
        """x, w and y, of which the result is a copy."""
        found = [self.x, self.w, self.y]
        found[self.result] = found[self.result].copy(order="K")
        return found

    @property
    def result(self) -> int:
        """The place of the result among the operands."""
        return {"fprop": 2, "dgrad": 0, "wgrad": 1}[self.name]

    def arguments(self, operands: list[Any], room: Any) -> list[Any]:
        lifted = [v for a in operands for v in (native.address(a), a.shape, tuple(s // a.itemsize for s in a.strides))]
        bias = native.address(self.bias) if self.bias is not None else 0
        where = (native.address(room), room.nbytes) if room is not None else (0, 0)
        return [
            self.name, native.DTYPE_CODES["f32"], *lifted, (1, 1, 1), self.dilation, self.pad, self.groups, bias, self.act, 0.25,
            self.add, *where,
        ]  # fmt: skip

    def plain(self) -> Any:
        """By the loops that need no workspace."""
        assert native.kernels is not None
        operands = self.operands()
        native.kernels.direct_conv(*self.arguments(operands, None), False, 2)
        return operands[self.result]

    def turned(self, nbytes: int = ROOM, threads: int = 2) -> Any | None:
        """By Winograd's way; None where that refused, which must have changed nothing."""
        assert native.kernels is not None
        operands, memory = self.operands(), np.full(nbytes + 4096, MARK, np.uint8)
        begin = -native.address(memory) % 64
        served = native.kernels.winograd_conv(*self.arguments(operands, memory[begin : begin + nbytes]), threads)
        assert (memory[begin + nbytes :] == MARK).all() and (memory[:begin] == MARK).all()
        if served:
            return operands[self.result]
        for a, b in zip(operands, (self.x, self.w, self.y), strict=True):
            np.testing.assert_array_equal(a, b)
        return None


@pytest.mark.parametrize("some", range(4))
def test_sums_of_integers_are_those_of_the_plain_loops(some: int) -> None:
    served = 0
    for seed in range(40 * some, 40 * some + 40):
        problem = Problem(seed)
        nbytes, threads = int(problem.rng.choice((300 << 10, 1 << 20, ROOM))), int(problem.rng.integers(1, 4))
        found = problem.turned(nbytes, threads)
        if found is not None:
            np.testing.assert_array_equal(found, problem.plain(), err_msg=str(seed))
            served += 1
    assert served >= 10  # of 40


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -0.0])
def test_numbers_that_spoil_a_square_reach_what_they_meet_alone(value: float) -> None:
    """0 * inf, inf - inf and overflow of products that the sum has not: as the plain loops have them, to the bit."""
    served = spoilt = 0
    for seed in range(24):
        problem = Problem(1000 + seed)
        for array in (problem.x, problem.w, problem.y)[seed // 3 % 3 :][:1]:
            array[tuple(int(problem.rng.integers(e)) for e in array.shape)] = value
        found = problem.turned()
        if found is not None:
            wanted = problem.plain()
            near = np.isfinite(wanted) & (np.abs(wanted) < 1e6)
            np.testing.assert_array_equal(np.where(near, found, 0), np.where(near, wanted, 0), err_msg=str(seed))
            np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=str(seed))
            served, spoilt = served + 1, spoilt + int(not near.all())
    assert served >= 8 and (spoilt or value == 0)


def test_products_that_overflow_where_the_sum_does_not() -> None:
    op = parse("conv.fprop n=1 c=32 h=24 w=24 k=32 r=3 s=3 pad=1 dtype=f32")
    arrays = {"x": np.full((1, 32, 24, 24), 2e38, np.float32), "w": np.zeros((32, 32, 3, 3), np.float32)}
    arrays["w"][:, 0, 1, 1] = 1
    assert (in_one_tile(op, "winograd", arrays) == np.float32(2e38)).all()


def test_neither_threads_nor_room_change_a_bit() -> None:
    compared = 0
    for seed in range(2000, 2030):
        problem = Problem(seed)
        for name in "xwy":
            setattr(problem, name, problem.rng.standard_normal(getattr(problem, name).shape).astype(np.float32))
        found = [problem.turned(nbytes, t) for nbytes, t in ((ROOM, 1), (ROOM, 2), (1 << 20, 2), (600 << 10, 1), (ROOM, 7))]
        results = [f for f in found if f is not None]
        compared += len(results) - 1
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0], err_msg=str(seed))
    assert compared >= 20


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize(
    "line",
    ["fprop n=1 c=64 h=32 w=32 k=32 r=3 s=3 pad=1", "wgrad n=1 c=32 h=25 w=25 k=32 r=3 s=3 pad=1"],
    ids=lambda line: line.split()[0],
)
def test_integers_are_exact_while_magnitudes_sum_up_to_less_than_two_to_the_18(line: str, seed: int | None) -> None:
    """docs/functions.md says so; `None`: all of one sign."""
    op = parse(f"conv.{line} dtype=f32")
    rng = np.random.default_rng(seed)
    signs = ((1 if seed is None else rng.choice((-1, 1), o.shape)) * np.full(o.shape, 1.0, np.float32) for o in op.inputs)
    arrays = {o.name: (size * s).astype(np.float32) for o, s, size in zip(op.inputs, signs, (15, 27), strict=True)}
    assert max(9 * 64, 25 * 25) * 15 * 27 < 2**18
    np.testing.assert_array_equal(in_one_tile(op, "winograd", arrays), in_one_tile(op, "plain", arrays))


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("sizes", ["n=2 c=64 h=28 w=28 k=64", "n=1 c=512 h=14 w=14 k=256", "n=1 c=32 d=6 h=20 w=20 k=32 t=3"])
def test_error_against_double_precision(kind: str, sizes: str) -> None:
    """Under a hundred thousandth of the largest result, and within a few times the direct sum's."""
    single, double = (parse(f"conv.{kind} {sizes} r=3 s=3 pad=1 dtype={t}") for t in ("f32", "f64"))
    rng = np.random.default_rng(5)
    arrays = {o.name: rng.standard_normal(o.shape).astype(np.float32) for o in single.operands}
    exact = in_one_tile(double, "plain", {name: a.astype(np.float64) for name, a in arrays.items()})
    found = (in_one_tile(single, family, arrays) for family in ("winograd", "native"))
    error, usual = (np.abs(made - exact).max() / np.abs(exact).max() for made in found)
    assert error < 3e-6 and error < 8 * usual


@pytest.mark.parametrize("budget", ["2 KiB", "16 KiB", "256 KiB", "3 MiB", None])
@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_exact_at_any_budget(kind: str, budget: str | None) -> None:
    """Memory measured within what the plan says, and that within the budget; without a limit by this way."""
    op = parse(f"conv.{kind} n=3 c=48 h=40 w=44 k=40 r=3 s=3 pad=1 dtype=f32")
    rng = np.random.default_rng(7)
    arrays = {o.name: rng.integers(-3, 4, o.shape).astype(np.float32) for o in op.inputs}
    output, where = np.full(op.outputs[0].shape, np.nan, np.float32), ooc.device("cpu", budget=budget)
    with where:
        execute(op, arrays, {op.outputs[0].name: output})
    np.testing.assert_array_equal(output, in_one_tile(op, "plain", arrays))
    report = ooc.last_report()
    assert report is not None and report.peak_bytes <= report.plans[0].peak_bytes
    assert budget is not None or report.plans[0].kernel == "winograd"
    assert where.device_bytes is None or report.plans[0].peak_bytes <= where.device_bytes


def test_what_it_serves() -> None:
    why_not = CpuBackend.families["winograd"].why_not
    assert why_not(parse("conv.fprop n=1 c=16 h=9 w=9 k=16 r=3 s=3 pad=1 dtype=f32")) is None
    assert why_not(parse("conv.wgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 dtype=f32")) is None
    assert why_not(parse("conv.dgrad n=1 c=32 d=9 h=9 w=9 k=32 t=2 r=3 s=3 groups=2 dtype=bf16")) is None
    for line, reason in (
        ("pool.max n=1 k=1 h=4 w=4", "not pool.max"),
        ("conv.fprop n=1 c=16 h=9 w=9 k=16 r=5 s=5", "3 x 3"),
        ("conv.fprop n=1 c=16 h=9 w=9 k=16 r=3 s=3 stride=2", "without stride"),
        ("conv.fprop n=1 c=16 h=9 w=9 k=16 r=3 s=3 dilation=2", "or dilation"),
        ("conv.fprop n=1 c=16 w=9 k=16 s=3", "3 x 3"),
        ("conv.fprop n=1 c=8 h=9 w=9 k=16 r=3 s=3", "16 channels"),
        ("conv.fprop n=1 c=16 h=9 w=9 k=16 r=3 s=3 dtype=f64", "not f64"),
    ):
        assert reason in (why_not(parse(line)) or ""), line
