"""Ops, and chains of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
from cases import tiles_of

from ooc.errors import DtypeError, ShapeError
from ooc.ir.fused import Fused, fuse
from ooc.ir.op import DTYPES, Block, Op, compute_dtype, crop, dtype_name, fit, numpy_dtype
from ooc.ir.region import Span, extents
from ooc.ops.descriptor import parse

pytestmark = pytest.mark.quick

CONV = "conv.fprop n=2 c=4 h=6 w=5 k=6 r=3 s=3"


def test_legal_clamps_and_keeps_groups_whole() -> None:
    op = parse("conv.fprop n=2 c=8 w=9 k=4 s=2 groups=2 dtype=f32")
    assert op.dims == {"n": 2, "g": 2, "k": 2, "q": 8, "c": 4}
    assert op.legal({"n": 9, "g": 2, "k": 1, "q": 0, "c": 1}) == {"n": 2, "g": 2, "k": 2, "q": 1, "c": 4}
    assert op.legal({"g": 1, "k": 1, "c": 3}) == {"n": 2, "g": 1, "k": 1, "q": 8, "c": 3}


@pytest.mark.parametrize("seed", range(30))
def test_legal_is_idempotent_within_extents_and_keeps_whole_dims(seed: int, random_op: Callable[..., Op]) -> None:
    rng = random.Random(seed)
    op = random_op(rng)
    sizes = op.legal({d: rng.randint(-1, 2 * e) for d, e in op.dims.items()})
    assert op.legal(sizes) == sizes
    assert all(1 <= sizes[d] <= e for d, e in op.dims.items())
    assert all(sizes[d] == op.dims[d] for d in op.whole)


@pytest.mark.parametrize("seed", range(40))
def test_stage_tiles_make_what_the_next_stage_reads(seed: int, random_op: Callable[..., Op]) -> None:
    """Each stage's tile makes every intermediate that its consumer's tile reads, within the stage's own extents."""
    rng = random.Random(seed)
    op = random_op(rng)
    while not isinstance(op, Fused):
        op = random_op(rng)
    sizes = op.legal({d: rng.randint(1, e) for d, e in op.dims.items()})
    bounds = op.stage_sizes(sizes)
    for tile in tiles_of(op, sizes):
        own = op.stage_tiles(tile)
        for i, (producer, consumer) in enumerate(itertools.pairwise(op.stages)):
            made = producer.outputs[0].region(own[i])
            read = consumer.inputs[0].region(own[i + 1])
            assert all(m.lo <= r.lo and r.hi <= m.hi for m, r in zip(made, read, strict=True) if r.extent), str(op)
        assert op.outputs[0].region(tile) == op.stages[-1].outputs[0].region(own[-1])
        for stage, spans, bound in zip(op.stages, own, bounds, strict=True):
            assert set(spans) == set(stage.dims)
            assert all(0 <= s.lo <= s.hi <= stage.dims[d] and s.extent <= bound[d] for d, s in spans.items())


@pytest.mark.parametrize("seed", range(20))
def test_fused_operands_are_the_operands_of_the_stage_tiles(seed: int, random_op: Callable[..., Op]) -> None:
    rng = random.Random(100 + seed)
    op = random_op(rng)
    while not isinstance(op, Fused):
        op = random_op(rng)
    sizes = op.legal({d: rng.randint(1, e) for d, e in op.dims.items()})
    for tile in tiles_of(op, sizes):
        outside = {o.name: o for o in op.inputs}
        for own, node in zip(op.stage_tiles(tile), op.nodes, strict=True):
            for operand, tensor in zip((*node.op.inputs, *node.op.outputs), (*node.reads, *node.makes), strict=True):
                seen = outside.get(tensor) or op.computed[tensor]
                needed, held = operand.region(own), seen.region(tile)
                assert all(h.lo <= n.lo and n.hi <= h.hi for n, h in zip(needed, held, strict=True) if n.extent), str(op)
                assert tensor not in outside or needed == held, f"{op}: {tensor}"


