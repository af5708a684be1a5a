"""What is remembered of ops, and of their tiles, is what they are."""

from __future__ import annotations

import pickle

import pytest

from ooc.errors import ShapeError
from ooc.ir.fused import Fused, fuse
from ooc.ir.region import Span
from ooc.ops import ConvFprop, PoolForward

pytestmark = pytest.mark.quick


def test_equal_ops_are_one_object() -> None:
    one = ConvFprop(1, 3, (8, 8), 4, (3, 3))
    assert ConvFprop(n=1, c=3, extent=(8, 8), k=4, taps=(3, 3), stride=(1, 1)) is one
    assert fuse(one, PoolForward("max", 1, 4, (6, 6), (2, 2), (2, 2))) is fuse(
        one, PoolForward("max", 1, 4, (6, 6), (2, 2), (2, 2))
    )
    assert ConvFprop(1, 3, (8, 8), 4, (3, 3), dtype="f64") is not one


def test_what_is_refused_stays_refused() -> None:
    for _ in range(2):
        with pytest.raises(ShapeError):
            ConvFprop(1, 3, (2, 2), 4, (3, 3))
    pool, conv = PoolForward("max", 1, 5, (6, 6), (2, 2), (2, 2)), ConvFprop(1, 3, (8, 8), 4, (3, 3))
    for _ in range(2):
        with pytest.raises(ShapeError):
            fuse(conv, pool)


def test_remembered_tiles_are_those_of_the_maps() -> None:
    op = fuse(ConvFprop(1, 3, (64, 64), 4, (3, 3), pad=((1, 1), (1, 1))), PoolForward("max", 1, 4, (64, 64), (2, 2), (2, 2)))
    assert isinstance(op, Fused)
    for turn in range(2):  # more tiles than are remembered
        for at in range(31):
            for beside in range(31):
                tile = {d: Span(0, e) for d, e in op.dims.items()} | {"p": Span(at, at + 2), "q": Span(beside, beside + 1)}
                own = [{d: m.span(tile).clip(e) for d, (m, e) in maps.items()} for maps in op.stage_maps]
                assert list(op.stage_tiles(tile)) == own, turn
                for operand in op.operands:
                    assert operand.reach(tile) == tuple(axis.span(tile) for axis in operand.axes)


def test_an_op_travels_without_what_is_remembered_of_it() -> None:
    conv = ConvFprop(1, 3, (8, 8), 4, (3, 3))
    for op in (conv, fuse(conv, PoolForward("max", 1, 4, (6, 6), (2, 2), (2, 2)))):
        assert hash(op) == hash(op) and op.inputs
        assert pickle.loads(pickle.dumps(op)) is op
        assert b"inputs" not in pickle.dumps(op)
