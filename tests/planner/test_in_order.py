"""Tilings that are said to keep the order of every sum keep it: the same bits however an op is cut, fused ones too."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cases import noise
from cases_fused import FUSED
from cases_ops import KINDS, random_common
from running import execute
from sweeps import swept

from ooc.backends.cpu.backend import CpuBackend
from ooc.errors import UnsupportedError
from ooc.ir.op import Op
from ooc.ops.descriptor import parse
from ooc.planner.tilings import in_order, orders
from ooc.schedule.plan import Plan

FORMS = KINDS | FUSED
BACKEND = CpuBackend(2)
# dw and dx from one pass over dy: a part of dx reaches over rows of dy, each of which is summed in one of them.
BOTH = "x,dy>dw:0! conv.wgrad {0} dtype=f32 | dy,w.1>dx! conv.dgrad {0} dtype=f32"
SHAPES = (
    "n=3 c=2 w=13 k=3 s=4 pad=2",
    "n=3 c=2 h=9 w=8 k=3 r=3 s=3 pad=1",
    "n=2 c=2 d=6 h=7 w=5 k=3 t=3 r=3 s=3 pad=1",
    "n=2 c=2 d=6 h=7 w=5 k=3 t=2 r=3 s=3 pad=1x2x0",
    "n=2 c=2 d=7 h=7 w=5 k=3 t=3 r=2 s=3 stride=2x1x2 pad=1",
    "n=2 c=2 d=9 h=9 w=5 k=3 t=2 r=3 s=3 dilation=3x2x1 pad=2",
)


def plan(op: Op, sizes: dict[str, int], order: tuple[str, ...]) -> Plan:
    offer = next(o for o in BACKEND.offers(op) if o.name == "plain")
    return Plan(op, tuple(sizes.items()), order, shared=True, kernel="plain", workspace_bytes=int(offer.workspace(sizes)))


def assert_the_same_bits(op: Op, rng: random.Random, count: int) -> int:
    """In so many tilings that the planner may choose with `deterministic`; returns how many cut a sum."""
    if not any(offer.name == "plain" and offer.ordered for offer in BACKEND.offers(op)):
        return 0
    arrays, cut = noise(rng, op), 0
    wanted = execute(plan(op, dict(op.dims), tuple(op.dims)), arrays, BACKEND, None)
    for _ in range(count):
        sizes = op.legal({d: rng.choice((1, 1, rng.randint(1, e), e)) for d, e in op.dims.items()})
        if not np.all(in_order(op, {d: np.array([size]) for d, size in sizes.items()})):
            continue
        order = rng.choice(orders(op))
        got = execute(plan(op, sizes, order), arrays, BACKEND, rng)
        cut += any(sizes[d] < op.dims[d] for fold in op.folds for d in fold.reduce)
        for name in wanted:
            assert got[name].tobytes() == wanted[name].tobytes(), f"{name} of {op} in tiles {sizes}, {order}"
    return cut


@pytest.mark.parametrize("shape", SHAPES)
def test_two_gradients_of_one_pass(shape: str) -> None:
    assert assert_the_same_bits(parse(BOTH.format(shape)), random.Random(shape), 60) > 0


@pytest.mark.parametrize("form", swept(tuple(FORMS), suite=len(FORMS)))
def test_random_forms(form: str) -> None:
    rng = random.Random(form)
    for _ in range(3):
        try:
            op = FORMS[form](rng, random_common(rng))
        except UnsupportedError:
            continue
        assert_the_same_bits(op, rng, 12)
