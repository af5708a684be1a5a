"""The grammar of descriptors: what is written is read back, and what cannot be read says why."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ooc.errors import ShapeError
from ooc.ir.op import DTYPES, LAYOUTS, Op
from ooc.ops.descriptor import parse
from ooc.ops.registry import KINDS

pytestmark = pytest.mark.quick

CONV = "conv.fprop n=2 c=4 h=6 w=5 k=6 r=3 s=3"


@pytest.mark.parametrize("seed", range(60))
def test_descriptor_round_trip(seed: int, random_op: Callable[..., Op]) -> None:
    rng = random.Random(seed)
    op = random_op(rng, 3, {"dtype": rng.choice(DTYPES), "layout": rng.choice(LAYOUTS)})
    assert parse(str(op)) == op
    assert hash(parse(str(op))) == hash(op)
    assert str(parse(str(op))) == str(op)


@pytest.mark.parametrize(
    ("short", "full"),
    [
        (f"{CONV} pad=1 stride=2", f"{CONV} stride=2x2 pad=1:1x1:1 dtype=f32"),
        (f"{CONV} pad=0:1x2", f"{CONV} dilation=1 pad=0:1x2:2 groups=1 bias=0 act=identity"),
        ("pool.max n=1 k=2 w=8", "pool.max n=1 k=2 w=8 window=2 stride=2 pad=0"),
        ("pool.average n=1 k=2 w=8 window=3", "pool.average w=8 n=1 k=2 stride=3 window=3"),
        ("place n=1 c=2 h=5 w=5 k=2 size=3 lead=0x-1x-1", "place n=1 c=2 h=5 w=5 k=2 size=3x3 lead=0x-1x-1 dtype=f32"),
        ("dropout n=1 k=2 w=3 seed=7 drawn=0", "dropout n=1 k=2 w=3 seed=7"),
        ("pointwise n=1 k=2 w=3 act=elu", "pointwise n=1 k=2 w=3 act=elu coef=1"),
    ],
)
def test_defaults_of_the_grammar(short: str, full: str) -> None:
    assert parse(short) == parse(full)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown operation ''"),
        ("conv n=1", "unknown operation 'conv'"),
        (f"{CONV} |", "unknown operation ''"),
        (f"{CONV} size=3", "unknown key size"),
        (f"{CONV} n=2", "key=value once each"),
        (f"{CONV} stride", "key=value once each"),
        (f"{CONV} stride=", "key=value once each"),
        (f"{CONV} stride=1x2x3", "stride= expected 1 or 2 integers, got 3"),
        (f"{CONV} stride=two", "stride= expected integers, got 'two'"),
        (f"{CONV} pad=1:2:3", "pad= expected 1 or 2 values or before:after pairs"),
        (f"{CONV} pad=a", "pad= expected integers, got 'a'"),
        (f"{CONV} dtype=int8", "dtype= expected one of f64, f32, f16, bf16; got 'int8'"),
        (f"{CONV} layout=NCHW", "layout= expected one of"),
        (f"{CONV} act=gelu", "act= expected one of"),
        (f"{CONV} act=elu coef=x", "coef= expected a number, got 'x'"),
        ("conv.fprop c=4 h=6 w=5 k=6 r=3 s=3", "n= expected an integer, got None"),
        ("conv.fprop n=1 c=4 k=6 s=3", "w= (and h=, d=) expected"),
        ("conv.fprop n=1 c=4 h=6 w=5 k=6 s=3", "r= expected an integer"),
        (f"{CONV} groups=3", "groups=3 must divide c=4 and k=6"),
        (f"{CONV} groups=0", "groups must be at least 1, got 0"),
        (f"{CONV} pad=-1", "padding must not be negative"),
        (f"{CONV} dilation=3", "does not fit extents (6, 5)"),
        (f"{CONV} stride=0", "stride must be at least 1"),
        ("concat n=1 channels=3x0 w=2", "channels must be at least 1, got (3, 0)"),
        ("concat n=1 w=2", "channels= expected an integer"),
        ("place n=1 c=2 h=5 w=5 k=2 size=3 lead=1", "lead= of 3 axes, got (3, 3), (1,)"),
        ("place n=1 c=2 h=5 w=5 k=2 size=3 lead=0x-x1", "lead= expected integers, got '0x-x1'"),
        ("multiply n=1 k=2 w=3 by=q", "by= takes letters of knw, or 1; got 'q'"),
        ("pointwise n=1 k=2 w=3 add=q", "add= and of= take letters of knw, or 1; got 'q'"),
        ("conv.fprop n=0 c=4 h=6 w=5 k=6 r=3 s=3", "n must be at least 1, got 0"),
        ("pool.max n=1 k=2 w=8 window=2 pad=2", "must be smaller than the window"),
        ("pool.max n=1 k=2 w=2 window=3", "does not fit extents (2,)"),
        ("pool.median n=1 k=2 w=8", "unknown operation 'pool.median'; known: activation_backward"),
        (f"{CONV} | pool.max n=2 k=5 h=4 w=3", "fused: conv.fprop"),
        (f"{CONV} | pool.max n=2 k=6 h=4 w=3 dtype=f64", "takes (2, 6, 4, 3) f64"),
    ],
)
def test_grammar_errors_say_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(ShapeError) as caught:
        parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize("kind", ["conv", "pool", "softmax", "bn", "", "convolution", "x" * 500])
def test_operations_that_are_known_are_named_whole(kind: str) -> None:
    """Those of the family that was meant, or all families; nothing is left out of the middle."""
    with pytest.raises(ShapeError) as caught:
        parse(f"{kind} n=1")
    words = str(caught.value).partition("known: ")[2].removesuffix("; * or _backward").replace(", ", " ").split()
    named = [w.removesuffix("*") for w in words]
    assert all(any(k == w or k.startswith(f"{w}.") for k in KINDS) for w in named) and len(named) > 2
    members = [k for k in KINDS if k.startswith(f"{kind}.")]
    assert all(f"{w}_backward".split(".")[0] in {k.split(".")[0] for k in KINDS} for w in named if f"{w}*" in words)
    assert set(words) == set(members) if members else {"conv", "upsample"} <= set(named)