def test_chain_names_operands_by_stage() -> None:
    op = parse(f"{CONV} pad=1 bias=1 | conv.fprop n=2 c=6 h=6 w=5 k=3 r=1 s=1 bias=1 | pool.max n=2 k=3 h=6 w=5")
    assert [o.name for o in op.inputs] == ["x", "w", "b", "w.1", "b.1"]
    assert [o.name for o in op.outputs] == ["y"] and op.outputs[0].shape == (2, 3, 3, 2)
    assert op.reduce == ("c",) and op.dims == {"n": 2, "k": 3, "p": 3, "q": 2, "c": 4}


def test_chain_of_convolutions_reads_the_halo_of_both() -> None:
    conv = "conv.fprop n=1 c=2 w=10 k=2 s=3 pad=1"
    op = parse(f"{conv} | {conv}")
    tile = {"n": Span(0, 1), "k": Span(0, 1), "q": Span(4, 6), "c": Span(0, 2)}
    x, first, second, *_ = op.inputs
    assert x.region(tile)[2] == Span(2, 8)  # 4:6 -> 3:7 -> 2:8
    assert first.region(tile)[0] == Span(0, 2)  # the second convolution needs every channel of the first
    assert second.region(tile)[0] == Span(0, 1)


def test_fuse_flattens_and_one_op_stays_itself() -> None:
    op = parse("pointwise n=1 k=2 w=3 act=relu")
    assert fuse(op) is op
    chain = fuse(fuse(op, op), op)
    assert isinstance(chain, Fused) and chain.stages == (op, op, op)
    with pytest.raises(ShapeError, match="at least one"):
        Fused((), ())


def test_flops_of_a_whole_convolution() -> None:
    op = parse("conv.fprop n=2 c=4 h=6 w=5 k=6 r=3 s=3 pad=1 groups=2")
    assert op.flops(op.dims) == 2 * (2 * 6 * 6 * 5) * (3 * 3 * 2)


@pytest.mark.parametrize("name", DTYPES)
def test_dtype_names_round_trip(name: str) -> None:
    assert dtype_name(numpy_dtype(name)) == name
    assert compute_dtype(name) == ("f64" if name == "f64" else "f32")


@pytest.mark.parametrize("dtype", [np.int32, np.complex64, bool, object, ">f4", "S4"])
def test_other_dtypes_are_refused(dtype: object) -> None:
    with pytest.raises(DtypeError, match="not supported; expected float64, float32, float16 or bfloat16"):
        dtype_name(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_types_sum_in_f32_and_their_bias_is_f32(dtype: str) -> None:
    op = parse(f"{CONV} bias=1 dtype={dtype}")
    x, w, b = op.inputs
    assert (x.dtype, w.dtype, b.dtype) == (dtype, dtype, compute_dtype(dtype))
    assert [o.dtype for o in op.state] == [compute_dtype(dtype)]
    assert op.state[0].name == ("acc" if dtype in ("f16", "bf16") else "y")
    assert parse(f"{CONV} dtype={dtype} | pointwise n=2 k=6 h=4 w=3 dtype={dtype}").state[0].name == "acc"


def test_channels_last_keeps_channels_fastest() -> None:
    op = parse(f"{CONV} layout=channels_last")
    assert [o.memory_order for o in op.operands] == [(0, 2, 3, 1)] * 3
    assert parse(CONV).inputs[0].memory_order == (0, 1, 2, 3)


def test_crop_and_fit_give_the_part_and_its_pad() -> None:
    block = Block(np.arange(12).reshape(3, 4), (Span(2, 5), Span(0, 4)), 7)
    part = crop(block, (Span(3, 9), Span(1, 3)))
    assert part.array.tolist() == [[5, 6], [9, 10]] and part.region == (Span(3, 5), Span(1, 3)) and part.stamp == 7
    array, pad = fit(block, (Span(0, 4), Span(-1, 2)))
    assert array.tolist() == [[0, 1], [4, 5]] and pad == (2, 1)
    empty, pad = fit(block, (Span(6, 8), Span(0, 4)))
    assert empty.shape == (0, 4) and pad == (0, 0) and extents(crop(block, (Span(6, 8), Span(0, 4))).region) == (0, 4)
