"""oneDNN's convolutions in pieces: images, rows, threads; activations of ours on top."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ooc import native
from ooc.backends.cpu.backend import CpuBackend
from ooc.backends.cpu.onednn import onednn_reason, open_onednn
from ooc.ir.op import Block, Op, aligned
from ooc.ir.region import Span
from ooc.ops.descriptor import parse

pytestmark = pytest.mark.skipif(bool(onednn_reason()), reason=onednn_reason())


@pytest.fixture(params=[0.01, 1, 100])
def cut(request: pytest.FixtureRequest) -> Iterator[float]:
    """Pieces of so many microseconds or more."""
    assert native.kernels is not None
    native.kernels.share_from(request.param)
    yield request.param
    native.kernels.share_from(100)


def made(op: Op, family: str, threads: int, arrays: dict[str, Any], first: bool = True) -> Any:
    """The result of an op in one tile."""
    kernels = CpuBackend.families[family]
    assert kernels.why_not(op) is None
    nbytes = int(aligned(kernels.workspace(op, op.dims, threads)))
    memory = np.full(nbytes + 64, 0xFF, np.uint8)
    begin = -native.address(memory) % 64
    kernel = kernels.prepare(op, op.dims, memory[begin : begin + nbytes], threads)
    out = arrays[op.outputs[0].name].copy()
    blocks = {
        o.name: Block(out if o is op.outputs[0] else arrays[o.name], tuple(Span(0, e) for e in o.shape)) for o in op.operands
    }
    kernel({d: Span(0, e) for d, e in op.dims.items()}, blocks, first, True)
    return out


def integers(rng: random.Random, op: Op) -> dict[str, Any]:
    values = np.random.default_rng(rng.getrandbits(32))
    return {o.name: values.integers(-3, 4, o.shape).astype(np.float32) for o in op.operands}


def problem(rng: random.Random, kind: str) -> Op:
    """Whatever oneDNN may refuse for its geometry comes out right all the same."""
    groups = rng.choice((1, 1, 2))
    c, k = (groups * rng.choice((3, 8, 16, 20)) for _ in range(2))
    r, s = rng.choice((2, 3, 5)), rng.choice((1, 1, 2, 3))
    h, w = rng.randint(r, 40), rng.randint(r, 24)
    pad = f"{rng.randint(0, r - 1)}:{rng.randint(0, r - 1)}"
    extra = "" if kind == "dgrad" else f" bias={rng.randint(0, 1)} act={rng.choice(('identity', 'relu', 'leaky_relu'))}"
    sizes = f"n={rng.choice((1, 2, 5))} c={c} h={h} w={w} k={k} r={r} s={r}"
    return parse(f"conv.{kind} {sizes} stride={s} pad={pad} groups={groups} dtype=f32{extra}")


@pytest.mark.parametrize("kind", ["fprop", "dgrad"])
@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_pieces_are_exact(kind: str, threads: int, cut: float) -> None:
    rng = random.Random(f"{kind} {threads} {cut}")
    for _ in range(25):
        op = problem(rng, kind)
        arrays = integers(rng, op)
        for first in (True, False):
            wanted = made(op, "plain", 1, arrays, first)
            np.testing.assert_array_equal(made(op, "onednn", threads, arrays, first), wanted, err_msg=str(op))


def test_threads_change_no_bit_of_a_piece(cut: float) -> None:
    """Whoever computes it; how many there are may choose other code, as sizes do."""
    op = parse("conv.fprop n=3 c=20 h=30 w=31 k=24 r=3 s=3 pad=1 dtype=f32 act=relu")
    values = np.random.default_rng(0)
    arrays = {o.name: values.standard_normal(o.shape, dtype=np.float32) for o in op.operands}
    found = {made(op, "onednn", 4, arrays).tobytes() for _ in range(10)}
    assert len(found) == 1


@pytest.mark.parametrize("act", ["relu", "clipped_relu", "elu", "leaky_relu", "sigmoid", "tanh"])
def test_not_a_number_stays_one(act: str, cut: float) -> None:
    op = parse(f"conv.fprop n=2 c=16 h=12 w=13 k=16 r=3 s=3 pad=1 dtype=f32 act={act}")
    arrays = integers(random.Random(1), op)
    arrays["x"][1, 3, 5, 6] = np.nan
    wanted, found = made(op, "plain", 1, arrays), made(op, "onednn", 2, arrays)
    assert np.isnan(wanted).sum() == 9 * 16
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-37)  # where exp underflows


def test_workspace_grows_with_pieces_not_with_tiles() -> None:
    """Copies of x and y are those of the pieces at hand."""
    family = CpuBackend.families["onednn"]
    small, large = (parse(f"conv.fprop n={n} c=64 h=112 w=112 k=64 r=3 s=3 pad=1 dtype=f32") for n in (8, 64))
    assert family.workspace(large, large.dims, 2) == family.workspace(small, small.dims, 2) < 16 << 20


def test_a_thin_tile_is_shared_too() -> None:
    """Rows too few for two thick pieces: each thread has one, and memory for it."""
    library = open_onednn()
    assert library is not None
    lifted: list[tuple[int, ...]] = []
    for shape in ((1, 256, 8, 56), (256, 256, 3, 3), (1, 256, 8, 56)):
        lifted += [(*shape[:2], 1, *shape[2:]), (math.prod(shape[1:]), math.prod(shape[2:]), 0, shape[3], 1)]
    geometry = ((1, 1, 1), (1, 1, 1), (0, 1, 1), 1)
    alone, shared = (library.conv("fprop", *lifted, *geometry, False, 0, 0.0, False, threads) for threads in (1, 2))
    assert shared.workspace_bytes > alone.workspace_bytes
